"""Faults of storage: any disk made to fail, stall, fill up or stop, on plan.

:class:`Faulty` stands before another disk and numbers what is done to it. A crash test lets a
scenario run once to learn how many operations it has, then again for each of them with
:func:`stop_at`, and looks at the disk behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from raytrials.store.disk import Appender, Disk, Entry, Hold, Reader, Writer


class Stopped(BaseException):
    """The process is dead from here on: no handler for errors is to catch it."""


@dataclass(frozen=True)
class Operation:
    """One thing done to a disk.

    Attributes:
        number: from 1, in the order in which they began.
        name: `list_files`, `list_names`, `list_directories`, `open`, `read`, `create`, `write`,
            `close` (of a file that is written), `append`, `sync_file`, `create_exclusive` (on a
            local disk the empty file; `create`, `write` and `close` follow), `hold`, `release`,
            `is_held`, `make_directory`, `rename`, `replace`, `sync` (of a directory), `delete_file`
            or `delete_tree` (the directory, when its files are gone).
        path: of the file or directory.
        size: bytes to be written, 0 for all but `write`.
    """

    number: int
    name: str
    path: str
    size: int = 0


Fault = Callable[[Operation], None]
"""What happens at an operation: nothing, an exception, or a delay."""


def stop_at(number: int) -> Fault:
    """Let the process die just before the operation with a number."""
    return fail_when(lambda operation: operation.number == number, Stopped())


def fail_when(
    matches: Callable[[Operation], bool], error: BaseException, *, times: int | None = None
) -> Fault:
    """Let the operations that match fail: all of them, or the first few."""
    left = [times]

    def fault(operation: Operation) -> None:
        if left[0] != 0 and matches(operation):
            if left[0] is not None:
                left[0] -= 1
            raise error

    return fault


def fail_share(share: float, error: BaseException, *, seed: int) -> Fault:
    """Let a share of all operations fail, by chance."""
    luck = random.Random(seed)  # noqa: S311 - not for secrets

    def fault(operation: Operation) -> None:  # noqa: ARG001 - whatever it is
        if luck.random() < share:
            raise error

    return fault


def fill_up(capacity_bytes: int) -> Fault:
    """Let what would make it more than so many bytes find the disk full."""
    written = 0

    def fault(operation: Operation) -> None:
        nonlocal written
        if operation.size and written + operation.size > capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation.path)
        written += operation.size

    return fault


def slow_down(seconds: float, sleep: Callable[[float], object]) -> Fault:
    """Let each operation take longer."""
    return lambda _operation: (sleep(seconds), None)[1]


class Faulty(Disk):
    """A disk that fails on plan. After :class:`Stopped` nothing works through it any more.

    Args:
        disk: does the work.
        before: asked before each operation; an error of theirs keeps it from happening. A failing
            `write` leaves half of its bytes.
        after: asked when it is done; an error of theirs is an answer that was lost.

    Attributes:
        operations: all that began, in order.
    """

    def __init__(
        self, disk: Disk, *, before: Sequence[Fault] = (), after: Sequence[Fault] = ()
    ) -> None:
        self.has_rename = disk.has_rename
        self.operations: list[Operation] = []
        self._disk = disk
        self._before = before
        self._after = after
        self._stopped = False
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def _operation(
        self, name: str, path: str, size: int = 0, *, failing: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        """Stand around an operation; `failing` is what one does that a fault keeps from it."""
        with self._lock:
            if self._stopped:
                raise Stopped
            operation = Operation(len(self.operations) + 1, name, path, size)
            self.operations.append(operation)
            try:
                self._ask(self._before, operation)
            except BaseException:
                failing()
                raise
        yield
        with self._lock:
            self._ask(self._after, operation)

    def _ask(self, faults: Sequence[Fault], operation: Operation) -> None:
        try:
            for fault in faults:
                fault(operation)
        except Stopped:
            self._stopped = True
            raise

    def list_files(self, path: str) -> dict[str, Entry]:
        with self._operation("list_files", path):
            return self._disk.list_files(path)

    def list_names(self, path: str) -> set[str]:
        with self._operation("list_names", path):
            return self._disk.list_names(path)

    def list_directories(self, path: str) -> list[str]:
        with self._operation("list_directories", path):
            return self._disk.list_directories(path)

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[Reader]:
        with contextlib.ExitStack() as stack:
            with self._operation("open", path):
                reader = stack.enter_context(self._disk.open(path))
            yield _FaultyReader(self, path, reader)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[Writer]:
        with contextlib.ExitStack() as stack:
            with self._operation("create", path):
                writer = stack.enter_context(self._disk.create(path))
            yield _FaultyWriter(self, path, writer)
            with self._operation("close", path):
                stack.close()

    def append(self, path: str) -> Appender:
        with self._operation("append", path):
            return _FaultyAppender(self, path, self._disk.append(path))

    def create_exclusive(self, path: str, data: bytes) -> None:
        with self._operation("create_exclusive", path, 0 if self.has_rename else len(data)):
            self._disk.create_exclusive(path, b"" if self.has_rename else data)
        if self.has_rename:
            self.write(path, data)

    def hold(self, path: str) -> Hold | None:
        with self._operation("hold", path):
            hold = self._disk.hold(path)
        return None if hold is None else _FaultyHold(self, path, hold)

    def is_held(self, path: str, place: str | None = None) -> bool | None:
        with self._operation("is_held", path):
            return self._disk.is_held(path, place)

    def make_directory(self, path: str) -> None:
        with self._operation("make_directory", path):
            self._disk.make_directory(path)

    def rename(self, old: str, new: str) -> None:
        with self._operation("rename", old):
            self._disk.rename(old, new)

    def replace(self, old: str, new: str) -> None:
        with self._operation("replace", old):
            self._disk.replace(old, new)

    def sync(self, path: str) -> None:
        with self._operation("sync", path):
            self._disk.sync(path)

    def delete_file(self, path: str) -> None:
        with self._operation("delete_file", path):
            self._disk.delete_file(path)

    def delete_tree(self, path: str) -> None:
        # File by file, as real ones do it, so that it can end in the middle; nobody promises an
        # order, and in this one a manifest, whose name begins with a dot, goes last.
        for name in sorted(self._disk.list_files(path), reverse=True):
            self.delete_file(f"{path}/{name}")
        with self._operation("delete_tree", path):
            self._disk.delete_tree(path)

    def refresh(self) -> bool:
        return self._disk.refresh()


@dataclass(frozen=True)
class _FaultyReader:
    disk: Faulty
    path: str
    reader: Reader

    def readinto(self, buffer: memoryview, /) -> int:
        with self.disk._operation("read", self.path):  # noqa: SLF001 - one class in two
            return self.reader.readinto(buffer)


@dataclass(frozen=True)
class _FaultyWriter:
    disk: Faulty
    path: str
    writer: Writer

    def write(self, data: memoryview, /) -> None:
        operation = self.disk._operation  # noqa: SLF001 - likewise
        with operation("write", self.path, len(data), failing=lambda: self._write_half(data)):
            self.writer.write(data)

    def _write_half(self, data: memoryview) -> None:
        if len(data) > 1:
            self.writer.write(data[: len(data) // 2])


@dataclass(frozen=True)
class _FaultyAppender:
    disk: Faulty
    path: str
    appender: Appender

    def write(self, data: memoryview, /) -> None:
        _FaultyWriter(self.disk, self.path, self.appender).write(data)

    def sync(self) -> None:
        with self.disk._operation("sync_file", self.path):  # noqa: SLF001 - likewise
            self.appender.sync()

    def close(self) -> None:
        with self.disk._operation("close", self.path):  # noqa: SLF001 - likewise
            self.appender.close()


@dataclass(frozen=True)
class _FaultyHold:
    disk: Faulty
    path: str
    hold: Hold

    @property
    def place(self) -> str:
        return self.hold.place

    def release(self) -> None:
        with self.disk._operation("release", self.path):  # noqa: SLF001 - likewise
            self.hold.release()
