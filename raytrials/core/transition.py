"""What each event does to a trial: one table, and a function for each row.

A function first requires what has to hold, then changes the trial: an event that cannot follow
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from raytrials.core.event import (
    AttemptRestored,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointMarkedBad,
    DecisionMade,
    FaultRecorded,
    Record,
    ResultReported,
    RunnerAssigned,
    SearcherTold,
    TrialConfigChanged,
    TrialEvent,
    TrialFinished,
    TrialPaused,
    TrialResumed,
)
from raytrials.core.retry import Since
from raytrials.core.state import (
    CheckpointRecord,
    ExperimentState,
    Row,
    TrialRecord,
    withdraw,
)
from raytrials.core.status import Status
from raytrials.errors import IllegalEventError


def illegal(state: ExperimentState, record: Record, detail: str) -> IllegalEventError:
    """Return the error that tells why an event cannot follow, with the trial's story."""
    trial_id = getattr(record.event, "trial_id", None)
    trial = state.trials.get(trial_id) if trial_id else None
    story = tuple(f"{seq} {name}" for seq, name in trial.story) if trial else ()
    return IllegalEventError(type(record.event).__name__, record.seq, trial_id, detail, story)


class Step(NamedTuple):
    """What the fold is doing: one event on one trial."""

    state: ExperimentState
    record: Record
    trial: TrialRecord

    def require(self, holds: bool, detail: str) -> None:  # noqa: FBT001 - the point of it
        """Raise IllegalEventError unless the event can follow."""
        if not holds:
            raise illegal(self.state, self.record, detail)

    def enter(self, status: Status) -> None:
        """Change the trial's status."""
        self.trial.status = status
        if status is Status.RUNNING:
            self.state.running.add(self.trial.trial_id)
        else:
            self.state.running.discard(self.trial.trial_id)


def _on_assigned(step: Step, event: RunnerAssigned) -> None:
    latest = step.trial.attempt
    step.require(event.attempt == 0 or event.attempt > latest, f"its latest attempt is {latest}")
    # It stays: an attempt whose start was not recorded may have left a checkpoint.
    step.trial.reserved = max(step.trial.reserved, event.attempt)
    step.trial.runner = event.runner
    step.trial.assigned_seq = step.record.seq
    step.enter(Status.SCHEDULED)


def _on_started(step: Step, event: AttemptStarted) -> None:
    trial = step.trial
    foreign = event.checkpoint is not None and "/" in event.checkpoint
    step.require(event.attempt > trial.attempt, f"its latest attempt is {trial.attempt}")
    step.require(
        event.first_index >= trial.next_index, f"checkpoints below {trial.next_index} are taken"
    )
    step.require(
        event.from_iteration >= 0 and (foreign or event.from_iteration <= trial.high_water),
        f"it never came further than iteration {trial.high_water}",
    )
    step.enter(Status.RUNNING)
    if foreign and (trial.adopts_from > trial.attempt or trial.restored_from != event.checkpoint):
        # The first from there: what was told and decided before is of another history.
        trial.adopts_from = event.attempt
        trial.decided_iteration = trial.told_iteration = event.from_iteration
    trial.last_result = _continued_result(trial, event)
    trial.attempt = event.attempt
    trial.node_id = event.node_id
    trial.pid = event.pid
    trial.from_iteration = trial.iteration = event.from_iteration
    trial.high_water = max(trial.high_water, event.from_iteration)
    trial.restored_from = event.checkpoint
    trial.restored_metrics = (event.metrics or {}) if foreign else {}
    trial.is_restoring = event.checkpoint is not None
    trial.first_index = trial.next_index = event.first_index
    trial.started_s = step.record.time if trial.started_s is None else trial.started_s
    if trial.rows is not None:
        withdraw(trial.rows, event.from_iteration)


def _continued_result(trial: TrialRecord, event: AttemptStarted) -> Mapping[str, Any]:
    """Return the result that an attempt continues from."""
    if event.metrics is not None:
        return event.metrics
    if event.checkpoint is not None and "/" in event.checkpoint:
        return {}  # its own are of another history
    if event.from_iteration == trial.iteration:
        return trial.last_result
    for checkpoint in reversed(trial.checkpoints.values()):
        if checkpoint.iteration == event.from_iteration:
            return checkpoint.metrics
    return {}


def _on_restored(step: Step, event: AttemptRestored) -> None:
    step.require(event.attempt == step.trial.attempt, f"its attempt is {step.trial.attempt}")
    step.require(step.trial.is_restoring, "it has nothing to restore")
    _restored(step.trial)


def _restored(trial: TrialRecord) -> None:
    trial.is_restoring = False
    _came(trial, Since(restored=True))


def _came(trial: TrialRecord, what: Since) -> None:
    """Note a good restore or progress: behind the latest open charge, if there is one."""
    if trial.undecided:
        latest = next(reversed(trial.undecided))
        trial.undecided[latest] = trial.undecided[latest].then(
            restored=what.restored, progressed=what.progressed
        )
    else:
        trial.history = what.applied_to(trial.history)


def _on_reported(step: Step, event: ResultReported) -> None:
    trial = step.trial
    _require_attempt(step, event.attempt)
    if trial.is_restoring and event.attempt == trial.attempt:
        _restored(trial)
    if event.iteration > trial.high_water:
        trial.high_water = event.iteration
        _came(trial, Since(progressed=True))
    trial.iteration = event.iteration
    trial.result_seq = step.record.seq
    trial.last_result = event.metrics
    if trial.rows is not None:
        # A user's own `training_iteration` may stand still or go back: the later report counts.
        withdraw(trial.rows, event.iteration - 1)
        trial.rows.append(Row(event.iteration, event.attempt, step.record.time, event.metrics))


def _require_attempt(step: Step, attempt: int) -> None:
    """A running trial hears of its own attempt alone; one at rest may learn of what it missed."""
    trial = step.trial
    latest = trial.attempt
    step.require(
        0 < attempt == latest
        or (trial.status is not Status.RUNNING and 0 < attempt <= max(latest, trial.reserved)),
        f"its attempt is {latest}",
    )


def _on_committed(step: Step, event: CheckpointCommitted) -> None:
    trial = step.trial
    name = f"checkpoint_{event.index:06d}"
    last = max(trial.attempt, trial.reserved)
    step.require(0 < event.attempt <= last, f"its attempt is {trial.attempt}")
    step.require(name not in trial.bad, f"{name} was marked bad")
    if event.attempt >= trial.attempt:
        step.require(event.index >= trial.next_index, f"{trial.next_index} is the next free one")
        trial.next_index = event.index + 1
    else:
        step.require(
            event.index < trial.first_index and event.index not in trial.checkpoints,
            f"from {trial.first_index} on they are of attempt {trial.attempt}, and what is there "
            "is not written again",
        )
    metrics = trial.last_result if event.metrics is None else event.metrics
    trial.checkpoints[event.index] = CheckpointRecord(
        event.attempt, event.index, event.iteration, metrics
    )


def _on_marked_bad(step: Step, event: CheckpointMarkedBad) -> None:
    trial = step.trial
    if event.problem:
        trial.bad[event.checkpoint] = event.problem
        _move(event.checkpoint, trial.checkpoints, trial.rejected)
    else:
        trial.bad.pop(event.checkpoint, None)
        _move(event.checkpoint, trial.rejected, trial.checkpoints)


def _move(
    name: str, source: dict[int, CheckpointRecord], target: dict[int, CheckpointRecord]
) -> None:
    for index in [one for one in source if f"checkpoint_{one:06d}" == name]:
        target[index] = source.pop(index)
        target.update({one: target.pop(one) for one in sorted(target)})


def _on_deleted(step: Step, event: CheckpointDeleted) -> None:
    trial = step.trial
    step.require(
        trial.own_indices != {event.index}
        and (set(trial.checkpoints) != {event.index} or trial.stands_on_another),
        "it is the last one that the trial has",
    )
    trial.checkpoints.pop(event.index, None)
    trial.rejected.pop(event.index, None)


def _on_fault(step: Step, event: FaultRecorded) -> None:
    trial, number = step.trial, event.number
    settles = number in trial.undecided
    step.require(
        settles or number == len(trial.faults) + 1,
        f"it has {len(trial.faults)} faults, of which {sorted(trial.undecided)} are open",
    )
    step.require(
        not event.ends_attempt or settles or not trial.is_finished, f"the trial is {trial.status}"
    )
    # One that struck no attempt spends nothing, and waits for none.
    waits = settles or (event.decided and event.ends_attempt)
    is_next = not trial.undecided or number == min(trial.undecided)
    step.require(is_next or not waits, "one before it is still open")
    if settles:
        step.require(event.decided, "it is recorded already")
        trial.faults[number - 1] = event.fault
        del trial.undecided[number]
    else:
        trial.faults.append(event.fault)
        if not event.decided:
            trial.undecided[number] = Since()
        if event.ends_attempt and trial.status in {Status.RUNNING, Status.SCHEDULED}:
            step.enter(Status.PENDING)
            trial.is_restoring = False
    trial.history = event.history


def _on_paused(step: Step, event: TrialPaused) -> None:  # noqa: ARG001 - the table's signature
    step.enter(Status.PAUSED)
    step.trial.is_decision_open = False


def _on_config_changed(step: Step, event: TrialConfigChanged) -> None:
    trial = step.trial
    trial.config = event.config
    trial.tag = event.tag
    trial.resources = event.resources
    trial.state = event.state
    if event.checkpoint is not None:
        trial.restored_from = event.checkpoint
        trial.restored_metrics = event.metrics or {}
        trial.adopts_from = trial.attempt + 1


def _on_decision(step: Step, event: DecisionMade) -> None:
    trial = step.trial
    trial.decision = event.decision
    trial.decided_iteration = event.iteration
    trial.is_decision_open = event.decision in {"STOP", "PAUSE"}


def _on_told(step: Step, event: SearcherTold) -> None:
    trial = step.trial
    step.require(not trial.told_complete, "the searcher was told of its end")
    if event.call == "complete":
        trial.told_complete = True
    elif event.call == "result":
        trial.told_iteration = event.iteration


def _on_finished(step: Step, event: TrialFinished) -> None:
    step.require(event.status in Status.FINISHED, f"{event.status} is no end")
    step.enter(event.status)
    step.trial.reason = event.reason
    step.trial.analysis = event.analysis
    step.trial.is_decision_open = False
    step.trial.is_restoring = False
    step.trial.ended_s = step.record.time


def _on_resumed(step: Step, event: TrialResumed) -> None:
    trial = step.trial
    step.enter(Status.PENDING)
    trial.history = trial.history.renewed()
    trial.told_complete = False
    trial.reason = ""
    trial.analysis = {}
    trial.ended_s = None
    if event.anew:
        trial.restored_from = None
        trial.adopts_from = trial.attempt + 1


_ALL = frozenset(Status)
_UNFINISHED = _ALL - Status.FINISHED

TRANSITIONS: Mapping[type[TrialEvent], tuple[Collection[Status], Callable[[Step, Any], None]]] = {
    # event: the statuses in which it may come, what it does
    RunnerAssigned: (Status.RUNNABLE, _on_assigned),
    AttemptStarted: ({Status.SCHEDULED}, _on_started),
    AttemptRestored: ({Status.RUNNING}, _on_restored),
    ResultReported: (_UNFINISHED, _on_reported),
    CheckpointCommitted: (_ALL, _on_committed),
    CheckpointMarkedBad: (_ALL, _on_marked_bad),
    CheckpointDeleted: (_ALL, _on_deleted),
    FaultRecorded: (_ALL, _on_fault),
    TrialPaused: (_UNFINISHED - {Status.PAUSED}, _on_paused),
    TrialConfigChanged: (_UNFINISHED, _on_config_changed),
    DecisionMade: (_UNFINISHED, _on_decision),
    SearcherTold: (_ALL, _on_told),
    TrialFinished: (_UNFINISHED, _on_finished),
    TrialResumed: (Status.FINISHED, _on_resumed),
}
