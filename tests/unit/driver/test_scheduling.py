"""What is recorded of a scheduler, and what becomes of one whose state does not come back."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
)
from support.script import Raise, Script
from support.scripted import PATH, Experiment

from raytrials import _ray
from raytrials.chaos.disk import FakeLocal
from raytrials.core.event import (
    Event,
    SchedulerActed,
    SchedulerCalled,
    SearcherTold,
    StateLost,
    TrialFinished,
)
from raytrials.driver import scheduling
from raytrials.driver.population import Stuck
from raytrials.driver.scheduler import real_of, recorded
from raytrials.driver.scheduling import Scheduling
from raytrials.errors import ConfigurationError, NewerFormatError
from raytrials.store.recovery import HOME, SNAPSHOTS

pytestmark = pytest.mark.filterwarnings("ignore:Consider boosting PBT:UserWarning")

SCORE = {"metric": "score", "mode": "max", "time_attr": "training_iteration"}


def asha(**arguments: Any) -> ASHAScheduler:
    return ASHAScheduler(**SCORE, max_t=4, grace_period=1, reduction_factor=2, **arguments)


def hyperband() -> HyperBandScheduler:
    return HyperBandScheduler(**SCORE, max_t=3, reduction_factor=2)


def synchronous() -> PopulationBasedTraining:
    return PopulationBasedTraining(
        **SCORE, perturbation_interval=2, hyperparam_mutations={"lr": [0.1, 0.9]}, synch=True
    )


class Locked(ASHAScheduler):
    """Cannot be pickled from its first use on."""

    def __init__(self) -> None:
        super().__init__(**SCORE, max_t=4, grace_period=1, reduction_factor=2)

    def set_search_properties(self, *args: Any, **spec: Any) -> bool:
        self.lock = threading.Lock()
        return bool(super().set_search_properties(*args, **spec))


class Chooser(FIFOScheduler):
    """A scheduler of the user's, which chooses by a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[str] = []

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        trial = super().choose_trial_to_run(tune_controller)
        if trial is not None and trial.trial_id not in self.chosen:
            self.chosen.append(trial.trial_id)
        return trial


def make(scheduler: Any, record: Callable[[Event], object] = lambda _: None) -> Scheduling:
    return Scheduling(scheduler, 7, record, storage=None)


def trial(number: int = 0) -> Any:
    return _ray.Trial("train", stub=True, trial_id=f"t{number}", config={"x": 0.5})


class Controller:
    """As much of a controller as a scheduler asks for."""

    def __init__(self, *trials: Any) -> None:
        self.trials = list(trials)

    def get_trials(self) -> list[Any]:
        return self.trials


# --- what stands for the scheduler ---------------------------------------------------------------


def test_what_stands_for_a_scheduler_passes_for_it() -> None:
    real = asha()
    stand_in = make(real).recorded
    assert isinstance(stand_in, ASHAScheduler)
    assert type(stand_in).__name__ == "AsyncHyperBandScheduler"
    assert stand_in.metric == "score"
    stand_in.note = 3
    assert real.note == 3
    assert real_of(stand_in) is real
    assert real_of(real) is real
    assert type(pickle.loads(pickle.dumps(stand_in))) is ASHAScheduler


def test_fifo_is_left_alone() -> None:
    real = FIFOScheduler()
    assert make(real).recorded is real


def test_a_scheduler_of_a_driver_before_is_recorded_by_this_one() -> None:
    real = asha()
    assert make(make(real).recorded).real is real


def test_calls_are_recorded_before_they_are_made() -> None:
    order: list[Any] = []

    class Noting(FIFOScheduler):
        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            order.append("made")

    one = trial()
    found = make(Noting(), order.append)
    found.note(one)
    found.recorded.on_trial_add(Controller(one), one)
    found.recorded.on_trial_add(Controller(one), one)
    assert order == [SchedulerCalled("add", "t0", {"t0": "PENDING"}), "made"]


def test_a_choice_is_recorded_when_something_has_happened_since() -> None:
    events: list[Event] = []
    one, other = trial(0), trial(1)
    found = make(Chooser(), events.append)
    for each in (one, other):
        found.note(each)
    for _ in range(3):
        assert found.recorded.choose_trial_to_run(Controller(one, other)) is one
    one.status = "RUNNING"
    found.note(one)
    assert found.recorded.choose_trial_to_run(Controller(one, other)) is other
    assert [event.statuses for event in events] == [
        {"t0": "PENDING", "t1": "PENDING"},
        {"t0": "RUNNING"},
    ]


def test_a_choice_that_only_looks_is_not_recorded() -> None:
    events: list[Event] = []
    one = trial()
    scheduler = HyperBandScheduler(**SCORE)
    found = make(scheduler, events.append)
    found.recorded.on_trial_add(Controller(one), one)
    assert found.recorded.choose_trial_to_run(Controller(one)) is one
    assert [event.call for event in events] == ["add"]


def test_within_a_muted_block_a_scheduler_hears_of_nothing() -> None:
    events: list[Event] = []
    found = make(asha(), events.append)
    with found.muted():
        found.recorded.on_trial_add(Controller(), trial())
    assert events == []
    assert found.real._trial_info == {}


def test_a_population_that_goes_on_without_a_trial_does_not_see_it() -> None:
    events: list[Event] = []
    one, other = trial(0), trial(1)
    one.run_metadata.last_result = {"score": 1, "inner": {"x": 2}}
    seen: list[Any] = []

    class Looking(FIFOScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            seen.append((tune_controller.get_trials(), trial, result))
            return "NOOP"

    make(Looking(), events.append).go_on_without(Stuck(one, (other,)), Controller(one, other))
    assert seen == [([one], one, {"score": 1, "inner/x": 2})]
    assert events == [SchedulerActed("absent", "t1"), SchedulerCalled("result", "t0")]


# --- loaded --------------------------------------------------------------------------------------


def test_another_kind_of_scheduler_is_refused() -> None:
    data = make(asha()).dump()
    with pytest.raises(ConfigurationError, match="scheduler is 'HyperBandScheduler'"):
        make(HyperBandScheduler(**SCORE)).load(data, {})


def test_a_state_of_a_newer_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "VERSION", 2)
    data = make(asha()).dump()
    monkeypatch.undo()
    with pytest.raises(NewerFormatError):
        make(asha()).load(data, {})


def test_a_scheduler_stands_for_itself_only_once() -> None:
    real = asha()
    outer = recorded(recorded(real, make(real)._through), make(real)._through)
    assert real_of(real_of(outer)) is real


# --- in an experiment ----------------------------------------------------------------------------

SCRIPT = Script(trials=4, steps=4, nodes={"a": 1}, scheduler=asha)


def test_a_scheduler_that_cannot_be_pickled_is_named_at_the_start(tmp_path: Path) -> None:
    experiment = Experiment(Script(trials=4, steps=4, scheduler=Locked), FakeLocal(), tmp_path)
    assert experiment.run(stop_s=8.0).stopped
    experiment.die(machine=False)
    first = next(one for one in experiment.events() if isinstance(one, StateLost))
    assert first.part == "scheduler"
    assert ".lock" in first.detail
    last = experiment.resume()
    assert {row.status for row in last.table} == {"TERMINATED"}
    assert len(last.table) == 4


def test_a_scheduler_without_a_snapshot_is_taken_through_all_events(tmp_path: Path) -> None:
    whole = Experiment(SCRIPT, FakeLocal(), tmp_path / "whole").run()
    experiment = Experiment(SCRIPT, FakeLocal(), tmp_path / "killed")
    assert experiment.run(stop_s=20.0).stopped
    experiment.die(machine=False)
    experiment.disk.delete_tree(f"{PATH}/{HOME}/{SNAPSHOTS}")
    assert experiment.resume().table == whole.table
    assert experiment.state().lost == {}


def test_an_answer_that_comes_out_otherwise_is_named(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    class Fickle(FIFOScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            return "STOP" if flag.exists() else "CONTINUE"

    experiment = Experiment(
        Script(trials=2, steps=4, nodes={"a": 1}, scheduler=Fickle), FakeLocal(), tmp_path / "fit"
    )
    assert experiment.run(stop_s=15.0).stopped
    experiment.die(machine=False)
    flag.touch()
    experiment.resume()
    assert "STOP for iteration" in experiment.state().lost["scheduler"]


def test_a_scheduler_of_the_users_goes_on_by_its_own_state(tmp_path: Path) -> None:
    script = Script(trials=4, steps=3, nodes={"a": 1}, scheduler=Chooser)
    whole = Experiment(script, FakeLocal(), tmp_path / "whole").run()
    experiment = Experiment(script, FakeLocal(), tmp_path / "killed")
    assert experiment.run(stop_s=20.0).stopped
    experiment.die(machine=True)
    seen: list[list[str]] = []
    experiment.watch = lambda controller: seen.append(list(controller._scheduler_alg.chosen))
    assert experiment.resume().table == whole.table
    assert seen[-1] == [row.trial_id for row in whole.table]


@pytest.mark.parametrize("make_scheduler", [asha, hyperband], ids=["ASHA", "HyperBand"])
def test_a_driver_that_dies_before_it_could_tell_of_an_end_has_it_told(
    make_scheduler: Callable[[], Any], tmp_path: Path
) -> None:
    script = Script(trials=3, steps=3, nodes={"a": 1}, scheduler=make_scheduler)
    whole = Experiment(script, FakeLocal(), tmp_path / "whole")
    expected = whole.run()
    ends = 0
    for operation in expected.operations:
        if operation.name != "write" or "/journal/" not in operation.path:
            continue
        experiment = Experiment(script, FakeLocal(), tmp_path / str(operation.number))
        assert experiment.run(stop_at=operation.number).stopped
        experiment.die(machine=False)
        events = experiment.events() if experiment.can_restore() else [None]
        if isinstance(events[-1], TrialFinished | SearcherTold):
            ends += 1
            assert experiment.resume().table == expected.table
            calls = [one for one in experiment.events() if isinstance(one, SchedulerCalled)]
            told = [one.trial_id for one in calls if one.call in {"complete", "remove"}]
            assert sorted(told) == [row.trial_id for row in expected.table]
    assert ends >= 3


@pytest.mark.parametrize("ends", ["an error", "no error"])
def test_a_population_goes_on_when_one_of_it_has_ended(ends: str, tmp_path: Path) -> None:
    raises = [Raise(1, "step", 2)] if ends == "an error" else []
    script = Script(
        trials=4,
        steps=6,
        nodes={"a": 2},
        scheduler=synchronous,
        raises=raises,
        policy={"backoff_initial_s": 0},
    )
    outcome = Experiment(script, FakeLocal(), tmp_path).run()
    ended = [row for row in outcome.table if row.status == "TERMINATED"]
    assert len(ended) == 4 - len(raises)
    assert {row.iteration for row in ended} == {6}


def test_a_mutation_stays_within_what_was_given(tmp_path: Path) -> None:
    def pbt() -> PopulationBasedTraining:
        return PopulationBasedTraining(
            **SCORE,
            perturbation_interval=1,
            resample_probability=1.0,
            hyperparam_mutations={"lr": tune.uniform(0.4, 0.6)},
        )

    script = Script(trials=3, steps=6, nodes={"a": 1}, scheduler=pbt)
    experiment = Experiment(script, FakeLocal(), tmp_path)
    assert experiment.run(stop_s=40.0).stopped
    experiment.die(machine=False)
    before = {row.trial_id for row in experiment.state().trials.values()}
    outcome = experiment.resume()
    perturbed = [row for row in outcome.table if "perturbed" in row.tag]
    assert perturbed
    assert all(0.4 <= row.config["lr"] <= 0.6 for row in perturbed)
    assert before == {row.trial_id for row in outcome.table}
