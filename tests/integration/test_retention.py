"""What is deleted, when, and what never is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from support.fits import start
from support.saving import TRAINABLES, config, log_of, read, saving, write

from raytrials import Tuner, refreshing_filesystem
from raytrials.store.checkpoint import Verdict, inspect
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import index_of

KINDS = pytest.mark.parametrize("kind", TRAINABLES)


def checkpoints_in(trial: Path) -> list[Path]:
    return sorted(path for path in trial.iterdir() if index_of(path.name) is not None)


def verified_in(trial: Path) -> int:
    found = [inspect(LocalDisk(), str(path), full=False) for path in checkpoints_in(trial)]
    return sum(one.verdict is Verdict.VERIFIED for one in found)


def run_config(directory: Path, kind: str, keep: int | None, **options: Any) -> tune.RunConfig:
    frequency = {"checkpoint_frequency": 1} if kind == "class" else {}
    return tune.RunConfig(
        name="fit",
        storage_path=str(directory / "storage"),
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(num_to_keep=keep, **frequency),
        **options,
    )


@contextmanager
def watching(experiment: Path) -> Iterator[list[str]]:
    """Look every few milliseconds whether a trial that had a verified checkpoint has none."""
    lost: list[str] = []
    had: set[Path] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            for trial in experiment.glob("[!.]*/"):
                count = _verified_now(trial)
                if count:
                    had.add(trial)
                elif trial in had:
                    lost.append(trial.name)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lost
    finally:
        over.set()
        thread.join()


def _verified_now(trial: Path) -> int:
    """Count, once more if a checkpoint was deleted under our eyes."""
    for _ in range(5):
        try:
            count = verified_in(trial)
        except FileNotFoundError:
            continue
        if count:
            return count
    return 0


@pytest.mark.usefixtures("ray_local")
@KINDS
@pytest.mark.parametrize("keep", [1, 2])
def test_retention_keeps_what_it_should_and_always_a_whole_one(
    kind: str, keep: int, workspace: Path
) -> None:
    with watching(workspace / "storage" / "fit") as lost:
        result = Tuner(
            TRAINABLES[kind],
            param_space=config(workspace, steps=12),
            run_config=run_config(workspace, kind, keep),
        ).fit()[0]
    assert not lost
    kept = checkpoints_in(Path(result.path))
    assert len(kept) == keep
    assert verified_in(Path(result.path)) == keep
    assert [read(str(path)) for path in kept] == list(range(13 - keep, 13))
    assert result.checkpoint.path == str(kept[-1])
    assert {one.path for one, _ in result.best_checkpoints} == {str(path) for path in kept}
    if kind == "function":  # Ray reads no checkpoints of class trainables from a path
        assert tune.Result.from_path(result.path).checkpoint.path == str(kept[-1])


@pytest.mark.usefixtures("ray_local")
def test_the_best_by_score_and_the_latest_stay(workspace: Path) -> None:
    result = Tuner(
        saving,
        param_space=config(workspace, steps=6),
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(workspace / "storage"),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="step", checkpoint_score_order="min"
            ),
        ),
    ).fit()[0]
    assert [read(str(path)) for path in checkpoints_in(Path(result.path))] == [1, 2, 6]
    assert read(result.checkpoint.path) == 6


@pytest.mark.usefixtures("ray_local")
def test_a_deletion_that_fails_is_said_and_ends_nothing(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(disk: object, path: str) -> None:
        raise PermissionError(f"{path} is not yours")

    monkeypatch.setattr("raytrials.driver.retention.delete", refuse)
    result = Tuner(
        saving, param_space=config(workspace), run_config=run_config(workspace, "function", 1)
    ).fit()[0]
    assert result.error is None
    assert len(checkpoints_in(Path(result.path))) == 5
    assert "Could not delete the checkpoint" in caplog.text


# --- what the saved state names -------------------------------------------------------------------

DRIVER = """
import os, signal, sys
from pathlib import Path
from ray import tune
from raytrials import Tuner, refreshing_filesystem
from support.saving import TRAINABLES, config
from support.session import local_ray

directory, kind = Path(sys.argv[1]), sys.argv[2]
os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "0"  # or Ray's state names no checkpoint for a minute

class Dies(tune.Callback):
    saves = 0
    def on_trial_save(self, **_):
        # The newer checkpoint is registered; the state on storage still names the older one.
        Dies.saves += 1
        if Dies.saves == 7:
            os.kill(os.getpid(), signal.SIGKILL)

checkpoints = tune.CheckpointConfig(num_to_keep=1, checkpoint_frequency=kind == "class")
with local_ray():
    Tuner(
        TRAINABLES[kind],
        param_space=config(directory, steps=9),
        run_config=tune.RunConfig(
            name="fit", storage_path=str(directory / "storage"), verbose=0,
            callbacks=[Dies()], checkpoint_config=checkpoints,
        ),
    ).fit()
"""


@pytest.mark.usefixtures("ray_local")
@KINDS
def test_what_the_saved_state_names_is_there_when_the_driver_dies(
    kind: str, workspace: Path
) -> None:
    process = start(DRIVER, str(workspace), kind)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    experiment = workspace / "storage" / "fit"
    tuner = Tuner.restore(str(experiment), TRAINABLES[kind])
    named = tuner.get_results()[0].checkpoint
    assert inspect(LocalDisk(), named.path, full=True).verdict is Verdict.VERIFIED
    (trial,) = experiment.glob("[!.]*/")
    # The state's, the newest, one not yet deleted, and one whose deletion is not durable yet.
    assert len(checkpoints_in(trial)) <= 4
    (workspace / "log").unlink()
    tuner._local_tuner._run_config.callbacks = None
    result = tuner.fit()[0]
    assert result.error is None
    assert result.metrics["step"] == 9
    assert log_of(workspace) == ["start 7"]
    assert verified_in(trial) == 1


# --- other trials ---------------------------------------------------------------------------------


class Exploiting(tune.Trainable):
    """Counts; the better its learning rate, the better its score."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count, self.score = 0, 0.0

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        self.count += 1
        self.score += self.config["lr"]
        return {"score": self.score, "done": self.count >= 8}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        write(checkpoint_dir, self.count)
        Path(checkpoint_dir, "score").write_text(str(self.score))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.count = read(checkpoint_dir)
        self.score = float(Path(checkpoint_dir, "score").read_text())
        with Path(self.config["directory"], "exploits").open("a") as log:
            log.write(checkpoint_dir + "\n")


@pytest.mark.usefixtures("ray_local")
@pytest.mark.filterwarnings("ignore:Using `CheckpointConfig.num_to_keep <= 2` with PBT")
@pytest.mark.parametrize("synchronous", [False, True])
def test_a_checkpoint_that_another_trial_takes_over_is_not_deleted_before(
    synchronous: bool, workspace: Path
) -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1, 1.0, 10.0]},
        quantile_fraction=0.5,
        synch=synchronous,
    )
    with watching(workspace / "storage" / "fit") as lost:
        grid = Tuner(
            Exploiting,
            param_space={"lr": tune.grid_search([0.1, 1.0, 5.0]), "directory": str(workspace)},
            tune_config=tune.TuneConfig(
                scheduler=scheduler, metric="score", mode="max", reuse_actors=True
            ),
            run_config=run_config(workspace, "class", 1),
        ).fit()
    assert not lost
    assert [result.error for result in grid] == [None] * 3
    assert [result.faults for result in grid] == [()] * 3
    assert [result.metrics["done"] for result in grid] == [True] * 3
    exploits = (workspace / "exploits").read_text().split()
    assert len({path.split("/")[-2] for path in exploits}) >= 1
    assert scheduler._num_perturbations >= 1


# --- leftovers ------------------------------------------------------------------------------------

STAGED = {".staging-000009-1", ".removed-000000"}
HALF = "checkpoint_000008"


class Plants(tune.Callback):  # type: ignore[misc]
    """Leaves half a save, half a deletion and half an upload behind in every trial."""

    def on_trial_result(self, *, trial: Any, result: dict[str, Any], **_: Any) -> None:
        if result["step"] == 2:
            for name in (*STAGED, HALF):
                Path(trial.path, name).mkdir()
                Path(trial.path, name, "file").write_text("half")


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("local", [True, False], ids=["local", "object store"])
@pytest.mark.parametrize("dead", [True, False])
def test_leftovers_are_swept_by_a_later_attempt_once_nobody_can_be_at_work(
    dead: bool, local: bool, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dead:
        # Nobody knows what became of the worker: its node is gone.
        monkeypatch.setattr("raytrials.driver.trial._WORKER_UNSEEN", {"user_code"})
    result = Tuner(
        saving,
        param_space=config(workspace, raise_at=3),
        run_config=run_config(
            workspace,
            "function",
            None,
            callbacks=[Plants()],
            failure_config=tune.FailureConfig(max_failures=1),
            storage_filesystem=None if local else refreshing_filesystem(LocalFileSystem),
        ),
    ).fit()[0]
    assert result.error is None
    left = {path.name for path in Path(result.path).iterdir()} & {*STAGED, HALF}
    # On a local disk nothing but damage leaves a checkpoint without a manifest: it is not touched.
    kept = {HALF} if local else set()
    assert left == (kept if dead else {*STAGED, HALF})
    assert verified_in(Path(result.path)) == 5
    newest = checkpoints_in(Path(result.path))[-1].name
    assert index_of(newest) > 9  # no name of a leftover is used again
