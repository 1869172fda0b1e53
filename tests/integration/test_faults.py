"""Each fault, done for real: it gets the right type, phase, cause and charge.

And the trial ends as if nothing had happened, from the newest checkpoint that it had.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from support import breaking
from support.breaking import Counting, counting, log_of

from raytrials import ActorError, Cause, RestoreError, RetryPolicy, TrainingError, Tuner
from raytrials.core.fault import Charge, Phase
from raytrials.driver.result import TrialResult


@dataclass(frozen=True)
class Expected:
    error: type[Exception]
    phase: Phase
    cause: Cause
    charge: Charge = Charge.FAILURE
    says: str = ""


def training(phase: Phase = Phase.RUNNING, says: str = "") -> Expected:
    return Expected(TrainingError, phase, Cause.USER_CODE, says=says)


def died(phase: Phase = Phase.RUNNING, says: str = "") -> Expected:
    return Expected(ActorError, phase, Cause.WORKER_DIED, says=says)


def restore(cause: Cause) -> Expected:
    return Expected(RestoreError, Phase.RESTORING, cause, charge=Charge.RESTORE)


IN_STEP = {
    "step:exception": training(says="ValueError: in step"),
    "step:memory_error": training(says="MemoryError"),
    "step:keyboard_interrupt": training(),
    "step:picky_exception": training(says="PickyError"),
    "step:helper_raised": training(says="ValueError: in the helper"),
    "step:helper_died": died(says="Helper"),
    "step:sigkill": died(),
    "step:os_exit": died(),
    "step:sys_exit": died(),
    "step:sigterm": died(),
}
CLASS_FAULTS = {
    **IN_STEP,
    "step:exit_actor": died(),
    "setup:exception": training(Phase.STARTING, says="ValueError: in setup"),
    "setup:exit": died(Phase.STARTING),
    "save:exception": training(says="ValueError: in save"),
    "save:sigkill": died(),
    "restoring:setup_exception": restore(Cause.USER_CODE),
    "restoring:setup_exit": restore(Cause.WORKER_DIED),
    "restoring:exception": restore(Cause.USER_CODE),
    "restoring:sigkill": restore(Cause.WORKER_DIED),
}
FUNCTION_FAULTS = {
    **IN_STEP,
    "restoring:exception": restore(Cause.USER_CODE),
    "restoring:copy_exception": restore(Cause.USER_CODE),
    "restoring:sigkill": restore(Cause.WORKER_DIED),
    "restoring:sigkill_before": restore(Cause.WORKER_DIED),
    "loaded:sigkill": died(),
    "loaded:exception": training(says="ValueError: behind"),
    "loaded:exception_after_another": training(says="ValueError: behind"),
    "loaded:exception_before": training(says="ValueError: before"),
}


@dataclass(frozen=True)
class Run:
    """One fit with one trial for each fault."""

    results: dict[str, TrialResult]
    logs: dict[str, list[str]]


def run(trainable: Any, faults: Sequence[str]) -> Run:
    with tempfile.TemporaryDirectory(prefix="rw") as directory:
        frequency = 1 if trainable is Counting else 0
        grid = Tuner(
            tune.with_resources(trainable, {"cpu": 0.5}),
            param_space={"fault": tune.grid_search(list(faults)), "marks": directory},
            run_config=tune.RunConfig(
                name="faults",
                storage_path=f"{directory}/storage",
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=2),
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=frequency),
            ),
            retry_policy=RetryPolicy(backoff_initial_s=0, restore_retries=1),
        ).fit()
        return Run(
            results={result.config["fault"]: result for result in grid},
            logs={fault: log_of(Path(directory), fault) for fault in faults},
        )


@pytest.fixture(scope="module")
def class_run(ray_local: None) -> Run:
    return run(Counting, [*CLASS_FAULTS, "none"])


@pytest.fixture(scope="module")
def function_run(ray_local: None) -> Run:
    return run(counting, [*FUNCTION_FAULTS, "none"])


def check(run: Run, fault: str, expected: Expected) -> None:
    result = run.results[fault]
    struck = result.faults[-1]
    assert type(struck.to_error()) is expected.error
    assert (struck.phase, struck.cause, struck.charge) == (
        expected.phase,
        expected.cause,
        expected.charge,
    )
    assert expected.says in struck.detail
    assert struck.node_id
    needs_a_restore = fault.startswith(breaking.NEED_A_RESTORE)
    assert [one.attempt for one in result.faults] == ([1, 2] if needs_a_restore else [1])
    assert result.error is None
    assert result.metrics["count"] == breaking.STEPS
    assert result.metrics["training_iteration"] == breaking.STEPS


@pytest.mark.parametrize("fault", CLASS_FAULTS)
def test_a_fault_of_a_class_trainable_is_typed_and_charged(class_run: Run, fault: str) -> None:
    check(class_run, fault, CLASS_FAULTS[fault])


@pytest.mark.parametrize("fault", FUNCTION_FAULTS)
def test_a_fault_of_a_function_trainable_is_typed_and_charged(
    function_run: Run, fault: str
) -> None:
    check(function_run, fault, FUNCTION_FAULTS[fault])


def test_an_undisturbed_trial_has_no_faults(class_run: Run, function_run: Run) -> None:
    assert class_run.results["none"].faults == ()
    assert function_run.results["none"].faults == ()


@pytest.mark.parametrize("fault", ["restoring:exception", "restoring:sigkill"])
def test_a_failed_restore_is_tried_again_from_the_same_checkpoint(
    class_run: Run, function_run: Run, fault: str
) -> None:
    for one in (class_run, function_run):
        log = one.logs[fault]
        loads = [line for line in log if line.startswith("load ")]
        assert len(loads) == 2
        assert log[-1] == f"from {breaking.KILL_AT}"
    loads = [line for line in function_run.logs[fault] if line.startswith("load ")]
    assert loads[0] == loads[1]
