"""The oracle: whether an experiment, after whatever happened to it, is what was promised.

It reads an experiment's directory and says which of the invariants I1 to I8 do not hold. No Ray
here: it runs where the directory is, after the fact, and changes nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from raytrials import settings
from raytrials.chaos.oracle.course import Course
from raytrials.chaos.oracle.directory import OURS, Directory, Stored, TrialDirectory
from raytrials.chaos.oracle.outcome import is_settled, violations_at_the_end
from raytrials.chaos.oracle.storage import violations_on_storage
from raytrials.chaos.oracle.table import Outcome, differences
from raytrials.chaos.oracle.vanilla import violations_of_vanilla
from raytrials.chaos.oracle.violation import INVARIANTS, BrokenInvariantsError, Violation
from raytrials.core.event import DriverAttached, Event, Record, TrialAdded, TrialImported
from raytrials.errors import JournalCorruptError, NewerFormatError, NotAnExperimentError
from raytrials.store.disk import Disk
from raytrials.store.location import disk_at
from raytrials.store.segment import Reading

__all__ = ["INVARIANTS", "BrokenInvariantsError", "Oracle", "Violation"]


class Oracle:
    """Says which invariants do not hold in an experiment's directory.

    What it can see of each, and what it cannot. An experiment is *settled* when its latest driver
    detached in order; before that, what a driver may still have meant to write is not missed.

    - **I1** The number of trials, ids, configs (journal, `params.json`, Ray's state), the order
      after each driver's beginning, the cap on running trials. Trials that wait for a retry, are
      paused or need other resources may be overtaken. Not: which configs a searcher would have
      given; `against` shows that.
    - **I2** Each start, against the checkpoints that the journal knew then, and those of earlier
      attempts that are on storage still and were there, by the clocks, a second before the driver
      looked. Not: one that no event tells of and that is gone by now.
    - **I3** The journal's rows and both files, which agree once a trial has ended and the
      experiment is settled. Iterations count from 1 in steps of 1; a trainable that sets its own
      `training_iteration` cannot be checked. Not: rows between what a trial took over from another.
    - **I4** What the searcher was told, and decisions that were not carried out. Not: what is in
      searcher and scheduler; `against` shows what comes of it.
    - **I5** The ledger, as booked. Infrastructure may be charged as failure if the reason says who
      asked for it. Not: whether a cause is the true one.
    - **I6** Every byte of what is there now, and that each checkpoint is where and what the journal
      says. Not: whether one was there at every instant, nor whether bytes and manifest were both
      written again alike.
    - **I7** Events of a replaced driver, and checkpoints of another epoch than their attempt's or
      long after their driver was replaced. Not: a second driver that wrote nothing.
    - **I8** Damage that no driver recorded, torn files, trials that journal, storage and Ray's
      state do not all know, beginnings that nothing explains. Not: what left no trace at all.

    A trial that was imported is known from then on; of what came before, the outcome alone.

    Of a vanilla experiment Ray's files alone are read: I1, and of I2, I3, I6 and I8 what they show.

    Args:
        path: of the experiment: a local path, a URI, or a URL of fsspec.
        storage_filesystem: of pyarrow or fsspec; then `path` and `against` are paths on it.
        against: path of the same experiment, run without interruption: the final tables have to be
            equal, trial by trial in order, unless a driver recorded that the state of a part was
            lost. It makes sense for one slot and deterministic parts.
        num_samples: how many trials there have to be, all of them ended. Left out, the journal says
            how many there may be, and whether its driver took it for complete.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        storage_filesystem: Any = None,
        against: str | os.PathLike[str] | None = None,
        num_samples: int | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._filesystem = storage_filesystem
        self._against = against
        self._num_samples = num_samples

    def check(self) -> None:
        """Raise unless all invariants hold.

        Raises:
            BrokenInvariantsError: with all that do not.
            Exception: as :meth:`violations`.
        """
        found = self.violations()
        if found:
            raise BrokenInvariantsError(self._path, found)

    def violations(self) -> list[Violation]:
        """Return what does not hold, by invariant.

        Raises:
            NotAnExperimentError: there is nothing at the path.
            StorageError: the storage cannot be read, which says nothing of the experiment.
        """
        view = _View(*self._open(self._path))
        found = list(view.violations(self._num_samples))
        if self._against is not None:
            expected = _View(*self._open(os.fspath(self._against)))
            if not (view.course.state.lost or expected.course.state.lost):
                found += differences(view.table(), expected.table())
        return sorted(dict.fromkeys(found), key=lambda one: (one.invariant, one.trial_id or ""))

    def _open(self, location: str) -> tuple[Disk, str]:
        disk, path = disk_at(location, self._filesystem)
        path = path.rstrip("/") or path
        if not disk.list_names(path):
            raise NotAnExperimentError(location, "nothing is there")
        return disk, path


class _View:
    """An experiment as a whole: its directory, and its journal if it has one."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.directory = Directory.read(disk, path)
        self._reading = Reading(
            disk, f"{path}/{OURS}/journal", retry_s=settings.STORAGE_RETRY_S.get()
        )
        self._of_journal: list[Violation] = []
        self._records: list[Record] = []
        if self.directory.has_journal_directory:
            self._records = list(self._read())
        self._trial_of = _trial_of(self._records, self.directory)
        self.course = Course(self._stored(), self._trial_of)
        for record in self._records:
            self.course.take(record)

    def _read(self) -> Iterator[Record]:
        try:
            yield from self._reading
        except (JournalCorruptError, NewerFormatError) as error:
            self._of_journal.append(Violation("I8", None, str(error)))

    def _stored(self) -> Mapping[str, Mapping[int, Stored]]:
        found: dict[str, dict[int, Stored]] = {}
        for name, trial in self.directory.trials.items():
            if name in self._trial_of:
                found.setdefault(self._trial_of[name], {}).update(trial.checkpoints)
        return found

    def table(self) -> list[Outcome]:
        """Return the final table; the journal's if there is one."""
        if self._records:
            return [Outcome.of_record(trial) for trial in self.course.state.trials.values()]
        return [Outcome.of_ray(trial) for trial in self.directory.ray_trials or ()]

    def violations(self, num_samples: int | None) -> Iterator[Violation]:
        """Return what does not hold."""
        yield from self._of_journal
        if not self._records:
            if self.directory.is_ours:
                yield Violation(
                    "I8", None, "raytrials ran it, and no event of its journal is there"
                )
            yield from violations_of_vanilla(self.directory, num_samples)
            return
        yield from self._damage()
        if self._reading.fenced:
            text = f"{self._reading.fenced} events were written by drivers that had been replaced"
            yield Violation("I7", None, text)
        yield from self.course.violations
        yield from violations_at_the_end(self.course, num_samples)
        yield from violations_on_storage(self.course, self.directory, self._trial_of)

    def _damage(self) -> Iterator[Violation]:
        """Return damage that no driver recorded, unless the next one is still to come."""
        recorded = [
            (damage.get("file"), damage.get("offset"))
            for record in self._records
            if isinstance(record.event, DriverAttached)
            for damage in record.event.damage
        ]
        epoch = self.course.state.epoch
        for one in self._reading.damage:
            is_of_present = one.file.startswith(f"{epoch:06d}-")
            if is_of_present and not is_settled(self.course.state):
                continue
            if (one.file, one.offset) not in recorded and (one.file, None) not in recorded:
                text = f"{one.file} is damaged at {one.offset}, and no driver noted it"
                yield Violation("I8", None, f"{text}: {one.problem}")


def _trial_of(records: list[Record], directory: Directory) -> dict[str, str]:
    """Return which directory is which trial's: by the journal, Ray's state, results or its name."""
    states = dict(_states_in(record.event for record in records))
    ids = states.keys()
    by_journal = {name: one for one, state in states.items() if (name := _directory_in(state))}
    found: dict[str, str] = {}
    for name, trial in directory.trials.items():
        saved = directory.saved.get(name)
        by_ray = saved.trial_id if saved is not None else None
        candidates = [by_journal.get(name), by_ray, *_ids_in(trial)]
        named = [one for one in candidates if one is not None]
        known = [one for one in named if one in ids]
        if not known:
            known = sorted((one for one in ids if _is_part(one, name)), key=len)[-1:]
        if known or named:
            found[name] = (known or named)[0]
    return found


def _states_in(events: Iterable[Event]) -> Iterator[tuple[str, Any]]:
    for event in events:
        if isinstance(event, TrialAdded):
            yield event.trial_id, event.state
        elif isinstance(event, TrialImported):
            yield event.trial_id, event.record.get("state")


def _is_part(trial_id: str, name: str) -> bool:
    return trial_id in name and bool(
        re.search(rf"(?<![0-9A-Za-z]){re.escape(trial_id)}(?![0-9A-Za-z])", name)
    )


def _directory_in(state: Any) -> str | None:
    """Return the directory's name in what Ray made of a trial, if it stands there as JSON."""
    try:
        name = json.loads(state)["relative_logdir"]
    except (ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


def _ids_in(trial: TrialDirectory) -> Iterator[str]:
    for lines in trial.lines:
        yield from (str(row["trial_id"]) for row in lines.rows[:1] if row.get("trial_id"))
    for stored in trial.checkpoints.values():
        if stored.header is not None:
            yield stored.header.trial
