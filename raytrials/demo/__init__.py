"""The search behind `raytrials demo`: a real job whose workers are killed while it runs.

Optuna under ASHA tunes the job of `raytrials.demo.job`. :class:`raytrials.demo.killer.Killer` kills
workers and a node at planned results, and one worker again while it loads its checkpoint; the
tables at the end say what that cost. It is meant for one machine, on which it starts two nodes; on
a cluster that runs already, no node is killed, and of workers and epochs only those beside the
driver count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from raytrials.core.retry import RetryPolicy
from raytrials.demo.job import METRIC, SEED, SPACE, Scratch, train
from raytrials.demo.killer import FULL, GRACE_EPOCHS, QUICK, Killer, Plan
from raytrials.demo.nodes import running_nodes
from raytrials.demo.table import (
    best_config,
    cost,
    fault_table,
    is_finished,
    restore_hint,
    say,
    tell,
    trial_table,
)
from raytrials.driver.result import TrialResult
from raytrials.tuner import Tuner

__all__ = ["run", "train"]


def run(*, faults: bool, quick: bool, storage: str | None) -> int:
    """Run the search and print its tables.

    Uses the Ray that this process is connected to; else starts nodes here and shuts them down.

    Args:
        faults: kill workers and a node.
        quick: run the smaller plan.
        storage: directory or URI for the results; None is Ray's default.

    Returns:
        0 if all trials finished, 1 otherwise.
    """
    plan = QUICK if quick else FULL
    if not faults:
        plan = dataclasses.replace(plan, kills_after=(), node_lost_after=None)
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 - Ray draws from the global generator
    with tempfile.TemporaryDirectory(prefix="raytrials-") as directory:
        with _quiet(), running_nodes():
            kills = f"{len(plan.kills_after)} workers and a node" if faults else "nothing"
            tell(f"{plan.trials} trials of up to {plan.epochs} epochs; {kills} to kill")
            start_s = time.monotonic()
            grid = make_tuner(plan, directory, storage).fit()
            tell(f"the search took {time.monotonic() - start_s:.0f} s")
        results: list[TrialResult] = list(grid)
        finished = sum(map(is_finished, results))
        say("", *trial_table(results, plan.epochs), f"{finished} of {plan.trials} trials finished.")
        say("", *best_config(results))
        say("", *fault_table(results), cost(results, Scratch(directory)))
        say("", *restore_hint(grid, storage))
    return 0 if finished == plan.trials else 1


def make_tuner(plan: Plan, scratch: str, storage: str | None) -> Tuner:
    """Return the tuner of the search; arguments as of :class:`Killer` and :func:`run`."""
    if storage is not None and "://" not in storage:
        storage = str(Path(storage).expanduser().resolve())
    return Tuner(
        train,
        param_space={**SPACE, "epochs": plan.epochs, "scratch": scratch},
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode="max",
            num_samples=plan.trials,
            search_alg=OptunaSearch(seed=SEED),
            scheduler=ASHAScheduler(
                time_attr="epoch",
                max_t=plan.epochs,
                grace_period=GRACE_EPOCHS,
                reduction_factor=2,
            ),
            trial_dirname_creator=_directory_name,
        ),
        run_config=tune.RunConfig(
            name=time.strftime("raytrials-demo-%Y-%m-%d_%H-%M-%S"),
            storage_path=storage,
            # No trial is killed twice; the rest is for faults that nobody planned.
            failure_config=tune.FailureConfig(max_failures=len(plan.kills_after) + 1),
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=3, checkpoint_score_attribute=METRIC
            ),
            callbacks=[Killer(plan, scratch)],
            verbose=0,
        ),
        retry_policy=RetryPolicy(restore_retries=1),
    )


def _directory_name(trial: Any) -> str:
    return str(trial.trial_id)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave the screen to our own lines, which tell of every failure."""
    loggers = [logging.getLogger(name) for name in ("optuna", "ray", "raytrials")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
