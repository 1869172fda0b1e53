"""Journals to write, to damage and to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytrials.core.event import DriverDetached, Record
from raytrials.errors import JournalCorruptError
from raytrials.store.clock import Clock as AnyClock
from raytrials.store.disk import Disk
from raytrials.store.journal import Journal, open_journal
from raytrials.store.record import encode
from raytrials.store.segment import Damage, Reading, Segment

DIRECTORY = "/experiment/.raytrials/journal"


class Clock:
    """Time that a test turns by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.jump_s = 0.0

    def time(self) -> float:
        return self.now_s + self.jump_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def event(seq: int) -> DriverDetached:
    """The event that has a number, in these tests."""
    return DriverDetached(f"event {seq}")


def line(seq: int, epoch: int = 1, time: float = 1.5) -> bytes:
    return encode(Record(seq, epoch, time, event(seq)))


def lines(first: int, last: int, epoch: int = 1) -> bytes:
    return b"".join(line(seq, epoch) for seq in range(first, last + 1))


def path_of(first: int, epoch: int = 1) -> str:
    return f"{DIRECTORY}/{Segment(epoch, first).name}"


def put(disk: Disk, first: int, data: bytes, epoch: int = 1) -> None:
    disk.make_directory(DIRECTORY)
    disk.write(path_of(first, epoch), data)


@dataclass
class Read:
    """What a reading gave."""

    seqs: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    fenced: int = 0
    error: JournalCorruptError | None = None


def read(disk: Disk, after: int = 0, directory: str = DIRECTORY) -> Read:
    """Read all there is. Each event has to be itself, and gaps are an error whatever happens."""
    found = Read()
    reading = Reading(disk, directory, after=after)
    try:
        for record in reading:
            assert record.seq == after + len(found.seqs) + 1 == reading.seq
            assert record.event == event(record.seq)
            found.seqs.append(record.seq)
            found.epochs.append(record.epoch)
    except JournalCorruptError as error:
        found.error = error
    assert reading.seq == after + len(found.seqs)
    found.damage, found.fenced = reading.damage, reading.fenced
    return found


def assert_whole(disk: Disk, last: int, after: int = 0) -> Read:
    """All events up to the last can be read, and no more."""
    found = read(disk, after)
    assert found.error is None, found.error
    assert found.seqs == list(range(after + 1, last + 1))
    return found


def new_journal(disk: Disk, clock: AnyClock | None = None, **changes: Any) -> Journal:
    values: dict[str, Any] = {"epoch": 1, "seq": 0, "clock": clock or Clock(), **changes}
    return open_journal(disk, DIRECTORY, **values)


def append(journal: Journal, count: int = 1) -> None:
    """Append the events that come next."""
    for _ in range(count):
        seq = journal.seq + 1
        assert journal.append(event(seq)).seq == seq


def contents(disk: Disk, names: Iterable[str] | None = None) -> dict[str, bytes]:
    found: Sequence[str] = sorted(names or disk.list_names(DIRECTORY))
    return {name: disk.read(f"{DIRECTORY}/{name}") for name in found}
