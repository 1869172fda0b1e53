"""Disks in memory, one for each kind of storage, with the moments that break programs.

:class:`FakeLocal` knows what a power cut leaves; :class:`FakeObjectStore` has the habits of object
stores. Both pass `raytrials.chaos.conformance`. What makes any disk fail is in
`raytrials.chaos.fault`.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import os
import posixpath
import random
from collections.abc import Iterator

from raytrials.store.disk import Appender, Disk, Entry, Hold, Reader, Writer


class FakeLocal(Disk):
    """A local disk in memory that knows what is durable.

    A file is durable as it was when last synced (which :meth:`create` does at its end), a name when
    its directory was synced, each for itself: a durable name may lead to an empty file. Files are
    seen while they are written.
    """

    has_rename = True

    def __init__(self) -> None:
        self._root = _Directory()
        self._tick = itertools.count(1)
        self._holds: list[_Hold] = []

    def end_process(self) -> None:
        """Let go of all locks, as the system does for a process that died; the disk stays."""
        for hold in self._holds[:]:
            hold.release()

    def crash(self, luck: random.Random | None = None) -> None:
        """Cut the power and start again: what was not synced is gone.

        Args:
            luck: with it some of that survived: of each directory's changes the first few, of
                each file's bytes the first few or none. A real disk does either.
        """
        self.end_process()
        self._root.crash(luck)

    def list_files(self, path: str) -> dict[str, Entry]:
        return {
            name: Entry(len(node.data), node.tick / 1e9, node.tick)
            for name, node in self._directory(path).walk()
            if isinstance(node, _File)
        }

    def list_names(self, path: str) -> set[str]:
        return set(self._directory(path).names)

    def list_directories(self, path: str) -> list[str]:
        return [n for n, node in self._directory(path).walk() if isinstance(node, _Directory)]

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[Reader]:
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        yield _Reader(node.data)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Writer]:
        node = self._file(path)
        node.cut()
        yield _FileWriter(node, self._tick)
        node.tick = next(self._tick)
        node.sync()

    def append(self, path: str) -> Appender:
        return _FileWriter(self._file(path), self._tick)

    def create_exclusive(self, path: str, data: bytes) -> None:
        parent, name = self._parent(path)
        if name in parent.names:
            raise _error(errno.EEXIST, path)
        self.write(path, data)

    def hold(self, path: str) -> Hold | None:
        file = self._file(path)
        if any(hold.file is file for hold in self._holds):
            raise _error(errno.EWOULDBLOCK, path)
        hold = _Hold(file, self._holds)
        self._holds.append(hold)
        return hold

    def is_held(self, path: str, place: str | None = None) -> bool | None:
        found = self._find(path)
        if place is not None and (not isinstance(found, _File) or found.place != place):
            return None
        return any(hold.file is found for hold in self._holds)

    def _file(self, path: str) -> _File:
        """Return a file as it is, made if there is none."""
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            node = _File()
            node.tick = next(self._tick)
            parent.change({name: node})
        return node

    def make_directory(self, path: str) -> None:
        node = self._root
        parts = _parts(path)
        for depth, part in enumerate(parts, 1):
            below = node.names.get(part)
            if below is None:
                below = _Directory()
                node.change({part: below})
                if depth < len(parts):
                    node.sync()
            elif isinstance(below, _File):
                raise _error(errno.ENOTDIR, path)
            node = below

    def rename(self, old: str, new: str) -> None:
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        if new_name in target.names:
            raise _error(errno.EEXIST, new)
        node = source.names.get(old_name)
        if node is None:
            raise _error(errno.ENOENT, old)
        if node is target or (isinstance(node, _Directory) and node.holds(target)):
            raise _error(errno.EINVAL, new)
        self._move(source, old_name, target, new_name, node)

    def replace(self, old: str, new: str) -> None:
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        node = source.names.get(old_name)
        if node is None:
            raise _error(errno.ENOENT, old)
        replaced = target.names.get(new_name)
        if isinstance(replaced, _Directory):
            raise _error(errno.EISDIR, new)
        if isinstance(node, _Directory) and replaced is not None:
            raise _error(errno.ENOTDIR, new)
        self._move(source, old_name, target, new_name, node)

    @staticmethod
    def _move(
        source: _Directory, old: str, target: _Directory, new: str, node: _File | _Directory
    ) -> None:
        if source is target:
            source.change({old: None, new: node})
        else:
            target.change({new: node})
            source.change({old: None})

    def sync(self, path: str) -> None:
        found = self._find(path)
        if not isinstance(found, _Directory):
            raise _error(errno.ENOENT if found is None else errno.ENOTDIR, path)
        found.sync()

    def delete_file(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            parent, name = self._parent(path)
            if isinstance(parent.names.get(name), _Directory):
                raise _error(errno.EISDIR, path)
            parent.delete(name)

    def delete_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            parent, name = self._parent(path)
            self._directory(path).empty()
            parent.delete(name)

    def _find(self, path: str) -> _Directory | _File | None:
        node: _Directory | _File | None = self._root
        for part in _parts(path):
            if not isinstance(node, _Directory):
                return None
            node = node.names.get(part)
        return node

    def _directory(self, path: str) -> _Directory:
        found = self._find(path)
        return found if isinstance(found, _Directory) else _Directory()

    def _parent(self, path: str) -> tuple[_Directory, str]:
        above, name = posixpath.split(path.rstrip("/"))
        found = self._find(above)
        if not isinstance(found, _Directory):
            raise _error(errno.ENOENT, path)
        return found, name


class _Hold:
    def __init__(self, file: _File, holds: list[_Hold]) -> None:
        self.file = file
        self._holds = holds
        self.place = file.place

    def release(self) -> None:
        if self in self._holds:
            self._holds.remove(self)


class _File:
    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.place = str(next(self._numbers))
        self.data = bytearray()
        self.tick = 0
        self.durable = b""
        self._safe = 0  # so many bytes at the front no crash can take

    def cut(self) -> None:
        self.data = bytearray()
        self._safe = 0

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self._safe = len(self.durable)

    def crash(self, luck: random.Random | None) -> None:
        unsynced = self.data != self.durable
        if luck is not None and unsynced and luck.choice((True, False)):
            self.durable = bytes(self.data[: luck.randint(self._safe, len(self.data))])
        self.data = bytearray(self.durable)
        self._safe = len(self.durable)


class _Directory:
    """What is in a directory: as it is seen, as it is durable, and the changes in between."""

    def __init__(self) -> None:
        self.names: dict[str, _Directory | _File] = {}
        self._durable: dict[str, _Directory | _File] = {}
        self._unsynced: list[dict[str, _Directory | _File | None]] = []

    def change(self, names: dict[str, _Directory | _File | None]) -> None:
        self._unsynced.append(names)
        _apply(self.names, names)

    def delete(self, name: str) -> None:
        if name in self.names:
            self.change({name: None})

    def holds(self, other: _Directory) -> bool:
        return any(node is other for _, node in self.walk())

    def empty(self) -> None:
        for name, node in list(self.names.items()):
            if isinstance(node, _Directory):
                node.empty()
            self.delete(name)

    def sync(self) -> None:
        self._durable = dict(self.names)
        self._unsynced = []

    def crash(self, luck: random.Random | None) -> None:
        survived = luck.randint(0, len(self._unsynced)) if luck is not None else 0
        for change in self._unsynced[:survived]:
            _apply(self._durable, change)
        self.names = dict(self._durable)
        self._unsynced = []
        for node in self.names.values():
            node.crash(luck)

    def walk(self, below: str = "") -> Iterator[tuple[str, _Directory | _File]]:
        for name, node in sorted(self.names.items()):
            yield f"{below}{name}", node
            if isinstance(node, _Directory):
                yield from node.walk(f"{below}{name}/")


def _apply(
    names: dict[str, _Directory | _File], change: dict[str, _Directory | _File | None]
) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class FakeObjectStore(Disk):
    """An object store in memory: files appear whole, and there are no directories.

    A writer that an exception leaves still puts what it has, as pyarrow's do; one whose process
    dies (any other `BaseException`) puts nothing.

    Args:
        takes_empty_files: False refuses to write them, as some stores do.
    """

    has_rename = False

    def __init__(self, *, takes_empty_files: bool = True) -> None:
        self._takes_empty_files = takes_empty_files
        self._files: dict[str, tuple[bytes, int]] = {}
        self._listed = self._files
        self._tick = itertools.count(1)

    @contextlib.contextmanager
    def stale_listings(self) -> Iterator[None]:
        """Let listings show what is there now for as long as the block lasts."""
        self._listed = copy.copy(self._files)
        try:
            yield
        finally:
            self._listed = self._files

    def list_files(self, path: str) -> dict[str, Entry]:
        prefix = _prefix(path)
        return {
            key.removeprefix(prefix): Entry(len(data), tick / 1e9, tick)
            for key, (data, tick) in sorted(self._listed.items())
            if key.startswith(prefix)
        }

    def list_names(self, path: str) -> set[str]:
        return {name.split("/")[0] for name in self.list_files(path)}

    def list_directories(self, path: str) -> list[str]:
        parts = (name.split("/")[:-1] for name in self.list_files(path))
        return sorted({"/".join(part[:n]) for part in parts for n in range(1, len(part) + 1)})

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[Reader]:
        found = self._files.get(_key(path))
        if found is None:
            raise FileNotFoundError(path)  # no errno: it is how fsspec's filesystems say it
        yield _Reader(found[0])

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Writer]:
        writer = _BufferWriter(bytearray())
        try:
            yield writer
        except Exception:
            self._put(path, bytes(writer.data))
            raise
        if not writer.data and not self._takes_empty_files:
            raise OSError(f"an object may not be empty: {path}")
        self._put(path, bytes(writer.data))

    def _put(self, path: str, data: bytes) -> None:
        self._files[_key(path)] = (data, next(self._tick))

    def append(self, path: str) -> Appender:
        raise NotImplementedError(f"cannot append: {path}")

    def create_exclusive(self, path: str, data: bytes) -> None:
        if _key(path) in self._files:
            raise FileExistsError(path)
        self.write(path, data)

    def hold(self, path: str) -> Hold | None:  # noqa: ARG002 - of the port
        return None

    def is_held(self, path: str, place: str | None = None) -> bool | None:  # noqa: ARG002 - likewise
        return None

    def make_directory(self, path: str) -> None:
        """Nothing: there are none."""

    def rename(self, old: str, new: str) -> None:
        raise NotImplementedError(f"no rename: {old} to {new}")

    def replace(self, old: str, new: str) -> None:
        raise NotImplementedError(f"no rename: {old} to {new}")

    def sync(self, path: str) -> None:
        """Nothing: a closed file is durable."""

    def delete_file(self, path: str) -> None:
        self._files.pop(_key(path), None)

    def delete_tree(self, path: str) -> None:
        for key in [key for key in self._files if key.startswith(_prefix(path))]:
            del self._files[key]


class _Reader:
    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self._position = 0

    def readinto(self, buffer: memoryview, /) -> int:
        chunk = self._data[self._position : self._position + len(buffer)]
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)


class _FileWriter:
    def __init__(self, file: _File, tick: Iterator[int]) -> None:
        self._file = file
        self._tick = tick

    def write(self, data: memoryview, /) -> None:
        self._file.data += data
        self._file.tick = next(self._tick)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        """Nothing: what was written is seen, and durable once synced."""


class _BufferWriter:
    def __init__(self, data: bytearray) -> None:
        self.data = data

    def write(self, data: memoryview, /) -> None:
        self.data += data


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _key(path: str) -> str:
    return path.strip("/")


def _prefix(path: str) -> str:
    key = _key(path)
    return f"{key}/" if key else ""


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
