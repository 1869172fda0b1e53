"""Whatever does not hold is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.events import Walk, fault

from raytrials.core.event import (
    AttemptStarted,
    CheckpointCommitted,
    DriverAttached,
    ExperimentCreated,
    Record,
    ResultReported,
    RunnerAssigned,
    TrialAdded,
    TrialFinished,
)
from raytrials.core.fold import fold
from raytrials.core.invariant import check
from raytrials.core.retry import History
from raytrials.core.state import CheckpointRecord, ExperimentState, Row
from raytrials.core.status import Status
from raytrials.errors import InvariantError


def healthy() -> ExperimentState:
    """Trial `a` runs, with a row and a checkpoint; `b` has ended."""
    events = (
        ExperimentCreated("id", "name", 7),
        DriverAttached("host", 1, num_samples=2, max_concurrent=1),
        TrialAdded("a"),
        RunnerAssigned("a", "n1"),
        AttemptStarted("a", 1),
        ResultReported("a", 1, 1),
        CheckpointCommitted("a", 1, 0, 1),
        TrialAdded("b"),
        TrialFinished("b", Status.SUCCEEDED),
    )
    records = (Record(seq, 1, float(seq), event) for seq, event in enumerate(events, 1))
    return fold(records, ExperimentState(keeps_rows=True))


def test_a_healthy_state_passes() -> None:
    check(healthy())
    check(ExperimentState())


def renumber(state: ExperimentState) -> None:
    state.trials["b"].number = 0


def forget_a_running_one(state: ExperimentState) -> None:
    state.running.clear()


def run_too_many(state: ExperimentState) -> None:
    state.max_concurrent = 0


def exceed_the_samples(state: ExperimentState) -> None:
    state.num_samples = 1


def lose_the_driver(state: ExperimentState) -> None:
    state.is_attached = False


def go_beyond_the_highest(state: ExperimentState) -> None:
    state.trials["a"].high_water = 0


def continue_beyond_the_highest(state: ExperimentState) -> None:
    state.trials["a"].from_iteration = 2


def count_what_was_not_charged(state: ExperimentState) -> None:
    state.trials["a"].history = History(failures=2)
    state.trials["a"].faults = [fault("a")]


def leave_a_decision_open(state: ExperimentState) -> None:
    state.trials["b"].is_decision_open = True


def fail_without_a_fault(state: ExperimentState) -> None:
    state.trials["b"].status = Status.FAILED


def end_at_no_time(state: ExperimentState) -> None:
    state.trials["b"].ended_s = None


def run_after_the_end(state: ExperimentState) -> None:
    state.trials["a"].ended_s = 1.0


def checkpoint_of_no_attempt(state: ExperimentState) -> None:
    state.trials["a"].checkpoints[0] = CheckpointRecord(2, 0, 1, {})


def offer_a_taken_index(state: ExperimentState) -> None:
    state.trials["a"].next_index = 0


def use_a_bad_checkpoint(state: ExperimentState) -> None:
    state.trials["a"].bad["checkpoint_000000"] = "digest"


def double_a_row(state: ExperimentState) -> None:
    state.trials["a"].rows = [Row(1, 1, 0.0, {}), Row(1, 1, 0.0, {})]


VIOLATIONS: list[tuple[Callable[[ExperimentState], None], str]] = [
    (renumber, "numbered in their order"),
    (forget_a_running_one, "running are {'a'}"),
    (run_too_many, "run at once"),
    (exceed_the_samples, "2 trials of 1"),
    (lose_the_driver, "without a driver"),
    (go_beyond_the_highest, "a: iteration 1 is above the highest, 0"),
    (continue_beyond_the_highest, "a: "),
    (count_what_was_not_charged, "a: 2 failures are counted, 1 were charged"),
    (leave_a_decision_open, "b: it has ended, and a decision is open"),
    (fail_without_a_fault, "b: it failed without a fault"),
    (end_at_no_time, "b: its end and its status do not agree"),
    (run_after_the_end, "a: its end and its status do not agree"),
    (checkpoint_of_no_attempt, "a: a checkpoint is of no attempt"),
    (offer_a_taken_index, "a: a checkpoint is above 0"),
    (use_a_bad_checkpoint, "a: a bad checkpoint may be used"),
    (double_a_row, "a: rows are not one for each iteration"),
]


@pytest.mark.parametrize(("spoil", "says"), VIOLATIONS)
def test_each_violation_is_found(spoil: Callable[[ExperimentState], None], says: str) -> None:
    state = healthy()
    spoil(state)
    with pytest.raises(InvariantError) as caught:
        check(state)
    [wrong] = caught.value.wrong
    assert says in wrong


def test_all_violations_are_told_together() -> None:
    state = healthy()
    lose_the_driver(state)
    leave_a_decision_open(state)
    with pytest.raises(InvariantError) as caught:
        check(state)
    assert len(caught.value.wrong) == 2


def test_a_state_that_a_walk_leaves_can_be_spoiled_too() -> None:
    walk = Walk(3)
    walk.steps(100)
    exceed_the_samples(walk.state)
    with pytest.raises(InvariantError):
        check(walk.state)
