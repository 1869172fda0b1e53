"""Committing, checking and deleting checkpoints.

A checkpoint is a directory `checkpoint_NNNNNN` with a manifest. It is *committed* when the manifest
is in place, and *verified* when what it says is what is there. Staged under another name, synced
and renamed where renames are atomic; elsewhere the manifest, written last, is the commit.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

import xxhash

from raytrials.errors import CorruptManifestError, SourceChangedError, StorageError
from raytrials.store.disk import Disk, Entry, Reader, Writer
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import (
    MANIFEST,
    RAY_METADATA,
    FileRecord,
    Header,
    Manifest,
    checkpoint_name,
    digest_of,
    index_of,
)
from raytrials.store.retrying import retry

STAGING = ".staging-"
REMOVED = ".removed-"

DISPENSABLE_RETRY_S = 0.5
"""How long an empty file is tried again on an object store, which may take none at all."""

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


# --- commit --------------------------------------------------------------------------------------


def commit(
    disk: Disk,
    directory: str,
    header: Header,
    source: tuple[Disk, str],
    *,
    retry_s: float,
) -> Manifest:
    """Copy a directory to storage as a checkpoint, and return its manifest.

    Each byte is read once: digests are taken of what is written. A manifest in the source, of the
    checkpoint that it was a copy of, is left out.

    Args:
        disk: where it goes.
        directory: the trial's directory there; the checkpoint's name is added.
        header: names it. Nothing may stand under that name yet.
        source: where it comes from, and the path of the directory there.
        retry_s: how long a storage that fails is tried again.

    Raises:
        StorageError: the storage failed for good. Nothing is committed, unless the answer to the
            very last step was lost; leftovers may stay.
        SourceChangedError: the source's files changed meanwhile, or it is not there.
    """
    name = checkpoint_name(header.index)
    final = f"{directory}/{name}"
    place = (
        f"{directory}/{STAGING}{header.index:06d}-{header.attempt}" if disk.has_rename else final
    )
    copy = _Copy(disk, place, *source, retry_s)
    copy.check_source_exists()
    copy.refuse_existing(final)
    copy.make_directories()
    manifest = Manifest(header, copy.copy_files())
    copy.check_source()
    copy.write_manifest(manifest)
    if disk.has_rename:
        copy.rename(final, manifest)
    return manifest


class _Copy:
    """One copy on its way from a source to its place on storage."""

    def __init__(
        self, disk: Disk, place: str, source: Disk, source_path: str, retry_s: float
    ) -> None:
        self._disk = disk
        self._place = place
        self._source = source
        self._source_path = source_path
        self._retry_s = retry_s
        self._directories: list[str] = []
        self._entries = self._list_source()

    def _list_source(self) -> dict[str, Entry]:
        entries = retry(
            self._source,
            "listing",
            self._source_path,
            lambda: self._source.list_files(self._source_path),
            limit_s=self._retry_s,
        )
        entries.pop(MANIFEST, None)
        return entries

    def _do(self, what: str, path: str, operation: Callable[[], None]) -> None:
        retry(self._disk, what, path, operation, limit_s=self._retry_s)

    def check_source_exists(self) -> None:
        if self._entries:
            return
        above, _, name = self._source_path.rstrip("/").rpartition("/")
        if name not in self._source.list_names(above or "/"):
            raise SourceChangedError(self._source_path, "there is no such directory")

    def refuse_existing(self, final: str) -> None:
        names = retry(
            self._disk,
            "listing",
            final,
            lambda: self._disk.list_names(final),
            limit_s=self._retry_s,
        )
        if names:
            detail = f"it holds {len(names)} files of another commit"
            raise StorageError("commit", final, "refused", detail)

    def make_directories(self) -> None:
        self._directories = retry(
            self._source,
            "listing",
            self._source_path,
            lambda: self._source.list_directories(self._source_path),
            limit_s=self._retry_s,
        )
        if self._disk.has_rename:
            # What a failed commit of the same name left would be taken for part of this one.
            self._do("clearing", self._place, lambda: self._disk.delete_tree(self._place))
        for below in ("", *self._directories):
            path = f"{self._place}/{below}".rstrip("/")
            self._do("making a directory", path, functools.partial(self._disk.make_directory, path))

    def copy_files(self) -> dict[str, FileRecord]:
        sizes = {name: entry.size for name, entry in self._entries.items()}
        records: dict[str, FileRecord] = {}

        def copy_share(share: Sequence[str]) -> None:
            buffer = buffer_for(self._source, self._disk)
            for name in share:
                records[name] = self._copy_file(name, buffer)

        in_parallel(copy_share, shares_of(list(sizes), sizes, self._disk))
        records.pop(RAY_METADATA, None)
        return records

    def _copy_file(self, name: str, buffer: memoryview) -> FileRecord:
        target = f"{self._place}/{name}"

        def once() -> FileRecord:
            with (
                self._source.open(f"{self._source_path}/{name}") as reader,
                self._disk.create(target) as writer,
            ):
                return pump(reader, buffer, writer, expected)

        expected = self._entries[name].size
        dispensable = expected == 0 and not self._disk.has_rename
        limit_s = min(DISPENSABLE_RETRY_S, self._retry_s) if dispensable else self._retry_s
        try:
            record = retry(self._disk, "writing", target, once, limit_s=limit_s)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError) and name not in self._list_source():
                raise SourceChangedError(self._source_path, f"{name} was deleted") from error
            if not dispensable or error.kind in {"full", "forbidden"}:
                raise
            # Some stores take no empty files: the manifest alone tells of this one.
            record = FileRecord(0, digest_of(b""), omitted=True)
        if record.size != expected:
            detail = f"{name} had {expected} bytes, then {record.size}"
            raise SourceChangedError(self._source_path, detail)
        return record

    def check_source(self) -> None:
        now = self._list_source()
        changed = sorted(
            (now.keys() | self._entries.keys())
            - {name for name, entry in now.items() if self._entries.get(name) == entry}
        )
        if changed:
            raise SourceChangedError(self._source_path, f"{', '.join(changed[:3])} changed")

    def write_manifest(self, manifest: Manifest) -> None:
        # The names of the files are durable before the manifest says that they are there.
        for below in reversed(("", *self._directories)):
            path = f"{self._place}/{below}".rstrip("/")
            self._do("syncing", path, functools.partial(self._disk.sync, path))
        path = f"{self._place}/{MANIFEST}"
        data = manifest.encode()
        self._do("writing", path, lambda: self._disk.write(path, data))

    def rename(self, final: str, manifest: Manifest) -> None:
        def once() -> None:
            try:
                self._disk.rename(self._place, final)
            except OSError:
                if not is_done():
                    raise

        def is_done() -> bool:
            """Whether it worked, and only the answer was lost."""
            with contextlib.suppress(FileNotFoundError):
                return self._disk.read(f"{final}/{MANIFEST}") == manifest.encode()
            return False

        parent = os.path.dirname(final)  # noqa: PTH120 - a path on the store, not here
        self._do("syncing", self._place, lambda: self._disk.sync(self._place))
        self._do("renaming", final, once)
        self._do("syncing", parent, lambda: self._disk.sync(parent))


THREADS = 16
"""The most threads that work on a checkpoint."""

FILE_BYTES = 64 * 1024
"""What opening a file costs, in bytes that could be copied meanwhile."""


def buffer_for(*disks: Disk) -> memoryview:
    """Return a buffer for copying between disks; its memory is taken as it is used."""
    return memoryview(mmap.mmap(-1, max(disk.chunk_bytes for disk in disks), mmap.MAP_PRIVATE))


def shares_of(names: Sequence[str], sizes: Mapping[str, int], disk: Disk) -> list[list[str]]:
    """Divide files among threads, the largest first, so that all have about the same to do."""
    count = min(THREADS, len(names), disk.threads([sizes[name] for name in names]))
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]  # a heap, the lightest first
    for name in sorted(names, key=sizes.__getitem__, reverse=True):
        load, number = loads[0]
        shares[number].append(name)
        heapq.heapreplace(loads, (load + sizes[name] + FILE_BYTES, number))
    return shares


def in_parallel(work: Callable[[Sequence[str]], None], shares: list[list[str]]) -> None:
    """Run `work` on each share in a thread of its own; raise the first error."""
    if len(shares) <= 1:
        for share in shares:
            work(share)
        return
    with ThreadPoolExecutor(len(shares), thread_name_prefix="raytrials-copy") as pool:
        for future in [pool.submit(work, share) for share in shares]:
            future.result()


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


def pump(
    reader: Reader, buffer: memoryview, writer: Writer | None, until: int | None = None
) -> FileRecord:
    """Read a file to its end, write it if there is a writer, and return what it is.

    With `until`, the end is known to be there: a last read that finds nothing is saved.
    """
    digest = xxhash.xxh3_128()
    size = 0
    while size != until and (count := reader.readinto(buffer)):
        chunk = buffer[:count]
        digest.update(chunk)
        if writer is not None:
            writer.write(chunk)
        size += count
    return FileRecord(size, digest.hexdigest())


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
