"""From events to state: the one place where what is known of an experiment changes.

The live driver and a recovery apply the same events through :func:`apply`, so they cannot differ.
It is deterministic, costs the same however many trials there are, and takes any event in any state:
one that cannot follow is an :class:`raytrials.errors.IllegalEventError` that tells the trial's
story, and leaves the state as it was. What an event does to its trial is the table in
`raytrials.core.transition`; what has to hold in every state is `raytrials.core.invariant`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raytrials.core.event import (
    DriverAttached,
    DriverDetached,
    Event,
    ExperimentCreated,
    FilesMirrored,
    Record,
    SchedulerActed,
    SchedulerCalled,
    StateLost,
    TrialAdded,
    TrialEvent,
    TrialImported,
)
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status
from raytrials.core.transition import TRANSITIONS, Step, illegal


def fold(records: Iterable[Record], state: ExperimentState | None = None) -> ExperimentState:
    """Return what events come to.

    Args:
        records: in the order of the journal.
        state: what the events before them came to; it is changed. None for nothing.

    Raises:
        IllegalEventError: an event cannot follow those before it.
    """
    state = ExperimentState() if state is None else state
    for record in records:
        apply(state, record)
    return state


def apply(state: ExperimentState, record: Record) -> None:
    """Change `state` by one event.

    An event of an epoch before the state's own is ignored: its driver had been replaced.

    Raises:
        IllegalEventError: it cannot follow; the state is as before.
    """
    if record.epoch < state.epoch:
        state.ignored += 1
        return
    event = record.event
    if record.seq != state.seq + 1:
        raise illegal(state, record, f"the event before it is {state.seq}")
    if isinstance(event, TrialEvent):
        _apply_to_trial(state, record, event)
    else:
        _OF_EXPERIMENT[type(event)](state, record, event)
    state.seq = record.seq
    state.time = record.time


# --- the experiment ----------------------------------------------------------------------------


def _on_created(state: ExperimentState, record: Record, event: ExperimentCreated) -> None:
    if state.seq:
        raise illegal(state, record, "the experiment exists already")
    state.epoch = record.epoch
    state.experiment = event.experiment
    state.name = event.name
    state.seed = event.seed
    state.param_space = event.param_space


def _on_attached(state: ExperimentState, record: Record, event: DriverAttached) -> None:
    if not state.experiment:
        raise illegal(state, record, "no experiment was created")
    if record.epoch <= state.epoch and state.drivers:
        raise illegal(state, record, f"a driver of epoch {state.epoch} was there before")
    _interrupt(state, record)
    state.epoch = record.epoch
    state.is_attached = True
    state.drivers += 1
    state.num_samples = event.num_samples
    state.max_concurrent = event.max_concurrent
    state.metric = event.metric
    state.mode = event.mode
    state.reason = ""


def _on_detached(state: ExperimentState, record: Record, event: DriverDetached) -> None:
    _require_driver(state, record)
    _interrupt(state, record)
    state.is_attached = False
    state.reason = event.reason


def _on_called(
    state: ExperimentState, record: Record, event: SchedulerCalled | SchedulerActed
) -> None:
    _require_driver(state, record)
    if event.trial_id is not None and event.trial_id not in state.trials:
        raise illegal(state, record, "there is no such trial")


def _on_lost(state: ExperimentState, record: Record, event: StateLost) -> None:
    _require_driver(state, record)
    state.lost[event.part] = event.detail


def _on_mirrored(state: ExperimentState, record: Record, event: FilesMirrored) -> None:
    _require_driver(state, record)
    if event.seq >= record.seq:
        raise illegal(state, record, f"event {event.seq} is not before it")
    state.mirrored_seq = max(state.mirrored_seq, event.seq)


def _interrupt(state: ExperimentState, record: Record) -> None:
    for trial_id in state.running:
        trial = state.trials[trial_id]
        trial.status = Status.INTERRUPTED
        trial.story.append((record.seq, type(record.event).__name__))
    state.running.clear()


def _require_driver(state: ExperimentState, record: Record) -> None:
    if not state.is_attached:
        raise illegal(state, record, "no driver is attached")
    if record.epoch != state.epoch:
        raise illegal(state, record, f"the driver's epoch is {state.epoch}, not {record.epoch}")


_OF_EXPERIMENT: Mapping[type[Event], Callable[[ExperimentState, Record, Any], None]] = {
    ExperimentCreated: _on_created,
    DriverAttached: _on_attached,
    DriverDetached: _on_detached,
    SchedulerCalled: _on_called,
    SchedulerActed: _on_called,
    StateLost: _on_lost,
    FilesMirrored: _on_mirrored,
}


# --- a trial -----------------------------------------------------------------------------------


def _apply_to_trial(state: ExperimentState, record: Record, event: TrialEvent) -> None:
    _require_driver(state, record)
    if isinstance(event, TrialAdded):
        trial = _added(state, record, event)
    elif isinstance(event, TrialImported):
        trial = _imported(state, record, event)
    else:
        found = state.trials.get(event.trial_id)
        if found is None:
            raise illegal(state, record, "there is no such trial")
        trial = found
        allowed, change = TRANSITIONS[type(event)]
        if trial.status not in allowed:
            raise illegal(state, record, f"the trial is {trial.status}")
        change(Step(state, record, trial), event)
    trial.story.append((record.seq, type(event).__name__))


def _added(state: ExperimentState, record: Record, event: TrialAdded) -> TrialRecord:
    if event.trial_id in state.trials:
        raise illegal(state, record, "there is such a trial already")
    trial = TrialRecord(
        trial_id=event.trial_id,
        number=len(state.trials),
        config=event.config,
        tag=event.tag,
        resources=event.resources,
        state=event.state,
        rows=[] if state.keeps_rows else None,
    )
    state.trials[trial.trial_id] = trial
    return trial


def _imported(state: ExperimentState, record: Record, event: TrialImported) -> TrialRecord:
    known = state.trials.get(event.trial_id)
    try:
        trial = TrialRecord.from_json(event.record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise illegal(state, record, f"its record cannot be read: {error!r}") from error
    if trial.trial_id != event.trial_id or trial.status is Status.RUNNING:
        raise illegal(state, record, "its record is of another trial, or of a running one")
    trial.number = len(state.trials)
    trial.rows = [] if state.keeps_rows else None
    if known is not None:
        if known.is_finished or known.status is Status.RUNNING:
            raise illegal(state, record, f"the trial is {known.status}")
        if (
            trial.attempt < max(known.attempt, known.reserved)
            or trial.next_index < known.next_index
            or trial.high_water < known.high_water
        ):
            raise illegal(state, record, "its record is behind what is known of it")
        trial.number, trial.rows, trial.story = known.number, known.rows, known.story
    state.trials[trial.trial_id] = trial
    return trial
