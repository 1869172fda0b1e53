"""Events by chance: a :class:`Walk` of legal ones, and anything at all.

Both are driven by a seed alone, so what a seed found can be told again.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from raytrials.core.event import (
    EVENTS,
    AttemptRestored,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointMarkedBad,
    DecisionMade,
    DriverAttached,
    DriverDetached,
    Event,
    ExperimentCreated,
    FaultRecorded,
    FilesMirrored,
    Record,
    ResultReported,
    RunnerAssigned,
    SchedulerActed,
    SchedulerCalled,
    SearcherTold,
    StateLost,
    TrialAdded,
    TrialConfigChanged,
    TrialFinished,
    TrialImported,
    TrialPaused,
    TrialResumed,
)
from raytrials.core.fault import Cause, Charge, ChargedFault, Fault, FaultClass, Phase
from raytrials.core.fold import apply
from raytrials.core.retry import History, RetryPolicy
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status

_NOTES = ("", "ü\u2028\0\n", "\ud800")
FINISH = (Status.SUCCEEDED, Status.FAILED, Status.ABORTED)
CAUSES = (Cause.USER_CODE, Cause.NODE_LOST, Cause.PREEMPTED, Cause.CHECKPOINT_CORRUPT)


def dump(state: ExperimentState) -> str:
    """All that a snapshot keeps of a state, as text: a NaN is equal to itself there."""
    trials = [trial.to_json() for trial in state.trials.values()]
    return json.dumps([state.to_json(), trials, sorted(state.running)])


def dump_rows(state: ExperimentState) -> str:
    """The histories of all trials, as text."""
    return json.dumps({trial_id: trial.rows for trial_id, trial in state.trials.items()})


def copy_of(state: ExperimentState) -> ExperimentState:
    """The state as a snapshot brings it back: without rows and stories."""
    trials = [json.loads(json.dumps(trial.to_json())) for trial in state.trials.values()]
    return ExperimentState.from_json(
        json.loads(json.dumps(state.to_json())), [TrialRecord.from_json(one) for one in trials]
    )


def fault(
    trial_id: str = "a", attempt: int = 1, cause: Cause = Cause.USER_CODE, **changes: Any
) -> ChargedFault:
    kinds = {
        Cause.USER_CODE: FaultClass.TRAINING,
        Cause.CHECKPOINT_CORRUPT: FaultClass.RESTORE,
    }
    kind = kinds.get(cause, FaultClass.ACTOR)
    phase = Phase.RESTORING if kind is FaultClass.RESTORE else Phase.RUNNING
    found = Fault(trial_id, attempt, kind, phase, cause, "node", "it brøke", 1.5, ("E", "X"), 1)
    charged = ChargedFault.book(found, Charge.FAILURE, "counted")
    return dataclasses.replace(charged, **changes)


class Walk:
    """An experiment with several drivers that goes on and on, by chance.

    Each event can follow those before it, and is what a driver could have written. Trials come and
    end, fail with charges that stay open, exploit one another and are resumed; drivers die and
    detach.

    Args:
        seed: all of it follows from this.
        keeps_rows: of the state.

    Attributes:
        state: what the events so far came to.
    """

    def __init__(self, seed: int, *, keeps_rows: bool = True) -> None:
        self.luck = random.Random(seed)
        self.state = ExperimentState(keeps_rows=keeps_rows)
        self._time = 1.7e9

    def step(self) -> Record:
        """Make the next event, apply it and return it."""
        epoch, event = self._next()
        self._time += self.luck.choice((0.0, 0.25, 3.0, 3.0, -60.0))
        record = Record(self.state.seq + 1, epoch, round(self._time, 6), event)
        apply(self.state, record)
        return record

    def steps(self, count: int) -> list[Record]:
        return [self.step() for _ in range(count)]

    def events(self, count: int) -> list[Event]:
        """What one driver writes, once it has attached: for tests of what is behind the fold."""
        return [record.event for record in self.steps(count)]

    def _next(self) -> tuple[int, Event]:
        state, luck = self.state, self.luck
        if not state.seq:
            created = ExperimentCreated(
                f"id{luck.random()}", "näme", luck.getrandbits(32), {"x": 1}
            )
            return luck.randint(1, 3), created
        if not state.is_attached or luck.random() < 0.02:
            epoch = state.epoch + (luck.randint(1, 3) if state.drivers else luck.randint(0, 2))
            return epoch, self._attached()
        if luck.random() < 0.02:
            return state.epoch, DriverDetached(luck.choice(("SIGTERM", "done")))
        if luck.random() < 0.05:
            return state.epoch, self._scheduled()
        if luck.random() < 0.01:
            return state.epoch, StateLost(luck.choice(("searcher", "stopper")), "it has a lock")
        if luck.random() < 0.01:
            return state.epoch, FilesMirrored(luck.randint(0, state.seq))
        if luck.random() < 0.05 and self._may_add():
            return state.epoch, self._imported()
        while True:
            maker = luck.choices(_MAKERS, _WEIGHTS)[0]
            trial = luck.choice(list(state.trials.values())) if state.trials else None
            event = maker(self, trial) if trial or maker is Walk._added else None
            if event is not None:
                return state.epoch, event

    def _scheduled(self) -> SchedulerCalled | SchedulerActed:
        trial_id = self.luck.choice([None, *self.state.trials])
        if self.state.seq % 2:
            return SchedulerActed("pause", trial_id, (1, "two", None))
        return SchedulerCalled("result", trial_id, {"t": "PAUSED"})

    def _imported(self) -> TrialImported:
        trial_id = f"t{len(self.state.trials)}"
        status = self.luck.choice([one for one in Status if one is not Status.RUNNING])
        ended_s = self._time if status in Status.FINISHED else None
        faults = [fault(trial_id)] if status is Status.FAILED else []
        record = TrialRecord(trial_id, 0, status=status, ended_s=ended_s, faults=faults)
        return TrialImported(trial_id, record.to_json())

    def _attached(self) -> DriverAttached:
        luck = self.luck
        return DriverAttached(
            "host",
            luck.randint(1, 9),
            num_samples=luck.choice((None, len(self.state.trials) + luck.randint(1, 4))),
            max_concurrent=luck.choice((None, 1, 3)),
            metric=luck.choice((None, "loss")),
            mode="min",
            versions={"python": "3"},
            damage=luck.choice(((), ({"file": "x", "offset": 3},))),
        )

    def _metrics(self) -> dict[str, Any]:
        luck = self.luck
        loss = luck.choice((luck.random(), float("nan"), float("inf"), 3))
        return {
            "loss": loss,
            "note": luck.choice(("", "ü\u2028\0\n", "\ud800")),
            "deep": [{"a": 1}],
        }

    def _may_add(self) -> bool:
        limit = self.state.num_samples
        return len(self.state.trials) < (5 if limit is None else limit)

    def _added(self, _: TrialRecord | None) -> Event | None:
        count = len(self.state.trials)
        if not self._may_add():
            return None
        return TrialAdded(f"t{count}", {"lr": 0.5}, f"{count}_lr=0.5", ({"CPU": 1},), "opaque")

    def _assigned(self, trial: TrialRecord) -> Event | None:
        if trial.status not in Status.RUNNABLE:
            return None
        attempt = self.luck.choice((0, trial.attempt + 1, trial.attempt + 2))
        return RunnerAssigned(trial.trial_id, self.luck.choice(("ANY", "n1")), attempt)

    def _started(self, trial: TrialRecord) -> Event | None:
        state, luck = self.state, self.luck
        limit = state.max_concurrent
        if trial.status is not Status.SCHEDULED or (limit and len(state.running) >= limit):
            return None
        iteration, checkpoint, metrics = 0, None, None
        if trial.stands_on_another:
            iteration, checkpoint = luck.randint(0, 30), trial.restored_from
            metrics = self._metrics()
        elif trial.checkpoints and luck.random() < 0.9:
            last = trial.checkpoints[max(trial.checkpoints)]
            iteration, checkpoint = last.iteration, f"checkpoint_{last.index:06d}"
        first_index = trial.next_index + luck.choice((0, 2))
        return AttemptStarted(
            trial.trial_id,
            trial.attempt + luck.choice((1, 1, 2)),
            luck.choice((None, "n1")),
            luck.choice((None, 7)),
            iteration,
            first_index,
            checkpoint,
            metrics,
        )

    def _restored(self, trial: TrialRecord) -> Event | None:
        if trial.status is not Status.RUNNING or not trial.is_restoring:
            return None
        return AttemptRestored(trial.trial_id, trial.attempt)

    def _reported(self, trial: TrialRecord) -> Event | None:
        luck = self.luck
        if trial.is_finished or not trial.attempt:
            return None
        attempt, iteration = trial.attempt, max(0, trial.iteration + luck.choice((1, 1, 1, 0, -1)))
        if trial.status is not Status.RUNNING:
            if luck.random() < 0.9:
                return None
            attempt = luck.randint(1, attempt)  # a report that never arrived
        return ResultReported(trial.trial_id, attempt, iteration, self._metrics())

    def _committed(self, trial: TrialRecord) -> Event | None:
        luck = self.luck
        if not trial.attempt:
            return None
        attempt, index = trial.attempt, trial.next_index + luck.choice((0, 0, 1))
        metrics = None
        if luck.random() < 0.1 and attempt > 1:
            attempt, metrics = luck.randint(1, attempt - 1), self._metrics()
            if not trial.first_index:
                return None
            index = luck.randrange(trial.first_index)
            if index in trial.checkpoints:
                return None
        if f"checkpoint_{index:06d}" in trial.bad:
            return None
        return CheckpointCommitted(trial.trial_id, attempt, index, trial.iteration, metrics)

    def _marked_bad(self, trial: TrialRecord) -> Event | None:
        luck = self.luck
        index = luck.choice([*trial.checkpoints, trial.next_index + 3])
        name = luck.choice((f"checkpoint_{index:06d}", "t0/checkpoint_000000"))
        if trial.bad and luck.random() < 0.3:
            return CheckpointMarkedBad(trial.trial_id, luck.choice(list(trial.bad)), "")
        return CheckpointMarkedBad(trial.trial_id, name, "its digest is wrong")

    def _deleted(self, trial: TrialRecord) -> Event | None:
        if not trial.checkpoints or set(trial.checkpoints) == {min(trial.checkpoints)}:
            return None
        return CheckpointDeleted(trial.trial_id, min(trial.checkpoints))

    def _failed(self, trial: TrialRecord) -> Event | None:
        luck = self.luck
        history = dataclasses.replace(trial.history, max_failures=3)
        if trial.undecided and luck.random() < 0.5:
            number = min(trial.undecided)
            booked = trial.faults[number - 1]
            decision = RetryPolicy(rules=()).decide(booked.unbooked(), history)
            after = trial.undecided[number].applied_to(decision.history)
            booked = dataclasses.replace(booked, charge=decision.charge, reason=decision.reason)
            return FaultRecorded(trial.trial_id, number, booked, after)
        number = len(trial.faults) + 1
        booked = fault(trial.trial_id, max(trial.attempt, 1), luck.choice(CAUSES))
        if trial.undecided or luck.random() < 0.3:
            booked = dataclasses.replace(booked, charge=Charge.FREE, reason="not decided yet")
            ends = not trial.is_finished and luck.random() < 0.9
            return FaultRecorded(trial.trial_id, number, booked, history, False, ends)
        decision = RetryPolicy(rules=()).decide(booked.unbooked(), history)
        booked = dataclasses.replace(booked, charge=decision.charge, reason=decision.reason)
        return FaultRecorded(
            trial.trial_id, number, booked, decision.history, ends_attempt=not trial.is_finished
        )

    def _paused(self, trial: TrialRecord) -> Event | None:
        if trial.is_finished or trial.status is Status.PAUSED:
            return None
        return TrialPaused(trial.trial_id)

    def _config_changed(self, trial: TrialRecord) -> Event | None:
        if trial.is_finished:
            return None
        donors = [one for one in self.state.trials.values() if one is not trial and one.checkpoints]
        path = None
        if donors and self.luck.random() < 0.8:
            donor = self.luck.choice(donors)
            path = f"{donor.trial_id}/checkpoint_{max(donor.checkpoints):06d}"
        config = {"lr": self.luck.random()}
        return TrialConfigChanged(trial.trial_id, config, "perturbed", ({"CPU": 2},), "s", path)

    def _decision(self, trial: TrialRecord) -> Event | None:
        if trial.is_finished:
            return None
        decision = self.luck.choice(("CONTINUE", "CONTINUE", "PAUSE", "STOP", "NOOP"))
        return DecisionMade(trial.trial_id, trial.iteration, decision)

    def _told(self, trial: TrialRecord) -> Event | None:
        if trial.told_complete:
            return None
        call = "complete" if trial.is_finished else "result"
        return SearcherTold(trial.trial_id, call, trial.iteration, trial.status is Status.FAILED)

    def _finished(self, trial: TrialRecord) -> Event | None:
        status = self.luck.choice(FINISH)
        if trial.is_finished or (status is Status.FAILED and not trial.faults):
            return None
        return TrialFinished(trial.trial_id, status, "it is enough")

    def _resumed(self, trial: TrialRecord) -> Event | None:
        if not trial.is_finished:
            return None
        return TrialResumed(trial.trial_id, self.luck.choice((True, False)))


_Maker = Callable[[Walk, Any], "Event | None"]
_TABLE: Sequence[tuple[_Maker, int]] = (
    (Walk._added, 4),
    (Walk._assigned, 8),
    (Walk._started, 20),
    (Walk._restored, 8),
    (Walk._reported, 30),
    (Walk._committed, 12),
    (Walk._marked_bad, 1),
    (Walk._deleted, 3),
    (Walk._failed, 4),
    (Walk._paused, 2),
    (Walk._config_changed, 2),
    (Walk._decision, 6),
    (Walk._told, 6),
    (Walk._finished, 1),
    (Walk._resumed, 2),
)
_MAKERS = [maker for maker, _ in _TABLE]
_WEIGHTS = [weight for _, weight in _TABLE]


def anything(luck: random.Random, state: ExperimentState) -> Record:
    """An event of any class, about anything, of about now: it can seldom follow."""
    kind = luck.choice(list(EVENTS.values()))
    trial_id = luck.choice([*state.trials, "nobody", ""])
    values: dict[str, Any] = {
        field.name: _value(luck, field, state, trial_id) for field in dataclasses.fields(kind)
    }
    seq = state.seq + luck.choice((1, 1, 1, 1, 1, 1, 1, 1, 0, 2))
    epoch = max(0, state.epoch + luck.choice((0, 0, 0, 0, 0, 0, 1, -1)))
    return Record(seq, epoch, luck.random() * 1e9, kind(**values))


def _value(
    luck: random.Random, field: dataclasses.Field[Any], state: ExperimentState, trial_id: str
) -> Any:
    metrics = {"loss": luck.random()}
    small = luck.randint(-1, 4)
    own = f"checkpoint_{max(small, 0):06d}"
    special = {
        "trial_id": trial_id,
        "fault": fault(trial_id or "x", small),
        "history": History(failures=small, max_failures=small),
        "status": luck.choice(list(Status)),
        "decision": luck.choice(("CONTINUE", "STOP", "PAUSE", "what")),
        "call": luck.choice(("result", "complete")),
        "checkpoint": luck.choice((None, own, "t1/checkpoint_000000")),
        "metrics": luck.choice((metrics, {})),
        "number": luck.randint(-1, 3),
        "attempt": _near(luck, state, trial_id, "attempt"),
        "first_index": _near(luck, state, trial_id, "next_index"),
        "index": _near(luck, state, trial_id, "next_index"),
        "damage": ({"file": "x"},),
        "resources": ({"CPU": 1.0},),
        "arguments": (1, "x"),
        "record": luck.choice(({}, TrialRecord(trial_id, 0).to_json())),
    }
    if field.name == "checkpoint" and field.default is dataclasses.MISSING:
        return special["checkpoint"] or "checkpoint_000000"
    if field.name in special:
        return special[field.name]
    by_type = {"bool": luck.choice((True, False)), "str": "text", "str | None": "text"}
    if str(field.type).startswith("Mapping"):
        return metrics
    return by_type.get(str(field.type), small)


def _near(luck: random.Random, state: ExperimentState, trial_id: str, name: str) -> int:
    trial = state.trials.get(trial_id)
    return (getattr(trial, name) if trial else 0) + luck.choice((-1, 0, 0, 1, 1))
