"""The filesystems of pyarrow and fsspec, as they are found inside of one another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.fs
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem as FsspecLocal

from raytrials.store.disk import Reader


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


def local_root(filesystem: Any) -> str | None:
    """Return what a local filesystem puts before its paths; None for one that is not local."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem | FsspecLocal):
        return ""
    if isinstance(filesystem, pyarrow.fs.SubTreeFileSystem):
        root = local_root(filesystem.base_fs)
        return None if root is None else join(root, filesystem.base_path)
    if isinstance(filesystem, pyarrow.fs.PyFileSystem):
        handler = filesystem.handler
        wrapped = isinstance(handler, pyarrow.fs.FSSpecHandler)
        return local_root(handler.fs) if wrapped else None
    if isinstance(filesystem, DirFileSystem):
        root = local_root(filesystem.fs)
        return None if root is None else join(root, str(filesystem.path))
    return None


def fsspec_of(filesystem: Any) -> tuple[Any, str]:
    """Return fsspec's filesystem under one of pyarrow, and what stands before paths on it."""
    if isinstance(filesystem, pyarrow.fs.SubTreeFileSystem):
        inner, root = fsspec_of(filesystem.base_fs)
        return inner, join(root, filesystem.base_path)
    handler = getattr(filesystem, "handler", None)
    made = getattr(handler, "current_filesystem", None)
    if callable(made):  # one that makes another, as in raytrials.store.refreshing
        return fsspec_of(made())
    return (handler.fs if isinstance(handler, pyarrow.fs.FSSpecHandler) else None), ""


def forget_listings(filesystem: Any) -> None:
    """Have a filesystem of fsspec ask its store again.

    It keeps what it has listed, and would not see what other processes have written or deleted.
    """
    inner, _ = fsspec_of(filesystem)
    if inner is not None:
        inner.invalidate_cache()


@contextlib.contextmanager
def open_pyarrow(filesystem: Any, path: str) -> Iterator[Reader]:
    """Open a file of a pyarrow filesystem to read."""
    # Left to itself pyarrow packs and unpacks files by the ends of their names.
    with filesystem.open_input_stream(path, compression=None) as stream:
        yield _Stream(stream)


@dataclass(frozen=True)
class _Stream:
    stream: Any

    def readinto(self, buffer: memoryview) -> int:
        return int(self.stream.readinto(buffer))


def join(root: str, path: str) -> str:
    """Return `path` below `root`, which may be ""."""
    return f"{root.rstrip('/')}/{path.lstrip('/')}" if root else path
