"""What the events of a journal come to in the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raytrials.chaos.oracle.course import Course
from raytrials.chaos.oracle.notes import Notes
from raytrials.chaos.oracle.violation import Violation
from raytrials.core.fault import Charge
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status

COMPLETE = frozenset({"complete", "completed", "done", "finished"})
"""Reasons with which a driver says that it detaches since there is nothing left to do."""


def is_settled(state: ExperimentState) -> bool:
    """Return whether the latest driver ended in order: what is open then stays open."""
    return state.drivers > 0 and not state.is_attached


def violations_at_the_end(course: Course, num_samples: int | None) -> Iterator[Violation]:
    """Return what is wrong with the state after all events.

    Args:
        course: of all events.
        num_samples: how many trials there have to be in the end; None to go by the journal.
    """
    state = course.state
    yield from _wrong_in_number(state, num_samples)
    for trial in state.trials.values():
        notes = course.notes[trial.trial_id]
        for invariant, text in (
            *_wrong_in_telling(trial, notes, settled=is_settled(state)),
            *_wrong_in_budget(trial, notes, settled=is_settled(state)),
            *_wrong_in_rows(trial, notes),
        ):
            yield Violation(invariant, trial.trial_id, text)


def _wrong_in_number(state: ExperimentState, num_samples: int | None) -> Iterator[Violation]:
    wanted = state.num_samples if num_samples is None else num_samples
    says_so = is_settled(state) and state.reason in COMPLETE
    is_complete = num_samples is not None or says_so
    count = len(state.trials)
    if wanted is not None and (count > wanted or (is_complete and count < wanted)):
        yield Violation("I1", None, f"there are {count} trials of {wanted}")
    if is_complete:
        for trial in state.trials.values():
            if not trial.is_finished:
                text = f"it is {trial.status}, and the experiment is complete"
                yield Violation("I1", trial.trial_id, text)


def _wrong_in_telling(
    trial: TrialRecord, notes: Notes, *, settled: bool
) -> Iterator[tuple[str, str]]:
    if trial.is_finished and not trial.told_complete and settled:
        yield "I4", "it ended, and the searcher was not told"
    if not trial.is_finished and trial.told_complete:
        yield "I4", f"it is {trial.status}, and the searcher was told of its end"
    if trial.is_decision_open and settled:
        yield "I4", f"{trial.decision} at {trial.decided_iteration} was not carried out"
    if not notes.took_over and trial.rows is not None:
        latest = max(notes.told, default=0)
        untold = {row.iteration for row in trial.rows if row.iteration < latest} - notes.told
        if untold:
            yield "I4", f"the searcher was not told of iteration {_shown(untold)}"


def _wrong_in_budget(
    trial: TrialRecord, notes: Notes, *, settled: bool
) -> Iterator[tuple[str, str]]:
    faults = trial.faults[notes.renewed :]
    failures, limit = trial.history.failures, trial.history.max_failures
    if trial.undecided and (settled or trial.is_finished):
        yield "I5", f"nobody decided what fault {_shown(trial.undecided)} cost"
    if not trial.undecided:
        charged = sum(fault.charge is Charge.FAILURE for fault in faults)
        if failures != charged + notes.failures:
            yield "I5", f"{failures} failures are counted, and {charged} were charged"
    if trial.status is Status.FAILED and trial.attempt != notes.imported:
        never = bool(faults) and "never retried" in faults[-1].reason
        if not any(fault.charge is Charge.FAILURE for fault in faults):
            yield "I5", "it failed, and nothing was charged to it as a failure"
        elif not never and not failures > limit >= 0:
            yield "I5", f"it failed after {failures} failures, max_failures={limit}"


def _wrong_in_rows(trial: TrialRecord, notes: Notes) -> Iterator[tuple[str, str]]:
    iterations = [row.iteration for row in trial.rows or ()]
    if notes.took_over:
        return  # rows of what it took over are another trial's
    missing = set(range(notes.before + 1, trial.iteration + 1)) - set(iterations)
    if missing:
        yield "I3", f"no row of iteration {_shown(missing)}, up to {trial.iteration}"


def _shown(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    shown = ", ".join(map(str, found[:5]))
    return f"{shown}, ... ({len(found)})" if len(found) > 5 else shown  # noqa: PLR2004 - of a line
