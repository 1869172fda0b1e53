"""Local disks and NFS."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import operator
import os
import posixpath
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from raytrials.store.disk import CHUNK_BYTES, Appender, Disk, Entry, Hold, Reader, Writer
from raytrials.store.filesystem import join, open_pyarrow

_SMALL_BYTES = 512 * 1024

# What a filesystem that has no fsync answers; then closing has to do.
_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS}

# What a filesystem that has no locks answers.
_NO_LOCKS = {errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


class LocalDisk(Disk):
    """A local disk, or NFS.

    Args:
        root: what stands before every path; "" for none.
        fsync: whether files and names are forced to the disk. A filesystem that has no fsync is
            taken as it is.
        filesystem: writes and reads files, for a local filesystem with ways of its own; None for
            the operating system. All else is the operating system's.
    """

    has_rename = True
    chunk_bytes = CHUNK_BYTES

    def __init__(self, root: str = "", *, fsync: bool = True, filesystem: Any = None) -> None:
        self._root = root.rstrip("/")
        self._fsync = fsync
        self._filesystem = filesystem

    def threads(self, sizes: Collection[int]) -> int:
        # An fsync waits for the disk, and many wait little longer than one. Small files without it
        # are a few microseconds each, of which threads would lose more to Python's lock.
        if self._fsync:
            return 16
        return 1 if sum(sizes) < _SMALL_BYTES * len(sizes) else min(8, os.cpu_count() or 1)

    def _at(self, path: str) -> str:
        return join(self._root, path)

    def list_files(self, path: str) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for name, entry in self._walk(self._at(path)):
            if entry.is_file():
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    stat = entry.stat()
                    found[name] = Entry(stat.st_size, stat.st_mtime, stat.st_mtime_ns)
        return found

    def list_names(self, path: str) -> set[str]:
        try:
            return {entry.name for entry in Path(self._at(path)).iterdir()}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def list_directories(self, path: str) -> list[str]:
        return [name for name, entry in self._walk(self._at(path)) if entry.is_dir()]

    def _walk(
        self, top: str, below: str = "", above: tuple[tuple[int, int], ...] = ()
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        path = f"{top}/{below}" if below else top
        try:
            stat = os.stat(path)  # noqa: PTH116 - once for each directory
            if (stat.st_dev, stat.st_ino) in above:
                return  # a link to where it stands
            above = (*above, (stat.st_dev, stat.st_ino))
            with os.scandir(path) as scan:
                entries = sorted(scan, key=operator.attrgetter("name"))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            yield name, entry
            if entry.is_dir():
                yield from self._walk(top, name, above)

    def open(self, path: str) -> contextlib.AbstractContextManager[Reader]:
        if self._filesystem is not None:
            return open_pyarrow(self._filesystem, path)
        return _File(self._at(path), os.O_RDONLY)

    def create(self, path: str) -> contextlib.AbstractContextManager[Writer]:
        if self._filesystem is not None:
            return self._create_pyarrow(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return _File(self._at(path), flags, fsync=self._fsync)

    @contextlib.contextmanager
    def _create_pyarrow(self, path: str) -> Iterator[Writer]:
        with self._filesystem.open_output_stream(path, compression=None) as stream:
            yield stream
        if self._fsync:
            _sync_path(self._at(path), os.O_RDONLY)

    def append(self, path: str) -> Appender:
        # Also with a filesystem of its own: few of those can append, and none syncs what it wrote.
        return _Appender(self._at(path), fsync=self._fsync)

    def create_exclusive(self, path: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with _File(self._at(path), flags, fsync=self._fsync) as file:
            file.write(memoryview(data))

    def overwrite(self, path: str, data: bytes) -> None:
        with _File(self._at(path), os.O_WRONLY, fsync=self._fsync) as file:
            file.write(memoryview(data))
            file.cut(len(data))

    def hold(self, path: str) -> Hold | None:
        descriptor = os.open(self._at(path), os.O_RDWR | os.O_CREAT, 0o666)  # not inherited by exec
        try:
            if _lock(descriptor, fcntl.LOCK_EX):
                return _Hold(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def is_held(self, path: str, place: str | None = None) -> bool | None:
        try:
            descriptor = os.open(self._at(path), os.O_RDONLY)
        except FileNotFoundError:
            return None if place is not None else False
        try:
            if place is not None and place != _place_of(descriptor):
                return None
            # Shared, so that those who ask do not take one another for holders.
            return False if _lock(descriptor, fcntl.LOCK_SH) else None
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)

    def make_directory(self, path: str) -> None:
        directory = Path(self._at(path))
        try:
            directory.mkdir(exist_ok=True)
        except FileNotFoundError:
            above = posixpath.dirname(path.rstrip("/"))
            self.make_directory(above)
            self.sync(posixpath.dirname(above))
            directory.mkdir(exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        if os.path.lexists(self._at(new)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        Path(self._at(old)).rename(self._at(new))

    def replace(self, old: str, new: str) -> None:
        Path(self._at(old)).replace(self._at(new))

    def sync(self, path: str) -> None:
        if self._fsync:
            _sync_path(self._at(path), os.O_RDONLY | os.O_DIRECTORY)

    def delete_file(self, path: str) -> None:
        Path(self._at(path)).unlink(missing_ok=True)

    def delete_tree(self, path: str) -> None:
        top = self._at(path)
        while os.path.lexists(top):
            # Ends early when someone else deletes too.
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(top)


class _File:
    """An open file, with nothing between it and the system's calls.

    A checkpoint can be thousands of small files: Python's own file objects would double what each
    of them costs.
    """

    __slots__ = ("_descriptor", "_fsync")

    def __init__(self, path: str, flags: int, *, fsync: bool = False) -> None:
        self._descriptor = os.open(path, flags, 0o666)
        self._fsync = fsync

    def __enter__(self) -> _File:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if self._fsync and kind is None:
                self.sync()
        finally:
            self.close()

    def sync(self) -> None:
        _sync(self._descriptor)

    def close(self) -> None:
        # What comes late gets an error, and not the file that has the number by then.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def readinto(self, buffer: memoryview) -> int:
        return os.readv(self._descriptor, (buffer,))

    def write(self, data: memoryview) -> None:
        written = os.write(self._descriptor, data)
        while written < len(data):
            written += os.write(self._descriptor, data[written:])

    def cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)


class _Appender:
    """An open file that grows."""

    def __init__(self, path: str, *, fsync: bool) -> None:
        self._file = _File(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._fsync = fsync

    def write(self, data: memoryview) -> None:
        self._file.write(data)

    def sync(self) -> None:
        if self._fsync:
            self._file.sync()

    def close(self) -> None:
        self._file.close()


class _Hold:
    """A lock, for as long as a descriptor is open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self.place = _place_of(descriptor)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                # Closing alone would leave it to a child that was forked.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)


def _place_of(descriptor: int) -> str:
    stat = os.fstat(descriptor)
    return f"{stat.st_dev}:{stat.st_ino}"


def _lock(descriptor: int, kind: int) -> bool:
    """Lock without waiting; return False where there are no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _sync_path(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
