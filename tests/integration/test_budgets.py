"""What failures cost over the life of a trial, its driver included."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray import tune
from support.breaking import STEPS, log_of
from support.fits import TRAINABLES, finish, last_json, run_config, space, start, wait_until

from raytrials import ActorError, RestoreError, RetryPolicy, TrainingError, Tuner
from raytrials.core.fault import Charge

RESTORING_FOR_EVER = "load_always_raises"


@pytest.mark.parametrize("kind", TRAINABLES)
@pytest.mark.parametrize(("retries", "max_failures"), [(0, 1), (2, 1)])
@pytest.mark.usefixtures("ray_local")
def test_a_restore_that_always_fails_is_tried_as_often_as_the_budgets_say(
    workspace: Path, kind: str, retries: int, max_failures: int
) -> None:
    trainable = TRAINABLES[kind]
    # The kill that makes a restore necessary costs one failure more.
    grid = Tuner(
        trainable,
        param_space=space(workspace, [RESTORING_FOR_EVER]),
        run_config=run_config(workspace, trainable, max_failures=max_failures + 1),
        retry_policy=RetryPolicy(backoff_initial_s=0, restore_retries=retries),
    ).fit()
    loads = [line for line in log_of(workspace, RESTORING_FOR_EVER) if line.startswith("load")]
    assert len(loads) == (retries + 1) * (max_failures + 1)
    (result,) = grid
    assert isinstance(result.error, RestoreError)
    charges = [fault.charge for fault in result.faults[1:]]
    assert charges == ([Charge.RESTORE] * retries + [Charge.FAILURE]) * (max_failures + 1)
    assert result.checkpoint is not None
    assert grid.num_errors == 1


DRIVER = """
import sys
from pathlib import Path
from support.fits import TRAINABLES, run_config, space
from support.session import local_ray
from raytrials import RetryPolicy, Tuner

directory, kind, fault, max_failures = Path(sys.argv[1]), *sys.argv[2:]
trainable = TRAINABLES[kind]
with local_ray():
    Tuner(
        trainable,
        param_space=space(directory, [fault]),
        run_config=run_config(directory, trainable, max_failures=int(max_failures)),
        retry_policy=RetryPolicy(backoff_initial_s=0, restore_retries=None),
    ).fit()
"""


def kill_driver_when(
    directory: Path, condition: Callable[[str], bool], kind: str, fault: str, max_failures: int
) -> None:
    """Run a driver, and kill it with all its processes when its saved state is as wanted."""
    driver = start(
        DRIVER, str(directory), kind, fault, str(max_failures), TUNE_GLOBAL_CHECKPOINT_S="0"
    )
    tree = psutil.Process(driver.pid)

    def state() -> str:
        states = list((directory / "storage" / "fit").glob("experiment_state-*.json"))
        return max(states).read_text() if states else ""

    try:
        wait_until(lambda: condition(state()), alive=lambda: driver.poll() is None)
    finally:
        family = tree.children(recursive=True)
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
        for process in family:
            if process.is_running():
                process.kill()
        psutil.wait_procs(family, timeout=30)


@pytest.mark.parametrize("kind", TRAINABLES)
def test_counters_survive_a_killed_driver_and_count_on(
    workspace: Path, kind: str, ray_local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_driver_when(
        workspace,
        lambda state: state.count(r"\"charge\": \"restore\"") >= 2,
        kind,
        RESTORING_FOR_EVER,
        max_failures=1,
    )
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    before = Tuner.restore(str(workspace / "storage" / "fit"), TRAINABLES[kind]).get_results()
    spent = len([fault for fault in before[0].faults if fault.charge is Charge.RESTORE])
    assert spent >= 2
    (result,) = Tuner.restore(
        str(workspace / "storage" / "fit"),
        TRAINABLES[kind],
        retry_policy=RetryPolicy(backoff_initial_s=0, restore_retries=spent + 1),
    ).fit()
    assert isinstance(result.error, RestoreError)
    assert [fault.charge for fault in result.faults] == [
        Charge.FAILURE,  # the kill that made a restore necessary
        *[Charge.RESTORE] * (spent + 1),
        Charge.FAILURE,
    ]
    attempts = [fault.attempt for fault in result.faults]
    assert attempts == sorted(set(attempts))


@pytest.mark.parametrize("resume_errored", [False, True], ids=["ended", "resumed"])
def test_a_charge_that_was_open_when_the_driver_died_is_decided_by_the_next_one(
    workspace: Path, ray_local: None, monkeypatch: pytest.MonkeyPatch, resume_errored: bool
) -> None:
    kill_driver_when(
        workspace,
        lambda state: "not decided yet" in state,
        "function",
        "step:sigkill",
        max_failures=0,
    )
    tuner = Tuner.restore(
        str(workspace / "storage" / "fit"), TRAINABLES["function"], resume_errored=resume_errored
    )
    (before,) = tuner.get_results()
    assert [(fault.charge, fault.reason) for fault in before.faults] == [
        (Charge.FREE, "not decided yet")
    ]
    (result,) = tuner.fit()
    assert [(fault.charge, fault.reason) for fault in result.faults] == [
        (Charge.FAILURE, "worker_died, counted; failure 1, max_failures=0")
    ]
    assert "worker_died, counted" in Path(result.path, "error.txt").read_text()
    if resume_errored:
        assert result.error is None
        assert result.metrics["count"] == STEPS
    else:
        assert isinstance(result.error, ActorError)
        assert result.error.attempt == 1


def fails_until(config: dict[str, Any]) -> None:
    Path(config["marks"], f"run-{os.getpid()}").touch()
    if len(list(Path(config["marks"]).glob("run-*"))) <= config["failures"]:
        raise ValueError("not yet")
    tune.report({"count": STEPS})


@pytest.mark.usefixtures("ray_local")
def test_a_resumed_errored_trial_starts_with_fresh_budgets_and_keeps_its_ledger(
    workspace: Path,
) -> None:
    (first,) = Tuner(
        fails_until,
        param_space={"marks": str(workspace), "failures": 3},
        run_config=run_config(workspace, TRAINABLES["function"], max_failures=1),
    ).fit()
    assert isinstance(first.error, TrainingError)
    assert len(first.faults) == 2
    (second,) = Tuner.restore(first.path.rsplit("/", 1)[0], fails_until, resume_errored=True).fit()
    assert second.error is None
    assert second.metrics["count"] == STEPS
    assert second.faults[:2] == first.faults
    assert [fault.attempt for fault in second.faults] == [1, 2, 3]


def always_fails(config: dict[str, Any]) -> None:
    Path(config["marks"], f"{tune.get_context().get_trial_id()}-{os.getpid()}").touch()
    raise ValueError("always")


@pytest.mark.usefixtures("ray_local")
def test_a_trainable_that_always_raises_starts_as_often_as_its_budget_says(workspace: Path) -> None:
    grid = Tuner(
        always_fails,
        param_space={"marks": str(workspace)},
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=run_config(workspace, TRAINABLES["function"], max_failures=1),
    ).fit()
    assert len(grid) == 2
    assert all(isinstance(error, TrainingError) for error in grid.errors)
    assert len([path for path in workspace.iterdir() if path.is_file()]) == 2 * 2


MEMORY = """
import json, os, sys, time
from pathlib import Path
import psutil
from ray import tune
from support.session import local_ray
from raytrials import Tuner

directory = Path(sys.argv[1])


class Hog(tune.Trainable):
    def setup(self, config):
        self.hoard = []
        with open(directory / f"{config['hog']}.starts", "a") as starts:
            starts.write("x")

    def step(self):
        if self.config["hog"] == 1 and not (directory / "hogged").exists():
            (directory / "hogged").touch()
            while True:
                self.hoard.append(os.urandom(1 << 20) * 128)
                time.sleep(0.02)
        return {"done": True, "count": 1}

    def save_checkpoint(self, checkpoint_dir):
        pass

    def load_checkpoint(self, checkpoint_dir):
        pass


threshold = psutil.virtual_memory().percent / 100 + 0.08
with local_ray(
    num_cpus=3,
    _system_config={
        "memory_usage_threshold": threshold,
        "memory_monitor_refresh_ms": 50,
    },
):
    grid = Tuner(
        Hog,
        param_space={"hog": tune.grid_search([0, 1, 2])},
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(directory / "storage"),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
        ),
    ).fit()
    faults = {r.config["hog"]: [(f.fault_class, f.cause, f.charge) for f in r.faults] for r in grid}
    counts = [r.metrics["count"] for r in grid]
    starts = [len((directory / f"{hog}.starts").read_text()) for hog in range(3)]
print(json.dumps({"faults": faults, "counts": counts, "starts": starts}))
"""


def test_a_kill_by_the_memory_monitor_costs_its_own_trial_alone_one_failure(
    workspace: Path,
) -> None:
    seen = last_json(finish(start(MEMORY, str(workspace))))
    assert seen["counts"] == [1, 1, 1]
    assert seen["faults"] == {"0": [], "1": [["actor", "out_of_memory", "failure"]], "2": []}
    assert seen["starts"] == [1, 2, 1]
