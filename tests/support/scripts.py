"""Events as a driver writes them: any that may follow, by chance."""

from __future__ import annotations

import random
from collections.abc import Callable

from raytrials.core.event import (
    AttemptStarted,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointMarkedBad,
    DecisionMade,
    Event,
    FaultRecorded,
    ResultReported,
    RunnerAssigned,
    SchedulerActed,
    SchedulerCalled,
    SearcherTold,
    TrialAdded,
    TrialConfigChanged,
    TrialFinished,
    TrialPaused,
    TrialResumed,
)
from raytrials.core.fault import Cause, Charge, ChargedFault, FaultClass, Phase
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status

TRIALS = 4


def next_event(state: ExperimentState, luck: random.Random) -> Event:
    """An event that can follow in a state with a driver."""
    if not state.trials or (len(state.trials) < TRIALS and luck.random() < 0.2):
        config = {"lr": luck.random(), "name": 'a "b"\n\\ ä \u2028 \0'}
        return TrialAdded(f"trial{len(state.trials)}", config, "tag", [{"CPU": 1.0}], "opaque")
    if luck.random() < 0.05:
        trial_id = luck.choice(sorted(state.trials))
        if state.seq % 2:
            return SchedulerCalled("result", trial_id, {trial_id: "RUNNING"})
        return SchedulerActed("resolve", trial_id, ["checkpoint", 1])
    trial = state.trials[luck.choice(sorted(state.trials))]
    return luck.choice(_EVENTS[trial.status])(trial, luck)


def _assigned(trial: TrialRecord, luck: random.Random) -> Event:
    return RunnerAssigned(trial.trial_id, "ANY")


def _started(trial: TrialRecord, luck: random.Random) -> Event:
    begin = luck.randint(0, trial.high_water)
    return AttemptStarted(
        trial.trial_id, trial.attempt + 1, "node", 17, begin, trial.next_index + luck.randint(0, 2)
    )


def _reported(trial: TrialRecord, luck: random.Random) -> Event:
    metrics = {"loss": luck.random(), "word": "é"}
    return ResultReported(trial.trial_id, trial.attempt, trial.iteration + 1, metrics)


def _committed(trial: TrialRecord, luck: random.Random) -> Event:
    return CheckpointCommitted(trial.trial_id, trial.attempt, trial.next_index, trial.iteration)


def _marked_bad(trial: TrialRecord, luck: random.Random) -> Event:
    if not trial.next_index:
        return SearcherTold(trial.trial_id, "result", trial.iteration)
    index = luck.randrange(trial.next_index)
    return CheckpointMarkedBad(trial.trial_id, f"checkpoint_{index:06d}", "a byte")


def _deleted(trial: TrialRecord, luck: random.Random) -> Event:
    if len(trial.checkpoints) < 2:
        return SearcherTold(trial.trial_id, "result", trial.iteration)
    return CheckpointDeleted(trial.trial_id, min(trial.checkpoints))


def _decided(trial: TrialRecord, luck: random.Random) -> Event:
    return DecisionMade(trial.trial_id, trial.iteration, luck.choice(("CONTINUE", "STOP", "PAUSE")))


def _changed(trial: TrialRecord, luck: random.Random) -> Event:
    return TrialConfigChanged(trial.trial_id, {"lr": luck.random()}, "new", [{"CPU": 2.0}])


def _failed(trial: TrialRecord, luck: random.Random) -> Event:
    fault = ChargedFault(
        trial.trial_id,
        trial.attempt,
        FaultClass.ACTOR,
        Phase.RUNNING,
        Cause.NODE_LOST,
        "node",
        "gone",
        2.5,
        charge=Charge.INFRASTRUCTURE,
        reason="free",
    )
    return FaultRecorded(trial.trial_id, len(trial.faults) + 1, fault, trial.history)


def _paused(trial: TrialRecord, luck: random.Random) -> Event:
    return TrialPaused(trial.trial_id)


def _finished(trial: TrialRecord, luck: random.Random) -> Event:
    return TrialFinished(trial.trial_id, Status.SUCCEEDED, "the stopper said so")


def _resumed(trial: TrialRecord, luck: random.Random) -> Event:
    return TrialResumed(trial.trial_id, anew=luck.random() < 0.5)


_Make = Callable[[TrialRecord, random.Random], Event]
_RUNNABLE: tuple[_Make, ...] = (_assigned, _assigned, _assigned, _changed)
_EVENTS: dict[Status, tuple[_Make, ...]] = {
    Status.PENDING: _RUNNABLE,
    Status.INTERRUPTED: _RUNNABLE,
    Status.PAUSED: _RUNNABLE,
    Status.SCHEDULED: (_started,),
    Status.RUNNING: (
        *(_reported,) * 6,
        *(_committed,) * 3,
        *(_deleted, _decided, _marked_bad, _failed, _paused, _finished),
    ),
    **dict.fromkeys(Status.FINISHED, (_resumed, _marked_bad)),
}
