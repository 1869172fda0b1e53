"""Trials of ours without a cluster: they fail, report and are saved as in a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.tune import PlacementGroupFactory

from raytrials import RetryPolicy, _ray
from raytrials.driver.checkpoints import Checkpoints
from raytrials.driver.cluster import Cluster
from raytrials.driver.storage import TrialStorage
from raytrials.driver.trial import FitContext, Trial, adopt
from raytrials.errors import ActorError, RestoreError, TrainingError, TrialError

NODE = "a" * 56
OTHER = "b" * 56


class Table(Cluster):
    """A node table that says what a test says."""

    def __init__(self, *alive: str, cpus: float = 1) -> None:
        super().__init__()
        self._nodes = {
            name: {"NodeID": name, "Alive": True, "DeathReason": 0, "Resources": {"CPU": cpus}}
            for name in alive
        }

    def look(self, *, at_once: bool = False) -> None:
        """Nothing is asked of a cluster."""

    def dies(self, name: str) -> None:
        """A node is dead from here on."""
        self._nodes = {**self._nodes, name: {**self._nodes[name], "Alive": False}}


def trial_in(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: RetryPolicy,
    *,
    max_failures: int = 0,
    cluster: Cluster | None = None,
) -> Trial:
    """Return a running trial, in its first attempt, on one node that is alive."""
    monkeypatch.setattr(TrialStorage, "_get_session_path", lambda _: str(directory / "session"))
    storage = _ray.StorageContext(
        storage_path=str(directory / "storage"), experiment_dir_name="fit", trial_dir_name="trial"
    )
    plain = _ray.Trial(
        "nothing",
        stub=True,
        trial_id="trial",
        storage=storage,
        max_failures=max_failures,
    )
    plain.placement_group_factory = PlacementGroupFactory([{"CPU": 1}])
    trial = adopt(plain, FitContext(policy, Checkpoints(), cluster or Table(NODE)))
    trial.set_status(Trial.RUNNING)
    begin(trial)
    return trial


def begin(trial: Trial) -> None:
    """Begin the next attempt, and let it run."""
    trial.phase = None
    trial.begin_attempt()
    trial.on_start()


def saved_and_restored(trial: Trial, policy: RetryPolicy, cluster: Cluster) -> Trial:
    """Return the trial as the next driver has it."""
    state, metadata = trial.get_json_state()
    restored = _ray.Trial.from_json_state(state, stub=True)
    restored.restore_run_metadata(metadata)
    return adopt(restored, FitContext(policy, Checkpoints(), cluster))


def error(
    trial: Trial, kind: type[TrialError], cause: str, node_id: str | None = NODE
) -> TrialError:
    """Return a typed error of the trial's present attempt."""
    phase = "restoring" if kind is RestoreError else "running"
    return kind(trial.trial_id, trial.account.attempt, phase, cause, node_id, "as Ray says it")


def dies(trial: Trial, node_id: str | None = NODE) -> None:
    """The worker dies; whether its node does too is not known yet."""
    trial.handle_error(error(trial, ActorError, "worker_died", node_id))


def raises(trial: Trial) -> None:
    """The user's code raises."""
    trial.handle_error(error(trial, TrainingError, "user_code"))


def reports(trial: Trial, iteration: int) -> None:
    """The trial reports an iteration."""
    result: dict[str, Any] = {"training_iteration": iteration}
    trial.on_report(result)
