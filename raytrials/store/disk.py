"""One port to every storage: local disks, NFS, object stores.

:class:`Disk` is what the rest of raytrials sees of a filesystem. There are two kinds, and what is
written must hold on both:

- :class:`LocalDisk` (a local path, NFS): a file can be seen while it is written; a rename is
  atomic; what was not fsynced may be lost with the machine.
- :class:`ObjectDisk` (every other filesystem): a file appears whole when its writer is closed and
  is durable then; there is no rename, and there are no directories but those that files imply.

Paths are absolute on their filesystem, with `/` between names. `raytrials.chaos.conformance` states
these semantics as tests. Nothing here retries: see :mod:`raytrials.store.retrying`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import posixpath
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow.fs
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem as FsspecLocal

CHUNK_BYTES = 4 * 1024 * 1024

# What a filesystem that has no fsync answers; then closing has to do.
_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EROFS}


class Reader(Protocol):
    """An open file to read."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill `buffer` from the front; return how many bytes were read, 0 at the end."""


class Writer(Protocol):
    """An open file to write."""

    def write(self, data: memoryview, /) -> object:
        """Append all of `data`."""


@dataclass(frozen=True)
class Entry:
    """A file as a listing shows it.

    Attributes:
        size: in bytes.
        modified_s: when it was last written, seconds since the epoch; 0 where nobody knows.
        modified_ns: the same in nanoseconds.
    """

    size: int
    modified_s: float = 0.0
    modified_ns: int = 0


class Disk(ABC):
    """A filesystem, as raytrials uses it. All errors are the filesystem's own."""

    has_rename: bool
    """Whether this is a local kind: :meth:`rename` works and is atomic, :meth:`sync` matters."""

    @abstractmethod
    def list_files(self, path: str) -> dict[str, Entry]:
        """Return all files below a directory by their path relative to it; {} if there is none."""

    @abstractmethod
    def list_names(self, path: str) -> set[str]:
        """Return the names directly in a directory, of files and directories; empty if none."""

    @abstractmethod
    def list_directories(self, path: str) -> list[str]:
        """Return all directories below a directory, relative to it, parents first."""

    @abstractmethod
    def open(self, path: str) -> contextlib.AbstractContextManager[Reader]:
        """Open a file to read. Raises FileNotFoundError if there is none."""

    @abstractmethod
    def create(self, path: str) -> contextlib.AbstractContextManager[Writer]:
        """Open a file to write from its beginning. Its directory exists, where there are such.

        When the block ends well the file is whole and durable. When it ends with an exception,
        part of the file may stay.
        """

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make a directory and those above it; no error if it exists, nothing where none exist.

        Those above it are durable then if they were made; itself when its parent is synced.
        """

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Rename a directory in one step. Raises FileExistsError if `new` exists."""

    @abstractmethod
    def sync(self, path: str) -> None:
        """Make the names in a directory durable."""

    @abstractmethod
    def delete_file(self, path: str) -> None:
        """Delete a file; no error if it is gone."""

    @abstractmethod
    def delete_tree(self, path: str) -> None:
        """Delete a directory and all below it; no error if it is gone."""

    def refresh(self) -> bool:
        """Renew expired credentials; return whether there is a way to."""
        return False

    def read(self, path: str) -> bytes:
        """Return a small file's bytes. Raises FileNotFoundError if there is none."""
        data = bytearray()
        buffer = memoryview(bytearray(1 << 16))
        with self.open(path) as reader:
            while count := reader.readinto(buffer):
                data += buffer[:count]
        return bytes(data)

    def write(self, path: str, data: bytes) -> None:
        """Write a small file; as :meth:`create`."""
        with self.create(path) as writer:
            writer.write(memoryview(data))


class LocalDisk(Disk):
    """A local disk, or NFS.

    Args:
        root: what stands before every path; "" for none.
        fsync: whether files and names are forced to the disk. A filesystem that has no fsync is
            taken as it is.
        filesystem: writes and reads files, for a local filesystem with ways of its own; None for
            the operating system. Listing, renaming and deleting are the operating system's.
    """

    has_rename = True

    def __init__(self, root: str = "", *, fsync: bool = True, filesystem: Any = None) -> None:
        self._root = root.rstrip("/")
        self._fsync = fsync
        self._filesystem = filesystem

    def _at(self, path: str) -> str:
        return _join(self._root, path)

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
                entries = sorted(scan, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            yield name, entry
            if entry.is_dir():
                yield from self._walk(top, name, above)

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[Reader]:
        if self._filesystem is not None:
            with _open_pyarrow(self._filesystem, path) as reader:
                yield reader
            return
        with Path(self._at(path)).open("rb", buffering=0) as file:
            yield file

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Writer]:
        if self._filesystem is not None:
            with self._filesystem.open_output_stream(path, compression=None) as stream:
                yield stream
            if self._fsync:
                _sync_path(self._at(path), os.O_RDONLY)
            return
        descriptor = os.open(self._at(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            yield _Descriptor(descriptor)
            if self._fsync:
                _sync(descriptor)
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


@dataclass(frozen=True)
class _Descriptor:
    descriptor: int

    def write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self.descriptor, data) :]


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


class ObjectDisk(Disk):
    """An object store, or any filesystem that is not known to be local.

    Args:
        filesystem: of pyarrow.
    """

    has_rename = False

    def __init__(self, filesystem: pyarrow.fs.FileSystem) -> None:
        self._filesystem = filesystem

    def list_files(self, path: str) -> dict[str, Entry]:
        return {
            posixpath.relpath(info.path.lstrip("/"), path.lstrip("/")): Entry(
                info.size, (info.mtime_ns or 0) / 1e9, info.mtime_ns or 0
            )
            for info in self._list(path, recursive=True)
            if info.type == pyarrow.fs.FileType.File
        }

    def list_names(self, path: str) -> set[str]:
        # Some stores answer with everything below, whatever was asked.
        names = (
            posixpath.relpath(info.path.lstrip("/"), path.lstrip("/"))
            for info in self._list(path, recursive=False)
        )
        return {name.split("/")[0] for name in names if not name.startswith("..")} - {"."}

    def list_directories(self, path: str) -> list[str]:
        found: set[str] = set()
        for name in self.list_files(path):
            parent = posixpath.dirname(name)
            while parent:
                found.add(parent)
                parent = posixpath.dirname(parent)
        return sorted(found)

    def _list(self, path: str, *, recursive: bool) -> list[pyarrow.fs.FileInfo]:
        self._forget()
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        try:
            return list(self._filesystem.get_file_info(selector))
        except NotADirectoryError:
            return []

    def _exists(self, path: str) -> bool:
        self._forget()
        found = self._filesystem.get_file_info(path)
        return bool(found.type != pyarrow.fs.FileType.NotFound)

    def _forget(self) -> None:
        # Many of fsspec's filesystems answer with what they once listed.
        inner, _ = _fsspec_of(self._filesystem)
        if inner is not None:
            inner.invalidate_cache()

    def open(self, path: str) -> contextlib.AbstractContextManager[Reader]:
        return _open_pyarrow(self._filesystem, path)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Writer]:
        try:
            opened = self._filesystem.open_output_stream(path, compression=None)
        except FileNotFoundError:
            # Not an object store after all: its directories want to be made.
            self._filesystem.create_dir(posixpath.dirname(path))
            opened = self._filesystem.open_output_stream(path, compression=None)
        with opened as stream:
            yield stream

    def make_directory(self, path: str) -> None:
        """Nothing: a store without directories needs none, and the writers of others make them."""

    def rename(self, old: str, new: str) -> None:
        raise NotImplementedError(f"{self._filesystem.type_name} has no rename: {old} to {new}")

    def sync(self, path: str) -> None:
        """Nothing: a closed file is durable."""

    def delete_file(self, path: str) -> None:
        if not self._exists(path):
            return
        inner, prefix = _fsspec_of(self._filesystem)
        if inner is None:
            self._filesystem.delete_file(path)
        else:
            # Its `rm`, which pyarrow calls, would take the path for a pattern.
            inner.rm_file(_join(prefix, path))

    def delete_tree(self, path: str) -> None:
        if not self._exists(path):
            return
        inner, prefix = _fsspec_of(self._filesystem)
        if inner is not None and glob.has_magic(_join(prefix, path)):
            self._delete_literally(path)
            return
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_dir(path)

    def _delete_literally(self, path: str) -> None:
        """Delete a directory whose name fsspec's `rm` takes for a pattern that others match."""
        inner, prefix = _fsspec_of(self._filesystem)
        found = self._list(path, recursive=True)
        for info in found:
            if info.type == pyarrow.fs.FileType.File:
                self.delete_file(info.path)
        directories = [info.path for info in found if info.type == pyarrow.fs.FileType.Directory]
        for directory in (*sorted(directories, reverse=True), path):
            # Most stores have none, and say so.
            with contextlib.suppress(OSError, NotImplementedError):
                inner.rmdir(_join(prefix, directory))

    def refresh(self) -> bool:
        handler = getattr(self._filesystem, "handler", None)
        refresh = getattr(handler, "refresh", None)
        return bool(refresh()) if callable(refresh) else False


def _fsspec_of(filesystem: Any) -> tuple[Any, str]:
    """Return fsspec's filesystem under one of pyarrow, and what stands before paths on it."""
    if isinstance(filesystem, pyarrow.fs.SubTreeFileSystem):
        inner, root = _fsspec_of(filesystem.base_fs)
        return inner, _join(root, filesystem.base_path)
    handler = getattr(filesystem, "handler", None)
    made = getattr(handler, "filesystem", None)
    if callable(made):  # one that makes another, as in raytrials.store.refreshing
        return _fsspec_of(made())
    return (handler.fs if isinstance(handler, pyarrow.fs.FSSpecHandler) else None), ""


@contextlib.contextmanager
def _open_pyarrow(filesystem: Any, path: str) -> Iterator[Reader]:
    # Left to itself pyarrow packs and unpacks files by the ends of their names.
    with filesystem.open_input_stream(path, compression=None) as stream:
        yield _Stream(stream)


@dataclass(frozen=True)
class _Stream:
    stream: Any

    def readinto(self, buffer: memoryview) -> int:
        return int(self.stream.readinto(buffer))


def disk_of(filesystem: pyarrow.fs.FileSystem, *, fsync: bool = True) -> Disk:
    """Return the port to a pyarrow filesystem.

    Local are pyarrow's and fsspec's local filesystems, subclasses of these, and those inside of
    pyarrow's `SubTreeFileSystem`, `PyFileSystem` and fsspec's `DirFileSystem`.
    """
    root = _local_root(filesystem)
    if root is None:
        return ObjectDisk(filesystem)
    plain = type(filesystem) is pyarrow.fs.LocalFileSystem
    return LocalDisk(root, fsync=fsync, filesystem=None if plain else filesystem)


def _local_root(filesystem: Any) -> str | None:
    """Return what a local filesystem puts before its paths; None for one that is not local."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem | FsspecLocal):
        return ""
    if isinstance(filesystem, pyarrow.fs.SubTreeFileSystem):
        root = _local_root(filesystem.base_fs)
        return None if root is None else _join(root, filesystem.base_path)
    if isinstance(filesystem, pyarrow.fs.PyFileSystem):
        handler = filesystem.handler
        wrapped = isinstance(handler, pyarrow.fs.FSSpecHandler)
        return _local_root(handler.fs) if wrapped else None
    if isinstance(filesystem, DirFileSystem):
        root = _local_root(filesystem.fs)
        return None if root is None else _join(root, str(filesystem.path))
    return None


def _join(root: str, path: str) -> str:
    return f"{root.rstrip('/')}/{path.lstrip('/')}" if root else path


def disk_at(location: str | os.PathLike[str], filesystem: Any = None) -> tuple[Disk, str]:
    """Return the port to a path or URI, and the path on it.

    Args:
        location: a local path, a URI of pyarrow, or a URL of fsspec whose package is installed.
        filesystem: of pyarrow or fsspec; then `location` is a path on it.
    """
    resolved, path = resolve(location, filesystem)
    return disk_of(resolved), path


def resolve(
    location: str | os.PathLike[str], filesystem: Any = None
) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the pyarrow filesystem of a path or URI, and the path on it; as :func:`disk_at`.

    Raises:
        ValueError: nobody knows the scheme of the URI.
        ImportError: fsspec knows it, and the package for it is not installed.
    """
    text = os.fspath(location)
    if filesystem is not None:
        return as_pyarrow(filesystem), text
    if "://" not in text:
        return pyarrow.fs.LocalFileSystem(), str(Path(text).expanduser().absolute())
    try:
        found, path = pyarrow.fs.FileSystem.from_uri(text)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        import fsspec.core  # noqa: PLC0415 - most never need it

        unknown, path = fsspec.core.url_to_fs(text)
        return as_pyarrow(unknown), path
    return found, path


def is_known_to_pyarrow(location: str) -> bool:
    """Whether pyarrow itself resolves a path or URI."""
    if "://" not in location:
        return True
    try:
        pyarrow.fs.FileSystem.from_uri(location)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        return False
    return True


def as_pyarrow(filesystem: Any) -> pyarrow.fs.FileSystem:
    """Return a filesystem of pyarrow or fsspec as one of pyarrow.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(filesystem, pyarrow.fs.FileSystem):
        return filesystem
    import fsspec  # noqa: PLC0415

    if isinstance(filesystem, fsspec.AbstractFileSystem):
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem))
    raise TypeError(f"{filesystem!r} is not a filesystem of pyarrow or fsspec")
