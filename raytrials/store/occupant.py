"""What a path holds: nothing, or an experiment; and how an experiment is removed from it."""

from __future__ import annotations

import functools
import json
import posixpath
from collections.abc import Iterator

from raytrials.store.disk import Disk
from raytrials.store.manifest import index_of
from raytrials.store.recovery import HOME, JOURNAL, LEASE, SNAPSHOTS, has_journal
from raytrials.store.retrying import retry
from raytrials.store.saved import is_state_file
from raytrials.store.tunerfile import COPY, TUNER, read

_RESULTS = {"result.json", "progress.csv"}


def names_in(disk: Disk, directory: str, *, retry_s: float) -> set[str]:
    """Return the names in a directory, none if it is not there. Raises StorageError."""
    return retry(disk, "listing", directory, lambda: disk.list_names(directory), limit_s=retry_s)


def occupant_of(disk: Disk, path: str, *, retry_s: float) -> str:
    """Return what shows that a path holds an experiment, in words; "" if it holds none.

    That is a journal, a state file of Ray's, or results or checkpoints of a trial. A tuner that was
    made and never fitted is no experiment: nothing is lost with it.

    Args:
        disk: where the path is.
        path: of the directory, which need not exist.
        retry_s: how long a storage that fails is tried again.

    Raises:
        StorageError: the storage failed for good.
    """
    names = names_in(disk, path, retry_s=retry_s)
    if HOME in names and has_journal(disk, f"{path}/{HOME}", retry_s=retry_s):
        return "a journal"
    for name in sorted(names):
        if is_state_file(name):
            return name
    for name in sorted(names - {HOME, TUNER}):
        inner = names_in(disk, f"{path}/{name}", retry_s=retry_s)
        found = sorted(one for one in inner if one in _RESULTS or index_of(one) is not None)
        if found:
            return f"{name}/{found[0]}"
    return ""


def whole_states(disk: Disk, path: str, *, retry_s: float) -> Iterator[tuple[str, str]]:
    """Yield Ray's state files of an experiment, the newest first.

    Yields:
        The name of each, and what is wrong with it in words; "" if it is whole.

    Raises:
        StorageError: the storage failed for good.
    """
    names = names_in(disk, path, retry_s=retry_s)
    for name in sorted(filter(is_state_file, names), reverse=True):
        data = read(disk, f"{path}/{name}", retry_s=retry_s)
        yield name, "it is gone" if data is None else _problem_of(data)


def _problem_of(data: bytes) -> str:
    if not data:
        return "it is empty"
    try:
        state = json.loads(data)
    except (ValueError, RecursionError) as error:
        return f"it is no whole JSON: {error}"
    if not isinstance(state, dict) or not isinstance(state.get("trial_data"), list):
        return "it is no state of an experiment"
    return "" if state["trial_data"] else "it names no trial"


def remove(disk: Disk, path: str, *, retry_s: float) -> None:
    """Remove an experiment with all that is in its directory, which stays.

    Links are removed, and what they lead to stays. Epochs go on counting: the leases stay. When it
    is interrupted the rest still shows that there was an experiment, and cannot be restored: what a
    restore needs goes first, what shows it goes last.

    Args:
        disk: where the experiment is, for who holds its lease.
        path: its directory.
        retry_s: how long a storage that fails is tried again.

    Raises:
        StorageError: the storage failed for good; it may be removed in part.
    """
    for name in _in_order(disk, path, retry_s=retry_s):
        at = f"{path}/{name}"
        once = functools.partial(_delete, disk, path, name)
        retry(disk, "deleting", at, once, limit_s=retry_s)
    retry(disk, "syncing", path, lambda: disk.sync(path), limit_s=retry_s)


def _in_order(disk: Disk, path: str, *, retry_s: float) -> list[str]:
    """Return what is to be removed, relative to the experiment, in this order."""
    names = names_in(disk, path, retry_s=retry_s)
    ours = {f"{HOME}/{name}" for name in names_in(disk, f"{path}/{HOME}", retry_s=retry_s)}
    first = [f"{HOME}/{COPY}", TUNER]
    last = [*sorted(filter(is_state_file, names)), f"{HOME}/{SNAPSHOTS}", f"{HOME}/{JOURNAL}"]
    found = (names - {HOME}) | (ours - {f"{HOME}/{LEASE}"})
    between = sorted(found.difference(first, last))
    return [name for name in (*first, *between, *last) if name in found]


def _delete(disk: Disk, path: str, name: str) -> None:
    at = f"{path}/{name}"
    if not disk.has_rename and disk.list_names(at):
        disk.delete_tree(at)
        return
    try:
        disk.delete_file(at)  # of a link: the link
    except (IsADirectoryError, PermissionError):
        # What unlinking a directory is answered with.
        if not _is_directory(disk, path, name):
            raise
        disk.delete_tree(at)


def _is_directory(disk: Disk, path: str, name: str) -> bool:
    directory = posixpath.dirname(f"{path}/{name}")
    return posixpath.basename(name) not in disk.list_files(directory)
