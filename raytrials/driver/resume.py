"""What a driver takes over from the one before: trials, searcher, stopper, and their order."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ray.tune import ResumeConfig

from raytrials import _ray, settings
from raytrials.core.event import (
    AttemptStarted,
    DecisionMade,
    DriverAttached,
    DriverDetached,
    Record,
    ResultReported,
)
from raytrials.core.state import Row, withdraw
from raytrials.errors import JournalCorruptError
from raytrials.store.disk import Disk
from raytrials.store.recovery import HOME, JOURNAL
from raytrials.store.segment import Reading

logger = logging.getLogger(__name__)


def rows_of(disk: Disk, experiment_path: str, trial_ids: Collection[str]) -> dict[str, list[Row]]:
    """Return the histories of some trials, read from the journal.

    Args:
        disk: where the experiment is.
        experiment_path: its directory there.
        trial_ids: of the trials.

    Returns:
        As much as can be read: what a damaged journal has lost is missing, and logged.
    """
    rows: dict[str, list[Row]] = {trial_id: [] for trial_id in trial_ids}
    if not rows:
        return rows
    wanted = re.compile(b"|".join(re.escape(f'"trial_id":"{one}"'.encode()) for one in rows))
    reading = Reading(
        disk,
        f"{experiment_path}/{HOME}/{JOURNAL}",
        retry_s=settings.STORAGE_RETRY_S.get(),
        wanted=wanted,
    )
    try:
        for record in reading:
            event = record.event
            own = rows.get(getattr(event, "trial_id", ""))
            if own is None:
                continue  # one of them is named in it, as whom another trial was cloned from
            if isinstance(event, AttemptStarted):
                withdraw(own, event.from_iteration)
            elif isinstance(event, ResultReported):
                withdraw(own, event.iteration - 1)
                own.append(Row(event.iteration, event.attempt, record.time, event.metrics))
    except JournalCorruptError as error:
        logger.warning("Part of the trials' histories cannot be read: %s", error)
    return rows


def running_s(records: Iterable[Record]) -> float:
    """Return how long drivers were at work while these events happened, in seconds."""
    total_s, since_s = 0.0, None
    for record in records:
        if since_s is not None and not isinstance(record.event, DriverAttached):
            total_s += max(0.0, record.time - since_s)
        since_s = None if isinstance(record.event, DriverDetached) else record.time
    return total_s


def replay_stopper(
    stopper: Any, records: Sequence[Record], results: Mapping[str, Mapping[str, Any]]
) -> None:
    """Tell a stopper what it was told after its state was saved.

    Args:
        stopper: as it was saved.
        records: the events since then.
        results: the latest result of each trial then.
    """
    latest = dict(results)
    for record in records:
        event = record.event
        if isinstance(event, ResultReported):
            latest[event.trial_id] = event.metrics
        elif isinstance(event, DecisionMade):
            stopper(event.trial_id, dict(latest.get(event.trial_id, {})))
    _ray.charge_time(stopper, running_s(records))


def kind_for(status: str, resume_config: ResumeConfig) -> ResumeConfig.ResumeType:
    """Return what is to become of a restored trial with a status of Ray's."""
    if status == _ray.Trial.ERROR:
        return resume_config.errored
    if status == _ray.Trial.TERMINATED:
        return resume_config.finished
    return resume_config.unfinished
