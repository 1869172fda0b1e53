"""From what is on storage to the state of an experiment: the newest whole snapshot, and the tail.

Nothing here writes. The layout is that of `docs/formats.md`: `journal/` and `snapshots/` below the
directory that is given.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raytrials.core.event import Record
from raytrials.core.fold import apply
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.errors import JournalCorruptError, StorageError
from raytrials.store import segment
from raytrials.store import snapshot as snapshots
from raytrials.store.disk import Disk
from raytrials.store.record import NotARecordError, UnknownEventError, place_of
from raytrials.store.retrying import retry
from raytrials.store.segment import Damage, Reading, segments_among
from raytrials.store.snapshot import DamagedSnapshotError, Snapshot, SnapshotName

HOME = ".raytrials"
"""Our directory in an experiment's."""

JOURNAL = segment.JOURNAL
SNAPSHOTS = "snapshots"
LEASE = "lease"


@dataclass(frozen=True)
class Recovered:
    """An experiment as it was when its last driver went.

    Attributes:
        state: what its events came to.
        parts: what the snapshot holds beside, by name; empty without one.
        parts_seq: the last event that is in those; 0 without a snapshot.
        results: the latest result of each trial that had not ended then, by its id.
        before: what was known then of the trials that the events after that are about.
        tail: those events, in order: what the parts have to be told.
        damage: what was found damaged and passed over, for the driver to record.
    """

    state: ExperimentState
    parts: Mapping[str, bytes] = field(default_factory=dict)
    parts_seq: int = 0
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    before: Mapping[str, TrialRecord] = field(default_factory=dict)
    tail: tuple[Record, ...] = ()
    damage: tuple[Damage, ...] = ()


def has_journal(disk: Disk, home: str, *, retry_s: float = 0) -> bool:
    """Return whether there is anything to recover.

    A driver that dies before its first event is durable leaves an empty segment, or part of that
    event. Nobody was told of it, and the next driver begins anew.

    Args:
        disk: where the experiment is.
        home: its `.raytrials`.
        retry_s: how long a storage that fails is tried again.

    Raises:
        NewerFormatError: an event is of a newer version.
        StorageError: the storage failed for good.
    """
    segments = segments_among(_names(disk, f"{home}/{JOURNAL}", retry_s))
    if any(one.first > 1 for one in segments):
        return True
    names = snapshots.names_in(disk, f"{home}/{SNAPSHOTS}", retry_s=retry_s)
    if any(one.seq for one in names):  # the one of a beginning is written before the first event
        return True
    return any(_holds_event(disk, f"{home}/{JOURNAL}/{one.name}", retry_s) for one in segments)


def _holds_event(disk: Disk, path: str, retry_s: float) -> bool:
    data = retry(disk, "reading", path, functools.partial(disk.read, path), limit_s=retry_s)
    *whole, rest = data.split(b"\n")
    if len(whole) > 1:
        return True  # also if all are damaged: no driver that dies leaves several
    for line in (*whole, rest):
        try:
            place_of(line)
        except UnknownEventError:
            return True
        except NotARecordError as error:
            if error.holds:
                return True
        else:
            return True
    return False


def recover(disk: Disk, home: str, *, retry_s: float = 0) -> Recovered:
    """Return the state of an experiment: the newest whole snapshot with the events after it.

    When a snapshot is damaged the one before it is used, in the end the journal alone, and the
    damage is named: nothing is lost with it.

    Args:
        disk: where the experiment is.
        home: its `.raytrials`.
        retry_s: how long a storage that fails is tried again.

    Raises:
        JournalCorruptError: events are missing or damaged that no whole snapshot holds, or there
            are none at all.
        NewerFormatError: a file is of a newer version.
        IllegalEventError: the events contradict each other: a mistake in raytrials.
        StorageError: the storage failed for good.
    """
    damage: list[Damage] = []
    segments = segments_among(_names(disk, f"{home}/{JOURNAL}", retry_s))
    base = None
    for name in snapshots.names_in(disk, f"{home}/{SNAPSHOTS}", retry_s=retry_s):
        if name.is_replaced(segments):
            continue
        base = _read(disk, f"{home}/{SNAPSHOTS}", name, retry_s, damage)
        if base is not None:
            break
    state = base.state if base is not None else ExperimentState()
    after = state.seq
    results = {
        one.trial_id: one.last_result for one in state.trials.values() if not one.is_finished
    }
    reading = Reading(disk, f"{home}/{JOURNAL}", after=after, retry_s=retry_s)
    tail: list[Record] = []
    before: dict[str, TrialRecord] = {}
    for record in reading:
        _keep(state, record, before)
        apply(state, record)
        tail.append(record)
    if not state.seq:
        beside = f" ({'; '.join(one.problem for one in damage)})" if damage else ""
        raise JournalCorruptError(f"{home}/{JOURNAL}", None, f"it holds no event{beside}")
    return Recovered(
        state=state,
        parts=base.parts if base is not None else {},
        parts_seq=after,
        results=results,
        before=before,
        tail=tuple(tail),
        damage=(*damage, *reading.damage),
    )


def _keep(state: ExperimentState, record: Record, before: dict[str, TrialRecord]) -> None:
    """Keep what is known of the trial of an event, if it is the first about it."""
    trial_id = getattr(record.event, "trial_id", None)
    trial = state.trials.get(trial_id) if trial_id else None
    if trial is not None and trial.trial_id not in before:
        before[trial.trial_id] = kept = copy.copy(trial)
        kept.checkpoints = dict(trial.checkpoints)


def _names(disk: Disk, directory: str, retry_s: float) -> set[str]:
    return retry(disk, "listing", directory, lambda: disk.list_names(directory), limit_s=retry_s)


def _read(
    disk: Disk, directory: str, name: SnapshotName, retry_s: float, damage: list[Damage]
) -> Snapshot | None:
    try:
        return snapshots.read(disk, directory, name, retry_s=retry_s)
    except DamagedSnapshotError as error:
        problem = str(error)
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        problem = "it is gone"
    damage.append(Damage(str(name), None, 0, problem))
    return None


def highest_epoch(disk: Disk, home: str, *, retry_s: float = 0) -> int:
    """Return the highest epoch that ever wrote a journal or a snapshot; 0 if none did.

    The next lease has to be above it, also when the leases are gone.
    """
    segments = segments_among(_names(disk, f"{home}/{JOURNAL}", retry_s))
    names = snapshots.names_in(disk, f"{home}/{SNAPSHOTS}", retry_s=retry_s)
    return max([one.epoch for one in segments] + [one.epoch for one in names], default=0)
