"""The thread behind the journal: what waits is durable at once, and the rest together."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.journals import Clock, append, assert_whole, new_journal

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, fail_when
from raytrials.store import pump as pump_module
from raytrials.store.clock import SystemClock
from raytrials.store.journal import Journal
from raytrials.store.pump import Pump

LONG_S = 20.0
BROKEN = OSError(errno.EIO, "broken")
Fake = FakeLocal | FakeObjectStore


@pytest.fixture(params=[FakeLocal, FakeObjectStore])
def disk(request: pytest.FixtureRequest) -> Fake:
    fake: Fake = request.param()
    return fake


@pytest.fixture
def start() -> Iterator[Callable[[Journal, float], Pump]]:
    """Start pumps, and see that none is left."""
    pumps: list[Pump] = []

    def begin(journal: Journal, interval_s: float) -> Pump:
        pump = Pump(journal, interval_s)
        pumps.append(pump)
        pump.start()
        return pump

    yield begin
    for pump in pumps:
        pump.abandon()
        pump.join(LONG_S)
        assert not pump.is_alive()


Start = Callable[[Journal, float], Pump]


def wait_until(condition: Callable[[], bool], journal: Journal) -> None:
    with journal.changed:
        assert journal.changed.wait_for(condition, LONG_S)


def test_what_nobody_waits_for_is_durable_after_the_interval(disk: Fake, start: Start) -> None:
    journal = new_journal(disk, SystemClock())
    start(journal, 0.05)
    begun_s = time.monotonic()
    append(journal)
    wait_until(lambda: journal.durable_seq == 1, journal)
    assert time.monotonic() - begun_s >= 0.05


def test_a_barrier_makes_durable_at_once_and_not_after_the_interval(
    disk: Fake, start: Start
) -> None:
    journal = new_journal(disk, Clock())  # whose time stands still: no interval ever ends
    start(journal, 3600)
    called: list[int] = []
    append(journal, 3)
    journal.await_durable(2, lambda: called.append(2))
    wait_until(lambda: journal.durable_seq >= 2, journal)
    journal.tick()
    assert called == [2]
    append(journal)
    assert journal.wait_durable(LONG_S)


def test_a_barrier_that_comes_during_a_sync_follows_at_once(
    disk: Fake, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "FIRST_WAIT_S", 3600)
    journals: list[Journal] = []

    def come(operation: Operation) -> None:
        if operation.name in {"sync_file", "create"} and journals[0].seq < 5:
            append(journals[0])
            journals[0].await_durable(journals[0].seq, lambda: None)

    journal = new_journal(Faulty(disk, before=[come]), Clock())
    journals.append(journal)
    start(journal, 3600)
    append(journal)
    journal.await_durable(1, lambda: None)
    wait_until(lambda: journal.durable_seq == 5, journal)
    append(journal)
    assert journal.wait_durable(LONG_S)


def test_events_that_come_together_are_synced_together(start: Start) -> None:
    faulty = Faulty(FakeLocal())
    journal = new_journal(faulty, SystemClock())
    start(journal, 0.02)
    append(journal, 2000)
    wait_until(lambda: journal.durable_seq == 2000, journal)
    syncs = sum(one.name == "sync_file" for one in faulty.operations)
    assert 1 <= syncs < 200


def test_events_that_come_together_are_uploaded_together(start: Start) -> None:
    faulty = Faulty(FakeObjectStore())
    journal = new_journal(faulty, SystemClock())
    start(journal, 0.02)
    append(journal, 2000)
    wait_until(lambda: journal.durable_seq == 2000, journal)
    assert sum(one.name == "create" for one in faulty.operations) < 200


def test_a_storage_that_fails_is_tried_again_with_growing_waits(
    disk: Fake,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pump_module, "FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(pump_module, "LONGEST_WAIT_S", 0.008)
    armed = [False]
    writes = {"sync_file", "create", "append"}
    broken = fail_when(lambda one: armed[0] and one.name in writes, BROKEN)
    journal = new_journal(Faulty(disk, before=[broken]), SystemClock())
    armed[0] = True
    start(journal, 0.001)
    append(journal)
    journal.await_durable(1, lambda: None)
    waits: list[float] = []
    for _ in range(2000):
        waits = [one.args[0] for one in caplog.records if "tried again" in one.msg and one.args]  # type: ignore[misc,index]
        if len(waits) >= 4:
            break
        journal.wait_durable(0.01)
    assert waits[:4] == [0.002, 0.004, 0.008, 0.008]
    assert journal.durable_seq == 0
    armed[0] = False
    wait_until(lambda: journal.durable_seq == 1, journal)
    assert_whole(disk, 1)


def test_a_mistake_in_the_journal_does_not_end_the_thread(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pump_module, "LONGEST_WAIT_S", 0.002)
    journal = new_journal(FakeLocal(), SystemClock())
    sync, left = journal.sync, [2]

    def fail() -> None:
        if left[0]:
            left[0] -= 1
            raise KeyError("what")
        sync()

    monkeypatch.setattr(journal, "sync", fail)
    start(journal, 0.001)
    append(journal)
    wait_until(lambda: journal.durable_seq == 1, journal)
    assert sum(one.levelno == logging.ERROR for one in caplog.records) == 2


def test_what_may_not_be_written_yet_stays_due(
    disk: Fake, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "FIRST_WAIT_S", 0.002)
    may = [False]
    asked = threading.Semaphore(0)

    def may_write() -> bool:
        asked.release()
        return may[0]

    journal = new_journal(disk, SystemClock(), may_write=may_write)
    start(journal, 0.001)
    append(journal, 3)
    for _ in range(5):
        assert asked.acquire(timeout=LONG_S)
    assert journal.durable_seq == 0
    may[0] = True
    wait_until(lambda: journal.durable_seq == 3, journal)
    assert_whole(disk, 3)


def test_nothing_is_done_when_nothing_happens(disk: Fake, start: Start) -> None:
    journal = new_journal(disk, SystemClock())
    calls: list[int] = []
    sync = journal.sync

    def count() -> None:
        calls.append(1)
        sync()

    journal.sync = count  # type: ignore[method-assign]
    pump = start(journal, 0.001)
    append(journal)
    wait_until(lambda: journal.durable_seq == 1, journal)
    pump.join(0.1)
    assert len(calls) == 1
    assert pump.is_alive()


def test_closing_makes_all_durable_and_ends_the_thread(disk: Fake, start: Start) -> None:
    journal = new_journal(disk, Clock())
    pump = start(journal, 3600)
    append(journal, 5)
    assert pump.close(LONG_S)
    assert not pump.is_alive()
    assert journal.durable_seq == 5
    assert_whole(disk, 5)


def test_closing_ends_in_time_while_the_disk_hangs(disk: Fake) -> None:
    release, reached = threading.Event(), threading.Event()

    def hang(operation: Operation) -> None:
        if operation.name in {"sync_file", "create"}:
            reached.set()
            assert release.wait(LONG_S)

    # Its own lock is held while it hangs: the journal closes nothing through it.
    faulty = Faulty(disk, before=[hang])
    journal = new_journal(faulty, SystemClock())
    journal.close = lambda: None  # type: ignore[method-assign]
    pump = Pump(journal, 0.001)
    pump.start()
    append(journal)
    assert reached.wait(LONG_S)
    begun_s = time.monotonic()
    assert not pump.close(0.5)
    assert time.monotonic() - begun_s < LONG_S
    release.set()
    pump.join(LONG_S)
    assert not pump.is_alive()


def test_an_abandoned_journal_is_written_no_more(disk: Fake) -> None:
    faulty = Faulty(disk)
    journal = new_journal(faulty, Clock())
    pump = Pump(journal, 3600)
    pump.start()
    append(journal, 3)
    done = len(faulty.operations)
    pump.abandon()
    pump.join(LONG_S)
    assert not pump.is_alive()
    assert len(faulty.operations) == done


def test_the_thread_does_not_keep_the_process_from_ending(disk: Fake) -> None:
    assert Pump(new_journal(disk), 1).daemon
