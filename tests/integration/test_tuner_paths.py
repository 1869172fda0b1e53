"""What goes on after a restore is the same search: its configurations, its trials, its samples."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from raytrials import Tuner
from raytrials.driver.result import TrialResult
from raytrials.errors import (
    ExperimentCorruptError,
    ExperimentExistsError,
    RaytrialsError,
    SearchSpaceNeededError,
)

pytestmark = pytest.mark.usefixtures("ray_local")


@pytest.fixture(autouse=True)
def _saved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's state is that of the moment in which the driver ends."""
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")


class Thing:
    """No plain value."""

    def __init__(self, name: str) -> None:
        self.name = name


def train(config: dict[str, Any]) -> None:
    reference = config.get("reference")
    for step in range(3):
        tune.report(
            {
                "step": step,
                "drawn": config["drawn"],
                "thing": config["thing"].name,
                "referred": None if reference is None else ray.get(reference),
            }
        )


class Ends(tune.Callback):
    """Ends the driver at the second report of the trial with a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if len(trials) == self.number and result["step"] == 1:
            raise RuntimeError("the driver ends")


def space(**more: Any) -> dict[str, Any]:
    return {
        "x": tune.grid_search([1, 2, 3]),
        "drawn": tune.sample_from(lambda _: random.random()),
        "thing": Thing("saved"),
        **more,
    }


def begin(
    workspace: Path, param_space: dict[str, Any], kind: type[tune.Tuner] = Tuner, **kwargs: Any
) -> str:
    """Begin an experiment whose driver ends in its second trial; return its path."""
    tuner = kind(
        train,
        param_space=param_space,
        tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True, **kwargs),
        run_config=tune.RunConfig(
            name="fit", storage_path=str(workspace), verbose=0, callbacks=[Ends(2)]
        ),
    )
    with pytest.raises(tune.TuneError, match="the driver ends"):
        tuner.fit()
    if kind is Tuner:
        with pytest.raises(ExperimentExistsError):
            tuner.fit()
    return str(workspace / "fit")


def drawn(path: str) -> dict[str, float]:
    """What was drawn for each trial so far, by its id, as Ray has saved it."""
    newest = max(Path(path).glob("experiment_state-*.json"))
    trials = [json.loads(trial) for trial, _ in json.loads(newest.read_text())["trial_data"]]
    return {trial["trial_id"]: trial["config"]["drawn"] for trial in trials}


def go_on(tuner: Tuner) -> list[TrialResult]:
    tuner._local_tuner._run_config.callbacks = []
    return list(tuner.fit())


def found(results: list[TrialResult], path: str) -> dict[str, float]:
    assert {result.error for result in results} == {None}
    assert all(isinstance(result.metrics["drawn"], float) for result in results)
    return {result.metrics["trial_id"]: result.metrics["drawn"] for result in results}


def test_a_new_reference_is_used_and_every_configuration_stays(workspace: Path) -> None:
    path = begin(workspace, space(reference=ray.put("old")))
    before = drawn(path)
    assert len(before) == 2
    with pytest.raises(SearchSpaceNeededError) as caught:
        go_on(Tuner.restore(path, train))
    assert caught.value.keys == ("reference",)
    given = space(reference=ray.put("new"))
    results = go_on(Tuner.restore(path, train, param_space=given, restart_errored=True))
    after = found(results, path)
    assert len(after) == 3
    assert {one: after[one] for one in before} == before
    ended, *others = sorted(results, key=lambda result: result.config["x"])
    assert [one.metrics["referred"] for one in others] == ["new", "new"]
    assert ended.metrics["referred"] == "old"


def test_functions_and_objects_reach_the_trials_that_are_sampled_after_a_restore(
    workspace: Path,
) -> None:
    path = begin(workspace, space())
    before = drawn(path)
    results = go_on(Tuner.restore(path, train))
    after = found(results, path)
    assert len(after) == 3
    assert {one: after[one] for one in before} == before
    assert {one.metrics["thing"] for one in results} == {"saved"}


def test_the_number_of_samples_and_of_failures_can_be_raised(workspace: Path) -> None:
    begin(workspace, space(), num_samples=1)
    tuner = Tuner(
        train,
        param_space=space(),
        tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True, num_samples=2),
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(workspace),
            verbose=0,
            stop={"training_iteration": 2},
            failure_config=tune.FailureConfig(max_failures=4),
        ),
        resume="auto",
    )
    results = list(tuner.fit())
    assert sorted(result.config["x"] for result in results) == [1, 1, 2, 2, 3, 3]
    assert sorted(result.metrics["training_iteration"] for result in results) == [2] * 5 + [3]
    newest = max((workspace / "fit").glob("experiment_state-*.json"))
    saved = [json.loads(trial) for trial, _ in json.loads(newest.read_text())["trial_data"]]
    assert {trial["max_failures"] for trial in saved} == {4}


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda data: data[: len(data) // 2],
    "of no trial": lambda data: json.dumps({**json.loads(data), "trial_data": []}).encode(),
    "not to be resumed": lambda data: json.dumps({**json.loads(data), "runner_data": 3}).encode(),
}


def test_a_damaged_state_of_rays_does_not_matter_beside_a_journal(workspace: Path) -> None:
    path = begin(workspace, space())
    for state in Path(path).glob("experiment_state-*.json"):
        state.write_bytes(DAMAGE["torn"](state.read_bytes()))
    assert len(go_on(Tuner.restore(path, train))) == 3


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_is_an_error_and_never_a_fresh_start(workspace: Path, damage: str) -> None:
    path = begin(workspace, space(), kind=tune.Tuner)
    tuner = Tuner.restore(path, train)
    (state,) = Path(path).glob("experiment_state-*.json")
    whole = state.read_bytes()
    state.write_bytes(DAMAGE[damage](whole))
    with pytest.raises(ExperimentCorruptError) as caught:
        go_on(tuner)
    assert isinstance(caught.value, RaytrialsError)
    assert caught.value.path == str(state)
    newer = state.with_name("experiment_state-9999-01-01_00-00-00.json")
    if damage != "not to be resumed":
        newer.write_bytes(state.read_bytes())
        state.write_bytes(whole)
        again = Tuner.restore(path, train, param_space=space())
        assert len(go_on(again)) == 3
