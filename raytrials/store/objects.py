"""Object stores, and any filesystem that is not known to be local."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import posixpath
from collections.abc import Iterator

import pyarrow.fs

from raytrials.store.disk import Appender, Disk, Entry, Hold, Reader, Writer
from raytrials.store.filesystem import forget_listings, fsspec_of, join, open_pyarrow


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
        forget_listings(self._filesystem)
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        try:
            found = list(self._filesystem.get_file_info(selector))
        except NotADirectoryError:
            return []
        if not found:
            self._require_answer(path)
        return found

    def _require_answer(self, path: str) -> None:
        """Raise what keeps the store from answering, if nothing was found because of that.

        pyarrow asks fsspec whether a path is a file or a directory, and there the answer is no
        whatever goes wrong.
        """
        inner, prefix = fsspec_of(self._filesystem)
        if inner is not None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                inner.info(join(prefix, path))

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[Reader]:
        forget_listings(self._filesystem)
        with contextlib.ExitStack() as stack:
            try:
                reader = stack.enter_context(open_pyarrow(self._filesystem, path))
            except FileNotFoundError:
                self._require_answer(path)
                raise
            yield reader

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

    def append(self, path: str) -> Appender:
        raise NotImplementedError(f"{self._filesystem.type_name} cannot append: {path}")

    def create_exclusive(self, path: str, data: bytes) -> None:
        if self._exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.write(path, data)

    def hold(self, path: str) -> Hold | None:  # noqa: ARG002 - of the port
        return None

    def is_held(self, path: str, place: str | None = None) -> bool | None:  # noqa: ARG002 - likewise
        return None

    def make_directory(self, path: str) -> None:
        """Nothing: a store without directories needs none, and the writers of others make them."""

    def rename(self, old: str, new: str) -> None:
        raise NotImplementedError(f"{self._filesystem.type_name} has no rename: {old} to {new}")

    def replace(self, old: str, new: str) -> None:
        raise NotImplementedError(f"{self._filesystem.type_name} has no rename: {old} to {new}")

    def sync(self, path: str) -> None:
        """Nothing: a closed file is durable."""

    def delete_file(self, path: str) -> None:
        if not self._exists(path):
            return
        inner, prefix = fsspec_of(self._filesystem)
        if inner is None:
            self._filesystem.delete_file(path)
        else:
            # Its `rm`, which pyarrow calls, would take the path for a pattern.
            inner.rm_file(join(prefix, path))

    def delete_tree(self, path: str) -> None:
        if not self._exists(path):
            return
        inner, prefix = fsspec_of(self._filesystem)
        if inner is not None and glob.has_magic(join(prefix, path)):
            self._delete_literally(path)
            return
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_dir(path)

    def _delete_literally(self, path: str) -> None:
        """Delete a directory whose name fsspec's `rm` takes for a pattern that others match."""
        inner, prefix = fsspec_of(self._filesystem)
        found = self._list(path, recursive=True)
        for info in found:
            if info.type == pyarrow.fs.FileType.File:
                self.delete_file(info.path)
        directories = [info.path for info in found if info.type == pyarrow.fs.FileType.Directory]
        for directory in (*sorted(directories, reverse=True), path):
            # Most stores have none, and say so.
            with contextlib.suppress(OSError, NotImplementedError):
                inner.rmdir(join(prefix, directory))

    def _exists(self, path: str) -> bool:
        forget_listings(self._filesystem)
        found = self._filesystem.get_file_info(path).type
        return bool(found != pyarrow.fs.FileType.NotFound)

    def refresh(self) -> bool:
        handler = getattr(self._filesystem, "handler", None)
        refresh = getattr(handler, "renew_credentials", None)
        return bool(refresh()) if callable(refresh) else False
