"""When a population that waits for each of its trials goes on, and without whom."""

from __future__ import annotations

from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from raytrials import _ray
from raytrials.driver.population import Population, WithoutAbsent

WAIT_S = 60.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def trial(number: int, status: str) -> Any:
    made = _ray.Trial("train", stub=True, trial_id=f"t{number}", config={"x": 0.5})
    made.status = status
    return made


def population(*reached: tuple[str, int]) -> tuple[Any, list[Any]]:
    """Return synchronous PBT whose next perturbation is at 4, and trials that have come so far."""
    scheduler = PopulationBasedTraining(
        metric="score",
        mode="max",
        perturbation_interval=4,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
        synch=True,
    )
    trials = [trial(number, status) for number, (status, _) in enumerate(reached)]
    for one, (_, time) in zip(trials, reached, strict=True):
        scheduler._trial_state[one] = type("State", (), {"last_train_time": time})()
    return scheduler, trials


def test_who_waits_for_nobody_goes_on_at_once() -> None:
    scheduler, trials = population(("PAUSED", 4), ("PAUSED", 5))
    stuck = Population(0).look(scheduler, trials)
    assert stuck is not None
    assert stuck.trial in trials
    assert stuck.absent == ()


@pytest.mark.parametrize(
    "reached",
    [
        [("PAUSED", 4), ("RUNNING", 3)],
        [("RUNNING", 4), ("PAUSED", 3)],
        [("PAUSED", 3), ("PAUSED", 0)],
        [],
    ],
)
def test_who_can_still_report_is_waited_for(reached: list[tuple[str, int]]) -> None:
    scheduler, trials = population(*reached)
    clock = Clock()
    watch = Population(WAIT_S, clock)
    for _ in range(3):
        assert watch.look(scheduler, trials) is None
        clock.now_s += WAIT_S


def test_who_finds_no_place_is_named_and_left_out_after_the_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler, trials = population(("PAUSED", 4), ("PENDING", 2))
    clock = Clock()
    watch = Population(WAIT_S, clock)
    assert watch.look(scheduler, trials) is None
    clock.now_s = WAIT_S - 1
    assert watch.look(scheduler, trials) is None
    clock.now_s = WAIT_S
    stuck = watch.look(scheduler, trials)
    assert stuck is not None
    assert (stuck.trial, stuck.absent) == (trials[0], (trials[1],))
    assert str(trials[1]) in caplog.text


def test_who_runs_again_is_waited_for_anew() -> None:
    scheduler, trials = population(("PAUSED", 4), ("PENDING", 2))
    clock = Clock()
    watch = Population(WAIT_S, clock)
    assert watch.look(scheduler, trials) is None
    trials[1].status = "RUNNING"
    assert watch.look(scheduler, trials) is None
    trials[1].status = "PENDING"
    clock.now_s = WAIT_S
    assert watch.look(scheduler, trials) is None


def test_by_default_everybody_is_waited_for() -> None:
    scheduler, trials = population(("PAUSED", 4), ("PENDING", 2))
    clock = Clock()
    watch = Population(0, clock)
    assert watch.look(scheduler, trials) is None
    clock.now_s = 1e9
    assert watch.look(scheduler, trials) is None


def test_other_schedulers_are_left_alone() -> None:
    _, trials = population(("PAUSED", 4))
    assert Population(WAIT_S).look(ASHAScheduler(), trials) is None


def test_an_absent_trial_is_not_seen() -> None:
    _, (one, other) = population(("PAUSED", 4), ("PENDING", 2))

    class Controller:
        metric = "score"

        def get_trials(self) -> list[Any]:
            return [one, other]

        def get_live_trials(self) -> set[Any]:
            return {one, other}

    seen = WithoutAbsent(Controller(), [other])
    assert (seen.get_trials(), seen.get_live_trials(), seen.metric) == ([one], {one}, "score")
