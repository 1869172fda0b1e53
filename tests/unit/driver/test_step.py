"""A step looks at no trial that has ended, and chooses the one that Ray would choose."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.tune import PlacementGroupFactory, schedulers
from support import fake_ray
from support.script import Script
from support.scripted import Experiment

from raytrials import _ray
from raytrials.chaos.disk import FakeLocal
from raytrials.driver.actors import ActorManager
from raytrials.driver.controller import Controller
from raytrials.driver.placement import Placement
from raytrials.driver.step import StepController
from raytrials.driver.trial import Trial, adopt

STATUSES = ("PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR")
SCORE = {"metric": "score", "mode": "max"}
ENDED = 1000


class LastFirst(schedulers.FIFOScheduler):  # type: ignore[misc]
    """A user's own, which looks at all trials."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        trials = tune_controller.get_trials()
        pending = [one for one in trials if one.status == "PENDING"]
        return pending[-1] if pending and len(trials) % 2 else None


MAKE: dict[str, Any] = {
    "fifo": schedulers.FIFOScheduler,
    "asha": lambda: schedulers.ASHAScheduler(**SCORE),
    "hyperband": lambda: schedulers.HyperBandScheduler(**SCORE),
    "bohb": lambda: schedulers.HyperBandForBOHB(**SCORE),
    "median": lambda: schedulers.MedianStoppingRule(**SCORE),
    "pbt": lambda: schedulers.PopulationBasedTraining(
        **SCORE, hyperparam_mutations={"x": [1, 2]}, synch=True
    ),
    # Ray's own allocation asks the cluster that this process is connected to, if there is one.
    "resources": lambda: schedulers.ResourceChangingScheduler(
        resources_allocation_function=lambda *_: None
    ),
    "the user's": LastFirst,
}
NARROWED = {
    "fifo": "first",
    "asha": "first",
    "hyperband": None,
    "bohb": "unfinished",
    "median": "first",
    "pbt": "unfinished",
    "resources": "first",
    "the user's": None,
}


@pytest.fixture(scope="module")
def storage() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "3")
        patch.setattr(_ray.StorageContext, "_get_session_path", lambda _: directory)
        yield _ray.StorageContext(storage_path=directory, experiment_dir_name="fit")


@pytest.mark.parametrize("name", MAKE)
def test_it_is_known_at_which_trials_a_scheduler_looks(name: str) -> None:
    assert _ray.chooses_among(MAKE[name]()) == NARROWED[name]


class Choosing(StepController):
    """Says whom the scheduler chose, and lets nobody start."""

    def chosen(self) -> Any:
        self._is_choosing = True
        return self._scheduler_alg.choose_trial_to_run(self._wrapped())

    def chosen_among_all(self) -> Any:
        return self._scheduler_alg.choose_trial_to_run(self._wrapped())


@pytest.mark.parametrize("name", MAKE)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0, 7), st.sampled_from(STATUSES)), max_size=40))
def test_the_trial_that_is_chosen_is_the_one_that_ray_would_choose(
    name: str, changes: list[tuple[int, str]], storage: Any
) -> None:
    controller = Choosing(storage=storage, scheduler=MAKE[name]())
    for number, status in changes:
        trials = controller.get_trials()
        if number >= len(trials):
            trial = _ray.Trial("nothing", stub=True, trial_id=str(len(trials)), storage=storage)
            trial.placement_group_factory = PlacementGroupFactory([{"CPU": 1}])
            controller.add_trial(trial)
        else:
            trial = trials[number]
        controller._set_trial_status(trial, status)
        assert controller.chosen() is controller.chosen_among_all()
        ended = all(one.is_finished() for one in controller.get_trials())
        assert not ended or not controller._unfinished
        assert controller.is_finished() == _ray.TuneController.is_finished(controller)


class Looked(Trial):
    """A trial that counts how often somebody looks at it."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        Looked.looks += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("name", ["fifo", "asha", "median", "resources"])
def test_a_step_looks_at_none_of_a_thousand_trials_that_have_ended(
    name: str, tmp_path: Path
) -> None:
    looks: list[int] = []

    def watch(controller: Controller) -> None:
        looks.append(Looked.looks)
        if len(looks) == 8:
            for number in range(ENDED):
                _add_ended(controller, number)
        Looked.looks = 0

    script = Script(trials=6, steps=3, scheduler=MAKE[name])
    Experiment(script, FakeLocal(), tmp_path, watch=watch).run()
    assert len(looks) > 30
    # Ray's state, which has all trials, is written once a minute.
    seen = [count for count in looks[8:] if count]
    assert len(seen) <= 2
    assert all(count >= ENDED for count in seen)


def _add_ended(controller: Controller, number: int) -> None:
    """Add a trial that has ended."""
    trial = _ray.Trial(
        controller.get_trials()[0].trainable_name,
        trial_id=f"ended_{number}",
        storage=controller._storage,
    )
    trial.storage.trial_dir_name = trial.trial_id
    trial.create_placement_group_factory()
    trial.set_status("TERMINATED")
    adopt(trial, controller._context)
    with controller._scheduling.muted():  # the journal does not know it
        StepController.add_trial(controller, trial)
    trial.__class__ = Looked


def test_a_restored_fit_requests_no_more_actors_at_a_time_than_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fake_ray.ENVIRONMENT, "TUNE_MAX_PENDING_TRIALS_PG", "6")
    experiment = Experiment(Script(trials=6, nodes={"a": 1}), FakeLocal(), tmp_path)
    experiment.run(stop_s=6.0)
    assert len(experiment.state().trials) == 6
    monkeypatch.setitem(fake_ray.ENVIRONMENT, "TUNE_MAX_PENDING_TRIALS_PG", "2")
    pending: list[int] = []
    experiment.watch = lambda one: pending.append(one._actor_manager.num_pending_actors)
    outcome = experiment.resume()
    assert {row.status for row in outcome.table} == {"TERMINATED"}
    assert max(pending) <= 3  # and the one that the scheduler wants


def test_actors_that_wait_for_the_journal_are_pending() -> None:
    manager = ActorManager(Placement())
    assert manager.num_pending_actors == 0
    manager.waiting = {"a trial": None}
    assert manager.num_pending_actors == 1
