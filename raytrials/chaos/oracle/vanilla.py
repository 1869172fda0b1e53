"""What the directory of an experiment shows that Ray ran without raytrials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from raytrials.chaos.oracle.directory import Directory, RayTrial, TrialDirectory
from raytrials.chaos.oracle.likeness import alike, difference
from raytrials.chaos.oracle.storage import wrong_in_lines
from raytrials.chaos.oracle.violation import Violation
from raytrials.store.checkpoint import Verdict

_ENDED = {"TERMINATED", "ERROR"}


def violations_of_vanilla(directory: Directory, num_samples: int | None) -> Iterator[Violation]:
    """Return what is wrong as far as Ray's files tell.

    Args:
        directory: of the experiment.
        num_samples: how many trials there have to be, all of them ended; None for unknown.
    """
    for name in directory.torn_states:
        yield Violation("I8", None, f"{name} is torn")
    trials = directory.ray_trials
    if trials is None:
        yield Violation("I8", None, "no state of Ray's is there that can be read")
    else:
        yield from _wrong_in_number(trials, num_samples)
        yield from _wrong_in_config(trials, directory.trials)
        named = {trial.directory for trial in trials}
        for name in directory.trials.keys() - named:
            yield Violation("I8", None, f"Ray's saved state knows no trial of {name}")
    ids = {trial.directory: trial.trial_id for trial in trials or ()}
    for name, found in directory.trials.items():
        saved = directory.saved.get(name)
        registered = saved.registered if saved is not None else frozenset()
        for invariant, text in (*_wrong_in_rows(found), *_wrong_in_checkpoints(found, registered)):
            yield Violation(invariant, ids.get(name), f"{name}: {text}")
    for name in directory.saved.keys() - directory.trials.keys():
        for checkpoint in sorted(directory.saved[name].registered):
            yield Violation("I6", ids.get(name), f"{name}/{checkpoint} is named, and not there")


def _wrong_in_number(trials: Sequence[RayTrial], num_samples: int | None) -> Iterator[Violation]:
    if num_samples is not None and len(trials) != num_samples:
        yield Violation("I1", None, f"there are {len(trials)} trials of {num_samples}")
    for trial_id, count in Counter(trial.trial_id for trial in trials).items():
        if count > 1:
            yield Violation("I1", trial_id, f"it is there {count} times")
    for trial in trials:
        if num_samples is not None and trial.status not in _ENDED:
            yield Violation(
                "I1", trial.trial_id, f"it is {trial.status}, and all are to have ended"
            )


def _wrong_in_config(
    trials: Sequence[RayTrial], directories: Mapping[str, TrialDirectory]
) -> Iterator[Violation]:
    others = any(trial.config for trial in trials)
    for trial in trials:
        found = directories.get(trial.directory or "")
        params = found.params if found is not None else None
        if not trial.config and (trial.has_parameters or others or params):
            yield Violation("I1", trial.trial_id, "its config is empty")
        elif params is not None and not alike(trial.config, params):
            wrong = difference(trial.config, params)
            text = f"its config in Ray's saved state and in params.json: {wrong}"
            yield Violation("I1", trial.trial_id, text)


def _wrong_in_rows(found: TrialDirectory) -> Iterator[tuple[str, str]]:
    for lines in found.lines:
        yield from wrong_in_lines(lines, may_be_cut=False)
        iterations = [one for one in lines.iterations if one is not None]
        if 1 in iterations[1:] and found.checkpoints:
            yield "I2", f"{lines.name} begins at 1 again, and there are checkpoints"
        missing = set(range(1, max(iterations, default=0))) - set(iterations)
        if missing:
            yield "I3", f"{lines.name} has no iteration {min(missing)}"


def _wrong_in_checkpoints(
    found: TrialDirectory, registered: frozenset[str]
) -> Iterator[tuple[str, str]]:
    there = {one.name: one.finding.verdict for one in found.checkpoints.values()}
    for name in sorted(registered - there.keys()):
        yield "I6", f"{name} is named, and not there"
    for name, verdict in there.items():
        if verdict is Verdict.MISSING:
            yield "I6", f"{name} is empty"
        elif verdict is Verdict.CORRUPT:
            yield "I6", f"{name} is not what was committed"
