"""A scheduler whose driver is killed decides what it would have decided without that."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
)
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources

from raytrials.chaos.scheduling import Population, SchedulerConformance
from raytrials.driver.scheduling import Scheduling
from raytrials.driver.seeding import Seeding
from raytrials.driver.stage import ScriptedController, Stage

# Schedulers and Ray warn of much that is given to them here.
pytestmark = pytest.mark.filterwarnings("ignore")

TIME = "training_iteration"
MUTATIONS = {"lr": tune.uniform(0.0, 1.0), "momentum": [0.1, 0.5, 0.9]}


def asha(**arguments: Any) -> ASHAScheduler:
    return ASHAScheduler(time_attr=TIME, max_t=9, grace_period=1, reduction_factor=2, **arguments)


def pbt(**arguments: Any) -> PopulationBasedTraining:
    given = {"perturbation_interval": 2, "hyperparam_mutations": MUTATIONS, **arguments}
    return PopulationBasedTraining(time_attr=TIME, **given)


class TestFIFO(SchedulerConformance):
    def scheduler(self) -> Any:
        return FIFOScheduler()


class TestASHA(SchedulerConformance):
    def scheduler(self) -> Any:
        return asha()


class TestASHAWithBrackets(SchedulerConformance):
    def scheduler(self) -> Any:
        return asha(brackets=3)


class TestHyperBand(SchedulerConformance):
    def scheduler(self) -> Any:
        return HyperBandScheduler(time_attr=TIME, max_t=9, reduction_factor=3)


class TestMedianStopping(SchedulerConformance):
    def scheduler(self) -> Any:
        return MedianStoppingRule(time_attr=TIME, grace_period=2, min_samples_required=2)


class TestMedianStoppingSoft(SchedulerConformance):
    def scheduler(self) -> Any:
        return MedianStoppingRule(
            time_attr=TIME, grace_period=2, min_samples_required=2, hard_stop=False
        )


class TestPBT(SchedulerConformance):
    def scheduler(self) -> Any:
        return pbt()


class TestPBTSynch(SchedulerConformance):
    def scheduler(self) -> Any:
        return pbt(synch=True)


class TestPBTReplay(SchedulerConformance):
    trials = 1
    slots = 1
    fails = 0.0

    def scheduler(self) -> Any:
        policy = [
            ["a", "b", 2, 2, {"lr": 0.1}, {"lr": 0.5}],
            ["a", "b", 5, 5, {"lr": 0.5}, {"lr": 0.9}],
        ]
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("\n".join(map(json.dumps, policy)))
            file.flush()
            return PopulationBasedTrainingReplay(file.name)


class TestResourceChanging(SchedulerConformance):
    def scheduler(self) -> Any:
        return ResourceChangingScheduler(
            asha(), resources_allocation_function=DistributeResources()
        )


class TestBOHB(SchedulerConformance):
    def scheduler(self) -> Any:
        return HyperBandForBOHB(time_attr=TIME, max_t=9, reduction_factor=3)

    def search(self) -> Any:
        pytest.importorskip("hpbandster")
        pytest.importorskip("ConfigSpace")
        from ray.tune.search.bohb import TuneBOHB  # noqa: PLC0415 - may not be installed

        return TuneBOHB(seed=7, bohb_config={"min_points_in_model": 3})


def pb2(**arguments: Any) -> Any:
    pytest.importorskip("GPy")
    from ray.tune.schedulers.pb2 import PB2  # noqa: PLC0415 - likewise

    bounds = {"lr": [0.0, 1.0], "momentum": [0.0, 1.0]}
    return PB2(time_attr=TIME, perturbation_interval=2, hyperparam_bounds=bounds, **arguments)


class TestPB2(SchedulerConformance):
    def scheduler(self) -> Any:
        return pb2()


class TestPB2Synch(SchedulerConformance):
    def scheduler(self) -> Any:
        return pb2(synch=True)


# --- what is not exact is found -------------------------------------------------------------------


def is_found_by(case: SchedulerConformance, **more: Any) -> bool:
    """Whether one of a few populations shows that something is wrong."""
    return any(case.differences(seed, **more)[0] for seed in range(40))


@pytest.mark.parametrize(
    ("case", "mistake"),
    [
        (TestHyperBand(), Population.add_again),
        (TestPBTSynch(), Population.add_again),
        (TestASHA(), Population.forget_decision),
        (TestHyperBand(), Population.forget_decision),
        (TestPBT(), Population.tell_again),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_driver_that_does_something_again_is_found(
    case: SchedulerConformance, mistake: Callable[[Population], object]
) -> None:
    assert is_found_by(case, on_kill=mistake)


def test_randomness_that_is_not_seeded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seeding, "call", lambda *_: contextlib.nullcontext())
    assert is_found_by(TestASHAWithBrackets())


@pytest.mark.parametrize(
    ("case", "owner", "name", "does"),
    [
        (TestHyperBand(), ScriptedController, "stop_trial", lambda *_: None),
        (TestPBTSynch(), ScriptedController, "_schedule_trial_save", lambda *_, **__: None),
        (TestPBT(), ScriptedController, "pause_trial", lambda *_, **__: None),
        (TestPBT(), Stage, "show", lambda *_: None),
        (TestPBTSynch(), Stage, "committed", lambda *_: None),
        (TestPBT(), Scheduling, "_resolved_then", lambda *_: None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_replay_that_mutes_what_a_scheduler_does_is_found(
    case: SchedulerConformance,
    owner: type,
    name: str,
    does: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, does)
    assert is_found_by(case)
