"""A fake disk as a filesystem of pyarrow, so that Ray and raytrials reach the same one.

What is pickled is the name under which the disk is mounted: whoever unpickles it, in a worker or in
the next driver, reaches what is mounted there then.
"""

from __future__ import annotations

import contextlib
import errno
import io
import posixpath
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

from raytrials.store import location
from raytrials.store.disk import Disk

_mounted: dict[str, Disk] = {}


@contextlib.contextmanager
def mounted(disk: Disk, name: str = "fake") -> Iterator[PyFileSystem]:
    """Within this block the filesystem and `disk_of` of it lead to the disk."""
    real = location.ObjectDisk

    def disk_of(filesystem: Any) -> Disk:
        handler = getattr(filesystem, "handler", None)
        return handler.disk if isinstance(handler, DiskHandler) else real(filesystem)

    _mounted[name] = disk
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(location, "ObjectDisk", disk_of)
            yield PyFileSystem(DiskHandler(name))
    finally:
        del _mounted[name]


class DiskHandler(FileSystemHandler):  # type: ignore[misc]
    """What pyarrow asks of a filesystem, as far as Ray does.

    Args:
        name: of the disk, in :func:`mounted`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskHandler, (self.name,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DiskHandler) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def disk(self) -> Disk:
        return _mounted[self.name]

    def get_type_name(self) -> str:
        return self.name

    def normalize_path(self, path: str) -> str:
        return path

    # --- looking ---------------------------------------------------------------------------------

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path.rstrip("/")) for path in paths]

    def _info(self, path: str) -> FileInfo:
        above, name = posixpath.split(path)
        size, found = None, FileType.NotFound
        if name in self._names(above):
            entry = self.disk.list_files(above).get(name)
            found = FileType.Directory if entry is None else FileType.File
            size = None if entry is None else entry.size
        elif self._names(path):
            found = FileType.Directory
        return FileInfo(path, found, size=size)

    def _names(self, path: str) -> set[str]:
        try:
            return self.disk.list_names(path)
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        base = selector.base_dir.rstrip("/")
        if not self._names(base) and not selector.allow_not_found:
            raise FileNotFoundError(base)
        directories = self.disk.list_directories(base)
        found = [FileInfo(f"{base}/{name}", FileType.Directory) for name in directories]
        for name, entry in self.disk.list_files(base).items():
            found.append(FileInfo(f"{base}/{name}", FileType.File, size=entry.size))
        return [
            info for info in found if selector.recursive or posixpath.dirname(info.path) == base
        ]

    # --- reading and writing ---------------------------------------------------------------------

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(io.BytesIO(self.disk.read(path)), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_Written(self.disk, path), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError(f"append: {path}")

    # --- changing --------------------------------------------------------------------------------

    def create_dir(self, path: str, recursive: bool) -> None:
        self.disk.make_directory(path)

    def delete_file(self, path: str) -> None:
        self.disk.delete_file(path)

    def delete_dir(self, path: str) -> None:
        self.disk.delete_tree(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self.disk.delete_tree(path)
        self.disk.make_directory(path)

    def delete_root_dir_contents(self) -> None:
        raise OSError(errno.EPERM, "all of a disk")

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError(f"move: {src}")

    def copy_file(self, src: str, dest: str) -> None:
        self.disk.write(dest, self.disk.read(src))


class _Written(io.BytesIO):
    """A file that is on its disk when it is closed."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._path = path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._disk.write(self._path, data)

    def __del__(self) -> None:
        """Nothing: whoever dies before the end writes nothing."""
