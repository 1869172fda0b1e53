"""What an attempt has to continue from: the newest good checkpoint known or on storage (I2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from raytrials.chaos.oracle.directory import Stored
from raytrials.core.event import AttemptStarted
from raytrials.core.fault import Cause
from raytrials.core.state import TrialRecord
from raytrials.store.manifest import checkpoint_name, index_of

SLACK_S = 1.0
"""A checkpoint that was committed so shortly before a look at storage may have escaped it."""

_ALL = 10**12

IsUsable = Callable[[str, TrialRecord], bool]


@dataclass
class Origin:
    """What a trial has to continue from.

    Attributes:
        exploited: another trial's checkpoint that it has taken over, None for none.
        first: its own below this index are superseded, by that or by a new beginning.
        committed: indices of all its own.
        deleted: of those that were deleted.
        is_anew: whether it is to begin at the beginning.
        looked_s: when its driver looked at storage last.
    """

    exploited: str | None = None
    first: int = 0
    committed: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    is_anew: bool = False
    looked_s: float = 0.0

    def take_over(self, checkpoint: str) -> None:
        """Note that the trial continues from another trial's checkpoint."""
        self.exploited, self.first, self.is_anew = checkpoint, _ALL, False

    def begin_anew(self) -> None:
        """Note that the trial is to begin at the beginning."""
        self.exploited, self.first, self.is_anew = None, _ALL, True

    def started(self, event: AttemptStarted) -> None:
        """Note what an attempt did continue from."""
        index = None if event.checkpoint is None else index_of(event.checkpoint)
        if index is not None and index < self.first:
            self.exploited, self.first = None, 0
        elif self.first == _ALL:
            self.first = event.first_index

    def own(self, trial: TrialRecord) -> set[int]:
        """Return the trial's own good checkpoints that are not superseded."""
        return {index for index in trial.checkpoints if index >= self.first}

    def unheard_of(
        self, event: AttemptStarted, trial: TrialRecord, stored: Mapping[int, Stored]
    ) -> set[int]:
        """Return those that were on storage, whole, and that no event told of."""
        return {
            index
            for index, one in stored.items()
            if one.is_verified
            and one.header is not None
            and one.header.attempt < event.attempt
            and self.first <= index < event.first_index
            and index not in self.deleted
            and one.name not in trial.bad
            and one.committed_s + SLACK_S < self.looked_s
        }


def wrong_in_start(
    event: AttemptStarted,
    trial: TrialRecord,
    origin: Origin,
    stored: Mapping[int, Stored],
    is_usable: IsUsable,
) -> Iterator[tuple[str, str]]:
    """Return what is wrong with an attempt's start: invariant and text."""
    exploited = origin.exploited
    if exploited is not None and not is_usable(exploited, trial):
        exploited = None
        origin.exploited, origin.first = None, 0
    good = origin.own(trial) | origin.unheard_of(event, trial, stored)
    newest = max(good, default=None)
    if event.checkpoint is None:
        yield from _wrong_at_beginning(event, trial, origin, newest)
    elif "/" in event.checkpoint:
        yield from _wrong_in_foreign(event.checkpoint, trial, origin, newest, is_usable)
    else:
        yield from _wrong_in_own(event, trial, origin, stored, newest)


def _wrong_at_beginning(
    event: AttemptStarted, trial: TrialRecord, origin: Origin, newest: int | None
) -> Iterator[tuple[str, str]]:
    causes = {fault.cause for fault in trial.faults}
    if newest is not None:
        yield "I2", f"starts at the beginning, and {checkpoint_name(newest)} is there"
    elif origin.exploited is not None:
        yield "I2", f"starts at the beginning, and the trial stands on {origin.exploited}"
    elif event.from_iteration:
        yield "I2", f"continues from iteration {event.from_iteration} without a checkpoint"
    elif (
        origin.committed
        and not origin.is_anew
        and causes.isdisjoint({Cause.CHECKPOINT_CORRUPT, Cause.CHECKPOINT_MISSING})
    ):
        yield "I8", "starts at the beginning, and no fault says what became of its checkpoints"


def _wrong_in_foreign(
    given: str, trial: TrialRecord, origin: Origin, newest: int | None, is_usable: IsUsable
) -> Iterator[tuple[str, str]]:
    if not is_usable(given, trial):
        yield "I2", f"continues from {given}, which is bad or deleted"
    elif given != origin.exploited:
        yield "I2", f"continues from {given}, and no change of its config said so"
    elif newest is not None:
        yield "I2", f"continues from {given}, and its own {checkpoint_name(newest)} is newer"


def _wrong_in_own(
    event: AttemptStarted,
    trial: TrialRecord,
    origin: Origin,
    stored: Mapping[int, Stored],
    newest: int | None,
) -> Iterator[tuple[str, str]]:
    given = event.checkpoint or ""
    index = index_of(given)
    one = None if index is None else stored.get(index)
    if index is None:
        yield "I2", f"continues from {given}, which is no checkpoint's name"
    elif given in trial.bad:
        yield "I2", f"continues from {given}, which is bad"
    elif index in origin.deleted:
        yield "I2", f"continues from {given}, which is deleted"
    elif newest is not None and index < newest:
        yield "I2", f"continues from {given}, and {checkpoint_name(newest)} is newer"
    elif index < origin.first:
        yield "I2", f"continues from {given}, and the trial stands on something else since"
    elif index not in trial.checkpoints and (one is None or not one.is_verified):
        yield "I2", f"continues from {given}, which nobody committed"
    else:
        header = one.header if one is not None else None
        known = trial.checkpoints.get(index)
        iteration = known.iteration if known else header.iteration if header else 0
        if iteration and iteration != event.from_iteration:
            text = f"continues from iteration {event.from_iteration} with {given}"
            yield "I2", f"{text}, which holds {iteration}"
