"""The drop-in: what users of `ray.tune.Tuner` rely on, and nothing that disturbs others."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.search.optuna import OptunaSearch
from support.breaking import STEPS, Counting, counting, first_time, log_of
from support.fits import TRAINABLES, finish, last_json, run_config, space, start

import raytrials
from raytrials import ActorError, Cause, RestoreError, RetryPolicy, TrainingError, Tuner
from raytrials.core.fault import Charge, Phase
from raytrials.driver.trial import Trial
from raytrials.errors import UnsupportedPathError

pytestmark = pytest.mark.usefixtures("ray_local")


def report_three(config: dict[str, Any]) -> None:
    for step in range(3):
        tune.report({"score": config["x"] * step})


def test_the_tuner_is_one_of_rays_and_takes_all_that_rays_takes() -> None:
    assert issubclass(Tuner, tune.Tuner)
    for name in ("__init__", "restore", "can_restore", "fit", "get_results"):
        rays = inspect.signature(getattr(tune.Tuner, name)).parameters
        ours = inspect.signature(getattr(Tuner, name)).parameters
        assert list(rays) == [key for key in ours if key in rays], name
        for key, parameter in rays.items():
            assert ours[key].default == parameter.default, (name, key)
            assert ours[key].kind == parameter.kind, (name, key)
        assert set(ours) - set(rays) <= {"retry_policy", "resume"}


def test_results_are_those_of_vanilla_ray(workspace: Path) -> None:
    grids = {}
    for kind in (tune.Tuner, Tuner):
        grids[kind] = kind(
            report_three,
            param_space={"x": tune.grid_search([1, 2, 3])},
            tune_config=tune.TuneConfig(metric="score", mode="max"),
            run_config=tune.RunConfig(name=kind.__module__, storage_path=str(workspace), verbose=0),
        ).fit()
    ours, rays = grids[Tuner], grids[tune.Tuner]
    assert isinstance(ours, tune.ResultGrid)
    assert isinstance(ours[0], tune.Result)
    columns = ["score", "training_iteration", "done", "config/x"]
    assert ours.get_dataframe()[columns].equals(rays.get_dataframe()[columns])
    assert ours.get_best_result().config == rays.get_best_result().config == {"x": 3}
    assert ours[0].metrics_dataframe["score"].tolist() == [0, 1, 2]


class Watching(tune.Callback):
    """Sees which class each trial is of, and stops the driver on demand."""

    def __init__(self, stop: Path | None = None) -> None:
        self.kinds: set[type] = set()
        self.stop = stop

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.kinds |= {type(one) for one in trials}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if self.stop and self.stop.exists() and result["count"] == 3:
            raise RuntimeError("the user's callback")


def test_every_trial_is_ours_whichever_searcher_made_it_and_after_restore(workspace: Path) -> None:
    callback = Watching()
    grid = Tuner(
        report_three,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(seed=0),
            metric="score",
            mode="max",
            num_samples=2,
            max_concurrent_trials=1,
        ),
        run_config=tune.RunConfig(
            name="optuna", storage_path=str(workspace), verbose=0, callbacks=[callback]
        ),
    ).fit()
    assert len(grid) == 2
    assert callback.kinds == {Trial}


def test_an_exception_of_a_users_callback_ends_the_fit_and_restore_goes_on(
    workspace: Path,
) -> None:
    stop = workspace / "stop"
    stop.touch()
    with pytest.raises(tune.TuneError, match="the user's callback"):
        Tuner(
            Counting,
            param_space=space(workspace, ["none"]),
            run_config=run_config(workspace, Counting, callbacks=[Watching(stop)]),
        ).fit()
    assert not [one.name for one in threading.enumerate() if one.name.startswith("raytrials")]
    path = str(workspace / "storage" / "fit")
    assert Tuner.can_restore(path)
    stop.unlink()
    tuner = Tuner.restore(path, Counting)
    assert type(tuner) is Tuner
    (result,) = tuner.fit()
    assert result.error is None
    assert result.metrics["count"] == STEPS


def test_a_trial_that_recovered_raises_nothing_and_keeps_its_history(workspace: Path) -> None:
    grid = Tuner(
        counting,
        param_space=space(workspace, ["step:exception"]),
        run_config=run_config(workspace, counting, max_failures=1),
    ).fit()
    assert (grid.num_errors, grid.errors) == (0, [])
    (fault,) = grid[0].faults
    assert (fault.cause, fault.charge) == (Cause.USER_CODE, Charge.FAILURE)
    again = Tuner.restore(grid.experiment_path, counting).get_results()
    assert again[0].faults == (fault,)
    entry = next(Path(grid[0].path).glob("error.txt")).read_text()
    assert entry.startswith("Training failure # 1 (user_code, counted; failure 1, max_failures=1)")
    assert "ValueError: in step" in entry


def test_an_ended_trial_carries_the_typed_error_and_rays_own(workspace: Path) -> None:
    grid = Tuner(
        counting,
        param_space=space(workspace, ["step:exception", "step:sigkill", "step:picky_exception"]),
        run_config=run_config(workspace, counting),
    ).fit()
    raised, killed, picky = grid
    assert isinstance(raised.error, TrainingError)
    assert (raised.error.phase, raised.error.attempt) == (Phase.RUNNING, 1)
    assert raised.error.node_id == ray.get_runtime_context().get_node_id()
    assert isinstance(raised.error.__cause__, ValueError)
    assert isinstance(raised.error.__cause__, ray.exceptions.RayTaskError)
    assert isinstance(killed.error, ActorError)
    assert isinstance(killed.error.__cause__, ray.exceptions.RayActorError)
    assert isinstance(picky.error, TrainingError)
    assert "PickyError" in str(picky.error)
    assert picky.error.__cause__ is not None


VANILLA = """
import json, sys
sys.modules["raytrials"] = None  # an import of it raises
from ray import tune
from support.breaking import counting
from support.session import local_ray

with local_ray():
    path = sys.argv[1]
    restored = tune.Tuner.restore(path, counting, resume_errored=True)
    before = [r.metrics["count"] for r in restored.get_results()]
    after = [r.metrics["count"] for r in restored.fit()]
print(json.dumps([before, after]))
"""


def test_vanilla_ray_reads_and_restores_our_experiment_without_raytrials(workspace: Path) -> None:
    grid = Tuner(
        counting,
        param_space=space(workspace, ["step:exception", "step:sigkill", "none"]),
        run_config=run_config(workspace, counting),
    ).fit()
    refused = Tuner(
        without_metric,
        param_space={"x": 0},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(name="refused", storage_path=str(workspace), verbose=0),
    ).fit()
    refused_pickle = Path(refused[0].path, "error.pkl").read_bytes()
    assert b"raytrials" not in refused_pickle
    before, after = last_json(finish(start(VANILLA, grid.experiment_path)))
    assert sorted(before) == [2, 2, STEPS]
    assert after == [STEPS, STEPS, STEPS]


def globals_of_ray() -> tuple[object, ...]:
    modules = (sys.modules["ray.tune.tune"], sys.modules["ray.tune.impl.tuner_internal"])
    names = ("run", "Experiment", "TuneController")
    return tuple(getattr(module, name, None) for module in modules for name in names)


def make_same_name(value: int) -> Any:
    def same_name(config: dict[str, Any]) -> None:
        if config["x"] == 0 and first_time({**config, "fault": str(value)}, "killed"):
            os._exit(1)
        tune.report({"value": value})

    return same_name


def test_tuners_in_threads_and_a_vanilla_one_beside_do_not_disturb_each_other(
    workspace: Path,
) -> None:
    before = globals_of_ray()
    barrier = threading.Barrier(3)

    def fit(value: int, tuner: type[tune.Tuner]) -> tuple[list[int], set[type]]:
        callback = Watching()
        built = tuner(
            make_same_name(value),
            param_space={"x": tune.grid_search([0, 1]), "marks": str(workspace)},
            run_config=tune.RunConfig(
                name=f"thread-{value}",
                storage_path=str(workspace),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=1),
                callbacks=[callback],
            ),
        )
        barrier.wait()
        grid = built.fit()
        return [result.metrics.get("value") for result in grid], callback.kinds

    with ThreadPoolExecutor(3) as pool:
        fits = [
            pool.submit(fit, value, tuner) for value, tuner in enumerate([Tuner, Tuner, tune.Tuner])
        ]
    assert fits[0].result() == ([0, 0], {Trial})
    assert fits[1].result() == ([1, 1], {Trial})
    # Vanilla may trip over its own registry, which goes by name alone.
    if fits[2].exception() is None:
        assert fits[2].result()[1] == {Trial.__mro__[1]}
    assert before == globals_of_ray()


def without_metric(config: dict[str, Any]) -> None:
    tune.report({"score": 1} if config["x"] else {"other": 1})


def test_a_report_without_the_metric_fails_its_own_trial_alone(workspace: Path) -> None:
    grid = Tuner(
        without_metric,
        param_space={"x": tune.grid_search([0, 1])},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(name="metric", storage_path=str(workspace), verbose=0),
    ).fit()
    refused, good = grid
    assert isinstance(refused.error, TrainingError)
    assert "`score`" in str(refused.error)
    assert good.error is None


@pytest.mark.parametrize("fault", ["reset:sigkill", "reset:exception", "reset:refused"])
def test_a_failure_while_an_actor_changes_trials_costs_the_next_trial_one_failure(
    workspace: Path, fault: str
) -> None:
    grid = Tuner(
        tune.with_resources(Counting, {"cpu": 2}),
        param_space=space(workspace, ["none", fault]),
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=run_config(workspace, Counting, max_failures=1),
    ).fit()
    first, second = grid
    assert first.faults == ()
    assert [one.charge for one in second.faults] == [Charge.FAILURE]
    assert second.error is None
    assert second.metrics["count"] == STEPS


class Killing(tune.Callback):
    """Kills a trial's actor through Ray, once, at its second report."""

    def __init__(self) -> None:
        self.done = False

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if result["count"] == 2 and not self.done:
            self.done = True
            ray.kill(trial.temporary_state.ray_actor)


@pytest.mark.parametrize("kind", TRAINABLES)
def test_a_ray_kill_is_an_actor_error(workspace: Path, kind: str) -> None:
    trainable = TRAINABLES[kind]
    (result,) = Tuner(
        trainable,
        param_space=space(workspace, ["none"]),
        run_config=run_config(workspace, trainable, max_failures=1, callbacks=[Killing()]),
    ).fit()
    assert [type(fault.to_error()) for fault in result.faults] == [ActorError]
    assert "ray.kill" in result.faults[0].detail
    assert result.error is None
    assert result.metrics["count"] == STEPS


def test_fail_fast_stops_for_charged_failures_only(workspace: Path) -> None:
    grid = Tuner(
        tune.with_resources(counting, {"cpu": 2}),
        param_space=space(workspace, ["step:sigkill", "step:exception", "none"]),
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(workspace / "storage"),
            verbose=0,
            failure_config=tune.FailureConfig(fail_fast=True),
        ),
        retry_policy=RetryPolicy(count_worker_death=False),
    ).fit()
    results = {result.path.split("fault=")[1].split("_2")[0]: result for result in grid}
    killed, raised = results["step_sigkill"], results["step_exception"]
    assert [fault.charge for fault in killed.faults] == [Charge.INFRASTRUCTURE]
    assert isinstance(raised.error, TrainingError)
    assert log_of(workspace, "none") == []
    assert results["none"].error is None


def test_fail_fast_raise_raises_the_users_own_exception(workspace: Path) -> None:
    with pytest.raises(ValueError, match="in step"):
        Tuner(
            counting,
            param_space=space(workspace, ["step:exception"]),
            run_config=tune.RunConfig(
                name="fit",
                storage_path=str(workspace / "storage"),
                verbose=0,
                failure_config=tune.FailureConfig(fail_fast="raise"),
            ),
        ).fit()


def test_a_missing_checkpoint_is_a_restore_error_that_says_so(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    for trainable in TRAINABLES.values():
        directory = workspace / trainable.__name__
        directory.mkdir()
        stop = directory / "stop"
        stop.touch()
        with pytest.raises(tune.TuneError, match="the user's callback"):
            Tuner(
                trainable,
                param_space=space(directory, ["none"]),
                run_config=run_config(directory, trainable, callbacks=[Watching(stop)]),
            ).fit()
        stop.unlink()
        for checkpoint in (directory / "storage" / "fit").glob("*/checkpoint_*"):
            checkpoint.rename(checkpoint.with_name("gone-" + checkpoint.name))
        (result,) = Tuner.restore(str(directory / "storage" / "fit"), trainable).fit()
        assert isinstance(result.error, RestoreError)
        assert result.error.cause == Cause.CHECKPOINT_MISSING


def test_an_internal_tuner_of_vanilla_ray_is_refused(workspace: Path) -> None:
    vanilla = tune.Tuner(
        report_three, run_config=tune.RunConfig(name="vanilla", storage_path=str(workspace))
    )
    with pytest.raises(UnsupportedPathError, match=r"raytrials\.Tuner"):
        Tuner(_tuner_internal=vanilla._local_tuner)


def test_the_saved_state_names_nothing_of_raytrials(workspace: Path) -> None:
    grid = Tuner(
        counting,
        param_space=space(workspace, ["step:exception"]),
        run_config=run_config(workspace, counting, max_failures=1),
        retry_policy=RetryPolicy(restore_retries=5),
    ).fit()
    experiment = Path(grid.experiment_path)
    assert b"raytrials" not in (experiment / "tuner.pkl").read_bytes()
    (state,) = experiment.glob("experiment_state-*.json")
    assert "raytrials." not in state.read_text()
    trial = json.loads(json.loads(state.read_text())["trial_data"][0][0])
    assert trial["raytrials"]["faults"][0]["cause"] == "user_code"
    assert raytrials.__version__


def test_a_pickled_copy_of_a_trial_is_rays_own_and_keeps_its_faults(workspace: Path) -> None:
    grid = Tuner(
        counting,
        param_space=space(workspace, ["step:exception"]),
        run_config=run_config(workspace, counting, max_failures=1),
    ).fit()
    data = pickle.dumps(grid)
    assert b"driver.trial" not in data.replace(b"driver.result", b"")
    copy = pickle.loads(data)
    assert copy[0].faults == grid[0].faults
    assert len(copy[0].faults) == 1


def report_but_two(config: dict[str, Any]) -> None:
    if config["x"] == 2:
        raise ValueError("not this one")
    tune.report({"score": config["x"]})


def test_a_trial_that_failed_before_its_first_report_keeps_its_config(workspace: Path) -> None:
    path = str(workspace / "storage" / "fit")
    fitted = Tuner(
        report_but_two,
        param_space={"x": tune.grid_search([1, 2, 3])},
        run_config=run_config(workspace, counting),
    ).fit()
    restored = Tuner.restore(path, report_but_two)
    for grid in (fitted, restored.get_results(), restored.fit()):
        assert [result.config for result in grid] == [{"x": 1}, {"x": 2}, {"x": 3}]
        assert [type(result.error).__name__ for result in grid] == [
            "NoneType",
            "TrainingError",
            "NoneType",
        ]
