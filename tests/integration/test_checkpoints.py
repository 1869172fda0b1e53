"""Checkpoints in a running experiment: taken over, fallen back from, never lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from support.saving import STATE, TRAINABLES, WEIGHTS, config, log_of, saving

from raytrials import Cause, RestoreError, Tuner
from raytrials.core.fault import Charge
from raytrials.driver.result import TrialResult
from raytrials.errors import NoCheckpointError
from raytrials.store.checkpoint import Verdict, inspect
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import MANIFEST, Manifest
from raytrials.store.recovery import HOME

pytestmark = pytest.mark.usefixtures("ray_local")

KINDS = pytest.mark.parametrize("kind", TRAINABLES)


class Recorder(FIFOScheduler):  # type: ignore[misc]
    """Notes every iteration that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        self.told.append(result["training_iteration"])
        return super().on_trial_result(tune_controller, trial, result)


class StopAt(tune.Callback):  # type: ignore[misc]
    """Ends the driver's fit, as an exception of a callback does, at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
    ) -> None:
        if result["step"] == self.step:
            raise RuntimeError("the driver is stopped")


def run_config(directory: Path, kind: str, **options: Any) -> tune.RunConfig:
    checkpoints = options.pop("checkpoints", {})
    if kind == "class":
        checkpoints = {"checkpoint_frequency": 1, **checkpoints}
    return tune.RunConfig(
        name="fit",
        storage_path=str(directory / "storage"),
        verbose=0,
        failure_config=tune.FailureConfig(max_failures=options.pop("max_failures", 0)),
        checkpoint_config=tune.CheckpointConfig(**checkpoints),
        **options,
    )


def names_in(trial: Path) -> list[str]:
    return sorted(path.name for path in trial.iterdir() if path.name.startswith("checkpoint_"))


def manifests_in(trial: Path) -> list[Manifest]:
    return [
        Manifest.decode((trial / name / MANIFEST).read_bytes())
        for name in names_in(trial)
        if (trial / name / MANIFEST).exists()
    ]


def assert_all_verify(trial: Path) -> None:
    for name in names_in(trial):
        finding = inspect(LocalDisk(), str(trial / name), full=True)
        assert finding.verdict is Verdict.VERIFIED, (name, finding.problem)


@KINDS
def test_a_trial_in_the_actor_of_another_saves_its_own_iterations(
    kind: str, workspace: Path
) -> None:
    grid = Tuner(
        TRAINABLES[kind],
        param_space=config(workspace, steps=2),
        tune_config=tune.TuneConfig(num_samples=2, max_concurrent_trials=1, reuse_actors=True),
        run_config=run_config(workspace, kind),
    ).fit()
    for result in grid:
        assert [one.header.iteration for one in manifests_in(Path(result.path))] == [1, 2]


# --- checkpoints that the driver never heard of ---------------------------------------------------


@KINDS
def test_a_checkpoint_whose_worker_died_with_the_report_is_taken_over(
    kind: str, workspace: Path
) -> None:
    scheduler = Recorder()
    result = Tuner(
        TRAINABLES[kind],
        param_space=config(workspace, die_committed=3),
        tune_config=tune.TuneConfig(scheduler=scheduler),
        run_config=run_config(workspace, kind, max_failures=1),
    ).fit()[0]
    assert result.error is None
    assert log_of(workspace) == ["start 0", "start 3"]
    # A class trainable says itself that its last step is the last, and nobody is asked.
    assert scheduler.told == [1, 2, 3, 4, 5][: 4 if kind == "class" else 5]
    assert list(result.metrics_dataframe["training_iteration"]) == [1, 2, 3, 4, 5]
    assert list(result.metrics_dataframe["step"]) == [1, 2, 3, 4, 5]
    assert [fault.cause for fault in result.faults] == [Cause.WORKER_DIED]
    assert_all_verify(Path(result.path))
    assert [one.header.iteration for one in manifests_in(Path(result.path))] == [1, 2, 3, 4, 5]


def test_the_decision_on_a_report_that_never_arrived_is_acted_on(workspace: Path) -> None:
    result = Tuner(
        saving,
        param_space=config(workspace, die_committed=3),
        run_config=run_config(
            workspace, "function", max_failures=1, stop={"training_iteration": 3}
        ),
    ).fit()[0]
    assert result.error is None
    assert log_of(workspace) == ["start 0"]
    assert result.metrics["training_iteration"] == 3
    assert result.checkpoint.path.endswith(names_in(Path(result.path))[-1])


@KINDS
def test_a_restored_driver_takes_over_what_its_saved_state_does_not_know(
    kind: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The state is saved once, before the first report.
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "1000")
    with pytest.raises(tune.TuneError, match="the driver is stopped"):
        Tuner(
            TRAINABLES[kind],
            param_space=config(workspace),
            run_config=run_config(workspace, kind, callbacks=[StopAt(4)]),
        ).fit()
    scheduler = Recorder()
    grid = restore(workspace, kind, scheduler)
    result = grid[0]
    assert result.error is None
    assert log_of(workspace)[0] == "start 0"
    assert int(log_of(workspace)[1].split()[1]) >= 3
    assert len(log_of(workspace)) == 2
    assert result.metrics["step"] == 5
    assert_all_verify(Path(result.path))


def restore(workspace: Path, kind: str, scheduler: Any = None, **options: Any) -> Any:
    tuner = Tuner.restore(str(workspace / "storage" / "fit"), TRAINABLES[kind], **options)
    if scheduler is not None:
        tuner._local_tuner._tune_config.scheduler = scheduler
    tuner._local_tuner._run_config.callbacks = None
    return tuner.fit()


def test_a_report_that_never_arrived_and_lacks_the_metric_fails_its_trial_alone(
    workspace: Path,
) -> None:
    # The searcher asks for a metric that the third report does not have.
    grid = Tuner(
        saving,
        param_space={
            **config(workspace, die_committed=3),
            "other": tune.grid_search([False, True]),
            "omits_at": 3,
        },
        tune_config=tune.TuneConfig(metric="step", mode="max", max_concurrent_trials=1),
        run_config=run_config(workspace, "function", max_failures=2),
    ).fit()
    assert [result.error for result in grid] == [None, None]
    classes = [[fault.fault_class for fault in result.faults] for result in grid]
    assert sorted(classes) == [["actor", "training"], ["training"]]


def test_what_json_cannot_hold_is_told_as_far_as_it_goes(workspace: Path) -> None:
    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        return bool(result["when"].year > 3000)

    result = Tuner(
        saving,
        param_space=config(workspace, die_committed=3, reports_time=True),
        run_config=run_config(workspace, "function", max_failures=1, stop=stop),
    ).fit()[0]
    assert result.error is None
    assert log_of(workspace) == ["start 0", "start 3"]
    assert result.config["die_committed"] == 3


# --- damage ---------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda directory: flip(directory / WEIGHTS),
    "a truncated file": lambda directory: os.truncate(directory / WEIGHTS, 5_000),
    "a deleted file": lambda directory: (directory / STATE).unlink(),
    "a file too many": lambda directory: (directory / "more").write_text("more"),
    "a flipped bit in the manifest": lambda directory: flip(directory / MANIFEST),
    "no manifest": lambda directory: (directory / MANIFEST).unlink(),
    "no directory": shutil.rmtree,
}


def interrupted(
    workspace: Path, kind: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Path:
    """Run to step 4 of 5, stop the driver, and return the trial's directory."""
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    with pytest.raises(tune.TuneError, match="the driver is stopped"):
        Tuner(
            TRAINABLES[kind],
            param_space=config(workspace),
            run_config=run_config(workspace, kind, callbacks=[StopAt(4)], **options),
        ).fit()
    (trial,) = [
        path
        for path in (workspace / "storage" / "fit").iterdir()
        if path.is_dir() and path.name != HOME
    ]
    (workspace / "log").unlink()
    return trial


@KINDS
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_charged_to_itself_and_the_next_older_one_used(
    kind: str, damage: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = interrupted(workspace, kind, monkeypatch)
    newest, older = names_in(trial)[-1], manifests_in(trial)[-2].header.iteration
    DAMAGES[damage](trial / newest)
    result: TrialResult = restore(workspace, kind)[0]
    assert result.error is None
    assert result.metrics["step"] == 5
    assert log_of(workspace) == [f"start {older}"]
    charged = [(fault.charge, newest in fault.detail) for fault in result.faults]
    silent = damage in {"no manifest", "no directory"} and kind == "function"
    assert charged == [(Charge.CHECKPOINT, True)] or (silent and not charged)
    assert (trial / newest).exists() == (damage != "no directory")


@KINDS
def test_a_trial_without_a_whole_checkpoint_ends_and_says_so_until_told_to_start_anew(
    kind: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = interrupted(workspace, kind, monkeypatch, max_failures=-1)
    for name in names_in(trial):
        flip(trial / name / WEIGHTS)
    for options in ({}, {"resume_errored": True}):
        result = restore(workspace, kind, **options)[0]
        assert isinstance(result.error, RestoreError)
        assert isinstance(result.error.__cause__, NoCheckpointError)
        assert "RAYTRIALS_RESTART_WITHOUT_CHECKPOINT=1" in str(result.error)
        assert log_of(workspace) == []
    monkeypatch.setenv("RAYTRIALS_RESTART_WITHOUT_CHECKPOINT", "1")
    result = restore(workspace, kind, resume_errored=True)[0]
    assert result.error is None
    assert log_of(workspace) == ["start 0"]
    assert result.metrics["step"] == 5


@KINDS
def test_checkpoints_that_were_repaired_are_used_again(
    kind: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = interrupted(workspace, kind, monkeypatch)
    whole = {name: (trial / name / WEIGHTS).read_bytes() for name in names_in(trial)}
    newest = manifests_in(trial)[-1].header.iteration
    for name in whole:
        flip(trial / name / WEIGHTS)
    result = restore(workspace, kind)[0]
    assert isinstance(result.error, RestoreError)
    for name, data in whole.items():
        (trial / name / WEIGHTS).write_bytes(data)
    result = restore(workspace, kind, resume_errored=True)[0]
    assert result.error is None
    assert log_of(workspace) == [f"start {newest}"]
    assert result.metrics["step"] == 5
    assert list(result.metrics_dataframe["training_iteration"])[-1] == 5


def test_quick_verification_looks_at_names_and_sizes_only(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = interrupted(workspace, "class", monkeypatch)
    newest = names_in(trial)[-1]
    (trial / newest / "more").write_text("more")
    (trial / newest / WEIGHTS).write_bytes(bytes([9]) * 10_000)
    (trial / newest / "more").unlink()
    monkeypatch.setenv("RAYTRIALS_VERIFY", "quick")
    result = restore(workspace, "class")[0]
    # The damage reached the user's code, whose own check failed.
    assert isinstance(result.error, RestoreError)
    assert result.error.cause is Cause.USER_CODE
