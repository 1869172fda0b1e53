"""Ray's own trial controller runs on the fake cluster, and sees its failures as Ray's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import exceptions, tune
from support.fake_actors import FakeActorManager
from support.ray_errors import ray_error

from raytrials import _ray
from raytrials.chaos import FakeClock, FakeCluster
from raytrials.chaos.happening import Died, Exit, Raised, Unavailable
from raytrials.chaos.plan import Action, At, Fault
from raytrials.driver.classify import describe, is_actor_error, unwrap


class Counting(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"count": self.count, "done": self.count == 3}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "count.json").write_text(json.dumps(self.count))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.count = json.loads(Path(checkpoint_dir, "count.json").read_text())


def fit(
    directory: Path, monkeypatch: pytest.MonkeyPatch, plan: list[At], nodes: dict[str, int]
) -> tuple[list[Any], FakeCluster]:
    """Run three trials with a checkpoint after each step, without Ray."""
    before = ray.is_initialized()  # by other tests of this run
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "3")
    monkeypatch.setattr(
        _ray.StorageContext, "_get_session_path", lambda _: str(directory / "session")
    )
    cluster = FakeCluster(FakeClock(), plan=plan)
    for name, slots in nodes.items():
        cluster.add_node(name, slots)
    storage = _ray.StorageContext(
        storage_path=str(directory / "storage"), experiment_dir_name="fit"
    )
    controller = _ray.TuneController(storage=storage)
    controller._actor_manager = FakeActorManager(cluster)
    tune.register_trainable("counting", Counting)
    for number in range(3):
        controller.add_trial(
            _ray.Trial(
                "counting",
                trial_id=f"{number}",
                storage=storage,
                max_failures=1,
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
            )
        )
    for _ in range(1000):
        if controller.is_finished():
            break
        controller.step()
    trials = controller.get_trials()
    controller.cleanup()
    assert ray.is_initialized() == before
    return trials, cluster


def test_three_trials_run_in_virtual_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, cluster = fit(tmp_path, monkeypatch, [], {"a": 2})
    assert [(trial.status, trial.last_result["count"]) for trial in trials] == [
        ("TERMINATED", 3)
    ] * 3
    assert cluster.told[-1].at_s > 60


def test_a_trial_whose_node_dies_goes_on_elsewhere_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [At(20.0, Fault(Action.KILL_NODE, "a"))]
    trials, cluster = fit(tmp_path, monkeypatch, plan, {"a": 1, "b": 3})
    assert [(trial.status, trial.last_result["count"]) for trial in trials] == [
        ("TERMINATED", 3)
    ] * 3
    assert sorted(trial.num_failures for trial in trials) == [0, 0, 1]
    assert cluster.struck


def test_each_failure_is_the_error_that_ray_raises() -> None:
    raised = ray_error(Raised(ValueError("bad")), "train")
    assert isinstance(raised, exceptions.RayTaskError)
    assert isinstance(unwrap(raised), ValueError)
    assert isinstance(ray_error(Unavailable(), "train"), exceptions.ActorUnavailableError)
    for ending in Exit:
        error = ray_error(Died(ending, exit_code=3, detail="ValueError: bad"), "train")
        assert isinstance(error, exceptions.ActorDiedError)
        assert is_actor_error(error) == (ending is not Exit.SETUP_RAISED)
        assert (describe(error)[1] == 3) == (ending is Exit.EXITED)
    assert ray_error(Died(Exit.NODE_DIED, preempted=True), "train").preempted
