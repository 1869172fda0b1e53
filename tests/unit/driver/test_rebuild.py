"""What vanilla Ray left of a trial beside what the journal knows of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.events import fault

from raytrials.core.retry import History
from raytrials.core.state import TrialRecord
from raytrials.core.status import Status
from raytrials.driver.rebuild import is_ahead, taken_over

INTERRUPTED, SUCCEEDED = Status.INTERRUPTED, Status.SUCCEEDED


def record(iteration: int, status: Status = INTERRUPTED, **values: Any) -> TrialRecord:
    return TrialRecord("t", 0, iteration=iteration, high_water=iteration, status=status, **values)


@pytest.mark.parametrize(
    ("there", "known", "ahead"),
    [
        (record(4), record(3), True),
        (record(3), record(3), False),
        (record(2), record(3), False),
        (record(3, SUCCEEDED), record(3), True),
        (record(2, SUCCEEDED), record(3), False),
        (record(4, SUCCEEDED), record(3, SUCCEEDED), False),
    ],
)
def test_what_is_ahead(there: TrialRecord, known: TrialRecord, ahead: bool) -> None:
    assert is_ahead(there, known) is ahead


def test_what_the_journal_alone_knows_stays() -> None:
    known = record(
        3,
        attempt=2,
        reserved=3,
        next_index=7,
        faults=[fault("t")],
        history=History(failures=1, infra_failures=2),
        adopts_from=2,
        started_s=1.0,
    )
    there = record(5, SUCCEEDED, attempt=1, next_index=5, told_complete=True, ended_s=9.0)
    both = taken_over(there, known)
    assert (both.iteration, both.status, both.ended_s) == (5, SUCCEEDED, 9.0)
    assert (both.attempt, both.next_index, both.adopts_from, both.started_s) == (3, 7, 2, 1.0)
    assert both.faults == known.faults
    assert both.history == known.history
    assert not both.told_complete  # so the searcher is told
    spent = dataclasses.replace(there, history=History(failures=4))
    assert taken_over(spent, known).history.failures == 4
