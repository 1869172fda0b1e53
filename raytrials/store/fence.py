"""A disk that only the holder of a lease changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from raytrials.store.disk import Appender, Disk, Entry, Hold, Reader, Writer


class FencedDisk(Disk):
    """A disk whose every change is asked for first. Reading is free.

    A driver can be frozen between any two of its instructions, and be replaced before it goes on.
    What it does to the storage then is asked for each operation anew, and refused: only one that
    was under way when it froze may still happen.

    Args:
        disk: does the work.
        check: asked before each change; what it raises keeps the change from happening.
    """

    def __init__(self, disk: Disk, check: Callable[[], object]) -> None:
        self.has_rename = disk.has_rename
        self.chunk_bytes = disk.chunk_bytes
        self._disk = disk
        self._check = check

    # --- reading ---------------------------------------------------------------------------------

    def threads(self, sizes: Collection[int]) -> int:
        return self._disk.threads(sizes)

    def list_files(self, path: str) -> dict[str, Entry]:
        return self._disk.list_files(path)

    def list_names(self, path: str) -> set[str]:
        return self._disk.list_names(path)

    def list_directories(self, path: str) -> list[str]:
        return self._disk.list_directories(path)

    def open(self, path: str) -> contextlib.AbstractContextManager[Reader]:
        return self._disk.open(path)

    def is_held(self, path: str, place: str | None = None) -> bool | None:
        return self._disk.is_held(path, place)

    def refresh(self) -> bool:
        return self._disk.refresh()

    # --- changes ---------------------------------------------------------------------------------

    def create(self, path: str) -> contextlib.AbstractContextManager[Writer]:
        self._check()
        return self._disk.create(path)

    def append(self, path: str) -> Appender:
        """See :meth:`Disk.append`. What is appended is not asked for; whoever appends does."""
        self._check()
        return self._disk.append(path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._check()
        self._disk.create_exclusive(path, data)

    def overwrite(self, path: str, data: bytes) -> None:
        self._check()
        self._disk.overwrite(path, data)

    def hold(self, path: str) -> Hold | None:
        self._check()
        return self._disk.hold(path)

    def make_directory(self, path: str) -> None:
        self._check()
        self._disk.make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._check()
        self._disk.rename(old, new)

    def replace(self, old: str, new: str) -> None:
        self._check()
        self._disk.replace(old, new)

    def sync(self, path: str) -> None:
        self._disk.sync(path)

    def delete_file(self, path: str) -> None:
        self._check()
        self._disk.delete_file(path)

    def delete_tree(self, path: str) -> None:
        self._check()
        self._disk.delete_tree(path)
