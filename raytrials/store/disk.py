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
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import NamedTuple, Protocol

CHUNK_BYTES = 512 * 1024
"""How much is copied at a time from and to local disks: small enough that what was read is still in
the processor's cache when it is written."""


class Reader(Protocol):
    """An open file to read."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill `buffer` from the front; return how many bytes were read, 0 at the end."""


class Writer(Protocol):
    """An open file to write."""

    def write(self, data: memoryview, /) -> object:
        """Append all of `data`."""


class Appender(Protocol):
    """An open file that grows at its end. Whoever opened it closes it."""

    def write(self, data: memoryview, /) -> object:
        """Append all of `data`. Other processes see it on return; a failure can leave part."""

    def sync(self) -> None:
        """Make durable what was written before. May run in another thread than :meth:`write`.

        The file's name is durable only when its directory is synced.
        """

    def close(self) -> None:
        """Close the file, without making anything durable. No error the second time."""


class Hold(Protocol):
    """An exclusive lock on a file, until it is released or its process is dead.

    A child made by `fork` shares the lock and keeps it when its parent dies, until it ends or runs
    another program: a lock that is held says "perhaps alive", one that is not says "surely dead".
    """

    @property
    def place(self) -> str:
        """Names the file as this machine knows it; a lock is seen by who finds the same there."""

    def release(self) -> None:
        """Let go. No error the second time."""


class Entry(NamedTuple):
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

    chunk_bytes: int = 16 * 1024 * 1024
    """How much of a file is best read or written at a time. Each is a request to an object store,
    or a part of one."""

    def threads(self, sizes: Collection[int]) -> int:  # noqa: ARG002 - of the port
        """Return how many threads are best for copying files of these sizes."""
        return 8

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
    def append(self, path: str) -> Appender:
        """Open a file to write at its end, made if there is none. Its directory exists.

        Raises:
            NotImplementedError: this is an object store.
        """

    @abstractmethod
    def create_exclusive(self, path: str, data: bytes) -> None:
        """Write a small new file. Its directory exists, where there are such.

        On local disks one of many that try succeeds; others may see the file before it is whole,
        its content is durable on return, its name when the directory is synced. When it fails
        half-way, part of the file may stay. Object stores look first and write then: of many that
        try at the same time each may succeed, and the last stays.

        Raises:
            FileExistsError: there is one.
        """

    @abstractmethod
    def hold(self, path: str) -> Hold | None:
        """Lock a file, made if missing; None where the storage has no locks.

        The system gives the lock back when the process dies, whatever its namespaces. It binds
        nobody who does not ask for it. :meth:`is_held` takes it for a moment: so lock a file before
        others have reason to ask.

        Raises:
            BlockingIOError: another holds it, maybe in this process.
        """

    @abstractmethod
    def is_held(self, path: str, place: str | None = None) -> bool | None:
        """Return whether somebody has locked a file; None if that cannot be told.

        Args:
            path: of the file. If it is missing nobody has.
            place: :attr:`Hold.place` of the lock in question: if the file here is another, or on
                another mount, whose locks may be its own, that cannot be told.
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
    def replace(self, old: str, new: str) -> None:
        """Give a file another name in one step, in the place of one that may have it."""

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

    def overwrite(self, path: str, data: bytes) -> None:
        """Write a small file that is there; on a local disk in the room that it has.

        Unlike :meth:`write` it needs nothing of a disk that is full, and gives nothing up to others
        that wait for room. Meanwhile others may see part of both contents.
        """
        self.write(path, data)
