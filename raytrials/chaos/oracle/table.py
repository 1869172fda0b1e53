"""The final table of an experiment, and how two of them differ (I4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raytrials.chaos.oracle.directory import RayTrial
from raytrials.chaos.oracle.likeness import alike, difference, reported
from raytrials.chaos.oracle.violation import Violation
from raytrials.core.state import TrialRecord
from raytrials.core.status import Status

_RAYS_WORDS = {
    Status.SUCCEEDED: "TERMINATED",
    Status.ABORTED: "TERMINATED",
    Status.FAILED: "ERROR",
    Status.PAUSED: "PAUSED",
    Status.RUNNING: "RUNNING",
}


@dataclass(frozen=True)
class Outcome:
    """A row of the table: what came of a trial.

    Attributes:
        trial_id: the trial; two runs give the same trial two ids.
        config: as it was last.
        tag: likewise.
        status: in our word if known, else in Ray's.
        iteration: its last one.
        metrics: of its last result, those that the user's code reported.
    """

    trial_id: str
    config: Mapping[str, Any]
    tag: str
    status: str
    iteration: int
    metrics: Mapping[str, Any]

    @classmethod
    def of_record(cls, trial: TrialRecord) -> Outcome:
        """Return what the journal says of a trial."""
        return cls(
            trial.trial_id,
            trial.config,
            trial.tag,
            str(trial.status),
            trial.iteration,
            reported(trial.last_result),
        )

    @classmethod
    def of_ray(cls, trial: RayTrial) -> Outcome:
        """Return what Ray's saved state says of a trial."""
        iteration = trial.last_result.get("training_iteration", 0)
        metrics = reported(trial.last_result)
        return cls(trial.trial_id, trial.config, trial.tag, trial.status, iteration, metrics)


def differences(found: Sequence[Outcome], expected: Sequence[Outcome]) -> Iterator[Violation]:
    """Return where a table differs from that of an uninterrupted run, trial by trial in order."""
    if len(found) != len(expected):
        text = f"there are {len(found)} trials, an uninterrupted run has {len(expected)}"
        yield Violation("I4", None, text)
    for ours, theirs in zip(found, expected, strict=False):
        wrong = (
            [] if alike(ours.config, theirs.config) else [difference(ours.config, theirs.config)]
        )
        for name in ("tag", "iteration"):
            left, right = getattr(ours, name), getattr(theirs, name)
            if left != right:
                wrong.append(f"{name} is {left!r} and {right!r}")
        if not _same_status(ours.status, theirs.status):
            wrong.append(f"status is {ours.status} and {theirs.status}")
        if not alike(ours.metrics, theirs.metrics):
            wrong.append(difference(ours.metrics, theirs.metrics))
        if wrong:
            text = f"it is not {theirs.trial_id} of an uninterrupted run: {'; '.join(wrong)}"
            yield Violation("I4", ours.trial_id, text)


def _same_status(one: str, other: str) -> bool:
    """Return whether two statuses are the same, or are so in Ray's words if one is Ray's."""
    if one == other:
        return True
    both = {one, other}
    ours = {str(status) for status in Status} & both
    return len(ours) == 1 and {_in_rays_words(status) for status in both} == both - ours


def _in_rays_words(status: str) -> str:
    known = {str(status): word for status, word in _RAYS_WORDS.items()}
    return known.get(status, status if status.isupper() else "PENDING")
