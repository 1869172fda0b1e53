"""The API as users write it; mypy --strict has to agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import tune

from raytrials import (
    ActorError,
    Cause,
    ChargedFault,
    RestoreError,
    RetryPolicy,
    Rule,
    Tuner,
    verify,
)
from raytrials.driver.result import TrialResult
from raytrials.errors import TrialError


def train(config: dict[str, Any]) -> None:
    tune.report({"score": config["x"]})


policy: RetryPolicy = RetryPolicy(restore_retries=3, max_infra_failures=None, count_preemption=True)
ruled: RetryPolicy = RetryPolicy(rules=[Rule("free", after_s=60, exception="ConnectionError")])
tuner: Tuner = Tuner(
    train,
    param_space={"x": 1},
    tune_config=tune.TuneConfig(num_samples=2),
    run_config=tune.RunConfig(name="typed"),
    retry_policy=policy,
    resume="auto",
)
can: bool = Tuner.can_restore("path")
restored: Tuner = Tuner.restore("path", train, resume_errored=True, retry_policy=None)
results: tune.ResultGrid = restored.fit()
lost: Mapping[str, str] = restored.fit().lost
lost_before: str | None = restored.get_results().lost.get("searcher")
whole: bool = verify("path", full=True).ok
damaged: list[str] = [
    checkpoint.problem
    for trial in verify("path", sweep=True).trials
    for checkpoint in trial.checkpoints
    if checkpoint.verdict == "corrupt"
]


def of(result: TrialResult) -> tuple[str, bool]:
    faults: tuple[ChargedFault, ...] = result.faults
    lost = any(fault.cause is Cause.NODE_LOST for fault in faults)
    error = result.error
    if isinstance(error, RestoreError | ActorError):
        attempt: int = error.attempt
        return f"{error.trial_id} {attempt} {error.cause}", lost
    if isinstance(error, TrialError):
        return error.detail, lost
    return "", lost
