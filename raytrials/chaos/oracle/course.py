"""What the events of a journal show as they come, one by one: the fold with a memory.

What a state no longer says is in `raytrials.chaos.oracle.notes`: the configs of a trial, from where
its attempts began to number their checkpoints, what the searcher was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from raytrials.chaos.oracle.charge import INFRASTRUCTURE, may_count, may_wait
from raytrials.chaos.oracle.directory import Stored
from raytrials.chaos.oracle.notes import Attempt, Notes
from raytrials.chaos.oracle.start import wrong_in_start
from raytrials.chaos.oracle.violation import Violation
from raytrials.core.event import (
    AttemptStarted,
    CheckpointCommitted,
    CheckpointDeleted,
    DecisionMade,
    DriverAttached,
    ExperimentCreated,
    FaultRecorded,
    Record,
    ResultReported,
    RunnerAssigned,
    SearcherTold,
    TrialAdded,
    TrialConfigChanged,
    TrialEvent,
    TrialFinished,
    TrialImported,
    TrialPaused,
    TrialResumed,
)
from raytrials.core.fault import Charge, ChargedFault
from raytrials.core.fold import apply
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status
from raytrials.errors import IllegalEventError
from raytrials.store.manifest import checkpoint_name

_BROKEN_BY: Mapping[str, str] = {
    "ExperimentCreated": "I8",
    "DriverAttached": "I7",
    "DriverDetached": "I7",
    "TrialAdded": "I1",
    "TrialImported": "I1",
    "RunnerAssigned": "I2",
    "AttemptStarted": "I2",
    "AttemptRestored": "I2",
    "ResultReported": "I3",
    "CheckpointCommitted": "I6",
    "CheckpointMarkedBad": "I6",
    "CheckpointDeleted": "I6",
    "FaultRecorded": "I5",
}
"""The invariant that an event which cannot follow breaks; I4 for those that are not here."""

_Wrong = Iterator[tuple[str, str]]


class Course:
    """The events of an experiment, folded one by one.

    Args:
        stored: checkpoints on storage, by trial and index.
        trial_of: from the name of a trial's directory to the trial.

    Attributes:
        state: what the events so far come to.
        notes: what is remembered beside, by trial.
        drivers: epoch and time of each driver's beginning.
        violations: found so far.
    """

    def __init__(
        self, stored: Mapping[str, Mapping[int, Stored]], trial_of: Mapping[str, str]
    ) -> None:
        self.state = ExperimentState(keeps_rows=True)
        self.notes: dict[str, Notes] = {}
        self.drivers: list[tuple[int, float]] = []
        self.violations: list[Violation] = []
        self._stored = stored
        self._trial_of = trial_of
        self._waiting: dict[str, int] = {}
        self._placed: set[str] = set()
        self._record: Record

    def take(self, record: Record) -> None:
        """Fold one more event."""
        event = record.event
        trial = self._trial(event.trial_id) if isinstance(event, TrialEvent) else None
        before = self._BEFORE.get(type(event))
        found = list(before(self, trial, event)) if before is not None and trial else []
        ignored = self.state.ignored
        try:
            apply(self.state, record)
        except IllegalEventError as error:
            self._note_illegal(record, error)
            return
        if self.state.ignored > ignored:
            self._break(None, "I7", f"event {record.seq} is of epoch {record.epoch}, replaced")
            self.state.seq = record.seq
            return
        for invariant, text in found:
            self._break(trial, invariant, text)
        after = self._AFTER.get(type(event))
        if after is not None:
            self._record = record
            after(self, event)

    def _trial(self, trial_id: str) -> TrialRecord | None:
        return self.state.trials.get(trial_id)

    def _break(self, trial: TrialRecord | None, invariant: str, text: str) -> None:
        self.violations.append(Violation(invariant, trial.trial_id if trial else None, text))

    def _note_illegal(self, record: Record, error: IllegalEventError) -> None:
        """Note an event that cannot follow; of a trial the first, which explains the others."""
        state = self.state
        kind = type(record.event)
        is_foreign = kind not in {ExperimentCreated, DriverAttached} and (
            not state.is_attached or record.epoch != state.epoch
        )
        invariant = "I7" if is_foreign else _BROKEN_BY.get(kind.__name__, "I4")
        notes = self.notes.get(error.trial_id) if error.trial_id else None
        if notes is None or not notes.is_broken:
            self.violations.append(Violation(invariant, error.trial_id, str(error)))
        if notes is not None:
            notes.is_broken = True
        # As if it had not been written, so that those behind it can be looked at.
        state.seq, state.time = record.seq, record.time

    # --- the experiment --------------------------------------------------------------------------

    def _after_attached(self, event: DriverAttached) -> None:  # noqa: ARG002 - as the others
        self.drivers.append((self._record.epoch, self._record.time))
        trials = [one for one in self.state.trials.values() if not one.is_finished]
        self._waiting = {
            one.trial_id: one.number
            for one in trials
            if one.status is not Status.PAUSED and not may_wait(one)
        }
        self._placed = {one.trial_id for one in trials if one.status is Status.SCHEDULED}
        for one in trials:
            self.notes[one.trial_id].origin.looked_s = self._record.time

    def _after_added(self, event: TrialAdded) -> None:
        if self._waiting:
            late = ", ".join(sorted(self._waiting, key=self._waiting.__getitem__))
            self._waiting.clear()
            added = self.state.trials[event.trial_id]
            self._break(added, "I1", f"it is added before unfinished ones have started: {late}")
        self.notes[event.trial_id] = Notes(configs=[event.config])

    def _after_imported(self, event: TrialImported) -> None:
        trial = self.state.trials[event.trial_id]
        charged = sum(fault.charge is Charge.FAILURE for fault in trial.faults)
        notes = Notes(
            configs=[trial.config],
            started_config=trial.config,
            imported=trial.attempt,
            before=trial.iteration,
            failures=max(0, trial.history.failures - charged),
        )
        if trial.adopts_from > trial.attempt:
            notes.origin.begin_anew()
        self.notes[event.trial_id] = notes

    # --- attempts --------------------------------------------------------------------------------

    def _after_assigned(self, event: RunnerAssigned) -> None:
        self._waiting.pop(event.trial_id, None)  # its actor is requested: it is in the line
        self._placed.add(event.trial_id)
        notes = self.notes[event.trial_id]
        notes.origin.looked_s = self._record.time
        if event.attempt:
            notes.reserved[event.attempt] = self._record.epoch

    def _before_started(self, trial: TrialRecord, event: Any) -> _Wrong:
        notes = self.notes[trial.trial_id]
        for other_id, number in self._waiting.items():
            other = self.state.trials[other_id]
            same = other.resources == trial.resources
            if number < trial.number and other_id not in self._placed and same:
                yield "I1", f"its attempt {event.attempt} starts before {other_id}, which is older"
                break
        for invariant, text in wrong_in_start(
            event, trial, notes.origin, self._stored.get(trial.trial_id, {}), self._is_usable
        ):
            yield invariant, f"attempt {event.attempt} {text}"

    def _is_usable(self, checkpoint: str, trial: TrialRecord) -> bool:
        """Return whether another trial's checkpoint is neither bad nor deleted."""
        directory, _, name = checkpoint.rpartition("/")
        owner = self._trial(self._trial_of.get(directory, ""))
        if checkpoint in trial.bad:
            return False
        if owner is None:
            return True
        names = {checkpoint_name(index) for index in self.notes[owner.trial_id].origin.deleted}
        return name not in owner.bad and name not in names

    def _after_started(self, event: AttemptStarted) -> None:
        notes = self.notes[event.trial_id]
        self._waiting.pop(event.trial_id, None)
        notes.attempts.append(Attempt(event.attempt, event.first_index, self._record.epoch))
        notes.started_config = notes.configs[-1]
        notes.reported = (event.attempt, event.from_iteration)
        notes.before = min(notes.before, event.from_iteration)
        if event.checkpoint is not None and "/" in event.checkpoint:
            notes.took_over = True
            notes.told.clear()
        notes.origin.started(event)
        running, limit = len(self.state.running), self.state.max_concurrent
        if limit is not None and running > limit:
            self._break(
                None, "I1", f"{running} trials run at event {self._record.seq}, {limit} may"
            )

    # --- results ---------------------------------------------------------------------------------

    def _before_reported(self, trial: TrialRecord, event: Any) -> _Wrong:
        notes = self.notes[trial.trial_id]
        attempt, latest = notes.reported
        if event.attempt == attempt and event.iteration <= latest:
            yield "I3", f"iteration {event.iteration} comes after {latest}, in one attempt"
        if trial.is_decision_open and event.iteration > trial.decided_iteration:
            open_one = f"{trial.decision} was decided at {trial.decided_iteration}"
            yield "I4", f"it reports iteration {event.iteration}, and {open_one}"
        notes.reported = (event.attempt, event.iteration)

    def _before_told(self, trial: TrialRecord, event: Any) -> _Wrong:
        told = self.notes[trial.trial_id].told
        if event.call != "complete":
            if event.iteration in told:
                yield "I4", f"the searcher was told of iteration {event.iteration} twice"
            told.add(event.iteration)

    def _before_decision(self, trial: TrialRecord, event: Any) -> _Wrong:
        if trial.is_decision_open and event.iteration > trial.decided_iteration:
            open_one = f"{trial.decision} at iteration {trial.decided_iteration}"
            yield "I4", f"{event.decision} is decided at {event.iteration}, and {open_one} is open"

    def _after_config(self, event: TrialConfigChanged) -> None:
        notes = self.notes[event.trial_id]
        notes.configs.append(event.config)
        if event.checkpoint is not None:
            notes.origin.take_over(event.checkpoint)

    # --- checkpoints and faults ------------------------------------------------------------------

    def _after_committed(self, event: CheckpointCommitted) -> None:
        self.notes[event.trial_id].origin.committed.add(event.index)

    def _before_deleted(self, trial: TrialRecord, event: Any) -> _Wrong:
        name = checkpoint_name(event.index)
        for other in self.state.trials.values():
            directory, _, used = (other.restored_from or "").rpartition("/")
            is_used = used == name and self._trial_of.get(directory) == trial.trial_id
            own = self.notes[other.trial_id].origin.own(other)
            if is_used and not own and not other.is_finished:
                yield "I6", f"{name} is deleted, and {other.trial_id} stands on it"

    def _after_deleted(self, event: CheckpointDeleted) -> None:
        self.notes[event.trial_id].origin.deleted.add(event.index)

    def _before_fault(self, trial: TrialRecord, event: Any) -> _Wrong:
        fault: ChargedFault = event.fault
        if event.decided and fault.charge is Charge.FAILURE and fault.cause in INFRASTRUCTURE:
            earlier = trial.faults[: event.number - 1]
            if not may_count(fault, earlier):
                yield "I5", f"fault {event.number} is charged as a failure: {fault.reason!r}"

    def _after_fault(self, event: FaultRecorded) -> None:
        if event.ends_attempt:
            self._waiting.pop(event.trial_id, None)

    def _after_rest(self, event: TrialPaused | TrialFinished) -> None:
        self._waiting.pop(event.trial_id, None)

    def _after_resumed(self, event: TrialResumed) -> None:
        notes = self.notes[event.trial_id]
        notes.failures = 0
        notes.renewed = len(self.state.trials[event.trial_id].faults)
        if event.anew:
            notes.origin.begin_anew()
            notes.told.clear()

    _BEFORE: ClassVar[Mapping[type, Callable[[Course, TrialRecord, Any], _Wrong]]] = {
        AttemptStarted: _before_started,
        ResultReported: _before_reported,
        SearcherTold: _before_told,
        DecisionMade: _before_decision,
        CheckpointDeleted: _before_deleted,
        FaultRecorded: _before_fault,
    }
    """What is looked at before an event is folded: invariant and text of what is wrong."""

    _AFTER: ClassVar[Mapping[type, Callable[[Course, Any], None]]] = {
        DriverAttached: _after_attached,
        TrialAdded: _after_added,
        TrialImported: _after_imported,
        RunnerAssigned: _after_assigned,
        AttemptStarted: _after_started,
        TrialConfigChanged: _after_config,
        CheckpointCommitted: _after_committed,
        CheckpointDeleted: _after_deleted,
        FaultRecorded: _after_fault,
        TrialPaused: _after_rest,
        TrialFinished: _after_rest,
        TrialResumed: _after_resumed,
    }
    """What is looked at and remembered when it is."""
