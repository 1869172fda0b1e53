"""Our controller runs whole experiments in virtual time, and no fault shows in their tables."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import ASHAScheduler
from support.script import Raise, Script
from support.scripted import Experiment, Outcome

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.plan import Action, At, Fault, Plan
from raytrials.core.event import DecisionMade

Fake = FakeLocal | FakeObjectStore
KINDS = pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])

SCRIPT = Script(nodes={"a": 1, "b": 2}, max_failures=2)
# At 6 s the first trial, on node a, is in its second step.
KILL, FREEZE, THAW, LOSE_WORKER = (
    Fault(action, "a")
    for action in (Action.KILL_NODE, Action.FREEZE_NODE, Action.THAW_NODE, Action.KILL_ACTOR)
)
DRAIN = Fault(Action.DRAIN_NODE, "a", 4.0)
AGAIN = (Raise(0, "step", 3), Raise(0, "step", 3))

CLUSTER: dict[str, Plan] = {
    "a node is killed": [At(6, KILL)],
    "a node's raylet is killed": [At(6, Fault(Action.KILL_RAYLET, "a"))],
    "a node is drained": [At(6, DRAIN)],
    "a node freezes": [At(6, FREEZE)],
    "a node freezes and thaws": [At(6, FREEZE), At(10, THAW)],
    "a worker is killed": [At(6, LOSE_WORKER)],
}
CODE: dict[str, Script] = {
    "setup raises": replace(SCRIPT, raises=[Raise(0, "setup", 0)]),
    "step raises": replace(SCRIPT, raises=[Raise(0, "step", 3)]),
    "save raises": replace(SCRIPT, raises=[Raise(0, "save", 3)]),
    "load raises": replace(SCRIPT, raises=[Raise(1, "step", 3), Raise(1, "load", 2)]),
    "the worker exits": replace(SCRIPT, raises=[Raise(0, "step", 3, SystemExit)]),
    "step raises twice": replace(SCRIPT, raises=AGAIN),
}
CASES = [
    *(pytest.param(SCRIPT, plan, id=name) for name, plan in CLUSTER.items()),
    *(pytest.param(script, (), id=name) for name, script in CODE.items()),
    pytest.param(replace(SCRIPT, nodes={"a": 1}), [At(6, LOSE_WORKER)], id="the only worker"),
    pytest.param(
        replace(SCRIPT, nodes={"a": 1}, reuse_actors=True), [At(6, LOSE_WORKER)], id="reused"
    ),
    pytest.param(replace(SCRIPT, num_to_keep=1), [At(6, LOSE_WORKER)], id="one checkpoint kept"),
]


def fit(script: Script, plan: Plan, make: Callable[[], Fake], directory: Path) -> Outcome:
    return Experiment(script, make(), directory).run(plan)


def asha() -> ASHAScheduler:
    return ASHAScheduler(metric="score", mode="max", max_t=4, grace_period=1, reduction_factor=2)


def story(outcome: Outcome) -> list[object]:
    """All that happened, in order, without the objects that were passed on."""
    told = [
        (type(one), one.at_s, one.actor, getattr(one, "name", None)) for one in outcome.happenings
    ]
    return [told, outcome.operations, outcome.table, outcome.ended_s]


@KINDS
def test_an_experiment_runs_to_its_end_without_ray(
    make: Callable[[], Fake], tmp_path: Path
) -> None:
    before = ray.is_initialized()  # by other tests of this run
    outcome = fit(SCRIPT, (), make, tmp_path)
    assert [(row.status, row.iteration, row.metrics["count"]) for row in outcome.table] == [
        ("TERMINATED", 4, 4)
    ] * 3
    assert [row.tag for row in outcome.table] == [
        f"{number}_kind=plain,lr={row.config['lr']:.4f},pace={row.config['pace']:.4f}"
        for number, row in enumerate(outcome.table)
    ]
    assert set(outcome.steps.values()) == {1}
    assert len(outcome.steps) == 12
    assert ray.is_initialized() == before


@KINDS
@pytest.mark.parametrize(("script", "plan"), CASES)
def test_what_fails_on_the_way_does_not_show_in_the_table(
    script: Script, plan: Plan, make: Callable[[], Fake], tmp_path: Path
) -> None:
    experiment = Experiment(script, make(), tmp_path / "faulty")
    outcome = experiment.run(plan)
    assert outcome.table == fit(SCRIPT, (), make, tmp_path / "plain").table
    assert len(outcome.struck) == len(plan)
    assert not experiment.stage.left
    assert sum(outcome.steps.values()) <= 12 + len(plan) + len(script.raises)


@KINDS
@pytest.mark.parametrize(("script", "plan"), CASES)
def test_the_same_script_gives_the_same_run_to_the_last_operation(
    script: Script, plan: Plan, make: Callable[[], Fake], tmp_path: Path
) -> None:
    one, other = (fit(script, plan, make, tmp_path / name) for name in "ab")
    assert story(one) == story(other)


def test_a_trial_that_spends_its_budget_ends_and_the_others_go_on(tmp_path: Path) -> None:
    script = replace(SCRIPT, max_failures=1, raises=AGAIN)
    outcome = fit(script, (), FakeLocal, tmp_path)
    assert [(row.status, row.iteration) for row in outcome.table] == [
        ("ERROR", 2),
        ("TERMINATED", 4),
        ("TERMINATED", 4),
    ]


def test_a_backoff_takes_its_time_on_the_clock_alone(tmp_path: Path) -> None:
    ended_s = [
        fit(
            replace(SCRIPT, raises=AGAIN, policy={"backoff_initial_s": wait_s}),
            (),
            FakeLocal,
            tmp_path / str(wait_s),
        ).ended_s
        for wait_s in (0.0, 50.0)
    ]
    assert ended_s[1] > ended_s[0] + 20


def test_a_scheduler_stops_trials_by_what_they_report(tmp_path: Path) -> None:
    script = replace(SCRIPT, trials=6, scheduler=asha)
    one, other = (fit(script, [At(6, LOSE_WORKER)], FakeLocal, tmp_path / name) for name in "ab")
    assert story(one) == story(other)
    assert {row.status for row in one.table} == {"TERMINATED"}
    assert 1 <= min(row.iteration for row in one.table) < SCRIPT.steps


@KINDS
@pytest.mark.parametrize("number", [1, 40, 80, 120])
def test_a_driver_that_is_stopped_does_nothing_more(
    number: int, make: Callable[[], Fake], tmp_path: Path
) -> None:
    threads = threading.active_count()
    experiment = Experiment(SCRIPT, make(), tmp_path)
    outcome = experiment.run(stop_at=number)
    assert outcome.stopped
    assert outcome.table == ()
    assert len(outcome.operations) == number
    assert threading.active_count() == threads


@KINDS
@pytest.mark.parametrize("machine", [False, True])
def test_the_next_driver_finishes_what_a_dead_one_had_begun(
    machine: bool, make: Callable[[], Fake], tmp_path: Path
) -> None:
    script = replace(SCRIPT, steps=8)
    whole = fit(script, (), make, tmp_path / "whole")
    experiment = Experiment(script, make(), tmp_path / "cut")
    before = experiment.run(stop_at=len(whole.operations) // 2)
    experiment.die(machine=machine)
    after = experiment.resume()
    assert before.stopped
    assert {row.trial_id: row for row in after.table} == {row.trial_id: row for row in whole.table}


def test_a_trial_has_its_rows_when_its_driver_died_before_it_could_stop_it(tmp_path: Path) -> None:
    script = replace(SCRIPT, trials=1, steps=2, callbacks=[JsonLoggerCallback])
    whole = fit(script, (), FakeLocal, tmp_path / "whole")
    # The last save, after which it is stopped.
    number = next(one.number for one in whole.operations if "checkpoint_000001" in one.path)
    experiment = Experiment(script, FakeLocal(), tmp_path / "cut")
    experiment.run(stop_at=number)
    assert type(experiment.events()[-1]) is DecisionMade
    shutil.rmtree(tmp_path / "cut")  # the files of the driver's own Ray
    experiment.disk.end_process()  # type: ignore[union-attr]
    experiment.resume()
    (rows,) = [data for name, data in experiment.files().items() if name.endswith("result.json")]
    iterations = [json.loads(row)["training_iteration"] for row in rows.splitlines()]
    assert iterations == [1, 2]
