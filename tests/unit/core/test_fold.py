"""What each event does, and when it cannot follow."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
from support.events import copy_of, dump, dump_rows, fault

from raytrials.core.event import (
    EVENTS,
    AttemptRestored,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointMarkedBad,
    DecisionMade,
    DriverAttached,
    DriverDetached,
    Event,
    ExperimentCreated,
    FaultRecorded,
    Record,
    ResultReported,
    RunnerAssigned,
    SchedulerActed,
    SearcherTold,
    TrialAdded,
    TrialConfigChanged,
    TrialFinished,
    TrialImported,
    TrialPaused,
    TrialResumed,
)
from raytrials.core.fault import Charge
from raytrials.core.fold import apply, fold
from raytrials.core.invariant import check
from raytrials.core.retry import History, Since
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status
from raytrials.core.story import LENGTH
from raytrials.errors import IllegalEventError

FOREIGN = "other/checkpoint_000003"


class Experiment:
    """An experiment of one trial, `t`, that a driver of epoch 1 has attached to."""

    def __init__(self, *events: Event, keeps_rows: bool = True) -> None:
        self.state = ExperimentState(keeps_rows=keeps_rows)
        self.epoch = 1
        self.do(ExperimentCreated("id", "name", 7), DriverAttached("host", 1), TrialAdded("t"))
        self.do(*events)

    def do(self, *events: Event, time: float | None = None) -> TrialRecord:
        for event in events:
            seq = self.state.seq + 1
            at = float(seq) if time is None else time
            apply(self.state, Record(seq, self.epoch, at, event))
        if self.state.trials:
            check(self.state)
        return self.state.trials.get("t", TrialRecord("none", 0))

    def refuses(self, event: Event, match: str = ".", **place: Any) -> IllegalEventError:
        """The event cannot follow, and the state is exactly as it was."""
        record = Record(self.state.seq + 1, self.epoch, 1.5, event)
        before, rows = dump(self.state), dump_rows(self.state)
        stories = [list(trial.story) for trial in self.state.trials.values()]
        with pytest.raises(IllegalEventError, match=match) as caught:
            apply(self.state, dataclasses.replace(record, **place))
        assert dump(self.state) == before
        assert dump_rows(self.state) == rows
        assert [list(trial.story) for trial in self.state.trials.values()] == stories
        return caught.value

    def attach(self, epochs: int = 1, **says: Any) -> TrialRecord:
        self.epoch += epochs
        return self.do(DriverAttached("host", 2, **says))


ASSIGNED = RunnerAssigned("t", "n1")
STARTED = AttemptStarted("t", 1)
FAILED = FaultRecorded("t", 1, fault("t"), History(failures=1))


def report(iteration: int, attempt: int = 1, **metrics: Any) -> ResultReported:
    return ResultReported("t", attempt, iteration, metrics)


def commit(index: int, iteration: int = 1, attempt: int = 1) -> CheckpointCommitted:
    return CheckpointCommitted("t", attempt, index, iteration, {"at": iteration})


WAYS: dict[Status, tuple[Event, ...]] = {
    Status.PENDING: (ASSIGNED, STARTED, FAILED),
    Status.SCHEDULED: (ASSIGNED, STARTED, FAILED, ASSIGNED),
    Status.RUNNING: (ASSIGNED, STARTED),
    Status.PAUSED: (ASSIGNED, STARTED, TrialPaused("t")),
    Status.SUCCEEDED: (ASSIGNED, STARTED, TrialFinished("t", Status.SUCCEEDED)),
    Status.ABORTED: (ASSIGNED, STARTED, TrialFinished("t", Status.ABORTED)),
    Status.FAILED: (ASSIGNED, STARTED, FAILED, TrialFinished("t", Status.FAILED)),
    Status.INTERRUPTED: (ASSIGNED, STARTED),
}
"""A way to each status, in attempt 1."""


def trial_in(status: Status) -> Experiment:
    experiment = Experiment(*WAYS[status])
    if status is Status.INTERRUPTED:
        experiment.attach()
    assert experiment.state.trials["t"].status is status
    return experiment


def faulty(experiment: Experiment) -> FaultRecorded:
    trial = experiment.state.trials["t"]
    number = len(trial.faults) + 1
    history = History(failures=number)
    return FaultRecorded("t", number, fault("t"), history, ends_attempt=not trial.is_finished)


S = Status
EVERY = set(Status)
UNFINISHED = EVERY - {S.SUCCEEDED, S.FAILED, S.ABORTED}

ROWS: list[tuple[Any, set[Status], dict[Status, Status]]] = [
    # event, statuses in which it may come, what the status is after it where it is another
    (
        ASSIGNED,
        {S.PENDING, S.SCHEDULED, S.PAUSED, S.INTERRUPTED},
        dict.fromkeys(EVERY, S.SCHEDULED),
    ),
    (AttemptStarted("t", 2), {S.SCHEDULED}, {S.SCHEDULED: S.RUNNING}),
    (report(1), UNFINISHED, {}),
    (commit(0), EVERY, {}),
    (CheckpointMarkedBad("t", "checkpoint_000000", "digest"), EVERY, {}),
    (CheckpointDeleted("t", 0), EVERY, {}),
    (faulty, EVERY, {S.RUNNING: S.PENDING, S.SCHEDULED: S.PENDING}),
    (TrialPaused("t"), UNFINISHED - {S.PAUSED}, dict.fromkeys(EVERY, S.PAUSED)),
    (TrialConfigChanged("t"), UNFINISHED, {}),
    (DecisionMade("t", 1, "STOP"), UNFINISHED, {}),
    (SearcherTold("t", "result", 1), EVERY, {}),
    (TrialFinished("t", S.ABORTED), UNFINISHED, dict.fromkeys(EVERY, S.ABORTED)),
    (TrialResumed("t"), {S.SUCCEEDED, S.FAILED, S.ABORTED}, dict.fromkeys(EVERY, S.PENDING)),
]


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize(("event", "allowed", "after"), ROWS)
def test_an_event_comes_in_its_statuses_alone(
    event: Any, allowed: set[Status], after: dict[Status, Status], status: Status
) -> None:
    experiment = trial_in(status)
    event = event(experiment) if callable(event) else event
    if status in allowed:
        trial = experiment.do(event)
        assert trial.status is after.get(status, status)
        assert experiment.state.running == ({"t"} if trial.status is S.RUNNING else set())
        assert trial.story[-1] == (experiment.state.seq, type(event).__name__)
        assert (trial.ended_s is not None) is trial.is_finished
    else:
        error = experiment.refuses(event, f"the trial is {status}")
        assert (error.event, error.trial_id) == (type(event).__name__, "t")


@pytest.mark.parametrize("status", Status)
def test_a_restore_comes_while_running_alone(status: Status) -> None:
    experiment = trial_in(status)
    experiment.refuses(AttemptRestored("t", 1))
    if status is Status.SCHEDULED:
        experiment.do(commit(0), AttemptStarted("t", 2, None, None, 0, 1, "checkpoint_000000"))
        experiment.refuses(AttemptRestored("t", 1), "its attempt is 2")
        assert not experiment.do(AttemptRestored("t", 2)).is_restoring
        experiment.refuses(AttemptRestored("t", 2), "nothing to restore")


def test_an_illegal_event_tells_the_trials_story() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1))
    error = experiment.refuses(ASSIGNED)
    assert error.story == (
        "3 TrialAdded",
        "4 RunnerAssigned",
        "5 AttemptStarted",
        "6 ResultReported",
    )
    assert (error.event, error.seq, error.trial_id) == ("RunnerAssigned", 7, "t")
    assert "3 TrialAdded, 4 RunnerAssigned" in str(error)
    for iteration in range(2, 40):
        experiment.do(report(iteration))
    assert len(experiment.refuses(ASSIGNED).story) == LENGTH


def test_a_story_tells_of_the_driver_that_went() -> None:
    experiment = trial_in(Status.INTERRUPTED)
    assert experiment.state.trials["t"].story[-1] == (experiment.state.seq, "DriverAttached")


# --- the experiment ----------------------------------------------------------------------------


def test_nothing_comes_before_the_experiment_and_its_driver() -> None:
    state = ExperimentState()
    for event in (DriverAttached("h", 1), TrialAdded("t"), DriverDetached("x")):
        with pytest.raises(IllegalEventError):
            apply(state, Record(1, 1, 1.0, event))
    assert dump(state) == dump(ExperimentState())
    fold([Record(1, 1, 1.0, ExperimentCreated("id", "name", 7, {"x": 1}))], state)
    assert (state.experiment, state.name, state.seed, state.epoch) == ("id", "name", 7, 1)
    with pytest.raises(IllegalEventError, match="no driver"):
        apply(state, Record(2, 1, 1.0, TrialAdded("t")))


@pytest.mark.parametrize("seq", [0, 3, 5, -1])
def test_events_come_in_their_order_without_gaps(seq: int) -> None:
    Experiment().refuses(TrialAdded("u"), "the event before it is 3", seq=seq)


def test_an_experiment_is_created_once() -> None:
    Experiment().refuses(ExperimentCreated("id", "name", 7), "exists already")


def test_a_driver_takes_over_with_an_epoch_of_its_own() -> None:
    experiment = Experiment(ASSIGNED, STARTED)
    experiment.refuses(DriverAttached("host", 2), "epoch 1 was there")
    experiment.do(SchedulerActed("stop", "t"))
    experiment.attach(3, num_samples=4, max_concurrent=2, metric="loss", mode="max")
    state = experiment.state
    assert (state.epoch, state.drivers, state.is_attached) == (4, 2, True)
    assert (state.num_samples, state.max_concurrent) == (4, 2)
    assert (state.metric, state.mode) == ("loss", "max")


def test_an_event_of_a_driver_that_was_replaced_is_ignored() -> None:
    experiment = Experiment(ASSIGNED, STARTED)
    experiment.attach()
    state = experiment.state
    state_before = dump(copy_of(state))
    for seq in (state.seq, state.seq + 1, 99):
        apply(state, Record(seq, 1, 1.0, report(1)))
        apply(state, Record(seq, 1, 1.0, ExperimentCreated("other", "name", 7)))
    assert state.ignored == 6
    state.ignored = 0
    assert dump(state) == state_before


def test_an_event_of_an_epoch_that_has_not_attached_cannot_follow() -> None:
    experiment = Experiment(ASSIGNED, STARTED)
    for event in (report(1), TrialAdded("u"), DriverDetached("x"), SchedulerActed("stop")):
        experiment.refuses(event, "epoch is 1, not 2", epoch=2)


@pytest.mark.parametrize("goes", ["attach", "detach"])
def test_what_runs_is_interrupted_when_its_driver_goes_and_nothing_else(goes: str) -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1))
    experiment.do(TrialAdded("pending"), TrialAdded("paused"), TrialPaused("paused"))
    experiment.do(TrialAdded("scheduled"), RunnerAssigned("scheduled", "n1"))
    experiment.do(TrialAdded("done"), TrialFinished("done", Status.SUCCEEDED))
    if goes == "attach":
        experiment.attach()
    else:
        experiment.do(DriverDetached("SIGTERM"))
        assert not experiment.state.is_attached
        assert experiment.state.reason == "SIGTERM"
        experiment.refuses(report(2), "no driver is attached")
        experiment.refuses(DriverDetached("again"), "no driver is attached")
        experiment.attach()
        assert experiment.state.reason == ""
    status = {trial_id: trial.status for trial_id, trial in experiment.state.trials.items()}
    assert status == {
        "t": Status.INTERRUPTED,
        "pending": Status.PENDING,
        "paused": Status.PAUSED,
        "scheduled": Status.SCHEDULED,
        "done": Status.SUCCEEDED,
    }
    assert experiment.state.trials["t"].iteration == 1
    assert experiment.state.running == set()


def test_a_trial_is_added_once_and_numbered_in_order() -> None:
    experiment = Experiment()
    experiment.refuses(TrialAdded("t"), "such a trial already")
    experiment.do(TrialAdded("u", {"lr": 1}, "tag", ({"CPU": 1},), "state"))
    added = experiment.state.trials["u"]
    assert (added.number, added.config, added.tag) == (1, {"lr": 1}, "tag")
    assert (added.resources, added.state, added.status) == ([{"CPU": 1}], "state", Status.PENDING)


@pytest.mark.parametrize("kind", [k for k in EVENTS.values() if k.__name__ in {
    "RunnerAssigned", "TrialPaused", "TrialResumed"}])  # fmt: skip
def test_nothing_happens_to_a_trial_that_is_not_there(kind: Any) -> None:
    event = kind("nobody", "n1") if kind is RunnerAssigned else kind("nobody")
    error = Experiment().refuses(event, "no such trial")
    assert error.story == ()


def test_a_scheduler_acts_on_trials_that_are_there() -> None:
    experiment = Experiment()
    experiment.refuses(SchedulerActed("stop", "nobody"), "no such trial")
    before = dump(experiment.state)
    experiment.do(SchedulerActed("stop", "t"), SchedulerActed("stop"))
    experiment.state.seq, experiment.state.time = 3, 3.0
    assert dump(experiment.state) == before


# --- attempts and results ----------------------------------------------------------------------


def test_a_runner_is_kept_over_a_fault_and_a_restart() -> None:
    experiment = trial_in(Status.SCHEDULED)
    assert experiment.attach().runner == "n1"
    assert experiment.do(RunnerAssigned("t", "n2")).runner == "n2"


def test_an_attempt_has_a_number_of_its_own_and_free_indices() -> None:
    experiment = Experiment(ASSIGNED)
    experiment.refuses(AttemptStarted("t", 0), "latest attempt is 0")
    experiment.do(STARTED, commit(0), commit(4), FAILED, ASSIGNED)
    experiment.refuses(AttemptStarted("t", 1), "latest attempt is 1")
    experiment.refuses(AttemptStarted("t", 2, first_index=4), "are taken")
    trial = experiment.do(AttemptStarted("t", 3, "node", 7, first_index=7))
    assert (trial.attempt, trial.node_id, trial.pid) == (3, "node", 7)
    assert (trial.first_index, trial.next_index) == (7, 7)


@pytest.mark.parametrize("iteration", [-1, 3])
def test_an_attempt_continues_from_where_the_trial_has_been(iteration: int) -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1), report(2), FAILED, ASSIGNED)
    experiment.refuses(AttemptStarted("t", 2, from_iteration=iteration), "further than iteration 2")


def test_an_attempt_withdraws_the_iterations_that_it_runs_again() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1, a=1), report(2, a=2), commit(0, 2))
    experiment.do(report(3, a=3), report(4, a=4), FAILED, ASSIGNED)
    trial = experiment.do(
        AttemptStarted("t", 2, from_iteration=2, first_index=1, checkpoint="checkpoint_000000")
    )
    assert trial.rows is not None
    assert [(row.iteration, row.attempt) for row in trial.rows] == [(1, 1), (2, 1)]
    assert (trial.iteration, trial.high_water) == (2, 4)
    assert trial.last_result == {"at": 2}
    experiment.do(report(3, 2, a=33))
    assert [row.metrics for row in trial.rows] == [{"a": 1}, {"a": 2}, {"a": 33}]
    assert (trial.iteration, trial.high_water, trial.last_result) == (3, 4, {"a": 33})


def test_the_result_that_an_attempt_continues_from() -> None:
    def started(**how: Any) -> dict[str, Any]:
        experiment = Experiment(ASSIGNED, STARTED, report(1, a=1), commit(0, 1), report(2, a=2))
        experiment.do(FAILED, ASSIGNED)
        trial = experiment.do(AttemptStarted("t", 2, first_index=1, **how))
        return dict(trial.last_result)

    assert started(from_iteration=2) == {"a": 2}
    assert started(from_iteration=1, checkpoint="checkpoint_000000") == {"at": 1}
    assert started() == {}
    assert started(from_iteration=1, metrics={"said": 1}) == {"said": 1}
    for iteration in (0, 1, 2, 30):
        assert started(from_iteration=iteration, checkpoint=FOREIGN) == {}
        assert started(from_iteration=iteration, checkpoint=FOREIGN, metrics={"o": 1}) == {"o": 1}


def test_an_iteration_that_stands_still_or_goes_back_leaves_the_later_report() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1), report(2, a=1), report(2, a=2))
    trial = experiment.do()
    assert trial.rows is not None
    assert [(row.iteration, row.metrics) for row in trial.rows] == [(1, {}), (2, {"a": 2})]
    experiment.do(report(5), report(1, a=3))
    assert [(row.iteration, row.metrics) for row in trial.rows] == [(1, {"a": 3})]
    assert (trial.iteration, trial.high_water) == (1, 5)


def test_a_running_trial_hears_of_its_own_attempt_alone() -> None:
    experiment = Experiment(ASSIGNED)
    experiment.refuses(report(1, attempt=0), "its attempt is 0")
    experiment.do(STARTED, FAILED, ASSIGNED, AttemptStarted("t", 2))
    for attempt in (0, 1, 3):
        experiment.refuses(report(1, attempt), "its attempt is 2")
    experiment.do(report(1, 2))
    experiment.attach()
    trial = experiment.do(report(2, 1), report(3, 2))  # reports that never arrived
    assert trial.high_water == 3
    for attempt in (0, 3):
        experiment.refuses(report(4, attempt), "its attempt is 2")


def test_a_first_start_is_kept_and_the_end_is_of_the_last() -> None:
    experiment = Experiment(ASSIGNED)
    experiment.do(STARTED, time=10.0)
    experiment.do(FAILED, ASSIGNED, AttemptStarted("t", 2), time=20.0)
    trial = experiment.do(TrialFinished("t", Status.ABORTED, "by order"), time=15.0)
    assert (trial.started_s, trial.ended_s, trial.reason) == (10.0, 15.0, "by order")


# --- checkpoints -------------------------------------------------------------------------------


def test_checkpoints_of_an_attempt_go_up_and_of_one_before_stay_below() -> None:
    experiment = Experiment(ASSIGNED)
    experiment.refuses(commit(0, attempt=0), "its attempt is 0")
    experiment.refuses(commit(0), "its attempt is 0")
    experiment.do(STARTED, commit(1))
    experiment.refuses(commit(1), "2 is the next free")
    experiment.refuses(commit(0), "2 is the next free")
    experiment.do(FAILED, ASSIGNED, AttemptStarted("t", 2, first_index=4))
    experiment.refuses(commit(3, attempt=2), "4 is the next free")
    experiment.refuses(commit(4, attempt=1), "from 4 on")
    experiment.refuses(commit(1, attempt=1), "not written again")
    experiment.refuses(commit(4, attempt=3), "its attempt is 2")
    trial = experiment.do(commit(4, attempt=2), commit(2, attempt=1))
    assert list(trial.checkpoints) == [1, 4, 2]
    assert (trial.first_index, trial.next_index) == (4, 5)


def test_a_checkpoint_has_the_latest_result_if_it_brings_none() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1, a=1))
    trial = experiment.do(CheckpointCommitted("t", 1, 0, 1))
    assert trial.checkpoints[0].metrics == {"a": 1}
    experiment.do(CheckpointCommitted("t", 1, 1, 1, {}))
    assert trial.checkpoints[1].metrics == {}


def test_a_bad_checkpoint_is_used_no_more_whenever_it_is_found() -> None:
    experiment = Experiment(ASSIGNED, STARTED, commit(0), commit(1))
    trial = experiment.do(CheckpointMarkedBad("t", "checkpoint_000001", "digest"))
    assert set(trial.checkpoints) == {0}
    experiment.do(CheckpointMarkedBad("t", "checkpoint_000007", "half"))
    experiment.do(CheckpointMarkedBad("t", FOREIGN, "gone"))
    assert trial.bad == {
        "checkpoint_000001": "digest",
        "checkpoint_000007": "half",
        FOREIGN: "gone",
    }
    experiment.refuses(commit(7), "marked bad")
    experiment.do(FAILED, ASSIGNED, AttemptStarted("t", 2, first_index=3))
    experiment.refuses(commit(1, attempt=1), "marked bad")


def test_the_last_good_checkpoint_is_not_deleted() -> None:
    experiment = Experiment(ASSIGNED, STARTED, commit(0))
    experiment.refuses(CheckpointDeleted("t", 0), "the last one")
    trial = experiment.do(commit(1), CheckpointDeleted("t", 0), CheckpointDeleted("t", 0))
    assert set(trial.checkpoints) == {1}
    experiment.refuses(CheckpointDeleted("t", 1), "the last one")
    experiment.do(commit(2), CheckpointMarkedBad("t", "checkpoint_000001", "digest"))
    experiment.refuses(CheckpointDeleted("t", 2), "the last one")


def test_an_exploit_replaces_the_trials_own_checkpoints_until_it_has_newer_ones() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1), commit(0), TrialPaused("t"))
    trial = experiment.do(TrialConfigChanged("t", {"lr": 2}, "new", (), "s", FOREIGN))
    assert (trial.config, trial.tag, trial.state) == ({"lr": 2}, "new", "s")
    assert (trial.restored_from, trial.stands_on_another) == (FOREIGN, True)
    experiment.do(CheckpointDeleted("t", 0))
    experiment.do(ASSIGNED, AttemptStarted("t", 2, None, None, 30, 1, FOREIGN, {"loss": 1}))
    assert (trial.iteration, trial.high_water, trial.last_result) == (30, 30, {"loss": 1})
    assert trial.rows is not None
    assert trial.stands_on_another
    experiment.do(AttemptRestored("t", 2), report(31, 2), commit(1, 31, 2))
    assert not trial.stands_on_another
    experiment.refuses(CheckpointDeleted("t", 1), "the last one")


def test_the_one_checkpoint_since_an_exploit_is_not_deleted_for_older_ones() -> None:
    experiment = Experiment(ASSIGNED, STARTED, commit(0), commit(1), TrialPaused("t"))
    experiment.do(TrialConfigChanged("t", checkpoint=FOREIGN), ASSIGNED)
    trial = experiment.do(AttemptStarted("t", 2, first_index=2, checkpoint=FOREIGN))
    experiment.do(commit(2, attempt=2))
    experiment.refuses(CheckpointDeleted("t", 2), "the last one")
    experiment.do(CheckpointDeleted("t", 0), CheckpointDeleted("t", 1))
    assert trial.own_indices == {2}


def test_an_attempt_from_anothers_checkpoint_replaces_the_trials_own() -> None:
    experiment = Experiment(ASSIGNED, STARTED, commit(0), TrialPaused("t"), ASSIGNED)
    trial = experiment.do(AttemptStarted("t", 4, first_index=1, checkpoint=FOREIGN))
    assert trial.stands_on_another
    experiment.do(commit(1, attempt=4))
    assert trial.own_indices == {1}


def test_an_exploit_that_waits_is_told_from_one_that_was_carried_out() -> None:
    def state_of(*events: Event) -> dict[str, Any]:
        experiment = Experiment(ASSIGNED, AttemptStarted("t", 1, checkpoint=FOREIGN))
        trial = experiment.do(commit(0), TrialPaused("t"), *events)
        return trial.to_json()

    waiting = state_of(TrialConfigChanged("t", checkpoint=FOREIGN))
    assert waiting != state_of(TrialConfigChanged("t"))
    assert TrialRecord.from_json(waiting).stands_on_another


# --- budgets -----------------------------------------------------------------------------------


def open_fault(number: int, **history: int) -> FaultRecorded:
    booked = fault("t", charge=Charge.FREE)
    return FaultRecorded("t", number, booked, History(**history), decided=False)


def settled(number: int, **history: int) -> FaultRecorded:
    return FaultRecorded("t", number, fault("t"), History(**history))


def test_a_fault_is_booked_with_what_was_spent() -> None:
    experiment = Experiment(ASSIGNED, STARTED)
    experiment.refuses(settled(0), "it has 0 faults")
    experiment.refuses(settled(2), "it has 0 faults")
    trial = experiment.do(settled(1, failures=1, max_failures=3))
    assert trial.history == History(failures=1, max_failures=3)
    assert trial.faults == [fault("t")]
    assert trial.undecided == {}
    experiment.refuses(settled(1), "it has 1 faults")


def test_a_good_restore_and_progress_change_the_budgets() -> None:
    spent = {"restore_failures": 1, "infra_failures": 2, "repeats": 3}
    experiment = Experiment(ASSIGNED, STARTED, report(1), commit(0, 1), settled(1, **spent))
    experiment.do(ASSIGNED)
    trial = experiment.do(AttemptStarted("t", 2, None, None, 1, 1, "checkpoint_000000"))
    assert trial.history == History(**spent)
    experiment.do(AttemptRestored("t", 2))
    assert trial.history == History(infra_failures=2, repeats=3)
    experiment.do(report(1, 2))
    assert trial.history == History(infra_failures=2, repeats=3)
    experiment.do(report(2, 2))
    assert trial.history == History()


def test_a_report_says_that_the_restore_was_good() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1), commit(0, 1), ASSIGNED_AFTER_A_FAULT)
    experiment.do(ASSIGNED, AttemptStarted("t", 2, None, None, 1, 1, "checkpoint_000000"))
    trial = experiment.do(report(1, 2))
    assert not trial.is_restoring
    assert trial.history.restore_failures == 0
    experiment.refuses(AttemptRestored("t", 2), "nothing to restore")


ASSIGNED_AFTER_A_FAULT = settled(1, restore_failures=1)


def test_what_comes_after_an_open_charge_is_kept_behind_the_latest() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1), commit(0, 1))
    trial = experiment.do(open_fault(1, restore_failures=1, infra_failures=1))
    assert trial.status is Status.PENDING
    assert trial.undecided == {1: Since()}
    experiment.do(ASSIGNED, AttemptStarted("t", 2, None, None, 1, 1, "checkpoint_000000"))
    experiment.do(AttemptRestored("t", 2))
    assert trial.undecided == {1: Since(restored=True)}
    experiment.do(open_fault(2, restore_failures=1, infra_failures=1), ASSIGNED)
    experiment.do(AttemptStarted("t", 3, None, None, 1, 1), report(2, 3))
    assert trial.undecided == {1: Since(restored=True), 2: Since(progressed=True)}
    assert trial.history == History(restore_failures=1, infra_failures=1)


def test_open_charges_are_settled_oldest_first() -> None:
    experiment = Experiment(ASSIGNED, STARTED, open_fault(1), ASSIGNED, AttemptStarted("t", 2))
    trial = experiment.do(open_fault(2), ASSIGNED, AttemptStarted("t", 3))
    experiment.refuses(settled(2), "one before it is still open")
    experiment.refuses(open_fault(1), "recorded already")
    experiment.refuses(settled(4), "are open")
    experiment.do(settled(1, failures=1))
    assert trial.status is Status.RUNNING  # the attempt that it struck is over already
    assert (list(trial.undecided), trial.history.failures) == ([2], 1)
    assert [one.charge for one in trial.faults] == [Charge.FAILURE, Charge.FREE]
    experiment.do(settled(2, failures=2))
    assert (trial.undecided, trial.history.failures) == ({}, 2)
    experiment.refuses(settled(2), "it has 2 faults")


def test_a_charge_is_not_decided_before_an_older_one() -> None:
    experiment = Experiment(ASSIGNED, STARTED, open_fault(1), ASSIGNED, AttemptStarted("t", 2))
    experiment.refuses(settled(2, failures=1), "one before it is still open")
    free = fault("t", charge=Charge.FREE)
    trial = experiment.do(FaultRecorded("t", 2, free, History(), ends_attempt=False))
    assert (list(trial.undecided), trial.status) == ([1], Status.RUNNING)


def test_open_charges_survive_a_snapshot_in_their_order() -> None:
    experiment = Experiment(ASSIGNED, STARTED, open_fault(1), ASSIGNED, AttemptStarted("t", 2))
    experiment.do(report(1, 2), open_fault(2))
    experiment.state = copy_of(experiment.state)
    trial = experiment.do()
    assert trial.undecided == {1: Since(progressed=True), 2: Since()}
    experiment.refuses(settled(2), "one before it is still open")


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.ABORTED])
def test_a_charge_is_settled_after_the_end_and_strikes_no_attempt_then(status: Status) -> None:
    experiment = Experiment(ASSIGNED, STARTED, open_fault(1), TrialFinished("t", status))
    experiment.refuses(settled(2), f"the trial is {status}")
    trial = experiment.do(settled(1, failures=1))
    assert trial.status is status
    experiment.refuses(settled(2), f"the trial is {status}")


def test_a_fault_that_ends_no_attempt_leaves_it_running() -> None:
    event = FaultRecorded("t", 1, fault("t"), History(failures=1), ends_attempt=False)
    assert Experiment(ASSIGNED, STARTED).do(event).status is Status.RUNNING


# --- decisions and ends ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "is_open"), [("STOP", True), ("PAUSE", True), ("CONTINUE", False), ("NOOP", False)]
)
def test_a_decision_is_open_until_it_is_carried_out(decision: str, is_open: bool) -> None:
    for carried_out in (TrialPaused("t"), TrialFinished("t", Status.SUCCEEDED)):
        experiment = Experiment(ASSIGNED, STARTED, report(3))
        trial = experiment.do(DecisionMade("t", 3, decision))
        assert (trial.decision, trial.decided_iteration) == (decision, 3)
        assert trial.is_decision_open is is_open
        assert not experiment.do(carried_out).is_decision_open


def test_an_open_decision_is_known_after_its_driver_died() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(3), DecisionMade("t", 3, "STOP"))
    assert experiment.attach().is_decision_open


def test_the_searcher_is_told_of_an_end_once() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1), SearcherTold("t", "result", 1))
    trial = experiment.do()
    assert (trial.told_iteration, trial.told_complete) == (1, False)
    experiment.do(SearcherTold("t", "complete", 1))
    assert trial.told_complete
    experiment.refuses(SearcherTold("t", "complete", 1), "told of its end")
    experiment.refuses(SearcherTold("t", "result", 2), "told of its end")


@pytest.mark.parametrize("status", sorted(UNFINISHED))
def test_an_end_is_one_of_three(status: Status) -> None:
    Experiment(ASSIGNED, STARTED).refuses(TrialFinished("t", status), f"{status} is no end")


@pytest.mark.parametrize("anew", [False, True])
def test_a_resumed_trial_has_fresh_budgets_and_its_history(anew: bool) -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(1), commit(0, 1))
    experiment.do(settled(1, failures=1, max_failures=2, infra_failures=1), ASSIGNED)
    experiment.do(AttemptStarted("t", 2, None, None, 1, 1, "checkpoint_000000"))
    experiment.do(TrialFinished("t", Status.FAILED, "why"), SearcherTold("t", "complete", 1))
    trial = experiment.do(TrialResumed("t", anew))
    assert trial.history == History(max_failures=2)
    assert (trial.status, trial.reason, trial.ended_s) == (Status.PENDING, "", None)
    assert not trial.told_complete
    assert len(trial.faults) == 1
    assert trial.restored_from == (None if anew else "checkpoint_000000")
    assert trial.own_indices == (set() if anew else {0})
    experiment.refuses(CheckpointDeleted("t", 0), "the last one")


GIVEN = {**TrialRecord("t", 0).to_json(), "faults": [fault("t").to_json()]}


@pytest.mark.parametrize(
    "changes",
    [
        *({name: wrong} for name in GIVEN for wrong in (1.5, "x", [[]], [7], {"a": 1})),
        {"checkpoints": [[1, 0, 1]]},
        {"checkpoints": [[1, 0, "1", {}]]},
        {"checkpoints": [[1, 0, 1, []]]},
        {"undecided": [[1, 0, 1]]},
        {"undecided": [[2, False, False]]},
        {"history": {"failures": "1"}},
    ],
    ids=str,
)
def test_a_record_with_anything_in_it_is_imported_or_illegal(changes: dict[str, Any]) -> None:
    state = fold(
        [
            Record(1, 1, 1.0, ExperimentCreated("e", "n", 1)),
            Record(2, 1, 1.0, DriverAttached("h", 1)),
        ]
    )
    try:
        apply(state, Record(3, 1, 1.0, TrialImported("t", {**GIVEN, **changes})))
    except IllegalEventError:
        assert not state.trials
        return
    [name] = changes
    assert type(changes[name]) is type(GIVEN[name]) or GIVEN[name] is None
    follow = [
        RunnerAssigned("t", "r", 9),
        AttemptStarted("t", 9, first_index=9),
        ResultReported("t", 9, 1),
        FaultRecorded("t", 1, fault("t"), History()),
        FaultRecorded("t", 2, fault("t"), History()),
        TrialFinished("t", Status.FAILED),
    ]
    for event in follow:
        with contextlib.suppress(IllegalEventError):
            apply(state, Record(state.seq + 1, 1, 1.0, event))
    assert ExperimentState.from_json(state.to_json(), list(state.trials.values())) == state


def there(**values: Any) -> TrialImported:
    record = TrialRecord("t", 9, **{"attempt": 1, "iteration": 4, "high_water": 4, **values})
    return TrialImported("t", record.to_json())


def test_a_trial_that_vanilla_ray_took_further_is_as_it_left_it_and_keeps_its_place() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(3))
    experiment.attach()
    experiment.do(there(status=Status.SUCCEEDED, last_result={"score": 4}, ended_s=5.0))
    trial = experiment.state.trials["t"]
    assert (trial.number, trial.status, trial.iteration) == (0, Status.SUCCEEDED, 4)
    assert trial.last_result == {"score": 4}
    assert [row.iteration for row in trial.rows or ()] == [3]
    assert experiment.state.running == set()


def test_a_trial_is_not_imported_over_what_is_further() -> None:
    experiment = Experiment(ASSIGNED, STARTED, report(3))
    experiment.refuses(there(), "the trial is running")
    experiment.attach()
    for behind in ({"attempt": 0}, {"iteration": 2, "high_water": 2}):
        experiment.refuses(there(**behind), "behind what is known")
    experiment.do(ASSIGNED, AttemptStarted("t", 2), commit(5, attempt=2))
    experiment.attach()
    experiment.refuses(there(attempt=2, next_index=5), "behind what is known")
    experiment.do(TrialFinished("t", Status.SUCCEEDED))
    experiment.refuses(there(attempt=2, next_index=6), "the trial is succeeded")
