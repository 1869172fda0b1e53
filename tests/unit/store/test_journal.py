"""The journal never waits, and nothing that it acknowledged is lost."""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support.journals import (
    DIRECTORY,
    Clock,
    append,
    assert_whole,
    contents,
    event,
    line,
    lines,
    new_journal,
    path_of,
    read,
)

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, Stopped, fail_when, fill_up, stop_at
from raytrials.errors import StorageError
from raytrials.store import journal as journal_module
from raytrials.store.disk import Appender
from raytrials.store.journal import WARN_S, Journal
from raytrials.store.segment import Segment

Fake = FakeLocal | FakeObjectStore
LONG_S = 20.0
BROKEN = OSError(errno.EIO, "broken")


@pytest.fixture(params=[FakeLocal, FakeObjectStore])
def disk(request: pytest.FixtureRequest) -> Fake:
    fake: Fake = request.param()
    return fake


class Gate:
    """A fault that lets an operation hang until it is opened."""

    def __init__(self, name: str) -> None:
        self.reached = threading.Event()
        self._name = name
        self._open = threading.Event()

    def __call__(self, operation: Operation) -> None:
        if operation.name == self._name and not self._open.is_set():
            self.reached.set()
            assert self._open.wait(LONG_S)

    def open(self) -> None:
        self._open.set()


class Hanging(FakeLocal):
    """A local disk whose syncs of files hang; unlike `Faulty`, nothing else waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate("sync_file")

    def append(self, path: str) -> Appender:
        return _HangingAppender(super().append(path), self.gate)


@dataclass
class _HangingAppender:
    inner: Appender
    gate: Gate

    def write(self, data: memoryview, /) -> None:
        self.inner.write(data)

    def sync(self) -> None:
        self.gate(Operation(0, "sync_file", ""))
        self.inner.sync()

    def close(self) -> None:
        self.inner.close()


def sync_until_done(journal: Journal, tries: int = 5) -> int:
    """Sync again until it works; return how often it failed."""
    for failed in range(tries):
        try:
            journal.sync()
        except StorageError:
            continue
        if not journal.is_pending:
            return failed
    raise AssertionError("it was never durable")


# --- appending ---------------------------------------------------------------------------------


def test_events_are_numbered_on_and_have_their_epoch_and_time(disk: Fake) -> None:
    clock = Clock()
    journal = new_journal(disk, clock, epoch=3, seq=41)
    clock.now_s = 5.1234567
    record = journal.append(event(42))
    assert (record.seq, record.epoch, record.time, record.event) == (42, 3, 5.123457, event(42))
    assert (journal.seq, journal.durable_seq) == (42, 41)
    journal.sync()
    assert (journal.seq, journal.durable_seq) == (42, 42)
    assert set(contents(disk)) == {"000003-000000000042.jsonl"}


def test_a_local_disk_has_an_event_at_once_and_a_store_when_it_is_synced() -> None:
    local, store = FakeLocal(), FakeObjectStore()
    for disk in (local, store):
        append(new_journal(disk), 3)
    assert_whole(local, 3)
    assert store.list_names(DIRECTORY) == set()


def test_a_time_that_jumps_back_is_written_as_it_is(disk: Fake) -> None:
    clock = Clock()
    journal = new_journal(disk, clock)
    append(journal)
    clock.jump_s = -900.0
    append(journal)
    journal.sync()
    assert_whole(disk, 2)
    assert journal.lag_s == 0


def test_an_append_does_not_wait_for_a_sync_that_hangs() -> None:
    disk = Hanging()
    journal = new_journal(disk)
    append(journal)
    thread = threading.Thread(target=journal.sync, daemon=True)
    thread.start()
    assert disk.gate.reached.wait(LONG_S)
    append(journal, 9)
    assert journal.durable_seq == 0
    assert_whole(disk, 10)
    disk.gate.open()
    thread.join(LONG_S)
    assert 1 <= journal.durable_seq < 10
    journal.sync()
    assert journal.durable_seq == 10


def test_an_append_does_not_wait_for_an_upload_that_hangs() -> None:
    gate, inner = Gate("hang"), FakeObjectStore()

    class Slow(FakeObjectStore):
        def write(self, path: str, data: bytes) -> None:
            gate(Operation(0, "hang", path))
            inner.write(path, data)

    journal = new_journal(Slow())
    append(journal)
    thread = threading.Thread(target=journal.sync, daemon=True)
    thread.start()
    assert gate.reached.wait(LONG_S)
    append(journal, 9)
    gate.open()
    thread.join(LONG_S)
    journal.sync()
    assert_whole(inner, 10)


WAYS: list[Callable[[Operation], bool]] = [
    lambda one: one.name == "append",
    lambda one: one.name == "write",
    lambda one: one.name == "sync_file",
    lambda one: one.name == "sync",
    lambda one: one.name == "create",
    lambda one: one.name == "close",
    lambda one: one.name == "replace",
]
NAMES = ["append", "write", "sync_file", "sync", "create", "close", "replace"]


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("matches", WAYS, ids=NAMES)
def test_after_a_failure_everything_is_there_once_and_it_goes_on(
    disk: Fake, matches: Callable[[Operation], bool], times: int, side: str
) -> None:
    for start in range(1, 12):
        inner = type(disk)()
        armed = [False]
        fault = fail_when(lambda one: armed[0] and matches(one), BROKEN, times=times)  # noqa: B023
        faulty = Faulty(inner, before=[fault]) if side == "before" else Faulty(inner, after=[fault])
        journal = new_journal(faulty)
        for step in range(1, 13):
            armed[0] = step >= start
            append(journal)
            if step % 3 == 0:
                with contextlib.suppress(StorageError):
                    journal.sync()
            assert_read_so_far(inner, journal)
        sync_until_done(journal, 9)
        assert_whole(inner, 12)
        armed[0] = False
        append(journal, 2)
        journal.sync()
        append(journal)
        assert_whole(inner, 15 if inner.has_rename else 14)


def assert_read_so_far(disk: Fake, journal: Journal) -> None:
    """All that is durable can be read, and whatever more is there is in its place."""
    found = read(disk)
    assert found.error is None
    assert len(found.seqs) >= journal.durable_seq


def test_a_full_disk_delays_and_loses_nothing(disk: Fake) -> None:
    full = fill_up(len(lines(1, 4)) + 20)
    armed, kinds = [True], set()
    faulty = Faulty(disk, before=[lambda one: full(one) if armed[0] else None])
    journal = new_journal(faulty)
    for _ in range(6):
        append(journal)
        try:
            journal.sync()
        except StorageError as error:
            kinds.add(error.kind)
    assert kinds == {"full"}
    assert 0 < journal.durable_seq < 6
    assert_read_so_far(disk, journal)
    armed[0] = False
    sync_until_done(journal)
    append(journal)
    journal.sync()
    assert_whole(disk, 7)


def test_nothing_is_appended_behind_what_a_failed_write_left() -> None:
    disk = FakeLocal()
    armed = [False]
    fault = fail_when(lambda one: armed[0] and one.name == "write", BROKEN, times=1)
    journal = new_journal(Faulty(disk, before=[fault]))
    append(journal, 2)
    armed[0] = True
    append(journal)  # half of it is there
    torn = disk.read(path_of(1))
    whole = b"".join(line(seq, time=Clock().now_s) for seq in (1, 2, 3))
    assert whole.startswith(torn)
    assert torn.count(b"\n") == 2
    assert not torn.endswith(b"\n")
    append(journal, 2)
    assert disk.read(path_of(1)) == torn
    sync_until_done(journal)
    assert_whole(disk, 5)


# --- what is acknowledged ----------------------------------------------------------------------


def run(journal: Journal, acknowledged: list[int]) -> None:
    for step in range(1, 13):
        append(journal)
        if step % 3 == 0:
            journal.sync()
            acknowledged.append(journal.durable_seq)


@pytest.mark.parametrize("luck", [None, 1, 2])
@pytest.mark.parametrize("segment_bytes", [journal_module.SEGMENT_BYTES, 300])
def test_what_was_acknowledged_survives_the_power_at_any_moment(
    monkeypatch: pytest.MonkeyPatch, segment_bytes: int, luck: int | None
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", segment_bytes)
    number, stopped = 0, True
    while stopped:
        number += 1
        disk = FakeLocal()
        acknowledged = [0]
        try:
            run(new_journal(Faulty(disk, before=[stop_at(number)])), acknowledged)
            stopped = False
        except Stopped:
            pass
        assert_survives(disk, acknowledged[-1], luck)
    assert number > 20


@pytest.mark.parametrize("luck", [None, 1, 2])
@pytest.mark.parametrize("failing", ["sync_file", "write", "sync", "replace"])
def test_what_was_acknowledged_after_a_failure_survives_the_power_too(
    failing: str, luck: int | None
) -> None:
    number, stopped = 0, True
    while stopped:
        number += 1
        disk = FakeLocal()
        acknowledged = [0]
        armed = [False]
        broken = fail_when(lambda one: armed[0] and one.name == failing, BROKEN, times=2)  # noqa: B023
        try:
            journal = new_journal(Faulty(disk, before=[stop_at(number), broken]))
            armed[0] = True
            for _ in range(8):
                append(journal)
                try:
                    journal.sync()
                except StorageError:
                    continue
                acknowledged.append(journal.durable_seq)
            stopped = False
        except Stopped:
            pass
        assert_survives(disk, acknowledged[-1], luck)
    assert acknowledged[-1] == 8
    assert number > 20


def assert_survives(disk: FakeLocal, acknowledged: int, luck: int | None) -> None:
    disk.crash(None if luck is None else random.Random(luck))
    found = read(disk)
    assert found.error is None
    assert len(found.seqs) >= acknowledged


def test_nothing_is_acknowledged_before_its_bytes_and_its_name_are_durable() -> None:
    disk = FakeLocal()
    journals: list[Journal] = []

    def look(operation: Operation) -> None:
        if journals:
            seen.append(operation.name)
            assert journals[0].durable_seq == 0

    seen: list[str] = []
    journal = new_journal(Faulty(disk, before=[look], after=[look]))
    journals.append(journal)
    append(journal)
    journal.sync()
    assert journal.durable_seq == 1
    assert seen[-4:] == ["sync_file", "sync_file", "sync", "sync"]


class Forgetful(FakeLocal):
    """A disk that, as Linux does, says all is well of a file whose last sync has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def append(self, path: str) -> Appender:
        return _ForgetfulAppender(super().append(path), self)


@dataclass
class _ForgetfulAppender:
    inner: Appender
    disk: Forgetful
    failed: bool = False

    def write(self, data: memoryview, /) -> None:
        self.inner.write(data)

    def sync(self) -> None:
        if self.disk.fails:
            self.failed = True
            raise BROKEN
        if not self.failed:
            self.inner.sync()

    def close(self) -> None:
        self.inner.close()


def test_no_file_is_trusted_whose_sync_has_failed() -> None:
    disk = Forgetful()
    journal = new_journal(disk)
    append(journal, 3)
    journal.sync()
    append(journal, 2)
    disk.fails = True
    with pytest.raises(StorageError):
        journal.sync()
    disk.fails = False
    append(journal)
    sync_until_done(journal)
    assert journal.durable_seq == 6
    disk.crash()
    assert_whole(disk, 6)


def test_events_reach_the_disk_at_once_though_the_next_segment_could_not_be_opened() -> None:
    disk, armed = FakeLocal(), [False]
    broken = fail_when(lambda one: armed[0] and one.name in {"append", "sync_file"}, BROKEN)
    journal = new_journal(Faulty(disk, before=[broken]))
    append(journal)
    armed[0] = True
    for _ in range(2):
        with pytest.raises(StorageError):
            journal.sync()
    assert journal.durable_seq == 1
    armed[0] = False
    append(journal, 2)
    assert_whole(disk, 3)
    journal.sync()
    disk.crash()
    assert_whole(disk, 3)


# --- segments ----------------------------------------------------------------------------------


def test_a_new_segment_is_begun_when_one_is_large(
    disk: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", len(line(1)) * 3)
    journal = new_journal(disk)
    for _ in range(10):
        append(journal, 2)
        journal.sync()
    assert_whole(disk, 20)
    sizes = [len(data) for data in contents(disk).values()]
    assert len(sizes) >= 5
    assert max(sizes) <= len(line(10)) * 5
    for after in range(21):
        assert_whole(disk, 20, after)


def test_much_that_has_gathered_is_uploaded_in_several_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", len(line(1)) * 3)
    disk = FakeObjectStore()
    journal = new_journal(disk)
    append(journal, 20)
    journal.sync()
    assert_whole(disk, 20)
    assert len(contents(disk)) == 7


def test_a_local_journal_syncs_the_name_of_a_segment_once() -> None:
    faulty = Faulty(FakeLocal())
    journal = new_journal(faulty)
    begun = len(faulty.operations)
    for _ in range(5):
        append(journal)
        journal.sync()
    names = [one.name for one in faulty.operations[begun:]]
    assert names.count("sync") == 1
    assert names.count("sync_file") == 5
    assert names.count("append") == 1


def test_a_segment_whose_answer_was_lost_is_written_again_with_the_same_bytes() -> None:
    disk = FakeObjectStore()
    lost = fail_when(lambda one: one.name == "close", TimeoutError(), times=1)
    journal = new_journal(Faulty(disk, after=[lost]))
    append(journal, 3)
    with pytest.raises(StorageError):
        journal.sync()
    assert journal.durable_seq == 0
    [(name, data)] = contents(disk).items()
    append(journal, 2)
    journal.sync()
    assert contents(disk, [name]) == {name: data}
    assert len(contents(disk)) == 2
    assert_whole(disk, 5)


def test_nothing_is_written_when_nothing_happens(disk: Fake) -> None:
    faulty = Faulty(disk)
    journal = new_journal(faulty)
    append(journal)
    journal.sync()
    done = len(faulty.operations)
    for _ in range(3):
        journal.sync()
        journal.tick()
        assert journal.wait_durable(0)
    assert len(faulty.operations) == done


# --- the lease ---------------------------------------------------------------------------------


def test_nothing_reaches_the_disk_while_the_lease_is_in_doubt(disk: Fake) -> None:
    may = [False]
    journal = new_journal(disk, may_write=lambda: may[0])
    append(journal, 3)
    journal.sync()
    assert disk.list_names(DIRECTORY) == set()
    assert (journal.durable_seq, journal.is_pending) == (0, True)
    may[0] = True
    append(journal)
    journal.sync()
    assert_whole(disk, 4)
    may[0] = False
    before = contents(disk)
    append(journal, 2)
    journal.sync()
    assert contents(disk) == before
    may[0] = True
    append(journal, 2)
    journal.sync()
    assert_whole(disk, 8)
    append(journal)
    journal.sync()
    assert_whole(disk, 9)


def test_a_lease_that_is_lost_during_a_sync_stops_what_comes_after_it(
    disk: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", len(line(1)))
    may = [True]
    written: list[str] = []

    def lose(operation: Operation) -> None:
        if not may[0] and operation.name in {"create", "write", "append", "replace"}:
            written.append(operation.name)
        if operation.name in {"sync", "close"} and armed[0]:
            may[0] = False

    armed = [False]
    journal = new_journal(Faulty(disk, after=[lose]), may_write=lambda: may[0])
    append(journal, 3)
    armed[0] = True
    journal.sync()
    append(journal)
    journal.sync()
    assert may == [False]
    assert written == []
    armed[0], may[0] = False, True
    sync_until_done(journal)
    assert_whole(disk, 4)


def test_a_lease_that_is_lost_during_a_sync_begins_no_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", len(line(1)))
    disk, may = FakeLocal(), [True]
    journals: list[Journal] = []

    def lose(operation: Operation) -> None:
        if operation.name == "sync_file" and may[0]:
            append(journals[0])
            may[0] = False

    journal = new_journal(Faulty(disk, before=[lose]), may_write=lambda: may[0])
    journals.append(journal)
    append(journal)
    journal.sync()
    assert (journal.durable_seq, len(contents(disk))) == (1, 1)
    may[0] = True
    journal.sync()
    assert_whole(disk, 2)


# --- what waits for it -------------------------------------------------------------------------


def test_barriers_are_called_in_their_order_by_tick_alone(disk: Fake) -> None:
    journal = new_journal(disk)
    called: list[str] = []
    append(journal, 3)
    journal.await_durable(0, lambda: called.append("at once"))
    journal.await_durable(3, lambda: called.append("three"))
    journal.await_durable(1, lambda: called.append("one"))
    assert called == []
    journal.tick()
    assert called == ["at once"]
    journal.sync()
    assert called == ["at once"]
    append(journal)
    journal.await_durable(4, lambda: called.append("four"))
    journal.tick()
    journal.tick()
    assert called == ["at once", "three", "one"]
    journal.sync()
    journal.tick()
    assert called == ["at once", "three", "one", "four"]


def test_a_barrier_is_urgent_until_its_event_is_durable(disk: Fake) -> None:
    journal = new_journal(disk)
    append(journal)
    assert not journal.is_urgent
    journal.await_durable(1, lambda: None)
    assert journal.is_urgent
    journal.sync()
    assert not journal.is_urgent
    journal.await_durable(1, lambda: None)
    assert not journal.is_urgent


def test_a_barrier_may_ask_for_another(disk: Fake) -> None:
    journal = new_journal(disk)
    called: list[int] = []

    def again() -> None:
        append(journal)
        journal.await_durable(journal.seq, lambda: called.append(journal.seq))

    append(journal)
    journal.await_durable(1, again)
    for _ in range(2):
        journal.sync()
        journal.tick()
    assert called == [2]


def test_it_warns_once_in_a_while_that_it_is_behind(
    disk: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    journal = new_journal(disk, clock)
    append(journal)

    def warnings() -> int:
        journal.tick()
        return sum(record.levelno == logging.WARNING for record in caplog.records)

    clock.now_s += WARN_S - 0.1
    assert (warnings(), round(journal.lag_s, 3)) == (0, WARN_S - 0.1)
    clock.now_s += 0.2
    assert [warnings(), warnings()] == [1, 1]
    assert "event 1 has not been durable for 10 s" in caplog.records[-1].getMessage()
    clock.now_s += 61
    assert [warnings(), warnings()] == [2, 2]
    journal.sync()
    assert (warnings(), journal.lag_s) == (2, 0.0)
    append(journal)
    clock.now_s += 11
    assert warnings() == 3


def test_waiting_for_what_is_not_durable_ends_in_time(disk: Fake) -> None:
    journal = new_journal(disk)
    assert journal.wait_durable(0)
    append(journal)
    assert not journal.wait_durable(0)
    assert journal.is_urgent


def test_a_directory_that_cannot_be_made_is_a_storage_error(disk: Fake) -> None:
    broken = fail_when(lambda one: one.name == "make_directory", BROKEN)
    with pytest.raises(StorageError):
        new_journal(Faulty(disk, before=[broken]))


def test_the_next_driver_goes_on_in_a_segment_of_its_own(disk: Fake) -> None:
    first = new_journal(disk)
    append(first, 3)
    first.sync()
    second = new_journal(disk, epoch=2, seq=3)
    append(second, 2)
    second.sync()
    append(first, 2)  # it does not know
    first.sync()
    found = assert_whole(disk, 5)
    assert found.epochs == [1, 1, 1, 2, 2]
    assert found.fenced == 2


def test_a_closed_journal_takes_acknowledges_and_writes_nothing(disk: Fake) -> None:
    journal = new_journal(disk)
    append(journal, 2)
    for _ in range(2):
        journal.close()
    before = contents(disk)
    with pytest.raises(RuntimeError, match="closed"):
        append(journal)
    journal.sync()
    assert (journal.seq, journal.durable_seq, journal.is_pending) == (2, 0, True)
    assert not journal.wait_durable(0)
    assert contents(disk) == before


@pytest.mark.parametrize("fails", [True, False])
def test_a_journal_that_is_closed_during_a_sync_begins_no_segment(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raytrials.store.journal.SEGMENT_BYTES", 1)
    disk = FakeLocal()
    closing: list[Journal] = []

    def close(operation: Operation) -> None:
        if operation.name == "sync_file" and closing:
            closing.pop().close()
            if fails:
                raise BROKEN

    journal = new_journal(Faulty(disk, before=[close]))
    append(journal, 2)
    closing.append(journal)
    with pytest.raises(StorageError) if fails else contextlib.nullcontext():
        journal.sync()
    journal.sync()
    assert disk.list_names(DIRECTORY) == {Segment(1, 1).name}
    assert journal.durable_seq == (0 if fails else 2)


def test_what_older_drivers_left_half_written_is_deleted_when_a_journal_is_opened() -> None:
    disk = FakeLocal()
    disk.make_directory(DIRECTORY)
    kept = {f"{Segment(3, 9).name}.partial", "notes.partial", "x.jsonl.partial"}
    for name in (f"{Segment(1, 1).name}.partial", f"{Segment(2, 5).name}.partial", *kept):
        disk.write(f"{DIRECTORY}/{name}", b"half")
    journal = new_journal(disk, epoch=3)
    assert disk.list_names(DIRECTORY) == kept
    append(journal)
    journal.sync()
    assert_whole(disk, 1)
