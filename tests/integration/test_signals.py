"""Signals and `Tuner.stop()` end a fit with everything saved, and the next one goes on."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from support.bad_stores import Holding
from support.fits import finish, last_json, wait_until
from support.signalled import RETURNED, Plan, begin, signalled, tuner, wait_for_steps

from raytrials.core.event import (
    CheckpointCommitted,
    DriverDetached,
    FaultRecorded,
)

EXIT_S = 120.0
"""How long Ray takes at most to end on a busy machine, beside the grace time."""


def events(plan: Plan) -> list[object]:
    return [one.event for one in plan.records()]


def check_all_done_once(plan: Plan, output: str) -> None:
    """Every trial came to its end, and no step was made twice."""
    found = last_json(output)
    assert found[RETURNED] == [plan.steps] * plan.trials
    assert found["errors"] == [None] * plan.trials
    made = [(trial, step) for trial, step, _ in plan.lines()]
    assert sorted(made) == [
        (trial, step) for trial in range(plan.trials) for step in range(1, plan.steps + 1)
    ]


@pytest.mark.timeout(900)  # five drivers, each with a Ray of its own
def test_each_signal_saves_what_class_trainables_have_and_no_step_is_made_again(
    workspace: Path,
) -> None:
    plan = Plan(str(workspace), steps=60, step_s=1.0, handler=True)
    for number, code in (
        (signal.SIGTERM, 75),
        (signal.SIGHUP, 75),
        (signal.SIGUSR1, 75),
        (signal.SIGINT, 0),
    ):
        driver = begin(plan)
        wait_for_steps(plan, driver, 4)
        found, seconds, output = signalled(plan, driver, number)
        assert found == code, output
        assert seconds < plan.grace_s + EXIT_S
        assert (RETURNED in output) == (code == 0)
        assert ("ended the run of" in output) == (code == 75)
    assert plan.handled.read_text() == "handled"
    assert [one.reason for one in events(plan) if isinstance(one, DriverDetached)] == [
        "SIGTERM",
        "SIGHUP",
        "SIGUSR1",
        "SIGINT",
    ]
    plan.fast.touch()
    check_all_done_once(plan, finish(begin(plan)))


@pytest.mark.parametrize("save", ["raise", "hang"])
def test_a_trial_that_cannot_save_is_not_charged_and_does_not_keep_the_driver(
    workspace: Path, save: str
) -> None:
    plan = Plan(str(workspace), trials=1, steps=12, grace_s=2)
    plan.saving.write_text(save)
    driver = begin(plan)
    wait_for_steps(plan, driver, 4)
    code, seconds, output = signalled(plan, driver, signal.SIGTERM)
    assert code == 75, output
    assert seconds < plan.grace_s + EXIT_S
    assert not [one for one in events(plan) if isinstance(one, FaultRecorded | CheckpointCommitted)]
    plan.saving.unlink()
    found = last_json(finish(begin(plan)))
    assert found == {RETURNED: [12], "errors": [None]}


def test_a_second_signal_does_not_wait_for_last_checkpoints(workspace: Path) -> None:
    plan = Plan(str(workspace), trials=1, step_s=1.0, grace_s=300)
    plan.saving.write_text("hang")
    driver = begin(plan)
    wait_for_steps(plan, driver, 2)
    code, seconds, output = signalled(plan, driver, signal.SIGTERM, signal.SIGHUP)
    assert code == 75, output
    assert seconds < EXIT_S


@pytest.mark.usefixtures("ray_local")
def test_stop_ends_a_fit_in_another_thread_and_one_that_has_not_begun(workspace: Path) -> None:
    plan = Plan(str(workspace))
    running = tuner(plan)
    grids = []
    thread = threading.Thread(target=lambda: grids.append(running.fit()))
    thread.start()
    wait_until(lambda: len(plan.lines()) >= 6, alive=thread.is_alive)
    running.stop()
    thread.join(plan.grace_s + EXIT_S)
    assert len(grids[0]) == plan.trials
    made = len(plan.lines())
    waiting = tuner(plan)
    waiting.stop()
    waiting.fit()
    assert len(plan.lines()) == made
    assert isinstance(events(plan)[-1], DriverDetached)
    grid = tuner(plan).fit()
    assert [result.metrics["count"] for result in grid] == [plan.steps] * plan.trials
    steps = [(trial, step) for trial, step, _ in plan.lines()]
    assert len(steps) == len(set(steps)) == plan.trials * plan.steps


@pytest.mark.usefixtures("ray_local")
def test_a_storage_that_answers_no_deletion_does_not_keep_a_fit_that_is_stopped(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    monkeypatch.setenv("RAYTRIALS_GRACE_S", "2")
    plan = Plan(str(workspace), trials=1, steps=4000, keeps_one=True)
    held = workspace / "held"
    held.touch()
    running = tuner(plan, Holding(str(held)).filesystem())
    thread = threading.Thread(target=running.fit)
    thread.start()
    try:
        wait_until((workspace / "held.seen").exists, alive=thread.is_alive)
        running.stop()
        thread.join(2 + EXIT_S)
        assert not thread.is_alive()
    finally:
        held.unlink()
        thread.join()
    assert "the storage did not answer in time" in caplog.text
    assert isinstance(events(plan)[-1], DriverDetached)
