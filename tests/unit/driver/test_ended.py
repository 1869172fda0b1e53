"""What is left in memory of a trial that has ended, and that nobody can tell."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs
import pytest
from ray.tune import Checkpoint, CheckpointConfig
from support.trials import saved_and_restored, trial_in

from raytrials import RetryPolicy, _ray
from raytrials.driver import ended
from raytrials.driver.ended import Ended, EndedMetadata, PackedState, latest_path, pack
from raytrials.driver.trial import Trial

POLICY = RetryPolicy(rules=())


class Odd:
    """An object of the user's, which cannot be copied."""

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


def result(trial: Trial, iteration: int, **metrics: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "loss": 1 / iteration,
        "nested": {"pair": (iteration, None), "many": [1.5, float("inf")]},
        "config": copy.deepcopy(trial.config),
        **metrics,
    }


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A trial with twelve results and checkpoints, that has ended."""
    made = trial_in(tmp_path, monkeypatch, POLICY)
    made.config = {"lr": 0.1, "layers": [1, 2]}
    made.run_metadata.checkpoint_manager = _ray.CheckpointManager(
        CheckpointConfig(num_to_keep=10, checkpoint_score_attribute="loss")
    )
    for iteration in range(1, 13):
        made.update_last_result(result(made, iteration, half=np.float32(iteration / 2)))
        checkpoint = Checkpoint(
            f"{made.path}/checkpoint_{iteration:06d}", filesystem=pyarrow.fs.LocalFileSystem()
        )
        saved = _ray.TrainingResult(checkpoint=checkpoint, metrics=result(made, iteration))
        _ray.register_checkpoint(made, saved)
        made.run_metadata.invalidate_cache()
    made.set_status(Trial.TERMINATED)
    return made


def plain(metadata: Any) -> dict[str, Any]:
    """All that metadata says, as objects of which equal ones are equal."""
    manager = metadata.checkpoint_manager
    latest = manager.latest_checkpoint_result
    return {
        **{
            name: getattr(metadata, name)
            for name in (
                "start_time",
                "num_failures",
                "num_failures_after_restore",
                "error_filename",
                "pickled_error_filename",
                "last_result",
                "last_result_time",
                "metric_analysis",
                "metric_n_steps",
            )
        },
        "checkpoints": [
            (one.checkpoint.path, one.metrics) for one in manager.best_checkpoint_results
        ],
        "latest": (latest.checkpoint.path, latest.metrics),
    }


def test_what_is_asked_for_is_what_it_was(trial: Trial) -> None:
    before = copy.deepcopy(plain(trial.run_metadata))
    metadata = trial.run_metadata
    config = metadata.checkpoint_manager.checkpoint_config
    texts = trial.get_json_state()
    pack(trial)
    assert trial.run_metadata is metadata
    assert trial.get_json_state() == texts
    assert plain(metadata) == before
    assert metadata.checkpoint_manager.checkpoint_config is config
    assert metadata.metric_analysis["half"]["max"].__class__ is np.float32
    assert isinstance(metadata.metric_n_steps["loss"]["5"], deque)
    assert metadata.metric_n_steps["loss"]["5"].maxlen == 5
    pair = metadata.checkpoint_manager.best_checkpoint_results[0].metrics["nested"]["pair"]
    assert type(pair) is tuple


def test_nothing_is_held_unpacked_until_it_is_asked_for(trial: Trial) -> None:
    pack(trial)
    held = vars(trial.run_metadata)
    assert not {"metric_analysis", "metric_n_steps", "checkpoint_manager"} & set(held)
    assert trial._state_json is None
    assert held.get("_cached_json") is None
    assert len(pickle.dumps([str(one) for one in trial.get_json_state()])) > 10_000
    assert len(held["_packed"]._packed) < 3_500
    # The latest values of each metric are for the next result alone.
    assert trial.metric_analysis["loss"]["max"] == 1
    assert trial.latest_checkpoint_result is not None
    assert "metric_n_steps" not in held


def test_the_latest_result_and_the_status_need_no_unpacking(trial: Trial) -> None:
    last = trial.last_result
    pack(trial)
    assert trial.last_result is last
    assert last["config"] is trial.config
    assert trial.num_failures == 0
    assert latest_path(trial) == f"{trial.path}/checkpoint_000012"
    assert trial.run_metadata.is_packed
    assert latest_path(trial) == trial.checkpoint.path


def test_objects_of_the_users_stay_the_objects_that_they_are(trial: Trial) -> None:
    odd = Odd()
    held = trial.run_metadata.checkpoint_manager
    held.best_checkpoint_results[0].metrics["odd"] = odd
    data = io.BytesIO()
    kept: list[Any] = []
    ended._Pickler(data, kept).dump([held, odd])
    data.seek(0)
    found, also = ended._Unpickler(data, kept).load()
    assert found.best_checkpoint_results[0].metrics["odd"] is odd is also


def test_a_trial_that_ray_cannot_save_stays_as_it_is(trial: Trial) -> None:
    trial.last_result["odd"] = Odd()
    trial.run_metadata.invalidate_cache()
    before = trial.run_metadata.checkpoint_manager
    kept: list[Trial] = []
    all_ended = Ended(lambda _: True, lambda one, _: kept.append(one), lambda _: None)
    all_ended.note(trial)
    all_ended.tick([trial])
    assert not kept
    assert trial.run_metadata.checkpoint_manager is before


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_trial_that_changes_has_rays_own_metadata_again(trial: Trial, asked_first: bool) -> None:
    before = copy.deepcopy(plain(trial.run_metadata))
    pack(trial)
    if asked_first:
        trial.metric_analysis["loss"]["max"] = 99
        before["metric_analysis"]["loss"]["max"] = 99
    trial.run_metadata.num_failures = 3
    assert type(trial.run_metadata) is _ray.TrainingRunMetadata
    assert plain(trial.run_metadata) == {**before, "num_failures": 3}
    assert json.loads(trial.get_json_state()[1])["num_failures"] == 3
    trial.update_last_result(result(trial, 13))
    assert list(trial.run_metadata.metric_n_steps["loss"]["5"])[-1] == 1 / 13


def test_what_was_changed_in_place_after_it_was_asked_for_is_saved(trial: Trial) -> None:
    pack(trial)
    trial.metric_analysis["loss"]["max"] = 99
    assert '"max": 99' in trial.get_json_state()[1]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_a_copy_is_rays_own(trial: Trial, copied: Any) -> None:
    before = copy.deepcopy(plain(trial.run_metadata))
    _, text = trial.get_json_state()
    pack(trial)
    found = copied(trial.run_metadata)
    assert type(found) is _ray.TrainingRunMetadata
    assert plain(found) == before
    assert json.loads(found.get_json_state()).keys() == json.loads(text).keys()
    assert type(pickle.loads(pickle.dumps(trial)).run_metadata) is _ray.TrainingRunMetadata


def test_what_is_saved_of_a_packed_trial_is_what_ray_saves(trial: Trial) -> None:
    texts = trial.get_json_state()
    state = pack(trial)
    assert isinstance(state, PackedState)
    written = io.StringIO()
    json.dump({"trial_data": [state, ("a", "b")]}, written)
    assert json.loads(written.getvalue()) == {"trial_data": [list(texts), ["a", "b"]]}


def test_the_next_driver_has_what_was_packed(trial: Trial) -> None:
    before = copy.deepcopy(plain(trial.run_metadata))
    pack(trial)
    restored = saved_and_restored(trial, POLICY, trial.context.cluster)
    found = plain(restored.run_metadata)
    assert found["metric_n_steps"] == before["metric_n_steps"]
    assert found["metric_analysis"] == before["metric_analysis"]
    assert [path for path, _ in found["checkpoints"]] == [path for path, _ in before["checkpoints"]]


# --- when ----------------------------------------------------------------------------------------


class Tidy:
    """Trials that end, and who is told to let go of them."""

    def __init__(self) -> None:
        self.may_pack = True
        self.kept: list[Trial] = []
        self.released: list[Trial] = []
        self.ended = Ended(
            lambda _: self.may_pack, lambda one, _: self.kept.append(one), self.released.append
        )


def test_a_trial_is_packed_when_it_is_done_with(trial: Trial) -> None:
    tidy = Tidy()
    tidy.ended.note(trial)
    tidy.may_pack = False
    tidy.ended.tick([trial])
    assert not tidy.kept
    tidy.may_pack = True
    tidy.ended.tick([trial])
    tidy.ended.tick([trial])
    assert tidy.kept == tidy.released == [trial]
    assert isinstance(trial.run_metadata, EndedMetadata)


def test_a_trial_that_was_stopped_to_be_paused_is_left_alone(trial: Trial) -> None:
    tidy = Tidy()
    tidy.ended.note(trial)
    trial.set_status(Trial.PAUSED)
    tidy.ended.tick([trial])
    trial.set_status(Trial.TERMINATED)
    tidy.ended.tick([trial])
    assert not tidy.kept


def test_what_somebody_has_unpacked_is_packed_again_later(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidy = Tidy()
    tidy.ended.note(trial)
    tidy.ended.tick([trial])
    assert trial.metric_analysis
    tidy.ended.tick([trial])
    assert not trial.run_metadata.is_packed
    monkeypatch.setattr(ended, "AGAIN_S", 0.0)
    tidy.ended._next_s = 0.0
    tidy.ended.tick([trial])
    assert trial.run_metadata.is_packed
    assert tidy.kept == [trial, trial]
