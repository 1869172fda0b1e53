"""Experiments that go on elsewhere than they began: moved, copied, and from or to vanilla Ray."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from support.fits import finish, last_json, start
from support.looking import verdicts, verified
from support.s3 import BUCKET, filesystem, s3_server
from support.stopping import interrupt, restored, wait_for_silence
from support.telling import STEPS, note_pid, starts

from raytrials import Tuner
from raytrials.store.checkpoint import Verdict

pytestmark = pytest.mark.usefixtures("ray_local")


def files_of(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


@pytest.mark.parametrize("target", ["elsewhere/other", "storage/fit-2/x", "again{A}/moved"])
def test_a_moved_experiment_goes_on_where_it_is(workspace: Path, target: str) -> None:
    a = Path(interrupt(workspace, config={"steps": 4}))
    b = workspace / target.replace("{A}", str(a))
    b.parent.mkdir(parents=True)
    shutil.move(a, b)
    result = restored(str(b))
    assert (result.error, result.faults) == (None, ())
    assert starts(workspace / "log") == [0, 3]
    assert verified(str(b)) == [3, 4]
    assert not a.exists()
    assert result.path.startswith(f"{b}/")
    assert result.checkpoint.path.startswith(f"{b}/")


def test_a_copy_goes_on_by_itself_and_leaves_the_original_alone(workspace: Path) -> None:
    a = Path(interrupt(workspace))
    b = workspace / "copy"
    shutil.copytree(a, b)
    before = files_of(a)
    assert restored(str(b)).error is None
    assert files_of(a) == before
    shutil.rmtree(b)
    assert restored(str(a)).error is None
    assert starts(workspace / "log") == [0, 3, 3]
    assert verified(str(a)) == [STEPS - 1, STEPS]


@pytest.fixture(scope="module")
def s3() -> Iterator[fs.FileSystem]:
    with s3_server() as port:
        yield filesystem(port)


def test_an_experiment_goes_to_an_object_store_and_back(workspace: Path, s3: fs.FileSystem) -> None:
    a = interrupt(workspace, config={"steps": 6}, num_to_keep=None)
    there, back = f"{BUCKET}/moved/there", workspace / "back"
    fs.copy_files(a, there, destination_filesystem=s3, use_threads=False)
    assert verified(there, s3) == [1, 2, 3]
    shutil.rmtree(a)
    (workspace / "stop").write_text("5")
    with pytest.raises(tune.TuneError, match="stopped here"):
        restored(there, s3)
    assert verified(there, s3) == [1, 2, 3, 4, 5]
    fs.copy_files(there, str(back), source_filesystem=s3)
    assert verified(str(back)) == [1, 2, 3, 4, 5]
    result = restored(str(back))
    assert (result.error, result.faults) == (None, ())
    assert starts(workspace / "log") == [0, 3, 5]
    assert verified(str(back)) == [1, 2, 3, 4, 5, 6]


# --- population based training -------------------------------------------------------------------


def climbing(config: dict[str, Any]) -> None:
    """Climb in a lane, the second one higher, and never two steps ahead of the other lane."""
    log = Path(config["log"])
    # Not of the config, which an exploit copies.
    lane = 1 + int(tune.get_context().get_trial_id().rpartition("_")[2])
    note_pid(log)
    start, checkpoint = 0, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            state = json.loads(Path(directory, "state").read_text())
            start = state["step"]
            with log.open("a") as file:
                file.write(f"{lane} of {state['lane']}\n")
            while state["lane"] != lane and not (log.parent / "go").exists():
                time.sleep(0.01)
    for step in range(start + 1, 7):
        (log.parent / f"lane-{lane}-{step}").touch()
        others = [log.parent / f"lane-{3 - lane}-{one}" for one in range(step - 1, 7)]
        while step > 1 and not any(one.exists() for one in others):
            time.sleep(0.01)
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "state").write_text(json.dumps({"step": step, "lane": lane}))
            tune.report(
                {"score": lane * 100 + step, "count": step},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


class StopsAfterExploit(tune.Callback):
    """Ends the fit by an exception, once, when storage knows that a trial has another's checkpoint.

    That is so when the state there has changed twice since.
    """

    def __init__(self, experiment: Path) -> None:
        self.experiment = experiment
        self.states: set[int] = set()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        mark = self.experiment.parent.parent / "stopped"
        if mark.exists() or not any(
            trial.checkpoint and not trial.checkpoint.path.startswith(f"{trial.path}/")
            for trial in trials
        ):
            return
        self.states |= {
            path.stat().st_mtime_ns for path in self.experiment.glob("experiment_state*.json")
        }
        if len(self.states) > 2:
            mark.touch()
            raise RuntimeError("stopped here")


@pytest.mark.filterwarnings("ignore:Consider boosting PBT:UserWarning")
def test_a_moved_trial_goes_on_from_the_checkpoint_that_it_has_of_another(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="score",
        mode="max",
        perturbation_interval=2,
        quantile_fraction=0.5,
        resample_probability=0,
        hyperparam_mutations={"rate": [1, 2]},
    )
    with pytest.raises(RuntimeError, match="stopped here"):
        Tuner(
            climbing,
            param_space={
                "number": tune.grid_search([1, 2]),
                "rate": 1,
                "log": str(workspace / "log"),
            },
            tune_config=tune.TuneConfig(scheduler=scheduler),
            run_config=tune.RunConfig(
                name="fit",
                storage_path=str(workspace / "storage"),
                verbose=0,
                callbacks=[StopsAfterExploit(workspace / "storage" / "fit")],
            ),
        ).fit()
    wait_for_silence(workspace / "log")
    b = workspace / "moved" / "b"
    b.parent.mkdir()
    shutil.move(workspace / "storage" / "fit", b)
    (workspace / "go").touch()
    before = (workspace / "log").read_text().splitlines()
    grid = Tuner.restore(str(b), climbing).fit()
    assert grid.num_errors == 0
    assert [result.metrics["count"] for result in grid] == [6, 6]
    assert not (workspace / "storage" / "fit").exists()
    after = (workspace / "log").read_text().splitlines()[len(before) :]
    assert "1 of 2" in after
    found = verdicts(str(b)).values()
    assert {verdict for verdict, _ in found} == {Verdict.VERIFIED}


# --- from and to vanilla Ray ---------------------------------------------------------------------


def test_an_experiment_of_vanilla_ray_goes_on_and_its_checkpoint_is_said_to_be_unverified(
    workspace: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    path = interrupt(workspace, kind=tune.Tuner)
    assert {verdict for verdict, _ in verdicts(path).values()} == {Verdict.INCOMPLETE}
    with caplog.at_level(logging.WARNING, logger="raytrials.driver.checkpoints"):
        result = restored(path)
    assert (result.error, result.faults) == (None, ())
    assert 0 < starts(workspace / "log")[1] <= 3
    told = [record for record in caplog.records if "cannot be verified" in record.message]
    assert len(told) == 1
    assert verified(path) == [STEPS - 1, STEPS]


VANILLA = """
import json, os, sys
os.chdir(sys.argv[2])
from ray import tune
from support import telling as module
from support.session import local_ray

def saving(config):
    try:
        import raytrials
    except ImportError:
        module.saving(config)

with local_ray():
    restored = tune.Tuner.restore(sys.argv[1], saving)
    print(json.dumps([result.metrics["count"] for result in restored.fit()]))
"""


def test_vanilla_ray_finishes_an_experiment_where_raytrials_is_not_installed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    path = interrupt(workspace)
    assert verified(path)[-1] == 3
    blocked = workspace / "blocked"
    blocked.mkdir()
    (blocked / "raytrials.py").write_text("raise ImportError('not installed here')")
    search = os.pathsep.join([str(blocked), os.environ["PYTHONPATH"]])
    output = finish(start(VANILLA, path, str(workspace), PYTHONPATH=search))
    assert last_json(output) == [STEPS]
    assert 0 < starts(workspace / "log")[1] <= 3
