"""Whatever happens, a recovery knows what the live driver knew."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.events import Walk, anything, copy_of, dump, dump_rows

from raytrials.core.event import EVENTS, Record
from raytrials.core.fold import apply, fold
from raytrials.core.invariant import check
from raytrials.core.state import ExperimentState
from raytrials.errors import IllegalEventError, InvariantError
from raytrials.store.record import decode, encode

patient = settings(deadline=None, max_examples=100)
seeds = st.integers(0, 2**32)
lengths = st.integers(0, 150)


def written_and_read(records: list[Record]) -> list[Record]:
    return [decode(encode(record).removesuffix(b"\n")) for record in records]


@patient
@given(seeds, lengths)
def test_what_was_written_comes_to_what_the_live_driver_knew(seed: int, length: int) -> None:
    walk = Walk(seed)
    records = walk.steps(length)
    state = fold(written_and_read(records), ExperimentState(keeps_rows=True))
    assert dump(state) == dump(walk.state)
    assert dump_rows(state) == dump_rows(walk.state)
    assert [trial.story for trial in state.trials.values()] == [
        trial.story for trial in walk.state.trials.values()
    ]


@patient
@given(seeds, lengths, lengths)
def test_a_snapshot_and_the_rest_come_to_the_same_as_all(
    seed: int, before: int, after: int
) -> None:
    walk = Walk(seed)
    walk.steps(before)
    state = copy_of(walk.state)
    assert dump(state) == dump(walk.state)
    fold(written_and_read(walk.steps(after)), state)
    assert dump(state) == dump(walk.state)


@patient
@given(seeds)
def test_the_invariants_hold_after_every_legal_event(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(150):
        walk.step()
        check(walk.state)


@patient
@given(seeds, lengths)
def test_rows_that_are_kept_change_nothing_else(seed: int, length: int) -> None:
    walk = Walk(seed)
    records = walk.steps(length)
    assert dump(fold(records)) == dump(walk.state)


@patient
@given(seeds, lengths)
def test_any_event_applies_or_leaves_the_state_as_it_was(seed: int, length: int) -> None:
    walk, luck = Walk(seed), random.Random(seed)
    walk.steps(length)
    state = walk.state
    for _ in range(40):
        record = anything(luck, state)
        before, rows = dump(state), dump_rows(state)
        stories = [tuple(trial.story) for trial in state.trials.values()]
        try:
            apply(state, record)
        except IllegalEventError:
            assert dump(state) == before
            assert dump_rows(state) == rows
            assert [tuple(trial.story) for trial in state.trials.values()] == stories


LEFT_TO_THE_DRIVER = (" trials of ", " run at once", " failures are counted", "without a fault")
"""Limits and budgets: the fold takes what it is told of them."""


@patient
@given(seeds, lengths)
@example(1005, 0)
@example(6685485, 0)
def test_what_applies_breaks_no_invariant_that_is_the_folds_own(seed: int, length: int) -> None:
    walk, luck = Walk(seed), random.Random(seed)
    walk.steps(length)
    for _ in range(100):
        with contextlib.suppress(IllegalEventError):
            apply(walk.state, anything(luck, walk.state))
        try:
            check(walk.state)
        except InvariantError as error:
            wrong = [one for one in error.wrong if not any(w in one for w in LEFT_TO_THE_DRIVER)]
            assert not wrong


def test_a_walk_visits_every_event_and_anything_applies_and_is_refused() -> None:
    walked: Counter[str] = Counter()
    outcomes: Counter[tuple[str, bool]] = Counter()
    open_charges = exploits = 0
    for seed in range(60):
        walk, luck = Walk(seed), random.Random(seed)
        for _ in range(20):
            walked.update(type(record.event).__name__ for record in walk.steps(10))
            trials = walk.state.trials.values()
            open_charges += any(len(trial.undecided) > 1 for trial in trials)
            exploits += any(trial.stands_on_another for trial in trials)
            state = copy_of(walk.state)
            for _ in range(40):
                record = anything(luck, state)
                if record.epoch < state.epoch:
                    continue
                kind = type(record.event).__name__
                try:
                    apply(state, record)
                    outcomes[kind, True] += 1
                except IllegalEventError:
                    outcomes[kind, False] += 1
    assert set(walked) == set(EVENTS)
    assert min(walked.values()) > 10
    assert open_charges > 2
    assert exploits > 5
    assert {kind for kind, _ in outcomes} == set(EVENTS)
    never = {kind for kind in EVENTS if not outcomes[kind, True]}
    assert never == {"ExperimentCreated"}
    assert all(outcomes[kind, False] for kind in EVENTS)
