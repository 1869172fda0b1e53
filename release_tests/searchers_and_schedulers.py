"""Every searcher and scheduler of Ray that is installed runs, with one worker killed.

Prints a line for each: how it ended, or why it could not be made. Exits with 1 if any went wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

import ray
from ray import tune
from ray.tune import schedulers

from raytrials import Cause, RetryPolicy, Tuner

SAMPLES = 6
MEASURE = {"metric": "score", "mode": "max"}
TIMED = {**MEASURE, "time_attr": "training_iteration"}


def climb(config: dict[str, Any]) -> None:
    """Report `x * step`, six steps with a checkpoint each; the first to reach step 4 is killed."""
    first, checkpoint = 1, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            first = json.loads(Path(directory, "step").read_text()) + 1
    for step in range(first, 7):
        if step == 4:
            try:
                Path(config["marks"], "struck").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step").write_text(json.dumps(step))
            score = config["x"] * step + config.get("lr", 0)
            tune.report({"score": score}, checkpoint=tune.Checkpoint.from_directory(directory))


def optuna() -> Any:
    """OptunaSearch."""
    from ray.tune.search.optuna import OptunaSearch  # noqa: PLC0415 - may not be installed

    return OptunaSearch(seed=0, **MEASURE)


def hyperopt() -> Any:
    """HyperOptSearch."""
    from ray.tune.search.hyperopt import HyperOptSearch  # noqa: PLC0415

    return HyperOptSearch(random_state_seed=0, **MEASURE)


def bayesopt() -> Any:
    """BayesOptSearch."""
    from ray.tune.search.bayesopt import BayesOptSearch  # noqa: PLC0415

    return BayesOptSearch(random_state=0, **MEASURE)


def pb2() -> Any:
    """PB2."""
    from ray.tune.schedulers.pb2 import PB2  # noqa: PLC0415

    return PB2(**TIMED, perturbation_interval=2, hyperparam_bounds={"lr": [0.1, 0.9]})


SEARCHERS: dict[str, Callable[[], Any]] = {
    "random": lambda: None,
    "grid": lambda: None,
    "Optuna": optuna,
    "HyperOpt": hyperopt,
    "BayesOpt": bayesopt,
}
SCHEDULERS: dict[str, Callable[[], Any]] = {
    "FIFO": schedulers.FIFOScheduler,
    "ASHA": lambda: schedulers.ASHAScheduler(**TIMED, max_t=6, grace_period=2),
    "HyperBand": lambda: schedulers.HyperBandScheduler(**TIMED, max_t=6),
    "MedianStopping": lambda: schedulers.MedianStoppingRule(**TIMED, grace_period=2),
    "PBT": lambda: schedulers.PopulationBasedTraining(
        **TIMED, perturbation_interval=2, hyperparam_mutations={"lr": [0.1, 0.5, 0.9]}
    ),
    "PB2": pb2,
}


def run(name: str, searcher: Callable[[], Any], scheduler: Callable[[], Any]) -> str:
    """Run one combination and say how it went; "" is well."""
    with tempfile.TemporaryDirectory(prefix="rs") as directory:
        x = tune.grid_search([1, 2, 3, 4, 5, 6]) if name == "grid" else tune.uniform(1, 6)
        try:
            built_searcher, built_scheduler = searcher(), scheduler()
        except (ImportError, AssertionError) as error:
            return f"not installed: {error}"
        grid = Tuner(
            tune.with_resources(climb, {"cpu": 0.5}),
            # PB2 fits a model to numbers alone; the others search over a fixed lr.
            param_space={"x": x, "lr": tune.uniform(0.1, 0.9), "marks": directory},
            tune_config=tune.TuneConfig(
                num_samples=1 if name == "grid" else SAMPLES,
                search_alg=built_searcher,
                scheduler=built_scheduler,
                max_concurrent_trials=None if name == "grid" else 4,
            ),
            run_config=tune.RunConfig(
                name="fit",
                storage_path=f"{directory}/storage",
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=1),
            ),
            retry_policy=RetryPolicy(),
        ).fit()
    faults = [fault.cause for result in grid for fault in result.faults]
    if grid.num_errors or len(grid) != SAMPLES or faults != [Cause.WORKER_DIED]:
        return f"WRONG: {grid.num_errors} errors, {len(grid)} trials, faults {faults}"
    return ""


def main() -> None:
    """Run all, a line each."""
    combinations = [(name, name, make, SCHEDULERS["FIFO"]) for name, make in SEARCHERS.items()]
    combinations += [
        (name, "random", SEARCHERS["random"], make)
        for name, make in SCHEDULERS.items()
        if name != "FIFO"
    ]
    wrong = False
    with tempfile.TemporaryDirectory(prefix="rs") as directory:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=150_000_000,
            log_to_driver=False,
            _temp_dir=f"{directory}/ray",
        )
        try:
            for shown, searcher_name, searcher, scheduler in combinations:
                outcome = run(searcher_name, searcher, scheduler)
                wrong = wrong or outcome.startswith("WRONG")
                print(f"{shown:16} {outcome or 'well'}", flush=True)
        finally:
            ray.shutdown()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
