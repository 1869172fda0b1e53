"""A driver that dies at any operation on its storage is continued to the same decisions.

Whole experiments, with the real schedulers: with one slot the table is that of an uninterrupted
one, whatever was stopped, paused, cloned or given other resources.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from support.script import Script
from support.scripted import PATH, Experiment, Outcome

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.store.recovery import HOME, has_journal

# Ray advises to reuse actors with PBT.
pytestmark = pytest.mark.filterwarnings("ignore:Consider boosting PBT:UserWarning")

EVERY = 241
"""Of how many operations one is a moment of death, by turns of the process and the machine."""

SCORE = {"metric": "score", "mode": "max", "time_attr": "training_iteration"}


def asha(**arguments: Any) -> ASHAScheduler:
    return ASHAScheduler(**SCORE, max_t=9, grace_period=1, reduction_factor=3, **arguments)


def pbt(**arguments: Any) -> PopulationBasedTraining:
    mutations = {"lr": tune.uniform(0.0, 1.0), "momentum": [0.1, 0.5, 0.9]}
    return PopulationBasedTraining(
        **SCORE, perturbation_interval=2, hyperparam_mutations=mutations, **arguments
    )


def median(**arguments: Any) -> MedianStoppingRule:
    return MedianStoppingRule(**SCORE, grace_period=1, min_samples_required=2, **arguments)


SCHEDULERS: dict[str, Callable[[], Any]] = {
    "ASHA": asha,
    "ASHA, three brackets": lambda: asha(brackets=3),
    "HyperBand": lambda: HyperBandScheduler(**SCORE, max_t=9, reduction_factor=3),
    "median": median,
    "median, soft": lambda: median(hard_stop=False),
    "PBT": pbt,
    "PBT, synchronous": lambda: pbt(synch=True),
    "resources": lambda: ResourceChangingScheduler(asha()),
}


@pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_wherever_a_driver_dies_its_scheduler_goes_on(
    name: str, make: Callable[[], Any], tmp_path: Path
) -> None:
    script = Script(trials=5, steps=9, nodes={"a": 1}, scheduler=SCHEDULERS[name])
    whole = Experiment(script, make(), tmp_path / "whole").run()
    found = []
    for number in range(101, len(whole.operations), EVERY):
        experiment = Experiment(script, make(), tmp_path / str(number))
        assert experiment.run(stop_at=number).stopped
        experiment.die(machine=number % (2 * EVERY) == 101)
        if has_journal(experiment.disk, f"{PATH}/{HOME}"):  # before, another seed is drawn
            last = experiment.resume()
            found += [f"{number}: {one}" for one in problems(experiment, whole, last)]
    assert found == []


def problems(experiment: Experiment, whole: Outcome, last: Outcome) -> list[str]:
    found = [str(one) for one in experiment.violations()]
    found += [f"lost: {one}" for one in experiment.state().lost.items()]
    if last.table != whole.table:
        found.append(f"another table: {[(one.trial_id, one.status) for one in last.table]}")
    return found
