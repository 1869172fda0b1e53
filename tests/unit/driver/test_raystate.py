"""Ray's state is written rarely enough, and not again where nothing has happened."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune import schedulers
from support.script import Script
from support.scripted import Experiment

from raytrials import _ray
from raytrials.chaos.disk import FakeLocal
from raytrials.driver.raystate import LEAST_S, REST, RayState


class Fit:
    """A fit whose state takes its time to be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.takes_s = 0.0
        self.news = True
        self.written_s: list[float] = []
        self.uploads = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        syncer = SimpleNamespace(sync_up=self._sync_up, wait=lambda: None)
        self.state = RayState(
            SimpleNamespace(
                syncer=syncer, experiment_driver_staging_path="here", experiment_fs_path="there"
            ),
            lambda: self.news,
        )

    def _sync_up(self, *_: Any) -> bool:
        self.uploads += 1
        return True

    def _write(self) -> None:
        self.written_s.append(self.now_s)
        self.now_s += self.takes_s

    def run(self, seconds: float) -> None:
        """Step once a second."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.state.sync_up_experiment_state(self._write)
            self.now_s += 1.0


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Fit:
    return Fit(monkeypatch)


def test_it_is_written_with_the_first_trial_and_then_once_a_minute(fit: Fit) -> None:
    fit.run(3 * LEAST_S)
    assert fit.written_s == [1000.0, 1060.0, 1120.0]
    assert fit.uploads == 3


@pytest.mark.parametrize("takes_s", [0.1, 3.0, 13.0])
def test_it_takes_one_part_in_twenty_of_the_time(fit: Fit, takes_s: float) -> None:
    fit.takes_s = takes_s
    fit.run(10_000)
    rests_s = [
        later - earlier - takes_s
        for earlier, later in zip(fit.written_s, fit.written_s[1:], strict=False)
    ]
    assert len(rests_s) >= 30
    assert min(rests_s) >= max(LEAST_S, REST * takes_s) - 1e-6
    assert takes_s * len(fit.written_s) <= 0.05 * 10_000


def test_it_rests_by_what_the_last_write_took(fit: Fit) -> None:
    fit.takes_s = 30.0
    fit.run(100)
    fit.takes_s = 1.0
    fit.run(REST * 30.0 + LEAST_S)
    second_s = 1000.0 + 30.0 + REST * 30.0
    assert fit.written_s[:3] == [1000.0, second_s, second_s + 1.0 + LEAST_S]


def test_it_is_not_written_where_nothing_has_happened(fit: Fit) -> None:
    fit.run(10)
    fit.news = False
    fit.run(10_000)
    assert len(fit.written_s) == fit.uploads == 1
    fit.news = True
    fit.run(10)
    assert len(fit.written_s) == 2


def test_what_is_forced_is_written_anyway(fit: Fit) -> None:
    fit.run(10)
    fit.news = False
    fit.state.sync_up_experiment_state(fit._write, force=True, wait=True)
    assert len(fit.written_s) == fit.uploads == 2


# One trial that reports every 1,000 s: the loop steps all the time.
SLOW = Script(trials=1, steps=4, save_every=0, paces_s=(1000.0,))


def states_written(experiment: Experiment) -> int:
    outcome = experiment.run()
    assert outcome.ended_s > 4000
    assert {row.status for row in outcome.table} == {"TERMINATED"}
    return sum(
        one.name == "replace" and "experiment_state-" in one.path for one in outcome.operations
    )


def test_a_fit_in_which_nothing_happens_for_long_does_not_write_it(tmp_path: Path) -> None:
    written = states_written(Experiment(SLOW, FakeLocal(), tmp_path))
    # With its trial, when that had started, with each report but the last, and at the end.
    assert 1 <= written <= 7


@pytest.mark.parametrize("period", ["100", "auto"])
def test_the_users_own_pace_is_rays(
    period: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", period)
    kinds = set()
    script = Script(trials=1, steps=1, scheduler=schedulers.FIFOScheduler)
    experiment = Experiment(
        script,
        FakeLocal(),
        tmp_path,
        watch=lambda one: kinds.add(type(one._checkpoint_manager)),
    )
    experiment.run()
    assert kinds == {_ray.ExperimentCheckpointManager}
