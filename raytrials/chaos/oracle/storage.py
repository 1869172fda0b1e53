"""Whether the journal and what is on storage agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from raytrials.chaos.oracle.course import Course
from raytrials.chaos.oracle.directory import Directory, Lines, Stored, TrialDirectory
from raytrials.chaos.oracle.likeness import alike, difference, reported
from raytrials.chaos.oracle.notes import Notes
from raytrials.chaos.oracle.outcome import is_settled
from raytrials.chaos.oracle.violation import Violation
from raytrials.core.state import Row, TrialRecord
from raytrials.store.checkpoint import Verdict
from raytrials.store.manifest import Header, checkpoint_name
from raytrials.store.saved import SavedTrial

TENURE_S = 30.0
"""So long after it was replaced a driver, and its workers, may not know of it."""


def violations_on_storage(
    course: Course, directory: Directory, trial_of: Mapping[str, str]
) -> Iterator[Violation]:
    """Return where an experiment's directory contradicts its journal.

    Args:
        course: of all events.
        directory: as it is.
        trial_of: from the name of a trial's directory to the trial.
    """
    yield from _unknown(course, directory, trial_of)
    seen: dict[str, TrialDirectory] = {}
    for name, found in directory.trials.items():
        trial = course.state.trials.get(trial_of.get(name, ""))
        if trial is None:
            continue
        if trial.trial_id in seen:
            text = f"it has two directories, {seen[trial.trial_id].name} and {name}"
            yield Violation("I1", trial.trial_id, text)
        seen[trial.trial_id] = found
    for trial in course.state.trials.values():
        checkpoints: Mapping[int, Stored] = {}
        if trial.trial_id in seen:
            found = seen[trial.trial_id]
            checkpoints = found.checkpoints
            yield from _of(trial, _wrong_in_files(course, trial, found))
        yield from _of(trial, _missing(trial, checkpoints))
        for one in checkpoints.values():
            yield from _of(trial, _wrong_in_checkpoint(course, directory, trial, one))


def _of(trial: TrialRecord, found: Iterator[tuple[str, str]]) -> Iterator[Violation]:
    return (Violation(invariant, trial.trial_id, text) for invariant, text in found)


# --- what only one of them knows -----------------------------------------------------------------


def _unknown(
    course: Course, directory: Directory, trial_of: Mapping[str, str]
) -> Iterator[Violation]:
    trials = course.state.trials
    for name in directory.trials:
        if trial_of.get(name, "") not in trials:
            yield Violation("I8", trial_of.get(name), f"the journal knows no trial of {name}")
    for name in directory.torn_states:
        yield Violation("I8", None, f"{name} is torn")
    if directory.ray_trials is None or not is_settled(course.state):
        return  # Ray's state is older than the journal while a driver is at work
    saved = {trial.trial_id: trial for trial in directory.ray_trials}
    for trial_id in trials.keys() - saved.keys():
        yield Violation("I8", trial_id, "Ray's saved state does not know it")
    for trial_id in saved.keys() - trials.keys():
        yield Violation("I8", trial_id, "it is in Ray's saved state, and not in the journal")
    for trial_id in trials.keys() & saved.keys():
        yield from _of(
            trials[trial_id],
            _wrong_config(course.notes[trial_id], saved[trial_id].config, "Ray's saved state"),
        )


# --- config and results --------------------------------------------------------------------------


def _wrong_in_files(
    course: Course, trial: TrialRecord, found: TrialDirectory
) -> Iterator[tuple[str, str]]:
    if found.params is not None:
        yield from _wrong_config(course.notes[trial.trial_id], found.params, "params.json")
    may_be_cut = not trial.is_finished and not is_settled(course.state)
    for lines in found.lines:
        yield from wrong_in_lines(lines, may_be_cut=may_be_cut)
        if trial.is_finished and is_settled(course.state) and trial.rows is not None:
            yield from _wrong_in_rows(_since(lines, course.notes[trial.trial_id]), trial.rows)


def _since(lines: Lines, notes: Notes) -> Lines:
    """Return the lines without those from before the journal."""
    if not notes.before:
        return lines
    rows = zip(lines.rows, lines.iterations, strict=True)
    kept = [row for row, iteration in rows if iteration is None or iteration > notes.before]
    return dataclasses.replace(lines, rows=kept)


def _wrong_config(notes: Notes, config: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    allowed = [notes.configs[-1]]
    if notes.started_config is not None:
        allowed.append(notes.started_config)  # files are written when an attempt starts
    if not any(alike(one, config) for one in allowed):
        yield "I1", f"its config in the journal and in {where}: {difference(allowed[0], config)}"


def wrong_in_lines(lines: Lines, *, may_be_cut: bool) -> Iterator[tuple[str, str]]:
    """Return what is wrong with a file of results by itself."""
    for number in lines.torn:
        yield "I3", f"line {number} of {lines.name} is torn"
    if lines.is_cut and not may_be_cut:
        yield "I3", f"the last line of {lines.name} is torn"
    iterations = lines.iterations
    if None in iterations:
        yield "I3", f"a row of {lines.name} has no iteration"
    for before, after in pairwise(one for one in iterations if one is not None):
        if after == before:
            yield "I3", f"{lines.name} has iteration {after} twice"
        elif after < before:
            yield "I3", f"{lines.name} goes back from iteration {before} to {after}"


def _wrong_in_rows(lines: Lines, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    expected = [row.iteration for row in rows]
    if lines.iterations != expected:
        yield "I3", f"{lines.name} has iterations {lines.iterations}, the journal {expected}"
        return
    for line, row in zip(lines.rows, rows, strict=True):
        metrics = reported(row.metrics)
        if lines.name.endswith(".csv"):
            wrong = _difference_in_text(metrics, line)
        else:
            wrong = difference(metrics, {name: line.get(name) for name in metrics})
        if wrong:
            yield "I3", f"in the journal and in {lines.name}, at {row.iteration}: {wrong}"
            return


def _difference_in_text(metrics: Mapping[str, Any], line: Mapping[str, Any]) -> str:
    """As :func:`difference`, for the numbers of a line that is text alone."""
    for name, value in metrics.items():
        # Ray writes no column that the first row had not.
        if type(value) not in {int, float} or name not in line:
            continue
        try:
            same = alike(float(value), float(line[name]))
        except ValueError:
            same = False
        if not same:
            return f"{name} is {value} and {line[name]!r}"
    return ""


# --- checkpoints ---------------------------------------------------------------------------------


def _missing(trial: TrialRecord, stored: Mapping[int, Stored]) -> Iterator[tuple[str, str]]:
    for index in trial.checkpoints:
        if index not in stored:
            yield "I6", f"{checkpoint_name(index)} is recorded, and not on storage"


def _wrong_in_checkpoint(
    course: Course, directory: Directory, trial: TrialRecord, one: Stored
) -> Iterator[tuple[str, str]]:
    if one.name in trial.bad:
        return
    index = next((i for i in trial.checkpoints if checkpoint_name(i) == one.name), None)
    verdict = one.finding.verdict
    is_leftover = index is None and verdict in {Verdict.INCOMPLETE, Verdict.MISSING}
    if is_leftover and not directory.disk.has_rename:
        return  # nothing offers it: its upload or its deletion was cut off
    saved = _saved_of(directory, trial)
    if verdict is Verdict.INCOMPLETE and (
        one.name in trial.unverified or (saved and saved.ours and saved.is_vanilla(one.name))
    ):
        return
    if not one.is_verified:
        problem = one.finding.problem or str(verdict)
        yield "I6", f"{one.name} is not whole, and nobody marked it as bad: {problem}"
    if one.header is not None:
        for invariant, text in _wrong_in_header(course, trial, one.header):
            yield invariant, f"{one.name} {text}"


def _saved_of(directory: Directory, trial: TrialRecord) -> SavedTrial | None:
    found = (one for one in directory.saved.values() if one.trial_id == trial.trial_id)
    return next(found, None)


def _wrong_in_header(
    course: Course, trial: TrialRecord, header: Header
) -> Iterator[tuple[str, str]]:
    state, notes = course.state, course.notes[trial.trial_id]
    if header.trial != trial.trial_id:
        yield "I6", f"belongs to trial {header.trial}"
        return
    if header.experiment != state.experiment:
        yield "I6", f"belongs to experiment {header.experiment}, this is {state.experiment}"
    if notes.imported is not None and header.attempt <= notes.imported:
        return  # from before the journal, which has no more of it than that it is there
    record = trial.checkpoints.get(header.index)
    held = (header.attempt, header.iteration)
    if record is not None and (record.attempt, record.iteration) != held:
        said = f"the journal says {record.attempt} and {record.iteration}"
        yield "I6", f"is of attempt {held[0]} and iteration {held[1]}, {said}"
    attempt = next((one for one in notes.attempts if one.number == header.attempt), None)
    if attempt is None:
        yield from _wrong_in_unknown(course, trial, header)
        return
    later = [one.first_index for one in notes.attempts if one.number > header.attempt]
    if not attempt.first_index <= header.index < min(later, default=header.index + 1):
        yield "I6", f"is of attempt {header.attempt}, and its index is another attempt's"
    if header.epoch not in {0, attempt.epoch}:  # 0: its driver had no lease
        yield "I7", f"is of epoch {header.epoch}, its attempt started in {attempt.epoch}"
    replaced_s = min((at for epoch, at in course.drivers if epoch > attempt.epoch), default=None)
    if replaced_s is not None and header.time > replaced_s + TENURE_S:
        late_s = header.time - replaced_s
        yield "I7", f"was committed {late_s:.0f} s after its driver was replaced"


def _wrong_in_unknown(
    course: Course, trial: TrialRecord, header: Header
) -> Iterator[tuple[str, str]]:
    """Return what is wrong with a checkpoint of an attempt whose start is not recorded."""
    epoch = course.notes[trial.trial_id].reserved.get(header.attempt)
    if epoch is None and (is_settled(course.state) or header.attempt <= trial.attempt):
        yield "I6", f"is of attempt {header.attempt}, which the journal does not know"
    elif epoch is not None and header.epoch != epoch:
        yield "I7", f"is of epoch {header.epoch}, its attempt was to start in {epoch}"
