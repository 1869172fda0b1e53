"""What the log says of a failure, and when a trial that waited for its charge goes on."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from support.trials import NODE, Table, begin, dies, raises, trial_in

from raytrials import RetryPolicy, Rule
from raytrials.driver.recovery import Recovery
from raytrials.driver.trial import Trial

COUNTED = RetryPolicy(rules=(), backoff_initial_s=0)


class Actors:
    """Where no actor waits."""

    def is_waiting(self, _: Any) -> bool:
        return False


class Room:
    """A waiting room, and what left it."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.started: list[Trial] = []
        self.recovery = Recovery(
            trial.context.cluster,
            600,
            start=self.started.append,
            end=lambda one: one.set_status(Trial.ERROR),
            settled=lambda _: None,
        )

    def failed(self) -> str:
        self.trial.set_status(Trial.PENDING)
        self.recovery.requeue(self.trial)
        return self.recovery.outlook(self.trial)

    def tick(self) -> None:
        self.recovery.tick(Actors(), lambda: False)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock: its one item is the time."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_trial_that_its_charge_may_end_waits_for_it_and_is_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clock: list[float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = Room(trial := trial_in(tmp_path, monkeypatch, COUNTED, max_failures=0))
    dies(trial)
    assert room.failed() == "waits for its charge to be decided"
    assert str(trial.open_charges[-1]) == "worker_died as it looks, decided in 3 s at most"
    room.tick()
    assert lines(caplog) == []
    clock[0] += 3
    room.tick()
    (line,) = lines(caplog)
    assert line == (
        f"Trial {trial} is ended. The failure of its attempt 1 is decided, charge failure: "
        "worker_died, counted; failure 1, max_failures=0."
    )
    assert trial.status == Trial.ERROR
    assert room.started == []


def test_a_trial_that_runs_again_meanwhile_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clock: list[float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    table = Table(NODE)
    room = Room(trial := trial_in(tmp_path, monkeypatch, COUNTED, max_failures=1, cluster=table))
    dies(trial)
    assert room.failed() == "is tried again"
    assert room.started == [trial]
    begin(trial)
    trial.set_status(Trial.RUNNING)
    table.dies(NODE)
    room.tick()
    (line,) = lines(caplog)
    assert line.startswith(f"Trial {trial} goes on. The failure of its attempt 1 is decided, ")
    assert "charge infrastructure: node_lost, not counted" in line


def test_the_delay_is_told_and_counted_from_the_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clock: list[float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = RetryPolicy(rules=[Rule("retry", after_s=4, cause="worker_died")])
    room = Room(trial := trial_in(tmp_path, monkeypatch, policy, max_failures=1))
    dies(trial)
    assert room.failed() == "is tried again in 4 s"
    clock[0] += 3
    room.tick()
    assert lines(caplog)[0].startswith(f"Trial {trial} is tried again in 1 s. ")
    assert room.started == []
    clock[0] += 1
    room.tick()
    assert room.started == [trial]


def test_a_hold_for_what_the_charge_might_have_been_ends_with_the_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    policy = RetryPolicy(rules=[Rule("free", after_s=20, cause="node_lost")])
    room = Room(trial := trial_in(tmp_path, monkeypatch, policy, max_failures=1))
    dies(trial)
    assert room.failed() == "is tried again in 20 s"
    clock[0] += 3
    room.tick()
    assert room.started == [trial]


def test_a_failure_that_is_certain_is_decided_in_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    policy = RetryPolicy(rules=[Rule("retry", after_s=6, fault_class="training")])
    room = Room(trial := trial_in(tmp_path, monkeypatch, policy, max_failures=1))
    raises(trial)
    assert trial.open_charges == ()
    assert room.failed() == "is tried again in 6 s"
