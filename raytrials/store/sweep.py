"""Deleting what interrupted attempts left behind, unless one of them may still be at work."""

from __future__ import annotations

import datetime as dt
import posixpath
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow.fs

from raytrials.errors import StorageError
from raytrials.store.checkpoint import delete
from raytrials.store.disk import Disk
from raytrials.store.manifest import MANIFEST, index_of
from raytrials.store.retrying import retry

LEAST_AGE_S = 3600.0
"""A leftover that changed later than this may belong to an attempt that lives."""


class Outcome(str, Enum):
    """What became of a leftover."""

    REMOVED = "removed"
    KEPT = "kept"
    FAILED = "failed"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Swept:
    """What a sweep did with a leftover.

    Attributes:
        outcome: removed, kept, or failed to be removed.
        reason: why it was not removed; "" if it was.
        age_s: seconds since anything in it changed; None if the storage does not tell.
    """

    outcome: Outcome
    reason: str = ""
    age_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"outcome": str(self.outcome), "reason": self.reason, "age_s": self.age_s}


def sweep(
    disk: Disk,
    filesystem: pyarrow.fs.FileSystem,
    path: str,
    *,
    retry_s: float,
    least_age_s: float = LEAST_AGE_S,
) -> Swept:
    """Delete a leftover: a staged, removed or incomplete checkpoint. It is looked at once more.

    Args:
        disk: where it is.
        filesystem: the same, for what the port does not tell.
        path: its directory.
        retry_s: how long a storage that fails is tried again.
        least_age_s: what changed later than so many seconds ago may belong to a living attempt; 0
            if all are known to be dead.
    """
    try:
        found = retry(disk, "listing", path, lambda: _look(disk, filesystem, path), limit_s=retry_s)
        if found is None:
            return Swept(Outcome.REMOVED, "it was gone already")
        committed, age_s = found
        if committed:
            return Swept(Outcome.KEPT, "it was committed meanwhile", age_s)
        if least_age_s and age_s is None:
            return Swept(Outcome.KEPT, "the storage does not tell its age")
        if age_s is not None and age_s < least_age_s:
            minutes = max(0, int(age_s // 60))
            return Swept(
                Outcome.KEPT, f"changed {minutes} min ago: its attempt may be alive", age_s
            )
        retry(disk, "deleting", path, lambda: _delete(disk, path), limit_s=retry_s)
    except StorageError as error:
        return Swept(Outcome.FAILED, str(error))
    return Swept(Outcome.REMOVED, age_s=age_s)


def _delete(disk: Disk, path: str) -> None:
    if index_of(posixpath.basename(path)) is None:
        disk.delete_tree(path)
    else:
        delete(disk, path)


def _look(
    disk: Disk, filesystem: pyarrow.fs.FileSystem, path: str
) -> tuple[bool, float | None] | None:
    """Return whether it is a committed checkpoint by now, and its age in seconds; None if gone."""
    if filesystem.get_file_info(path).type == pyarrow.fs.FileType.NotFound:
        return None
    entries = disk.list_files(path)
    is_checkpoint = index_of(posixpath.basename(path)) is not None
    times = [
        entry.modified_s or _modified_s(filesystem, posixpath.join(path, name))
        for name, entry in entries.items()
    ]
    if disk.has_rename:
        times += _directory_times(disk, filesystem, path)
    known = [moment for moment in times if moment]
    age_s = time.time() - max(known) if known and len(known) == len(times) else None
    return is_checkpoint and MANIFEST in entries, age_s


def _directory_times(
    disk: Disk, filesystem: pyarrow.fs.FileSystem, path: str
) -> Iterable[float | None]:
    paths = [path, *(posixpath.join(path, below) for below in disk.list_directories(path))]
    return [info.mtime_ns and info.mtime_ns / 1e9 for info in filesystem.get_file_info(paths)]


def _modified_s(filesystem: pyarrow.fs.FileSystem, path: str) -> float | None:
    """Ask fsspec, whose listings often name the time in a way that pyarrow does not know."""
    inner = getattr(getattr(filesystem, "handler", None), "fs", None)
    try:
        moment = inner.modified(path) if inner is not None else None
    except NotImplementedError:
        return None
    if not isinstance(moment, dt.datetime):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return moment.timestamp()
