"""Writing the journal: every event as it happens, and durable when it has to be.

:class:`Journal` is the order of events and what is durable of them; it never waits. The thread in
`raytrials.store.pump` calls :meth:`Journal.sync`. Two ways to the disk:

- A local disk takes each event at once, at the end of the current segment: the death of the process
  loses none. A sync makes them outlast the machine.
- An object store takes what has gathered as a segment of its own.

A write that failed may have left anything. So nothing is ever appended behind it: all that is not
durable yet is written again, into the next segment.
"""

from __future__ import annotations

import logging
import posixpath
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from raytrials.core.event import Event, Record
from raytrials.errors import StorageError
from raytrials.store.clock import Clock
from raytrials.store.disk import Appender, Disk
from raytrials.store.record import encode
from raytrials.store.retrying import retry
from raytrials.store.segment import PARTIAL, Segment, partials_among, segments_among

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 8 * 1024 * 1024
"""From this size on a new segment is begun: what a recovery reads too much is at most this."""

WARN_S = 10.0
"""From this age on of an event that is not durable, a warning says so."""

_WARN_EVERY_S = 60.0


class _Line(NamedTuple):
    seq: int
    data: bytes
    since_s: float


class Journal(ABC):
    """The journal of an experiment, as its one driver writes it.

    Only :meth:`sync` may be called from another thread than the rest.

    Args:
        disk: where it goes.
        directory: of the segments; made if it is not there.
        epoch: of the driver's lease.
        seq: number of the last event that is there.
        clock: gives events their time.
        accept: given each event before it is taken; what it raises keeps the event out.
        may_write: asked before each write; False keeps all in memory, as long as nobody knows
            whether the lease still holds.

    Attributes:
        changed: notified when there is something to do.
        error: what the storage said to the latest try to write, None if it took everything.
    """

    def __init__(  # noqa: PLR0913 - all of them by name
        self,
        disk: Disk,
        directory: str,
        *,
        epoch: int,
        seq: int,
        clock: Clock,
        accept: Callable[[Record], object] = lambda _: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.changed = threading.Condition()
        self.error: StorageError | None = None
        self._disk = disk
        self._directory = directory
        self._epoch = epoch
        self._seq = seq
        self._durable_seq = seq
        self._clock = clock
        self._accept = accept
        self._may_write = may_write
        self._is_closed = False
        self._lines: deque[_Line] = deque()
        self._barriers: deque[tuple[int, Callable[[], object]]] = deque()
        self._urgent_seq = 0
        self._warned_s: float | None = None
        self._do("making a directory", directory, self._make_directory)
        self._do("syncing", directory, self._secure)

    # --- what a driver calls ---------------------------------------------------------------------

    def append(self, event: Event) -> Record:
        """Add an event, and return it in its place. Never waits, and never fails for the disk.

        Raises:
            RuntimeError: the journal is closed.
            Exception: of `accept`; the journal is as before.
        """
        if self._is_closed:
            raise RuntimeError(f"The journal in {self._directory} is closed.")
        record = Record(self._seq + 1, self._epoch, round(self._clock.time(), 6), event)
        line = _Line(record.seq, encode(record), self._clock.monotonic())
        self._accept(record)
        with self.changed:
            self._seq = record.seq
            self._lines.append(line)
            self._take(line)
            if len(self._lines) == 1:
                self.changed.notify_all()
        return record

    def await_durable(self, seq: int, then: Callable[[], object]) -> None:
        """Have all events up to `seq` made durable at once, and `then` called by :meth:`tick`."""
        self._barriers.append((seq, then))
        with self.changed:
            if seq > self._durable_seq:
                self._urgent_seq = max(self._urgent_seq, seq)
                self.changed.notify_all()

    def tick(self) -> None:
        """Call what waits for events that are durable by now, in the order in which it came.

        Warns while the storage is behind.
        """
        while self._barriers and self._barriers[0][0] <= self._durable_seq:
            self._barriers.popleft()[1]()
        lag_s = self.lag_s
        now_s = self._clock.monotonic()
        if lag_s < WARN_S:
            self._warned_s = None
        elif self._warned_s is None or now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            logger.warning(
                "The journal is behind: event %d has not been durable for %.0f s. %s does not "
                "take it; trials go on, and a new one starts only when it does.",
                self._durable_seq + 1,
                lag_s,
                self._directory,
            )

    def wait_durable(self, timeout_s: float) -> bool:
        """Wait until all events so far are durable; return whether they are."""
        with self.changed:
            seq = self._seq
            self._urgent_seq = max(self._urgent_seq, seq)
            self.changed.notify_all()
            return self.changed.wait_for(lambda: self._durable_seq >= seq, timeout_s)

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return self._seq

    @property
    def durable_seq(self) -> int:
        """The number of the last event that survives the machine."""
        return self._durable_seq

    @property
    def lag_s(self) -> float:
        """How long the oldest event that is not durable has been there, in seconds; 0 for none."""
        with self.changed:
            return self._clock.monotonic() - self._lines[0].since_s if self._lines else 0.0

    @property
    def is_pending(self) -> bool:
        """Whether there are events that are not durable."""
        return self._durable_seq < self._seq

    @property
    def is_urgent(self) -> bool:
        """Whether something waits for an event that is not durable."""
        return self._urgent_seq > self._durable_seq

    # --- what the thread calls -------------------------------------------------------------------

    def sync(self) -> None:
        """Make all events so far durable. Does nothing while the lease is in doubt, or once closed.

        Raises:
            StorageError: the storage failed; nothing is lost, and the next call tries again.
        """
        if not (self.is_pending and self._can_write()):
            return
        try:
            self._sync()
        except StorageError as error:
            self.error = error
            raise
        self.error = None

    @abstractmethod
    def _secure(self) -> None:
        """Make durable what is there already."""

    @abstractmethod
    def _take(self, line: _Line) -> None:
        """Take one more event, which is the last in `_lines`; called with the lock held."""

    @abstractmethod
    def _sync(self) -> None:
        """Make all events so far durable, and acknowledge them."""

    @abstractmethod
    def _let_go(self) -> None:
        """Close what is open."""

    def close(self) -> None:
        """Let go of the disk: nothing more is written, and nothing more becomes durable."""
        with self.changed:
            self._is_closed = True
        self._let_go()

    def _can_write(self) -> bool:
        return not self._is_closed and self._may_write()

    def _acknowledge(self, seq: int) -> None:
        with self.changed:
            while self._lines and self._lines[0].seq <= seq:
                self._lines.popleft()
            self._durable_seq = max(self._durable_seq, seq)
            self.changed.notify_all()

    def _make_directory(self) -> None:
        self._disk.make_directory(self._directory)
        self._disk.sync(posixpath.dirname(self._directory))  # or it is lost with all that is in it

    def _do(self, what: str, path: str, operation: Callable[[], None]) -> None:
        retry(self._disk, what, path, operation, limit_s=0)

    def _path_of(self, first: int) -> str:
        return f"{self._directory}/{Segment(self._epoch, first).name}"


class _Appended(Journal):
    """On a local disk. While `_is_behind`, events wait in memory for the next segment."""

    _appender: Appender | None = None
    _is_named = False
    _is_behind = False
    _bytes = 0

    def _secure(self) -> None:
        """Make durable what was read of the driver before.

        Its process may have died before it synced. What is built on its events must not outlast
        them. Only its last segment can be in doubt: each is durable before the next is begun.
        """
        names = self._disk.list_names(self._directory)
        for segment in segments_among(names)[-1:]:
            appender = self._disk.append(f"{self._directory}/{segment.name}")
            try:
                appender.sync()
            finally:
                appender.close()
        for name in partials_among(names, self._epoch):
            self._disk.delete_file(f"{self._directory}/{name}")
        self._disk.sync(self._directory)

    def _take(self, line: _Line) -> None:
        if self._is_behind or not self._can_write():
            self._is_behind = True
            return
        try:
            if self._appender is None:
                self._appender = self._disk.append(self._path_of(line.seq))
                self._is_named = False
                self._bytes = 0
            self._write(self._appender, line)
        except OSError:
            logger.warning("Could not write to the journal in %s.", self._directory, exc_info=True)
            self._is_behind = True

    def _write(self, appender: Appender, line: _Line) -> None:
        appender.write(memoryview(line.data))
        self._bytes += len(line.data)

    def _sync(self) -> None:
        with self.changed:
            failed = self._is_behind
            written = self._seq
            # Nothing goes into the next segment before this one is durable to its end.
            self._is_behind = failed or self._bytes >= SEGMENT_BYTES
            appender = self._appender
        if appender is not None and not failed:
            self._do("syncing", self._directory, lambda: self._sync_segment(appender))
            self._acknowledge(written)
        if self._is_behind and self._can_write():
            self._begin_segment()

    def _sync_segment(self, appender: Appender) -> None:
        try:
            appender.sync()
            if not self._is_named:
                self._disk.sync(self._directory)
        except Exception:
            # Nobody knows what a failed sync left, nor what the next one would say of it.
            with self.changed:
                self._is_behind = True
            raise
        self._is_named = True

    def _begin_segment(self) -> None:
        self._let_go()
        with self.changed:
            lines = list(self._lines)
            if not lines:
                self._is_behind = False
                return
        path = self._path_of(lines[0].seq)
        self._do("writing", path, lambda: self._write_segment(path, lines))
        self._acknowledge(lines[-1].seq)
        self._do("opening", path, lambda: self._go_on(path, lines))

    def _go_on(self, path: str, lines: list[_Line]) -> None:
        try:
            appender = self._disk.append(path)
        except Exception:
            with self.changed:
                self._is_behind = bool(self._lines)  # else the next event begins a segment
            raise
        with self.changed:
            if self._is_closed:
                appender.close()
                return
            self._appender = appender
            self._is_named = True
            self._bytes = sum(len(line.data) for line in lines)
            self._is_behind = False
            for line in self._lines:
                self._take(line)

    def _write_segment(self, path: str, lines: list[_Line]) -> None:
        partial = f"{path}{PARTIAL}"
        self._disk.write(partial, b"".join(line.data for line in lines))
        self._disk.replace(partial, path)
        self._disk.sync(self._directory)

    def _let_go(self) -> None:
        with self.changed:
            appender, self._appender = self._appender, None
        if appender is not None:
            try:
                appender.close()
            except OSError:
                # What it held is durable, or written again into the next segment.
                logger.warning("Closing a segment in %s failed.", self._directory, exc_info=True)


class _Uploaded(Journal):
    """On an object store."""

    _in_flight: tuple[_Line, ...] = ()

    def _secure(self) -> None:
        """Nothing: what can be read is durable."""

    def _take(self, line: _Line) -> None:
        """Nothing: it is gathered."""

    def _let_go(self) -> None:
        """Nothing is open."""

    def _sync(self) -> None:
        until = self._seq
        while self._durable_seq < until and self._can_write():
            # A segment whose answer was lost may be there: it stays what it is.
            self._in_flight = self._in_flight or self._gather()
            path = self._path_of(self._in_flight[0].seq)
            data = b"".join(line.data for line in self._in_flight)
            self._do("writing", path, lambda: self._disk.write(path, data))  # noqa: B023 - at once
            self._acknowledge(self._in_flight[-1].seq)
            self._in_flight = ()

    def _gather(self) -> tuple[_Line, ...]:
        lines, size = [], 0
        with self.changed:
            for line in self._lines:
                lines.append(line)
                size += len(line.data)
                if size >= SEGMENT_BYTES:
                    break
        return tuple(lines)


def open_journal(  # noqa: PLR0913 - as above
    disk: Disk,
    directory: str,
    *,
    epoch: int,
    seq: int,
    clock: Clock,
    accept: Callable[[Record], object] = lambda _: None,
    may_write: Callable[[], bool] = lambda: True,
) -> Journal:
    """Return the :class:`Journal` for a kind of disk.

    What is there already is made durable first: the events up to `seq` may be in memory only.

    Raises:
        StorageError: its directory cannot be made, or the last segment not be synced.
    """
    kind = _Appended if disk.has_rename else _Uploaded
    return kind(
        disk, directory, epoch=epoch, seq=seq, clock=clock, accept=accept, may_write=may_write
    )
