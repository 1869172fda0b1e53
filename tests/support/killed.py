"""Experiments whose drivers are killed, each life in a process and a Ray of its own."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from ray.tune.search.optuna import OptunaSearch

from raytrials import Tuner
from raytrials.chaos.oracle import Oracle
from raytrials.core.event import TrialAdded
from support.bad_stores import Slow, Store
from support.fits import Stored, finish, kill_driver, last_json, wait_until
from support.session import local_ray

SCRIPT = "import sys; from support.killed import live; live(sys.argv[1])"
LIFE, LOG = "SUPPORT_LIFE", "SUPPORT_LOG"

LIFE_S = 400
"""Far more than a life takes, also on a machine that is busy with something else."""

PER_TRIAL = ("TrialAdded", "RunnerAssigned", "AttemptStarted", "SearcherTold", "TrialFinished")
PER_STEP = ("ResultReported", "CheckpointCommitted", "DecisionMade")
_PLACE = re.compile(rb'"seq":(\d+),"epoch":\d+,"t":[^,]+,"type":"(\w+)"')


class Moment(NamedTuple):
    """When a driver is killed: as soon as its journal shows so many of its own events of a kind."""

    kind: str
    count: int


@dataclass(frozen=True)
class Plan(Stored):
    """An experiment.

    Attributes:
        searcher: `basic` or `optuna`.
        seed: of the searcher, None for none.
        num_to_keep: of each trial's checkpoints, None for all.
        slots: how many trials may run at once.
        samples: how many there are.
        steps: of each.
        is_bad: whether its storage is slow and fails some writes.
        reuses: whether actors are used again for other trials.
        scheduler: one of `SCHEDULERS`, with which one trial runs at a time; None for FIFO.
    """

    searcher: str = "basic"
    seed: int | None = None
    num_to_keep: int | None = None
    slots: int = 2
    samples: int = 20
    steps: int = 3
    is_bad: bool = False
    reuses: bool = True
    scheduler: str | None = None


def moments(seed: object, kills: int, plan: Plan) -> list[Moment]:
    """Draw the moments of some kills, all of them before the experiment ends."""
    luck = random.Random(str(seed))
    share = plan.samples // (kills + 1)
    found = []
    for _ in range(kills):
        kind = luck.choice(PER_TRIAL + PER_STEP)
        each = plan.steps if kind in PER_STEP else 1
        found.append(Moment(kind, luck.randint(1, max(1, share * each))))
    return found


# --- in the drivers and their workers ------------------------------------------------------------


def stepping(config: dict[str, Any]) -> None:
    """Report and save at every step, and log it before that."""
    start, checkpoint = 0, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            start = json.loads(Path(directory, "step").read_text())
    trial_id = tune.get_context().get_trial_id()
    for step in range(start + 1, config["steps"] + 1):
        time.sleep(0.05)
        with Path(os.environ[LOG]).open("a") as log:
            log.write(json.dumps([os.environ[LIFE], trial_id, config["x"], step]) + "\n")
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step").write_text(json.dumps(step))
            tune.report(
                {"score": config["x"] * step, "step": step},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


CHOICES = [0.1, 0.3, 0.5, 0.7, 0.9]
"""What a population's `x` may be."""

_TIME: dict[str, Any] = {"time_attr": "training_iteration"}
SCHEDULERS: dict[str, Callable[[], Any]] = {
    "asha": lambda: ASHAScheduler(**_TIME, max_t=6, grace_period=1, reduction_factor=2),
    "hyperband": lambda: HyperBandScheduler(**_TIME, max_t=6, reduction_factor=3),
    "median": lambda: MedianStoppingRule(**_TIME, grace_period=1, min_samples_required=2),
    "pbt": lambda: PopulationBasedTraining(
        **_TIME, perturbation_interval=2, hyperparam_mutations={"x": CHOICES}, synch=True
    ),
}


def _tuner(plan: Plan) -> Tuner:
    filesystem = Slow(0.3, 0.1).filesystem() if plan.is_bad else None
    alone = plan.scheduler is not None
    trainable = tune.with_resources(stepping, {"cpu": 2}) if alone else stepping
    if (plan.path / ".raytrials" / "journal").exists():
        return Tuner.restore(str(plan.path), trainable, storage_filesystem=filesystem)
    if plan.seed is not None:
        np.random.seed(plan.seed)  # noqa: NPY002 - the global one is what random search uses
    return Tuner(
        trainable,
        param_space={"x": tune.uniform(0, 1), "steps": plan.steps},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=plan.samples,
            max_concurrent_trials=None if alone else plan.slots,
            scheduler=SCHEDULERS[plan.scheduler]() if plan.scheduler else None,
            search_alg=OptunaSearch(seed=plan.seed) if plan.searcher == "optuna" else None,
            reuse_actors=plan.reuses,
        ),
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(plan.path.parent),
            storage_filesystem=filesystem,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=plan.num_to_keep),
        ),
    )


def live(plan_json: str) -> None:
    """Be a driver: go on with an experiment to its end, and print the table."""
    plan = Plan(**json.loads(plan_json))
    with local_ray(num_cpus=2):
        begun = time.monotonic()
        grid = _tuner(plan).fit()
        table = []
        for result in grid:
            kept = [one.path for one, _ in result.best_checkpoints or ()]
            frame = result.metrics_dataframe
            table.append(
                {
                    "trial_id": (result.metrics or {}).get("trial_id"),
                    "config": result.config,
                    "error": None if result.error is None else repr(result.error),
                    "rows": []
                    if frame is None
                    else frame.get("training_iteration", frame.index).tolist(),
                    "checkpoints": [
                        *kept,
                        *([result.checkpoint.path] if result.checkpoint else []),
                    ],
                }
            )
    sys.stdout.write(json.dumps({"table": table, "fit_s": time.monotonic() - begun}) + "\n")


# --- who kills them ------------------------------------------------------------------------------


def run(plan: Plan, kills: Sequence[Moment] = ()) -> dict[str, Any]:
    """Run an experiment to its end, with its driver killed at some moments.

    Returns:
        `table` with a row for each trial, and `fit_s` of the last life.

    Raises:
        RuntimeError: a driver ended otherwise; with what it printed.
    """
    for life, moment in enumerate(kills, 1):
        before = _count(plan, moment.kind)
        driver = _start(plan, life)
        try:
            wait_until(
                lambda: _count(plan, moment.kind) >= before + moment.count,  # noqa: B023
                alive=lambda: driver.poll() is None,  # noqa: B023
                timeout_s=LIFE_S,
            )
        except (RuntimeError, TimeoutError) as error:
            raise RuntimeError(f"life {life}, {moment}: {error}\n{kill_driver(driver)}") from error
        kill_driver(driver)
    found: dict[str, Any] = last_json(finish(_start(plan, len(kills) + 1), timeout_s=LIFE_S))
    return found


def _start(plan: Plan, life: int) -> Any:
    return plan.start(SCRIPT, **{LIFE: str(life), LOG: str(plan.log)})


def _count(plan: Plan, kind: str) -> int:
    """Return how many events of a kind the journal's files show."""
    seen: set[bytes] = set()
    for file in (plan.path / ".raytrials" / "journal").glob("*.jsonl"):
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            continue  # merged
        seen |= {seq for seq, found in _PLACE.findall(data) if found == kind.encode()}
    return len(seen)


# --- what is promised ----------------------------------------------------------------------------


def problems(
    plan: Plan, found: dict[str, Any], kills: Sequence[Moment] = (), *, against: Plan | None = None
) -> list[str]:
    """Return everything that is not as it would be had nobody killed a driver."""
    oracle = Oracle(
        plan.path,
        storage_filesystem=Store().filesystem() if plan.is_bad else None,
        num_samples=plan.samples,
        against=None if against is None else against.path,
    )
    return [
        *(str(one) for one in oracle.violations()),
        *_wrong_in_table(plan, found["table"]),
        *_wrong_in_work(plan, len(kills)),
    ]


def _wrong_in_table(plan: Plan, table: list[dict[str, Any]]) -> Iterator[str]:
    added = {}
    for record in plan.records():
        if isinstance(record.event, TrialAdded):
            added[record.event.trial_id] = dict(record.event.config)
    ids = [row["trial_id"] for row in table]
    if ids != list(added):
        yield f"the table has the trials {ids}, and added were {list(added)}"
    for row in table:
        name = row["trial_id"]
        expected = {
            "config": added.get(name),
            "error": None,
            "rows": list(range(1, plan.steps + 1)),
        }
        for key, value in expected.items():
            if row[key] != value:
                yield f"{name}: {key} {row[key]}, and not {value}"
        if not row["checkpoints"]:
            yield f"{name}: no checkpoint"
        for path in row["checkpoints"]:
            if not Path(path, "step").is_file():
                yield f"{name}: {path} is gone"


def _wrong_in_work(plan: Plan, kills: int) -> Iterator[str]:
    """Compare what the workers did with what was to be done."""
    done: Counter[tuple[str, int]] = Counter()
    lives: dict[str, dict[str, list[int]]] = {}
    values: dict[str, set[float]] = {}
    for line in plan.log.read_text().splitlines():
        life, trial_id, value, step = json.loads(line)
        done[trial_id, step] += 1
        lives.setdefault(trial_id, {}).setdefault(life, []).append(step)
        values.setdefault(trial_id, set()).add(value)
    for trial_id, seen in values.items():
        if len(seen) > 1:
            yield f"{trial_id}: ran with {sorted(seen)}"
    for trial_id, of_life in lives.items():
        latest = 0
        for life, steps in of_life.items():
            if steps != list(range(steps[0], steps[-1] + 1)):
                yield f"{trial_id}: life {life} did the steps {steps}"
            if not latest <= steps[0] <= latest + 1:
                yield f"{trial_id}: life {life} began with step {steps[0]}, after {latest}"
            latest = steps[-1]
    again = sum(count - 1 for count in done.values())
    if again > kills * plan.slots:
        yield f"{again} steps were done again, after {kills} kills with {plan.slots} slots"
