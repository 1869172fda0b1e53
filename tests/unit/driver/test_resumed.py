"""Ray's words for a resume keep their meaning, and what was begun goes on as it was."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.search import Searcher
from ray.tune.stopper import (
    ExperimentPlateauStopper,
    MaximumIterationStopper,
    Stopper,
    TrialPlateauStopper,
)
from support.script import Raise, Script
from support.scripted import PATH, Experiment, Outcome

from raytrials.chaos.disk import FakeLocal
from raytrials.chaos.plan import Action, At, Fault
from raytrials.core.event import RunnerAssigned, StateLost, TrialAdded
from raytrials.core.status import Status
from raytrials.store.recovery import recover

SCRIPT = Script(trials=4, steps=4, nodes={"a": 1, "b": 1}, paces_s=(2.0, 3.0))
FAILING = replace(SCRIPT, raises=[Raise(0, "step", 3)])


@pytest.fixture
def begin(tmp_path: Path) -> Any:
    return lambda script, name="one": Experiment(script, FakeLocal(), tmp_path / name)


def statuses(outcome: Outcome) -> list[tuple[str, int]]:
    return [(row.status, row.iteration) for row in outcome.table]


def journalled(experiment: Experiment) -> list[Status]:
    return [one.status for one in experiment.state().trials.values()]


def dies(experiment: Experiment, stop_s: float, drive: Any = None) -> None:
    assert (drive or experiment.run)(stop_s=stop_s).stopped
    experiment.die(machine=True)


# --- Ray's words ---------------------------------------------------------------------------------


def test_unfinished_trials_go_on(begin: Any) -> None:
    experiment = begin(SCRIPT)
    dies(experiment, 12.0)
    assert statuses(experiment.restore()) == [("TERMINATED", 4)] * 4
    assert set(journalled(experiment)) == {Status.SUCCEEDED}


def test_unfinished_trials_end_by_order(begin: Any) -> None:
    experiment = begin(SCRIPT)
    dies(experiment, 12.0)
    before = experiment.state()
    outcome = experiment.restore(resume_unfinished=False)
    after = experiment.state()
    for trial_id, trial in before.trials.items():
        if not trial.is_finished:
            assert after.trials[trial_id].status is Status.ABORTED
    assert {row.status for row in outcome.table} == {"TERMINATED"}
    assert not [key for key in outcome.steps if key[0] in before.trials]


def test_an_errored_trial_stays_ended(begin: Any) -> None:
    experiment = begin(FAILING)
    first = experiment.run()
    assert statuses(first)[0] == ("ERROR", 2)
    assert experiment.restore().table == first.table


def test_an_errored_trial_is_resumed_with_fresh_budgets_and_its_ledger(begin: Any) -> None:
    twice = [Raise(0, "step", 3), Raise(0, "step", 4), Raise(0, "step", 4)]
    experiment = begin(replace(SCRIPT, raises=twice, max_failures=1))
    first = experiment.run()
    assert statuses(first)[0][0] == "TERMINATED" or len(first.trials[0].account.faults) == 2
    outcome = experiment.restore(resume_errored=True)
    assert statuses(outcome) == [("TERMINATED", 4)] * 4
    trial = outcome.trials[0]
    assert len(trial.account.faults) == 3
    assert trial.num_failures == 1
    assert outcome.steps["fake_00000", 1] == outcome.steps["fake_00000", 2] == 0


def test_an_errored_trial_is_restarted_from_scratch(begin: Any) -> None:
    experiment = begin(FAILING)
    first = experiment.run()
    before = {name for name in experiment.files() if "fake_00000/checkpoint_" in name}
    outcome = experiment.restore(restart_errored=True)
    assert statuses(outcome) == [("TERMINATED", 4)] * 4
    assert [row.trial_id for row in outcome.table] == [row.trial_id for row in first.table]
    assert outcome.table[0].config == first.table[0].config
    assert outcome.steps["fake_00000", 1] == 1
    assert before <= set(experiment.files())


def test_a_restarted_trial_whose_driver_dies_does_not_use_what_was_before(begin: Any) -> None:
    experiment = begin(FAILING)
    ended_s = experiment.run().ended_s
    assert experiment.restore(stop_s=ended_s + 1, restart_errored=True).stopped
    experiment.die(machine=True)
    outcome = experiment.restore()
    assert statuses(outcome) == [("TERMINATED", 4)] * 4
    assert outcome.steps["fake_00000", 1] == 1


# --- alive at the end ----------------------------------------------------------------------------


def test_trials_alive_at_a_fail_fast_are_interrupted(begin: Any) -> None:
    experiment = begin(replace(FAILING, fail_fast=True))
    outcome = experiment.run()
    assert statuses(outcome)[0] == ("ERROR", 2)
    found = journalled(experiment)
    assert found[0] is Status.FAILED
    assert found[1] is Status.INTERRUPTED
    experiment.die(machine=False)
    again = experiment.restore()
    assert statuses(again)[0] == ("ERROR", 2)
    assert statuses(again)[1] == ("TERMINATED", 4)


class Fails(tune.Callback):  # type: ignore[misc]
    """Raises, once, at the fifth result of an experiment."""

    left = 5

    def on_trial_result(self, *_: Any, **__: Any) -> None:
        Fails.left -= 1
        if not Fails.left:
            raise ZeroDivisionError("of the user")


def test_trials_alive_at_an_exception_of_a_callback_are_interrupted(begin: Any) -> None:
    whole = begin(SCRIPT, "whole").run()
    Fails.left = 5
    experiment = begin(replace(SCRIPT, callbacks=[Fails]))
    with pytest.raises(Exception, match="of the user"):
        experiment.run()
    experiment.die(machine=False)
    assert Status.INTERRUPTED in journalled(experiment)
    assert experiment.restore().table == whole.table


class StopsAll(Stopper):  # type: ignore[misc]
    """Ends the experiment at its sixth result."""

    def __init__(self) -> None:
        self.left = 6

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.left -= 1
        return False

    def stop_all(self) -> bool:
        return self.left <= 0


def test_what_a_stopper_ends_with_the_experiment_is_aborted(begin: Any) -> None:
    experiment = begin(replace(SCRIPT, stopper=StopsAll))
    outcome = experiment.run()
    assert {row.status for row in outcome.table} == {"TERMINATED"}
    assert Status.ABORTED in journalled(experiment)
    assert Status.INTERRUPTED not in journalled(experiment)
    experiment.die(machine=False)
    assert not experiment.restore().steps


# --- how many, and in which order ----------------------------------------------------------------


def most_at_once(experiment: Experiment) -> list[int]:
    found = [0]

    def watch(controller: Any) -> None:
        found[0] = max(found[0], len(controller._trial_to_actor))

    experiment.watch = watch
    return found


@pytest.mark.parametrize("stop_s", [6.0, 9.0, 14.0])
@pytest.mark.parametrize("errored", [False, True])
def test_no_more_run_at_once_than_may(errored: bool, stop_s: float, begin: Any) -> None:
    script = replace(FAILING, trials=6, nodes={"a": 4}, max_concurrent=2)
    experiment = begin(script)
    found = most_at_once(experiment)
    dies(experiment, stop_s)
    assert len(experiment.restore(resume_errored=errored).table) == 6
    assert found == [2]


@pytest.mark.parametrize("stop_s", [6.0, 13.0, 17.0])
def test_unfinished_trials_start_in_their_order_before_new_ones(stop_s: float, begin: Any) -> None:
    experiment = begin(replace(SCRIPT, trials=6))
    dies(experiment, stop_s)
    before = experiment.state()
    count = len(experiment.events())
    open_ids = [one.trial_id for one in before.trials.values() if not one.is_finished]
    experiment.restore()
    later = experiment.events()[count:]
    started = [one.trial_id for one in later if isinstance(one, RunnerAssigned)]
    # One of them may have had nothing left to do but to end.
    expected = [one for one in open_ids if one in started]
    assert started[: len(expected)] == expected
    assert len(expected) >= len(open_ids) - 2
    names = [one for one in later if isinstance(one, TrialAdded | RunnerAssigned)]
    added = [isinstance(one, TrialAdded) for one in names]
    assert not any(added[: len(expected)])
    assert len(experiment.state().trials) == 6


def test_more_samples_are_added_to_those_before(begin: Any) -> None:
    experiment = begin(SCRIPT)
    first = experiment.run()
    experiment.script = replace(SCRIPT, trials=6)
    outcome = experiment.go_on()
    assert outcome.table[:4] == first.table
    assert statuses(outcome) == [("TERMINATED", 4)] * 6
    assert {key[0] for key in outcome.steps} == {row.trial_id for row in outcome.table[4:]}


# --- stoppers ------------------------------------------------------------------------------------


def test_a_time_budget_counts_running_time_only(begin: Any) -> None:
    script = replace(SCRIPT, steps=1000, budget_s=60.0)
    experiment = begin(script)
    dies(experiment, 30.0)
    experiment.clock.advance(10_000.0)
    began_s = experiment.clock.monotonic()
    outcome = experiment.restore()
    assert 25.0 <= outcome.ended_s - began_s <= 45.0


@pytest.mark.parametrize("share", [0.15, 0.4, 0.6, 0.85])
@pytest.mark.parametrize(
    "stopper",
    [
        lambda: MaximumIterationStopper(3),
        lambda: TrialPlateauStopper("count", std=1.2, num_results=3, grace_period=3),
        lambda: ExperimentPlateauStopper("score", std=10.0, top=3, patience=4),
    ],
    ids=["iterations", "trial plateau", "experiment plateau"],
)
def test_a_stopper_decides_as_if_nothing_had_been(stopper: Any, share: float, begin: Any) -> None:
    script = replace(SCRIPT, stopper=stopper, nodes={"a": 1})
    whole = begin(script, "whole").run()
    experiment = begin(script)
    dies(experiment, share * whole.ended_s)
    assert experiment.restore().table == whole.table


# --- budgets -------------------------------------------------------------------------------------


def test_an_open_charge_is_settled_by_the_next_driver(begin: Any) -> None:
    experiment = begin(replace(SCRIPT, trials=2))
    lost = At(6, Fault(Action.KILL_NODE, "a"))
    assert experiment.run([lost], stop_s=8.0).stopped
    assert any(one.undecided for one in experiment.state().trials.values())
    experiment.die(machine=True)
    outcome = experiment.restore()
    assert statuses(outcome) == [("TERMINATED", 4)] * 2
    assert not any(one.undecided for one in experiment.state().trials.values())


SHARED = [Raise(0, "step", 2), Raise(0, "step", 3), Raise(1, "step", 4), Raise(2, "save", 1)]


@pytest.mark.parametrize("number", range(4))
def test_faults_and_reasons_survive(number: int, begin: Any) -> None:
    script = replace(SCRIPT, nodes={"a": 1}, raises=SHARED, max_failures=3)

    def ledger(outcome: Outcome) -> Sequence[Any]:
        return [
            [(one.fault_class, one.cause, one.charge, one.reason) for one in trial.account.faults]
            for trial in outcome.trials
        ]

    experiment = begin(script, "whole")
    begun_s = experiment.clock.time() - experiment.clock.monotonic()
    whole = experiment.run()
    struck_s = sorted(one.time - begun_s for trial in whole.trials for one in trial.account.faults)
    assert len(struck_s) == len(SHARED)
    experiment = begin(script)
    assert experiment.run(stop_s=struck_s[number] + 0.05).stopped
    experiment.die(machine=False)
    outcome = experiment.restore()
    assert outcome.table == whole.table
    assert ledger(outcome) == ledger(whole)


# --- searchers and stoppers that misbehave -------------------------------------------------------


class Counts(Searcher):  # type: ignore[misc]
    """Suggests 0.0, 0.1, and so on, and holds what cannot be pickled as it says."""

    raises = ""

    def __init__(self, *, locked: bool = False) -> None:
        super().__init__(metric="score", mode="max")
        self.locked = locked
        self.asked = 0
        self.lock: Any = None

    def suggest(self, trial_id: str) -> dict[str, Any]:
        if self.locked:
            self.lock = threading.Lock()
        self.asked += 1
        if Counts.raises == "suggest" and self.asked == 3:
            Counts.raises = ""
            raise ZeroDivisionError("in suggest")
        return {"lr": self.asked / 10, "pace": 2.0}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        if Counts.raises == "complete":
            Counts.raises = ""
            raise ZeroDivisionError("in on_trial_complete")

    def save(self, checkpoint_path: str) -> None:
        """Nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing."""


class Locked(Stopper):  # type: ignore[misc]
    """Cannot be pickled from its first result on."""

    lock: Any = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.lock = threading.Lock()
        return bool(result["training_iteration"] >= 4)

    def stop_all(self) -> bool:
        return False


def lost(experiment: Experiment) -> list[str]:
    return [one.part for one in experiment.events() if isinstance(one, StateLost)]


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raytrials.store.snapshot.EVENTS", 10)
    monkeypatch.setattr("raytrials.store.snapshot.SECONDS", 2.0)
    monkeypatch.setattr("raytrials.store.snapshot.SHARE", 1e9)


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("stop_s", [9.0, 13.0])
@pytest.mark.parametrize("part", ["searcher", "stopper"])
def test_a_part_that_cannot_be_pickled_is_named_at_once_and_the_trials_go_on(
    part: str, stop_s: float, begin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    script = replace(SCRIPT, searcher=lambda: Counts(locked=part == "searcher"))
    if part == "stopper":
        script = replace(script, stopper=Locked)
    experiment = begin(script)
    dies(experiment, stop_s)
    assert f"The state of the {part} is not saved" in caplog.text
    assert part in lost(experiment)
    outcome = experiment.restore()
    assert statuses(outcome) == [("TERMINATED", 4)] * 4
    assert [row.config["lr"] for row in outcome.table] == [0.1, 0.2, 0.3, 0.4]


def test_a_searcher_that_raises_when_asked_ends_the_fit_and_not_the_experiment(begin: Any) -> None:
    Counts.raises = "suggest"
    experiment = begin(replace(SCRIPT, searcher=Counts))
    with pytest.raises(ZeroDivisionError):
        experiment.run()
    experiment.die(machine=False)
    assert experiment.can_restore()
    outcome = experiment.restore()
    assert [row.config["lr"] for row in outcome.table] == [0.1, 0.2, 0.3, 0.4]
    assert statuses(outcome) == [("TERMINATED", 4)] * 4


def test_a_searcher_that_raises_when_told_fails_the_trial_alone_as_in_ray(begin: Any) -> None:
    Counts.raises = "complete"
    experiment = begin(replace(SCRIPT, searcher=Counts))
    first = experiment.run()
    assert statuses(first) == [("ERROR", 4), *[("TERMINATED", 4)] * 3]
    assert journalled(experiment) == [Status.FAILED, *[Status.SUCCEEDED] * 3]
    again = experiment.restore()
    assert again.table == first.table
    assert not again.steps


def test_an_errored_trial_goes_on_whose_history_cannot_be_read(
    begin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = begin(FAILING)
    experiment.run()
    experiment.restore()  # which leaves a snapshot of all
    [first] = [name for name in experiment.files() if "journal/000001-" in name]
    experiment.disk.delete_file(f"{PATH}/{first}")
    outcome = experiment.restore(resume_errored=True)
    assert statuses(outcome) == [("TERMINATED", 4)] * 4
    assert "cannot be read" in caplog.text


def test_error_files_that_went_with_the_drivers_disk_are_written_again(tmp_path: Path) -> None:
    script = Script(trials=2, steps=3, paces_s=(5.0, 7.0), raises=[Raise(0, "step", 2)])
    operations = Experiment(script, FakeLocal(), tmp_path / "whole").resume().operations
    for number in range(len(operations), 0, -5):
        disk = FakeLocal()
        experiment = Experiment(script, disk, tmp_path / str(number))
        experiment.resume(stop_at=number)
        experiment.die(machine=True)
        state = recover(disk, "/storage/fit/.raytrials").state
        failed = [one for one in state.trials.values() if one.status is Status.FAILED]
        if failed and "error.txt" not in disk.list_names("/storage/fit/fake_00000"):
            experiment.resume()
            text = disk.read("/storage/fit/fake_00000/error.txt").decode()
            assert "Training failure # 1" in text
            assert "ValueError" in text
            return
    pytest.fail("no driver died after the failure and before its upload")
