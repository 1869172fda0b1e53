"""What the journal folds to, and Ray's own trials, say the same after every step of the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import ASHAScheduler
from support.script import Raise, Script
from support.scripted import Experiment

from raytrials import _ray
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.plan import Action, At, Fault, Plan
from raytrials.core.state import TrialRecord
from raytrials.core.status import Status
from raytrials.driver.account import without_config
from raytrials.driver.trial import Trial
from raytrials.store.manifest import index_of

KINDS = pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])

STATUSES = {
    Status.PENDING: {Trial.PENDING},
    # Its actor is there, and reads the checkpoint that the attempt may start from.
    Status.SCHEDULED: {Trial.PENDING, Trial.RUNNING},
    # Ray calls a trial running when its actor has come, and pending while it waits for a retry.
    Status.RUNNING: {Trial.RUNNING, Trial.PENDING},
    Status.INTERRUPTED: {Trial.PENDING},
    Status.PAUSED: {Trial.PAUSED},
    Status.SUCCEEDED: {Trial.TERMINATED},
    Status.ABORTED: {Trial.TERMINATED},
    Status.FAILED: {Trial.ERROR},
}


def differences(trial: Trial, record: TrialRecord) -> list[str]:
    """Return in what a trial is another than the record of it."""
    account = trial.account
    registered = [
        index_of(one.checkpoint.path.rpartition("/")[2])
        for one in _ray.registered_checkpoints(trial)
        if one.checkpoint.path.startswith(f"{trial.path}/")
    ]
    own = [index for index in record.checkpoints if index in registered]
    result = without_config(trial.run_metadata.last_result or {})
    decided = [one for number, one in enumerate(record.faults, 1) if number not in record.undecided]
    pairs = {
        "config": (trial.config, dict(record.config)),
        "tag": (trial.experiment_tag, record.tag),
        "registered": (sorted(registered), sorted(own)),
        "failures": (trial.num_failures, record.history.failures),
        "faults": (account.faults, decided),
        "open": (len(trial.open_charges) + len(account.undecided), len(record.undecided)),
        "history": (
            replace(account.history, max_failures=0),
            replace(record.history, max_failures=0),
        ),
        "high_water": (account.high_water, record.high_water),
        "attempt": (account.attempt, max(record.attempt, record.reserved)),
        "bad": (account.bad, record.bad),
    }
    # Ray shows the latest report until the attempt has one; the journal what that went on from.
    behind = record.iteration == record.from_iteration and record.attempt > 1
    iteration = result.get("training_iteration", 0)
    if not (behind and iteration > record.iteration):
        pairs["iteration"] = (iteration, record.iteration)
        for name in ("score", "count"):
            pairs[name] = (result.get(name), record.last_result.get(name))
    found = [f"{name}: {ray!r}, {fold!r}" for name, (ray, fold) in pairs.items() if ray != fold]
    if trial.status not in STATUSES[record.status]:
        found.append(f"status: {trial.status}, {record.status}")
    return found


class Comparison:
    """Compares after each step."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.steps = 0

    def __call__(self, controller: Any) -> None:
        self.steps += 1
        state = controller._chronicle.state
        trials = controller.get_trials()
        if [one.trial_id for one in trials] != list(state.trials):
            self.found.setdefault("trials", f"step {self.steps}: {list(state.trials)}")
        for trial in trials:
            for one in differences(trial, state.trials[trial.trial_id]):
                key = f"{trial.trial_id} {one.partition(':')[0]}"
                self.found.setdefault(key, f"step {self.steps}: {one}")


def asha() -> ASHAScheduler:
    return ASHAScheduler(metric="score", mode="max", max_t=4, grace_period=1, reduction_factor=2)


SCRIPT = Script(nodes={"a": 1, "b": 1}, trials=4, max_failures=2)
FAULTY = replace(
    SCRIPT,
    raises=[
        Raise(0, "step", 3),
        Raise(1, "save", 2),
        Raise(1, "load", 1),
        Raise(2, "setup", 0),
        Raise(3, "step", 2, SystemExit),
    ],
)
NODES: Plan = [At(6, Fault(Action.KILL_NODE, "a")), At(9, Fault(Action.ADD_NODE, "c", 1))]
FROZEN: Plan = [At(6, Fault(Action.FREEZE_NODE, "a")), At(11, Fault(Action.THAW_NODE, "a"))]
CASES: dict[str, tuple[Script, Plan]] = {
    "smooth": (SCRIPT, ()),
    "faults in code": (FAULTY, ()),
    "one failure too many": (replace(FAULTY, max_failures=0), ()),
    "a node lost": (SCRIPT, NODES),
    "a node frozen": (SCRIPT, FROZEN),
    "a worker lost": (SCRIPT, [At(6, Fault(Action.KILL_ACTOR, "a"))]),
    "retention": (replace(FAULTY, num_to_keep=1), ()),
    "few saves": (replace(FAULTY, save_every=2), ()),
    "no saves": (replace(FAULTY, save_every=0), ()),
    "a scheduler": (replace(FAULTY, scheduler=asha), ()),
    "reused": (replace(FAULTY, reuse_actors=True, nodes={"a": 1}), ()),
    "reused by a scheduler": (replace(SCRIPT, reuse_actors=True, scheduler=asha), NODES),
}
PARAMETERS = pytest.mark.parametrize(("script", "plan"), CASES.values(), ids=CASES)


def run(experiment: Experiment, drive: Callable[[], object]) -> dict[str, str]:
    comparison = Comparison()
    experiment.watch = comparison
    drive()
    assert comparison.steps > 1
    return comparison.found


@KINDS
@PARAMETERS
def test_the_fold_is_what_ray_has(
    script: Script, plan: Plan, make: Callable[[], Any], tmp_path: Path
) -> None:
    experiment = Experiment(script, make(), tmp_path)
    assert run(experiment, lambda: experiment.run(plan)) == {}


@KINDS
@PARAMETERS
@pytest.mark.parametrize("stop_s", [7.3, 12.0])
def test_the_fold_is_what_ray_has_after_a_resume(
    stop_s: float, script: Script, plan: Plan, make: Callable[[], Any], tmp_path: Path
) -> None:
    experiment = Experiment(script, make(), tmp_path)
    assert experiment.run(plan, stop_s=stop_s).stopped
    experiment.die(machine=True)
    assert run(experiment, experiment.resume) == {}
