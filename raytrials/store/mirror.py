"""Mirroring a directory whose files are written again and again, such as a driver's state."""

from __future__ import annotations

import contextlib
import functools
import io
import operator
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from raytrials.errors import StorageError
from raytrials.store.checkpoint import REMOVED, STAGING
from raytrials.store.copying import buffer_for, pump
from raytrials.store.disk import Disk, Entry, Reader
from raytrials.store.manifest import index_of
from raytrials.store.recovery import HOME
from raytrials.store.retrying import kind_of, retry

_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""What was listed is not there any more, or is something else now."""

_Opener = Callable[[], contextlib.AbstractContextManager[tuple[Reader, Entry]]]


@dataclass(frozen=True)
class _Run:
    """One run: when its time is up, what it copies with, and what failed."""

    until_s: float
    buffer: memoryview
    failures: list[StorageError] = field(default_factory=list)

    def note(self, error: OSError, path: str) -> None:
        """Note an error of the source, unless it is only that something is gone."""
        if not isinstance(error, _GONE):
            detail = f"{type(error).__name__}: {error}"
            self.failures.append(StorageError("reading", path, kind_of(error, path), detail))


class Mirror:
    """Brings what has changed in a local directory to storage, again and again.

    It adds and replaces files, and deletes none, neither here nor there. It leaves out checkpoints,
    also staged and removed ones, and the journal: what was deleted on storage must not come back
    from here. A file on storage is whole at every moment: the new one takes the place of the old
    one in one step. The files directly in the directory go last, and are durable when they have
    arrived. What has arrived is not sent again until its size or its time of change is another.

    Args:
        durable: where it goes.
        quick: the same, for files that may be lost with the machine; None is `durable`.
    """

    def __init__(self, durable: Disk, quick: Disk | None = None) -> None:
        self._durable = durable
        self._quick = quick or durable
        # Of each file that has arrived, as what: digests of both, for there are many.
        self._arrived: dict[int, int] = {}

    def run(
        self,
        source: str,
        target: str,
        *,
        retry_s: float,
        writing: contextlib.AbstractContextManager[object],
    ) -> None:
        """Bring what has changed below a local directory.

        A file that is written on goes as far as it had come when it was opened; the next run brings
        the rest. One that vanishes meanwhile is left out.

        Args:
            source: the directory.
            target: where its files go.
            retry_s: how long a storage that fails is tried again, for all files together.
            writing: entered while the files directly in the directory are read; whoever writes
                them holds it, so that no half-written one is taken.

        Raises:
            StorageError: the first failure of those that no retry mended; other files have arrived.
        """
        run = _Run(time.monotonic() + retry_s, buffer_for(self._durable))
        with writing:
            own = self._read_own(source, target, run)
        # Looked at after those were read, so that what they speak of is there.
        for name, entry in _files_below(run, source):
            path = f"{target}/{name}"
            if not self._has_arrived(path, entry):
                self._send(run, functools.partial(_opened, f"{source}/{name}"), self._quick, path)
        for name, (data, entry) in own.items():
            path = f"{target}/{name}"
            self._send(run, functools.partial(_kept, data, entry), self._durable, path)
        if run.failures:
            raise run.failures[0]

    def _read_own(self, source: str, target: str, run: _Run) -> dict[str, tuple[bytes, Entry]]:
        own = {}
        for entry in _entries(run, source):
            try:
                if not entry.is_file():
                    continue
                if not self._has_arrived(f"{target}/{entry.name}", _entry_of(entry.stat())):
                    with _opened(entry.path) as (reader, found):
                        own[entry.name] = reader.read(), found
            except OSError as error:
                run.note(error, entry.path)
        return own

    def _has_arrived(self, path: str, entry: Entry) -> bool:
        return self._arrived.get(_key_of(path)) == _digest_of(entry)

    def _send(self, run: _Run, opener: _Opener, disk: Disk, path: str) -> None:
        limit_s = run.until_s - time.monotonic()
        copy = _Copy(opener, disk, path, run.buffer)
        try:
            entry = retry(disk, "writing", path, copy.make, limit_s=limit_s)
            if entry is None:
                self._arrived.pop(_key_of(path), None)
            else:
                self._arrived[_key_of(path)] = _digest_of(entry)
        except StorageError as error:
            # Some stores take no empty files. It is not taken for arrived: the next run tries it.
            if not copy.is_empty or disk.has_rename or error.kind in {"full", "forbidden"}:
                run.failures.append(error)


def _key_of(path: str) -> int:
    return xxhash.xxh3_128_intdigest(os.fsencode(path))


def _digest_of(entry: Entry) -> int:
    return xxhash.xxh64_intdigest(repr(entry).encode())


@dataclass
class _Copy:
    """The copying of one file, which can be tried again."""

    opener: _Opener
    disk: Disk
    path: str
    buffer: memoryview
    is_empty: bool = False

    def make(self) -> Entry | None:
        """Copy the file and return what it was when it was opened; None if it is gone."""
        with contextlib.ExitStack() as stack:
            try:
                reader, entry = stack.enter_context(self.opener())
            except _GONE:
                return None
            self.is_empty = not entry.size
            self._write(reader, entry.size)
            return entry

    def _write(self, reader: Reader, size: int) -> None:
        disk = self.disk
        directory, _, name = self.path.rpartition("/")
        place = f"{directory}/.{name}.partial" if disk.has_rename else self.path
        disk.make_directory(directory)
        try:
            with disk.create(place) as writer:
                # Not to its end: who writes on may be faster than the storage.
                pump(reader, self.buffer, writer, until=size)
            if disk.has_rename:
                disk.replace(place, self.path)
                disk.sync(directory)
        except Exception:
            if disk.has_rename:
                with contextlib.suppress(OSError):
                    disk.delete_file(place)
            raise


# --- the source ----------------------------------------------------------------------------------


def _files_below(
    run: _Run, source: str, below: str = "", above: tuple[str, ...] = ()
) -> Iterator[tuple[str, Entry]]:
    """Yield the files in the directories of the source, by their path relative to it."""
    above = above or (os.path.realpath(source),)
    for found in _entries(run, f"{source}/{below}"):
        name = f"{below}{found.name}"
        real, entry = None, None
        try:
            if found.is_dir():
                real = _entered(found, above, is_trial=not below)
            elif below and found.is_file():
                entry = _entry_of(found.stat())
        except OSError as error:
            run.note(error, found.path)
        if real is not None:
            yield from _files_below(run, source, f"{name}/", (*above, real))
        if entry is not None:
            yield name, entry


def _entered(found: os.DirEntry[str], above: tuple[str, ...], *, is_trial: bool) -> str | None:
    """Return the real path of a directory that is to be mirrored, None of one that is not."""
    if found.name == HOME if is_trial else _is_checkpoint(found.name):
        return None
    if not found.is_symlink():
        return f"{above[-1]}/{found.name}"
    real = os.path.realpath(found.path)
    # A link to where it stands, or to what goes by another name.
    hidden = any(_is_checkpoint(part) or part == HOME for part in real.split("/"))
    return None if hidden or real in above else real


def _is_checkpoint(name: str) -> bool:
    return index_of(name) is not None or name.startswith((STAGING, REMOVED))


def _entries(run: _Run, path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as scan:
            return sorted(scan, key=operator.attrgetter("name"))
    except OSError as error:
        run.note(error, path)
        return []


def _entry_of(stat: os.stat_result) -> Entry:
    return Entry(stat.st_size, stat.st_mtime, stat.st_mtime_ns)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[io.FileIO, Entry]]:
    with Path(path).open("rb", buffering=0) as file:
        # Of what was opened: another file may have its name by now.
        yield file, _entry_of(os.fstat(file.fileno()))


@contextlib.contextmanager
def _kept(data: bytes, entry: Entry) -> Iterator[tuple[Reader, Entry]]:
    yield io.BytesIO(data), entry
