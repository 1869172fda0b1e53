"""A recovered trial goes first, and nobody else notices that it failed."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from support.breaking import read, write

from raytrials import ActorError, Cause, Fatal, RetryPolicy, Rule, TrainingError, Tuner
from raytrials.core.fault import Charge

pytestmark = pytest.mark.usefixtures("ray_local")
AT_ONCE = RetryPolicy(backoff_initial_s=0)


def mark(config: dict[str, Any], name: str) -> bool:
    """Whether `name` is asked for the first time."""
    try:
        Path(config["marks"], name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def started(directory: Path) -> list[str]:
    """The trials in the order in which they started, recovered ones once more."""
    log = directory / "starts"
    return log.read_text().split() if log.exists() else []


def climb(config: dict[str, Any]) -> None:
    """Report `x * step`, six steps; the trial with `x == dies` is killed once in step 5.

    Its checkpoints are of every second step, so that step 5 was run before and is run again.
    """
    with Path(config["marks"], "starts").open("a") as log:
        log.write(f"{config['x']}\n")
    first, checkpoint = 1, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            first = read(directory) + 1
    for step in range(first, 7):
        time.sleep(config.get("step_s", 0))
        if step == 6 and config["x"] == config["dies"] and mark(config, "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        saved = None
        if step % 2 == 0:
            directory = tempfile.mkdtemp(dir=config["marks"])
            write(directory, step)
            saved = tune.Checkpoint.from_directory(directory)
        tune.report({"score": config["x"] * step}, checkpoint=saved)


class Climber(tune.Trainable):
    """The same as a class, with a checkpoint at every step."""

    def setup(self, config: dict[str, Any]) -> None:
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.count = 0
        with Path(new_config["marks"], "starts").open("a") as log:
            log.write(f"{new_config['x']}\n")
        return True

    def step(self) -> dict[str, Any]:
        self.count += 1
        dies = self.count == 4 and self.config["x"] == self.config["dies"]
        if dies and mark(self.config, "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"score": self.config["x"] * self.count, "done": self.count >= 6}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        write(checkpoint_dir, self.count)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.count = read(checkpoint_dir)


def fit(directory: Path, trainable: Any, xs: list[int], **kwargs: Any) -> tune.ResultGrid:
    tune_config = kwargs.pop("tune_config", None) or tune.TuneConfig()
    frequency = 1 if isinstance(trainable, type) else 0
    return Tuner(
        trainable,
        param_space={
            "x": tune.grid_search(xs),
            "marks": str(directory),
            **kwargs.pop("config", {"dies": xs[0]}),
        },
        tune_config=tune_config,
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(directory / "storage"),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=frequency),
            failure_config=tune.FailureConfig(max_failures=kwargs.pop("max_failures", 1)),
        ),
        retry_policy=kwargs.pop("policy", AT_ONCE),
    ).fit()


# --- the next free slot --------------------------------------------------------------------------


@pytest.mark.parametrize("reuse_actors", [False, True], ids=["new-actors", "reused-actors"])
@pytest.mark.parametrize("trainable", [climb, Climber], ids=["function", "class"])
def test_a_recovered_trial_takes_the_next_slot_and_keeps_its_place(
    workspace: Path, trainable: Any, reuse_actors: bool
) -> None:
    xs = [1, 2, 3, 4, 5]
    grid = fit(
        workspace,
        tune.with_resources(trainable, {"cpu": 2}) if trainable is climb else two_slots(trainable),
        xs,
        tune_config=tune.TuneConfig(reuse_actors=reuse_actors),
    )
    # One that had its place already when the failure was seen may start before.
    assert started(workspace).index("1", 1) <= 2
    assert [result.config["x"] for result in grid] == xs
    assert [result.metrics["training_iteration"] for result in grid] == [6] * 5


def two_slots(trainable: type[tune.Trainable]) -> type[tune.Trainable]:
    class Wide(trainable):  # type: ignore[misc,valid-type]
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
            return tune.PlacementGroupFactory([{"CPU": 2}])

    Wide.__name__ = trainable.__name__
    return Wide


def test_trials_of_another_size_give_way(workspace: Path) -> None:
    xs = [1, 2, 3, 4, 5, 6]
    fit(
        workspace,
        tune.with_resources(climb, lambda config: {"cpu": 2 if config["x"] == 1 else 1}),
        xs,
        config={"dies": 1, "step_s": 0.1},
    )
    order = started(workspace)
    first = order.index("1")
    again = order.index("1", first + 1)
    # What ran beside it when it died may end; nothing that waited may start.
    assert again - first == 1, order


# --- undisturbed ---------------------------------------------------------------------------------


def recording(kind: type[TrialScheduler], **kwargs: Any) -> Any:
    """A scheduler that counts what it is told."""

    class Recording(kind):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__(**kwargs)
            self.told: Counter[tuple[str, str, int]] = Counter()

        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            self.told["add", trial.trial_id, 0] += 1
            super().on_trial_add(tune_controller, trial)

        def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
            self.told["error", trial.trial_id, 0] += 1
            super().on_trial_error(tune_controller, trial)

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            self.told["result", trial.trial_id, result["training_iteration"]] += 1
            answer: str = super().on_trial_result(tune_controller, trial, result)
            return answer

    return Recording()


TIMED = {"metric": "score", "mode": "max", "time_attr": "training_iteration"}
SCHEDULERS: dict[str, Callable[[], Any]] = {
    "fifo": lambda: recording(FIFOScheduler),
    "asha": lambda: recording(
        AsyncHyperBandScheduler, **TIMED, max_t=6, grace_period=2, reduction_factor=2
    ),
    "hyperband": lambda: recording(HyperBandScheduler, **TIMED, max_t=6, reduction_factor=2),
    "median": lambda: recording(
        MedianStoppingRule, **TIMED, grace_period=1, min_samples_required=2
    ),
    "pbt": lambda: recording(
        PopulationBasedTraining,
        **TIMED,
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1, 0.2]},
        synch=True,
    ),
}


@pytest.mark.filterwarnings("ignore:Consider boosting PBT:UserWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_learns_nothing_of_a_trial_that_recovers(workspace: Path, name: str) -> None:
    scheduler = SCHEDULERS[name]()
    grid = fit(
        workspace,
        tune.with_resources(climb, {"cpu": 0.5}),
        [4, 3, 2, 1],
        config={"dies": 4, "lr": 0.1},
        tune_config=tune.TuneConfig(scheduler=scheduler),
    )
    assert grid.num_errors == 0
    faults = [fault for result in grid for fault in result.faults]
    assert [fault.cause for fault in faults] == [Cause.WORKER_DIED]
    twice = {what: times for what, times in scheduler.told.items() if times > 1}
    if name == "pbt":
        # An exploit goes back to an earlier iteration of another trial, and that is news.
        twice = {what: times for what, times in twice.items() if what[0] != "result"}
    assert twice == {}
    assert not [what for what in scheduler.told if what[0] == "error"]
    assert len([what for what in scheduler.told if what[0] == "add"]) == 4


class Searching(tune.search.Searcher):
    """A searcher that counts what it is told."""

    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.asked = 0
        self.told: Counter[tuple[str, int]] = Counter()
        self.completed: Counter[str] = Counter()

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.asked += 1
        return {"x": self.asked}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.told[trial_id, result["training_iteration"]] += 1

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self.completed[trial_id] += 1


def test_a_searcher_is_told_each_iteration_once(workspace: Path) -> None:
    searcher = Searching()
    grid = Tuner(
        climb,
        param_space={"marks": str(workspace), "dies": 2},
        tune_config=tune.TuneConfig(search_alg=searcher, num_samples=3),
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(workspace / "storage"),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
        ),
        retry_policy=AT_ONCE,
    ).fit()
    assert grid.num_errors == 0
    assert searcher.asked == 3
    assert set(searcher.completed.values()) == {1}
    assert set(searcher.told.values()) == {1}


# --- when ----------------------------------------------------------------------------------------


def fails(config: dict[str, Any]) -> None:
    """Raise until it was started `failures` times; log when."""
    with Path(config["marks"], f"times-{config['x']}").open("a") as log:
        log.write(f"{time.time()}\n")
    runs = len(Path(config["marks"], f"times-{config['x']}").read_text().split())
    if runs <= config["failures"]:
        raise Fatal("for good") if config.get("fatal") else ValueError("not yet")
    tune.report({"score": 1})


def starts_s(directory: Path, x: int) -> list[float]:
    return [float(line) for line in (directory / f"times-{x}").read_text().split()]


def waits_s(directory: Path, x: int) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(starts_s(directory, x))]


def test_the_first_retry_comes_at_once_and_the_next_ones_wait(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = fit(
        workspace,
        fails,
        [1],
        config={"failures": 3},
        max_failures=3,
        policy=RetryPolicy(backoff_initial_s=6),
    )
    assert grid.num_errors == 0
    _, waited, longer = waits_s(workspace, 1)
    assert waited >= 3
    assert longer >= 6
    said = re.findall(r"is tried again( in .* s)?\. Its attempt", caplog.text)
    assert [bool(delay) for delay in said] == [False, True, True]


def test_trials_run_while_another_waits_for_its_retry(workspace: Path) -> None:
    grid = fit(
        workspace,
        tune.with_resources(fails, {"cpu": 2}),
        [1, 2, 3],
        config={"failures": 1},
        max_failures=1,
        policy=RetryPolicy(rules=[Rule("retry", after_s=12, exception="ValueError")]),
    )
    assert grid.num_errors == 0
    starts = [starts_s(workspace, x) for x in (1, 2, 3)]
    # There is room for one at a time: they wait together, not one after the other.
    assert max(first for first, _ in starts) < min(second for _, second in starts)
    assert all(second - first >= 12 for first, second in starts)


# --- rules ---------------------------------------------------------------------------------------


def test_a_rule_ends_a_trial_whatever_its_budget(workspace: Path) -> None:
    grid = fit(
        workspace,
        fails,
        [1],
        config={"failures": 9},
        max_failures=-1,
        policy=RetryPolicy(rules=[Rule("never", exception="ValueError")]),
    )
    (result,) = grid
    assert isinstance(result.error, TrainingError)
    assert len(result.faults) == 1
    assert "by rule 1" in result.faults[0].reason


def test_fatal_is_never_retried(workspace: Path) -> None:
    (result,) = fit(workspace, fails, [1], config={"failures": 9, "fatal": True}, max_failures=-1)
    assert isinstance(result.error, TrainingError)
    assert len(result.faults) == 1
    assert "Fatal" in result.faults[0].reason


def exits(config: dict[str, Any]) -> None:
    if mark(config, "exited"):
        os._exit(7)
    tune.report({"score": 1})


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_rules_come_from_a_file_too(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    file = workspace / f"rules.{suffix}"
    file.write_text(
        {
            "json": '{"rules": [{"answer": "free", "fault_class": "actor"}]}',
            "toml": '[[rules]]\nanswer = "free"\nfault_class = "actor"\n',
        }[suffix]
    )
    monkeypatch.setenv("RAYTRIALS_RULES", str(file))
    (result,) = fit(workspace, exits, [1], max_failures=0, policy=None)
    assert result.error is None
    assert [fault.charge for fault in result.faults] == [Charge.FREE]


def leaves(config: dict[str, Any]) -> None:
    if mark(config, "left"):
        sys.exit(7) if config["politely"] else os._exit(7)
    tune.report({"score": 1})


@pytest.mark.parametrize("politely", [True, False], ids=["sys.exit", "os._exit"])
def test_an_exit_code_is_known_of_a_worker_that_python_ended(
    workspace: Path, politely: bool
) -> None:
    (result,) = fit(
        workspace,
        leaves,
        [1],
        config={"politely": politely},
        policy=RetryPolicy(rules=[Rule("never", exit_code=7)]),
    )
    assert [fault.exit_code for fault in result.faults] == [7 if politely else None]
    assert (result.error is None) is not politely


# --- charges that are decided late ---------------------------------------------------------------


def test_a_death_that_could_end_the_trial_is_held_until_it_is_decided(workspace: Path) -> None:
    (result,) = fit(workspace, exits, [1], max_failures=0)
    assert isinstance(result.error, ActorError)
    assert result.error.cause == Cause.WORKER_DIED
    assert not (workspace / "storage" / "fit" / "second").exists()
    assert [fault.charge for fault in result.faults] == [Charge.FAILURE]


def test_a_death_that_cannot_end_the_trial_does_not_hold_it(workspace: Path) -> None:
    begun_s = time.time()
    (result,) = fit(workspace, exits, [1], max_failures=1)
    assert time.time() - begun_s < 15
    assert result.error is None
    assert [fault.charge for fault in result.faults] == [Charge.FAILURE]


def test_a_trial_that_is_stopped_while_it_waits_for_its_retry_ends(workspace: Path) -> None:
    begun_s = time.time()
    grid = fit(
        workspace,
        fails,
        [1],
        config={"failures": 9},
        max_failures=9,
        policy=RetryPolicy(rules=[Rule("retry", after_s=120, fault_class="training")]),
        tune_config=tune.TuneConfig(time_budget_s=10),
    )
    assert time.time() - begun_s < 100
    assert grid.num_errors == 0
    assert len(waits_s(workspace, 1)) == 0


class SlowToLeave(tune.Trainable):
    """Raises once, and then takes its time to clean up."""

    def setup(self, config: dict[str, Any]) -> None:
        self.pid_file = Path(config["marks"], "pid")

    def step(self) -> dict[str, Any]:
        if mark(self.config, "raised"):
            self.pid_file.write_text(str(os.getpid()))
            raise ValueError("once")
        old = int(self.pid_file.read_text())
        deadline_s = time.monotonic() + 20
        while Path(f"/proc/{old}").exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return {"score": 1, "old_is_gone": not Path(f"/proc/{old}").exists(), "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """There is nothing to save."""

    def cleanup(self) -> None:
        time.sleep(60)


def test_the_actor_of_the_attempt_before_is_ended_when_the_next_one_runs(workspace: Path) -> None:
    (result,) = fit(workspace, SlowToLeave, [1])
    assert result.error is None
    assert result.metrics["old_is_gone"]


class Nosy(tune.Callback):
    """Reads what a trial has to say before it can have said anything."""

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        assert trial.last_result["trial_id"] == trial.trial_id


def test_a_trial_that_has_not_reported_can_be_asked_for_its_result(workspace: Path) -> None:
    grid = Tuner(
        exits,
        param_space={"marks": str(workspace)},
        tune_config=tune.TuneConfig(num_samples=4),
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(workspace / "storage"),
            verbose=0,
            callbacks=[Nosy()],
            failure_config=tune.FailureConfig(max_failures=1),
        ),
        retry_policy=AT_ONCE,
    ).fit()
    assert grid.num_errors == 0


class Numbering(tune.search.Searcher):
    """Suggests 1, 2, 3, ...; as with every searcher of its kind, one trial waits at a time."""

    def __init__(self, marks: str) -> None:
        super().__init__(metric="score", mode="max")
        self.marks, self.asked = marks, 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.asked += 1
        return {"x": self.asked, "marks": self.marks, "failures": 2 if self.asked == 1 else 0}

    def on_trial_complete(self, *_: Any, **__: Any) -> None:
        """Nothing is learnt."""


def test_new_trials_are_sampled_while_one_waits_for_its_retry(workspace: Path) -> None:
    grid = Tuner(
        tune.with_resources(fails, {"cpu": 2}),
        tune_config=tune.TuneConfig(search_alg=Numbering(str(workspace)), num_samples=4),
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(workspace / "storage"),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=2),
        ),
        retry_policy=RetryPolicy(rules=[Rule("retry", after_s=15, fault_class="training")]),
    ).fit()
    assert grid.num_errors == 0
    started_s = {
        x: [float(line) for line in (workspace / f"times-{x}").read_text().split()]
        for x in (1, 2, 3)
    }
    assert max(started_s[2][0], started_s[3][0]) < started_s[1][1]


def always_exits(config: dict[str, Any]) -> None:
    with Path(config["marks"], "times-1").open("a") as log:
        log.write(f"{time.time()}\n")
    os._exit(1)


def test_a_trial_that_dies_again_and_again_waits_although_its_charges_are_open(
    workspace: Path,
) -> None:
    (result,) = fit(
        workspace,
        always_exits,
        [1],
        max_failures=3,
        policy=RetryPolicy(backoff_initial_s=8),
    )
    assert isinstance(result.error, ActorError)
    assert len(result.faults) == 4
    _, second, third = waits_s(workspace, 1)
    assert second >= 4
    assert third >= 8
