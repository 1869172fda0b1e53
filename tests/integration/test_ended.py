"""After its end a trial holds no file, no thread and no history; and its results are all there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.logger import TBXLoggerCallback
from support.breaking import Counting

from raytrials import Tuner, _ray
from raytrials.driver import ended
from raytrials.driver.ended import EndedMetadata

pytestmark = pytest.mark.usefixtures("ray_local")

TRIALS = 8
LAST = "none, last"
"""The fault of a trial that has none, and ends when all others are let go of."""


class Saving(Counting):
    """Reports more than numbers."""

    def step(self) -> dict[str, Any]:
        result = super().step()
        while self.config["fault"] == LAST and not Path(self.config["marks"], "go").exists():
            time.sleep(0.02)
        return {**result, "nested": {"pair": (result["count"], None)}}


class Eager(tune.Callback):
    """Reads what users read of an ended trial, and looks at the end of the fit what is left.

    Args:
        go: a file that is made when only one trial has not been let go of.
    """

    def __init__(self, go: Path) -> None:
        self.go = go
        self.analyses: dict[str, Any] = {}
        self.left: list[Any] = []

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        best = trial.metric_analysis["count"]["max"]
        self.analyses[trial.trial_id] = (trial.last_result["count"], best)

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        if sum(isinstance(one.run_metadata, EndedMetadata) for one in trials) == TRIALS - 1:
            self.go.touch()

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        self.left = [type(one.run_metadata) for one in trials]
        for one in trials:
            assert one.metric_analysis["count"]["last"] == one.last_result["count"]


class Careless(TBXLoggerCallback):
    """Does not close what it opens."""

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        pass


def writers() -> int:
    """How many threads write TensorBoard's files."""
    return sum("EventLogger" in type(one).__name__ for one in threading.enumerate())


def open_files(directory: Path) -> list[str]:
    """The files below a directory, or in Ray's staging of it, that this process has open."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            target = str(one.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        if str(directory) in target or "driver_artifacts" in target:
            found.append(target)
    return found


def fit(tuner: Any, workspace: Path, faults: list[str], **kwargs: Any) -> Any:
    return tuner(
        Saving,
        param_space={"fault": tune.grid_search(faults), "marks": str(workspace)},
        run_config=tune.RunConfig(
            name=tuner.__module__,
            storage_path=str(workspace / "storage"),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=1, num_to_keep=3, checkpoint_score_attribute="count"
            ),
            failure_config=tune.FailureConfig(fail_fast=kwargs.pop("fail_fast", False)),
            **kwargs,
        ),
    ).fit()


def test_ended_trials_hold_no_files_no_threads_and_no_history(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended, "STEP_S", 60.0)
    before, eager = writers(), Eager(workspace / "go")
    faults = [*(f"none {number}" for number in range(TRIALS - 1)), LAST]
    grid = fit(Tuner, workspace, faults, callbacks=[eager, Careless()])
    assert not grid.errors
    assert len(eager.analyses) == TRIALS
    assert sum(issubclass(one, EndedMetadata) for one in eager.left) >= TRIALS - 1
    assert writers() == before
    assert not open_files(workspace)
    held = [vars(one.run_metadata) for one in _ray.analysis_of(grid).trials]
    assert sum("metric_n_steps" not in one for one in held) >= TRIALS - 1


def test_the_results_are_those_of_vanilla_ray(workspace: Path) -> None:
    faults = [f"none {number}" for number in range(3)]
    rays, ours = (fit(tuner, workspace, faults) for tuner in (tune.Tuner, Tuner))
    columns = ["count", "training_iteration", "done", "config/fault"]
    assert ours.get_dataframe()[columns].equals(rays.get_dataframe()[columns])
    for scope in ("last", "all", "avg", "last-5-avg", "last-10-avg"):
        best = [
            grid.get_best_result("count", "max", scope).config["fault"] for grid in (rays, ours)
        ]
        assert best[0] == best[1]
    for one, other in zip(ours, rays, strict=True):
        assert one.metrics["count"] == other.metrics["count"]
        assert one.metrics_dataframe["count"].equals(other.metrics_dataframe["count"])
        kept = [
            [(Path(at.path).name, metrics["count"]) for at, metrics in result.best_checkpoints]
            for result in (one, other)
        ]
        assert kept[0] == kept[1]
        assert Path(one.checkpoint.path).name == Path(other.checkpoint.path).name
    pairs = [
        trial.metric_analysis["count"]
        for grid in (rays, ours)
        for trial in _ray.analysis_of(grid).trials
    ]
    assert pairs[:3] == pairs[3:]


def test_trials_that_are_cut_off_leave_no_files_and_no_threads(workspace: Path) -> None:
    before = writers()
    grid = fit(Tuner, workspace, ["step:exception", *["none"] * 3], fail_fast=True)
    assert grid.num_errors
    assert writers() == before
    assert not open_files(workspace)


def test_what_was_packed_is_resumed(workspace: Path) -> None:
    fit(Tuner, workspace, ["step:exception", "none 1", "none 2"])
    path = str(workspace / "storage" / Tuner.__module__)
    for tuner in (Tuner, tune.Tuner):
        grid = tuner.restore(path, Saving, resume_errored=True).fit()
        assert [one.metrics["count"] for one in grid if one.error is None]
        assert grid.get_dataframe()["count"].notna().all()
