"""What a checkpoint on storage is, checking it, and deleting it.

A checkpoint is a directory `checkpoint_NNNNNN` with a manifest. It is *committed* when the manifest
is in place (`raytrials.store.commit`), and *verified* when what it says is what is there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from raytrials.errors import CorruptManifestError
from raytrials.store.copying import buffer_for, in_parallel, pump, shares_of
from raytrials.store.disk import Disk, Entry, Writer
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import (
    MANIFEST,
    RAY_METADATA,
    FileRecord,
    Manifest,
    checkpoint_name,
    index_of,
)

STAGING = ".staging-"
REMOVED = ".removed-"

_OUTSIDE = frozenset({MANIFEST, RAY_METADATA})
"""Files of a checkpoint that its manifest does not list."""


def index_in(name: str) -> int | None:
    """Return the index in the name of a checkpoint, staged or removed ones included."""
    index = index_of(name)
    if index is None and name.startswith((STAGING, REMOVED)):
        digits = name.split("-")[1]
        index = int(digits) if digits.isdigit() else None
    return index


class Verdict(str, Enum):
    """What a look at a checkpoint gives."""

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    CORRUPT = "corrupt"
    INCOMPLETE = "incomplete"
    MISSING = "missing"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Finding:
    """What a look at a checkpoint gave.

    Attributes:
        verdict: verified; corrupt (a file or the manifest is not what was committed); incomplete
            (no manifest, so it was never committed or is half deleted); missing (nothing there).
        problem: which file, what was expected and what was found; "" for a verified one.
        manifest: None unless it could be read.
    """

    verdict: Verdict
    problem: str = ""
    manifest: Manifest | None = None


# --- check ---------------------------------------------------------------------------------------


def inspect(disk: Disk, path: str, *, full: bool) -> Finding:
    """Look at a checkpoint.

    Args:
        disk: where it is.
        path: of its directory.
        full: read every byte and compare digests; otherwise the manifest, and the names and sizes
            of one listing.

    Raises:
        Exception: what the filesystem raised; that says nothing of the checkpoint.
    """
    entries = disk.list_files(path)
    if not entries:
        return Finding(Verdict.MISSING, "nothing is there")
    if MANIFEST not in entries:
        return Finding(Verdict.INCOMPLETE, "it has no manifest")
    try:
        manifest = Manifest.decode(disk.read(f"{path}/{MANIFEST}"))
    except FileNotFoundError:
        return Finding(Verdict.INCOMPLETE, "it has no manifest")
    except CorruptManifestError as error:
        return Finding(Verdict.CORRUPT, f"{MANIFEST}: {error.detail}")
    problem = _name_problem(path, manifest) or _size_problem(entries, manifest, disk)
    if not problem and full:
        problem = _digest_problem(disk, path, manifest)
    return Finding(Verdict.CORRUPT if problem else Verdict.VERIFIED, problem, manifest)


def _name_problem(path: str, manifest: Manifest) -> str:
    name = path.rstrip("/").rpartition("/")[2]
    expected = checkpoint_name(manifest.header.index)
    return "" if name == expected else f"its manifest is that of {expected}"


def _size_problem(entries: dict[str, Entry], manifest: Manifest, disk: Disk) -> str:
    for name, record in manifest.files.items():
        entry = entries.get(name)
        if entry is None:
            if record.omitted or (record.size == 0 and not disk.has_rename):
                continue  # some object stores take no empty files, when copied to either
            return f"{name}: missing"
        if entry.size != record.size:
            return f"{name}: expected {record.size} bytes, found {entry.size}"
    extra = sorted(set(entries) - set(manifest.files) - _OUTSIDE)
    return f"{extra[0]}: does not belong to it" if extra else ""


def _digest_problem(disk: Disk, path: str, manifest: Manifest) -> str:
    problems = dict.fromkeys(manifest.files, "")
    sizes = {name: record.size for name, record in manifest.files.items()}

    def check(share: Sequence[str]) -> None:
        buffer = buffer_for(disk)
        for name in share:
            if sizes[name]:
                found = _digest_file(disk, f"{path}/{name}", buffer)
                problems[name] = compare(name, manifest.files[name], found)

    in_parallel(check, shares_of(list(sizes), sizes, disk))
    return next(filter(None, problems.values()), "")


def _digest_file(
    disk: Disk, path: str, buffer: memoryview, writer: Writer | None = None
) -> FileRecord | None:
    """Return what a file is, None if it is not; what is read goes to `writer` too."""
    try:
        opened = disk.open(path)
        with opened as reader:
            return pump(reader, buffer, writer)
    except FileNotFoundError:
        return None


def compare(name: str, expected: FileRecord, found: FileRecord | None) -> str:
    """Return how a file differs from its record, "" if it does not."""
    if found is None:
        return f"{name}: missing"
    if found.size != expected.size:
        return f"{name}: expected {expected.size} bytes, found {found.size}"
    if found.digest != expected.digest:
        return f"{name}: expected digest {expected.digest}, found {found.digest}"
    return ""


def complete(disk: Disk, path: str, manifest: Manifest) -> None:
    """Make the empty files that a store omitted, in a checkpoint that was copied to a disk."""
    entries = disk.list_files(path)
    for name in sorted(set(manifest.files) - set(entries)):
        if manifest.files[name].omitted:
            disk.make_directory(f"{path}/{os.path.dirname(name)}".rstrip("/"))  # noqa: PTH120
            disk.write(f"{path}/{name}", b"")


def fetch(disk: Disk, path: str, manifest: Manifest, target: str) -> str:
    """Copy a checkpoint to a local directory, checking every byte on its way.

    Args:
        disk: where it is.
        path: of its directory.
        manifest: of it.
        target: an absolute path on this machine; made if it is not there.

    Returns:
        What is wrong with it, as in :class:`Finding`; "" if nothing is, and then `target` holds
        what was committed, and Ray's metadata as it is now.

    Raises:
        Exception: what a filesystem raised; that says nothing of the checkpoint.
    """
    local = LocalDisk(fsync=False)
    problems = dict.fromkeys(manifest.files, "")
    for below in {"", *map(os.path.dirname, manifest.files)}:
        local.make_directory(f"{target}/{below}")

    def copy(share: Sequence[str]) -> None:
        buffer = buffer_for(disk)
        for name in share:
            record = manifest.files[name]
            with local.create(f"{target}/{name}") as writer:
                found = _digest_file(disk, f"{path}/{name}", buffer, writer)
            if record.size or found is not None:
                problems[name] = compare(name, record, found)

    sizes = {name: record.size for name, record in manifest.files.items()}
    in_parallel(copy, shares_of(list(sizes), sizes, disk))
    with contextlib.suppress(FileNotFoundError):
        local.write(f"{target}/{RAY_METADATA}", disk.read(f"{path}/{RAY_METADATA}"))
    return next(filter(None, problems.values()), "")


# --- delete --------------------------------------------------------------------------------------


def delete(disk: Disk, path: str) -> None:
    """Delete a checkpoint so that at no moment half of it looks like one; gone is no error.

    Where renames are atomic it first loses its name, elsewhere its manifest.
    """
    if disk.has_rename:
        parent, _, name = path.rstrip("/").rpartition("/")
        removed = f"{parent}/{REMOVED}{name.rpartition('_')[2]}"
        disk.delete_tree(removed)
        try:
            disk.rename(path, removed)
        except FileNotFoundError:
            return
        disk.sync(parent)  # or a power cut could give the name back to what is half deleted
        disk.delete_tree(removed)
    else:
        disk.delete_file(f"{path}/{MANIFEST}")
        disk.delete_tree(path)
