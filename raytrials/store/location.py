"""From a path, a URI or a filesystem to the port to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.fs

from raytrials.store.disk import Disk
from raytrials.store.filesystem import as_pyarrow, forget_listings, local_root
from raytrials.store.local import LocalDisk
from raytrials.store.objects import ObjectDisk


def disk_of(filesystem: pyarrow.fs.FileSystem, *, fsync: bool = True) -> Disk:
    """Return the port to a pyarrow filesystem.

    Local are pyarrow's and fsspec's local filesystems, subclasses of these, and those inside of
    pyarrow's `SubTreeFileSystem`, `PyFileSystem` and fsspec's `DirFileSystem`.
    """
    root = local_root(filesystem)
    if root is None:
        return ObjectDisk(filesystem)
    plain = type(filesystem) is pyarrow.fs.LocalFileSystem
    return LocalDisk(root, fsync=fsync, filesystem=None if plain else filesystem)


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
        given = as_pyarrow(filesystem)
        forget_listings(given)
        return given, text
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
