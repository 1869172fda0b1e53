"""Drivers as far as they write: stopped anywhere, replaced, and gone on from.

A :class:`Driver` lives through recovery, events, syncs, snapshots and merges by chance, in one
thread. A :class:`Witness` knows, outside of the disk, what it did and what it was promised;
:func:`check` holds what is on the disk against that.
"""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import (
    Fault,
    Faulty,
    Operation,
    Stopped,
    fail_share,
    fail_when,
    fill_up,
    stop_at,
)
from raytrials.core import invariant
from raytrials.core.event import DriverAttached, DriverDetached, Event, ExperimentCreated, Record
from raytrials.core.fold import apply, fold
from raytrials.core.state import ExperimentState
from raytrials.errors import StorageError
from raytrials.store import journal as journals
from raytrials.store import merging
from raytrials.store import recovery as recoveries
from raytrials.store import snapshot as snapshots
from raytrials.store.disk import Disk
from raytrials.store.journal import Journal, open_journal
from raytrials.store.record import encode
from raytrials.store.recovery import Recovered, has_journal, recover
from raytrials.store.segment import Damage, Reading, segments_among
from raytrials.store.snapshot import KEPT, DamagedSnapshotError, Snapshot, SnapshotName
from support.scripts import next_event

HOME = "/experiment/.raytrials"
JOURNAL = f"{HOME}/{recoveries.JOURNAL}"
SNAPSHOTS = f"{HOME}/{recoveries.SNAPSHOTS}"

Fake = FakeLocal | FakeObjectStore


@contextmanager
def small_segments(size: int = 1_500) -> Iterator[None]:
    """Let a segment be full after a few events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "SEGMENT_BYTES", size)
        patch.setattr(merging, "SEGMENT_BYTES", 3 * size)
        yield


def form_of(state: ExperimentState) -> str:
    """All that a state says, to be compared."""
    trials = [trial.to_json() for trial in state.trials.values()]
    return json.dumps([state.to_json(), trials, sorted(state.running)])


class Clock:
    """Each event has a time of its own."""

    def __init__(self, epoch: int) -> None:
        self.now_s = epoch * 1e6

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")


@dataclass
class Witness:
    """What is known of drivers outside of the disk.

    Attributes:
        appended: each event that was ever handed to a journal, by epoch and number.
        lines: the same as lines of the journal.
        states: what the driver knew after each.
        parts: of each snapshot that was begun.
        written: the snapshots that were finished, with the number of the epoch that counts.
        promised: the epoch of each event, from 1 on, that was acknowledged to be durable.
        epoch: of the latest driver.
    """

    appended: dict[tuple[int, int], Record] = field(default_factory=dict)
    lines: set[bytes] = field(default_factory=set)
    states: dict[tuple[int, int], str] = field(default_factory=dict)
    parts: dict[SnapshotName, dict[str, bytes]] = field(default_factory=dict)
    written: list[SnapshotName] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    epoch: int = 0

    def note(self, record: Record, state: ExperimentState) -> None:
        place = record.epoch, record.seq
        assert place not in self.appended
        self.appended[place] = record
        self.lines.add(encode(record).rstrip(b"\n"))
        self.states[place] = form_of(state)


class Driver:
    """A driver of an experiment.

    Args:
        disk: as it sees it.
        bare: the same without faults.
        witness: sees all.
        seed: of its script.
    """

    def __init__(self, disk: Disk, bare: Disk, witness: Witness, seed: object) -> None:
        witness.epoch += 1
        self.epoch = witness.epoch
        self.state = ExperimentState()
        self.journal: Journal | None = None
        self._disk = disk
        self._bare = bare
        self._witness = witness
        self._luck = random.Random(f"{seed}-{self.epoch}")
        self._clock = Clock(self.epoch)
        self._epochs: list[int] = []
        self._barriers = 0

    def live(self, length: int) -> None:
        """Take over, do so many things, and go."""
        try:
            self.begin()
            for _ in range(length):
                self._do_something()
            self.end()
        finally:
            self.look()

    def live_through(self, length: int, heal: Callable[[], object]) -> None:
        """Live on a storage that fails, until it is healed: one sync is enough then."""
        for _ in range(100):
            with suppress(StorageError):
                self.begin()
                break
        for _ in range(length):
            self._do_something()
        heal()
        assert self.end()
        assert self.journal is not None
        assert not self.journal.is_pending

    def end(self) -> bool:
        """Go in order; return whether all is durable."""
        self.append(DriverDetached("done"))
        return self.sync()

    def look(self) -> None:
        """Note what the journal says is durable, as another thread may at any time."""
        if self.journal is not None:
            self._promise(self.journal.durable_seq)

    def _promise(self, seq: int) -> None:
        witness = self._witness
        if self.epoch < witness.epoch:
            return  # replaced: what it believes does not count
        assert self._epochs[: len(witness.promised)] == witness.promised[: len(self._epochs)]
        if seq > len(witness.promised):
            witness.promised = self._epochs[:seq]

    def begin(self) -> None:
        """Recover or begin anew, and attach."""
        recovered = Recovered(ExperimentState())
        if has_journal(self._disk, HOME):
            recovered = recover(self._disk, HOME)
        self.state = recovered.state
        journal = open_journal(
            self._disk, JOURNAL, epoch=self.epoch, seq=self.state.seq, clock=self._clock
        )
        self._epochs = [record.epoch for record in _read(self._bare)[0]] if self.state.seq else []
        self.journal = journal
        if not self.state.seq:
            self.append(ExperimentCreated("id", "name", 7, {"lr": "uniform"}))
        damage = [one.to_json() for one in recovered.damage]
        self.append(DriverAttached("host", self.epoch, damage=damage))
        self.sync()

    def append(self, event: Event) -> None:
        assert self.journal is not None
        self._clock.now_s += 1
        record = Record(self.journal.seq + 1, self.epoch, self._clock.now_s, event)
        apply(self.state, record)
        invariant.check(self.state)
        self._witness.note(record, self.state)
        self._epochs.append(self.epoch)
        assert self.journal.append(event) == record

    def sync(self) -> bool:
        """Have all made durable; return whether it is."""
        journal = self.journal
        assert journal is not None
        seq = journal.seq
        self._barriers += 1
        journal.await_durable(seq, lambda: self._release(seq))
        with suppress(StorageError):
            journal.sync()
        journal.tick()
        assert (self._barriers > 0) is (journal.durable_seq < seq)
        return not self._barriers

    def _release(self, seq: int) -> None:
        self._barriers -= 1
        self._promise(seq)

    def _do_something(self) -> None:
        choice = self._luck.random()
        if choice < 0.72:
            self.append(next_event(self.state, self._luck))
        elif choice < 0.88:
            self.sync()
        else:
            self.take_snapshot()

    def take_snapshot(self, more: int = 2) -> None:
        """Write a snapshot; so many events come before it is written."""
        parts = {"searcher": self._luck.randbytes(20), "empty": b""}
        snapshot = Snapshot(self.state, parts)
        name, data = snapshot.name, snapshot.encode()
        self._witness.parts[name] = parts
        for _ in range(more):
            self.append(next_event(self.state, self._luck))
        if not self._is_durable(name.seq):
            return
        with suppress(StorageError):  # the next one may work
            snapshots.write(self._disk, SNAPSHOTS, name, data, retry_s=0)
            self._witness.written.append(name)
            if not self._disk.has_rename:
                merging.merge(self._disk, JOURNAL, epoch=self.epoch, seq=name.seq, retry_s=0)

    def _is_durable(self, seq: int) -> bool:
        assert self.journal is not None
        return self.journal.durable_seq >= seq or self.sync()


def live(
    disk: Disk,
    witness: Witness,
    seed: object,
    length: int,
    **faults: Sequence[Fault],
) -> bool:
    """Let one driver live on a disk with faults; return whether it was stopped."""
    faulty = Faulty(disk, **faults)
    try:
        Driver(faulty, disk, witness, seed).live(length)
    except Stopped:
        return True
    return False


def _read(disk: Disk) -> tuple[list[Record], tuple[Damage, ...]]:
    reading = Reading(disk, JOURNAL)
    return list(reading), tuple(reading.damage)


def check(disk: Disk, witness: Witness) -> set[str]:
    """Assert that what is on the disk is what drivers did, and all that they were promised.

    Returns:
        The files that a recovery finds damaged.
    """
    before = contents(disk)
    if not has_journal(disk, HOME):
        assert not witness.promised, "what was promised is gone"
        assert contents(disk) == before
        return set()
    recovered = recover(disk, HOME)
    assert recover(disk, HOME) == recovered
    records, damage = _read(disk)
    assert contents(disk) == before, "a look has changed something"

    epochs = [record.epoch for record in records]
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert epochs[: len(witness.promised)] == witness.promised, "what was promised is not there"
    for record in records:
        assert record == witness.appended[record.epoch, record.seq], "nobody wrote this"
    last = records[-1]
    assert form_of(recovered.state) == witness.states[last.epoch, last.seq]
    assert form_of(fold(records)) == form_of(recovered.state)
    invariant.check(recovered.state)
    _check_snapshots(disk, witness, recovered, records)
    _check_damage(disk, witness, recovered, records, damage)
    return {one.file for one in (*damage, *recovered.damage)}


def _check_snapshots(
    disk: Disk, witness: Witness, recovered: Recovered, records: list[Record]
) -> None:
    def counts(name: SnapshotName) -> bool:
        return name.seq <= len(records) and records[name.seq - 1].epoch == name.epoch

    names = snapshots.names_in(disk, SNAPSHOTS, retry_s=0)
    whole, damaged = {}, set()
    for name in filter(counts, names):
        try:
            whole[name] = snapshots.read(disk, SNAPSHOTS, name, retry_s=0)
        except DamagedSnapshotError:
            damaged.add(name)
    for name, snapshot in whole.items():
        assert snapshot.parts == witness.parts[name]
        assert form_of(snapshot.state) == witness.states[name]
    newest = max(whole, default=SnapshotName(0, 0))
    assert recovered.parts_seq == newest.seq
    assert recovered.parts == witness.parts.get(newest, {})
    assert list(recovered.tail) == records[recovered.parts_seq :]
    assert {one.file for one in recovered.damage if one.file.endswith("snapshot")} == {
        str(name) for name in damaged if name > newest
    }
    for name in filter(counts, witness.written):
        assert name in whole or sum(one > name for one in names) >= KEPT, f"{name} is gone"


def _check_damage(
    disk: Disk,
    witness: Witness,
    recovered: Recovered,
    records: list[Record],
    damage: tuple[Damage, ...],
) -> None:
    segments = segments_among(disk.list_names(JOURNAL))
    torn = set()
    for number, segment in enumerate(segments):
        if any(later.first == 1 for later in segments[number + 1 :]):
            continue  # nothing of it ever counted
        at = 0
        for line in disk.read(f"{JOURNAL}/{segment.name}").split(b"\n"):
            if line and line not in witness.lines:
                torn.add((segment, at))
                break
            at += len(line) + 1
    assert {(one.file, one.offset) for one in damage} == {(one.name, at) for one, at in torn}
    named = {(one.file, one.offset) for one in recovered.damage if one.file.endswith("jsonl")}
    assert named <= {(one.file, one.offset) for one in damage}
    recorded = {
        (one["file"], one["offset"])
        for record in records
        if isinstance(record.event, DriverAttached)
        for one in record.event.damage
    }
    last = {segment.epoch: segment for segment in segments}
    for segment, at in torn:
        place = segment.name, at
        assert place in named | recorded or segment.first <= recovered.parts_seq
        if segment == last[segment.epoch] and segment.epoch < records[-1].epoch:
            assert place in recorded, "it was put aside, and nobody says so"


def contents(disk: Disk) -> dict[str, bytes]:
    """All files of an experiment."""
    return {name: disk.read(f"{HOME}/{name}") for name in disk.list_files(HOME)}


# --- scenarios -----------------------------------------------------------------------------------

EVERY = 4
"""Each seed stops at every so manieth operation, from a place of its own; 1 is a full sweep."""

SEEDS = range(4)

End = Callable[[Fake, random.Random], None]


def keep(disk: Fake, luck: random.Random) -> None:
    """The process alone is dead."""
    if isinstance(disk, FakeLocal):
        disk.end_process()


def cut_power(disk: Fake, luck: random.Random) -> None:
    assert isinstance(disk, FakeLocal)
    disk.crash()


def cut_power_with_luck(disk: Fake, luck: random.Random) -> None:
    assert isinstance(disk, FakeLocal)
    disk.crash(luck)


@dataclass(frozen=True)
class Stops:
    """Drivers are stopped before each operation, the next one somewhere too, and a third goes on.

    Attributes:
        make: the disk.
        ends: what happens after each of them.
        answered: whether the operation at which it stops is done, and only its answer is lost.
    """

    make: Callable[[], Fake]
    ends: tuple[End, End, End]
    answered: bool = False

    def __call__(self, seeds: Sequence[int] = SEEDS) -> None:
        with small_segments():
            for seed in seeds:
                number = seed % EVERY + 1
                while self._live(seed, number):
                    number += EVERY
                assert number > 20

    def _live(self, seed: int, number: int) -> bool:
        disk, witness, luck = self.make(), Witness(), random.Random(f"{seed}-{number}")
        plan = zip((30, 8, 3), (number, luck.randint(1, 50), 0), self.ends, strict=True)
        stopped = []
        for length, at, end in plan:
            faults = {"after" if self.answered else "before": [stop_at(at)]}
            stopped.append(live(disk, witness, seed, length, **faults))
            end(disk, luck)
            damaged = check(disk, witness)
            assert not any(name.endswith("snapshot") for name in damaged)
            assert disk.has_rename or not damaged, "an object is whole or not there"
        assert not stopped[-1]
        assert witness.promised[-1] == witness.epoch
        return stopped[0]


STOPS = {
    "local, process": Stops(FakeLocal, (keep, keep, keep)),
    "local, process, answered": Stops(FakeLocal, (keep, keep, keep), answered=True),
    "local, power": Stops(FakeLocal, (cut_power,) * 3),
    "local, luck": Stops(FakeLocal, (cut_power_with_luck,) * 3),
    "local, process, then power": Stops(FakeLocal, (keep, cut_power, cut_power)),
    "local, process, then luck": Stops(FakeLocal, (keep, cut_power_with_luck, keep)),
    "store": Stops(FakeObjectStore, (keep, keep, keep)),
    "store, answered": Stops(FakeObjectStore, (keep, keep, keep), answered=True),
}


@dataclass(frozen=True)
class Failures:
    """Operations fail for a while: the driver that lives through it loses and doubles nothing.

    Attributes:
        make: the disk.
        plan: what fails, for a seed; None lets each operation in turn fail, once.
        answered: whether an operation that fails is done, and only its answer is lost.
    """

    make: Callable[[], Fake]
    plan: Callable[[int], Fault] | None = None
    answered: bool = False

    def __call__(self, seeds: Sequence[int] = SEEDS) -> None:
        with small_segments():
            for seed in seeds:
                if self.plan is not None:
                    for more in range(0, 40, EVERY):
                        self._live(seed + more, self.plan(seed + more))
                    continue
                number, operations = seed % EVERY + 1, 10**6
                while number <= operations:
                    fails = fail_when(lambda one, at=number: one.number == at, _io_error())
                    operations = self._live(seed, fails)
                    number += EVERY
                assert number > 20

    def _live(self, seed: int, fault: Fault) -> int:
        disk, witness, luck = self.make(), Witness(), random.Random(seed)
        for epoch in (1, 2):
            faults = [fault]
            faulty = Faulty(disk, **{"after" if self.answered else "before": faults})
            driver = Driver(faulty, disk, witness, seed)
            driver.live_through(30 if epoch == 1 else 8, faults.clear)
            driver.look()
            assert len(witness.promised) == driver.state.seq
            check(disk, witness)
            if isinstance(disk, FakeLocal):
                disk.crash(luck if seed % 2 else None)
            check(disk, witness)
        return len(faulty.operations)


def _io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def _named(*names: str) -> Callable[[int], Fault]:
    """Operations of these kinds fail by chance."""

    def plan(seed: int) -> Fault:
        by_chance = fail_share(0.4, _io_error(), seed=seed)
        return lambda operation: by_chance(operation) if operation.name in names else None

    return plan


FAILURES = {
    "local, each": Failures(FakeLocal),
    "local, each answer": Failures(FakeLocal, answered=True),
    "store, each": Failures(FakeObjectStore),
    "store, each answer": Failures(FakeObjectStore, answered=True),
    "local, some": Failures(FakeLocal, lambda seed: fail_share(0.1, _io_error(), seed=seed)),
    "store, some": Failures(FakeObjectStore, lambda seed: fail_share(0.1, _io_error(), seed=seed)),
    "local, full": Failures(FakeLocal, lambda seed: fill_up(500 + 350 * seed)),
    "store, full": Failures(FakeObjectStore, lambda seed: fill_up(500 + 350 * seed)),
    "local, fsync": Failures(FakeLocal, _named("sync_file")),
    "local, writes": Failures(FakeLocal, _named("write")),
    "local, renames": Failures(FakeLocal, _named("replace")),
    "local, directories": Failures(FakeLocal, _named("sync", "make_directory")),
    "local, all fsyncs": Failures(FakeLocal, _named("sync_file", "sync", "close")),
}


@dataclass(frozen=True)
class Replacement:
    """A driver is frozen before each operation; another takes over, and the first one goes on.

    Attributes:
        make: the disk.
    """

    make: Callable[[], Fake]

    def __call__(self, seeds: Sequence[int] = SEEDS) -> None:
        with small_segments():
            for seed in seeds:
                number = seed % EVERY + 1
                while self._live(seed, number):
                    number += EVERY
                assert number > 20

    def _live(self, seed: int, number: int) -> bool:
        disk, witness = self.make(), Witness()
        frozen = False
        taker: Driver | None = None

        def meanwhile(operation: Operation) -> None:
            nonlocal frozen, taker
            if operation.number == number:
                frozen = True
                if driver.journal is not None:  # else the lease is what keeps them apart
                    driver.look()
                    check(disk, witness)
                    taker = Driver(disk, disk, witness, seed)
                    taker.live(number % 12)
                    check(disk, witness)

        driver = Driver(Faulty(disk, before=[meanwhile]), disk, witness, seed)
        driver.live(30)
        check(disk, witness)
        if taker is not None:
            assert recover(disk, HOME).state == taker.state
        live(disk, witness, seed, 8)
        check(disk, witness)
        return frozen


REPLACEMENTS = {"local": Replacement(FakeLocal), "store": Replacement(FakeObjectStore)}
