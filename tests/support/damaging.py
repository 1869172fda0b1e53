"""A history on a disk, and damage to any of its files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from raytrials.chaos.disk import FakeObjectStore
from raytrials.core.event import Record
from raytrials.errors import JournalCorruptError
from raytrials.store.recovery import Recovered, has_journal, recover
from raytrials.store.segment import Reading
from support.driving import HOME, JOURNAL, Driver, Witness, contents, form_of, small_segments
from support.scripts import next_event

STRIDE = 13
"""Damage is tried at every so manieth byte; 1 is a full sweep."""


@dataclass(frozen=True)
class Damaged:
    """A file that is not as it was written.

    Attributes:
        file: below the experiment's own directory.
        data: what is in it; None if it is gone.
        place: where in it the damage begins, in bytes.
    """

    file: str
    data: bytes | None
    place: int


@dataclass
class History:
    """What two drivers wrote: several segments, two snapshots, and maybe events behind them.

    Attributes:
        files: all that is on the disk.
        whole: what is recovered of it.
        records: all events.
        states: what each came to.
        parts: of the snapshots, by the number of their last event.
    """

    files: dict[str, bytes]
    whole: Recovered
    records: list[Record]
    states: dict[int, str]
    parts: dict[int, dict[str, bytes]] = field(default_factory=dict)

    @classmethod
    def write(cls, *tail: int) -> History:
        """Write one; since the last snapshot so many events have come, each number a segment."""
        disk, witness = FakeObjectStore(), Witness()
        with small_segments(800):
            for counts in ((3, 4), (4, *tail)):
                driver = Driver(disk, disk, witness, "history")
                driver.begin()
                luck = random.Random(driver.epoch)
                for number, count in enumerate(counts):
                    for _ in range(count):
                        driver.append(next_event(driver.state, luck))
                    driver.sync()
                    if not number:
                        driver.take_snapshot(more=0)
        records = list(Reading(disk, JOURNAL))
        states = {one.seq: witness.states[one.epoch, one.seq] for one in records}
        parts = {name.seq: parts for name, parts in witness.parts.items()}
        return cls(contents(disk), recover(disk, HOME), records, states, parts)

    @property
    def last_segment(self) -> str:
        """The file that ends with the last event."""
        return max(name for name in self.files if name.endswith("jsonl"))

    @property
    def newest_snapshot(self) -> str:
        """The file that a recovery begins with."""
        return max(name for name in self.files if name.endswith("snapshot"))

    @property
    def read_segments(self) -> list[str]:
        """The segments that a recovery reads: the last one, and those behind the snapshot."""
        names = sorted(name for name in self.files if name.endswith("jsonl"))
        after = self.whole.parts_seq
        return [one for one in names if self.first_in(one) > after or one == names[-1]]

    @staticmethod
    def first_in(name: str) -> int:
        """The number of a segment's first event."""
        return int(name.removesuffix(".jsonl").split("-")[1])

    def outcome(self, *damaged: Damaged) -> Recovered | JournalCorruptError:
        """Return what a recovery makes of it, which is a state that was, or an error."""
        disk = FakeObjectStore()
        for name, data in self.files.items():
            disk.write(f"{HOME}/{name}", data)
        for one in damaged:
            disk.delete_file(f"{HOME}/{one.file}")
            if one.data is not None:
                disk.write(f"{HOME}/{one.file}", one.data)
        before = contents(disk)
        try:
            has_journal(disk, HOME)
            found: Recovered | JournalCorruptError = recover(disk, HOME)
        except JournalCorruptError as error:
            found = error
        assert contents(disk) == before, "a recovery has changed something"
        if isinstance(found, Recovered):
            seq = found.state.seq
            assert form_of(found.state) == self.states[seq]
            assert found.parts == self.parts.get(found.parts_seq, {})
            assert list(found.tail) == self.records[found.parts_seq : seq]
        else:
            assert found.path.startswith(JOURNAL)
            assert found.detail
        self._check_reading(disk)
        return found

    def _check_reading(self, disk: FakeObjectStore) -> None:
        seen: list[Record] = []
        with suppress(JournalCorruptError):
            for record in Reading(disk, JOURNAL):
                seen.append(record)  # noqa: PERF402 - also what comes before an error
        assert seen == self.records[: len(seen)]


def flips(name: str, data: bytes, stride: int = STRIDE) -> Iterator[Damaged]:
    """Some bytes are others, one at a time."""
    for place in range(0, len(data), stride):
        for mask in (1, 1 + (place * 7) % 255):
            changed = bytes([data[place] ^ mask])
            yield Damaged(name, data[:place] + changed + data[place + 1 :], place)


def cuts(name: str, data: bytes, stride: int = STRIDE) -> Iterator[Damaged]:
    """The file ends early."""
    for place in range(0, len(data), stride):
        yield Damaged(name, data[:place], place)


def holes(name: str, data: bytes, stride: int = STRIDE) -> Iterator[Damaged]:
    """A few bytes are missing."""
    for place in range(0, len(data) - 5, stride):
        yield Damaged(name, data[:place] + data[place + 5 :], place)


def zeros(name: str, data: bytes, stride: int = STRIDE) -> Iterator[Damaged]:
    """A run of zero bytes comes in between, or stands in place of what was there."""
    for place in range(0, len(data), stride):
        yield Damaged(name, data[:place] + b"\0" * 9 + data[place:], place)
        yield Damaged(name, data[:place] + b"\0" * 9 + data[place + 9 :], place)
    yield Damaged(name, data + b"\0" * 4096, len(data))


WAYS = {"flips": flips, "cuts": cuts, "holes": holes, "zeros": zeros}
