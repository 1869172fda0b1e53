"""A failure as data.

A :class:`Fault` says what happened to one attempt of one trial; a :class:`ChargedFault` also says
what it cost and why. Both are what the ledger of a trial keeps, what a report shows and what a
typed error is rebuilt from. Deciding the charge is `raytrials.core.retry`; finding the cause is
`raytrials.driver.classify`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from raytrials.core.shape import require
from raytrials.core.word import Word
from raytrials.errors import ActorError, RestoreError, TrainingError, TrialError


class FaultClass(Word):
    """Which of the three typed errors a failure is."""

    RESTORE = "restore"
    TRAINING = "training"
    ACTOR = "actor"


class Phase(Word):
    """Where in its life an attempt was when it failed."""

    STARTING = "starting"
    RESTORING = "restoring"
    RUNNING = "running"
    STOPPING = "stopping"


class Cause(Word):
    """Why an attempt failed."""

    USER_CODE = "user_code"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    OUT_OF_MEMORY = "out_of_memory"
    WORKER_DIED = "worker_died"
    ACTOR_UNAVAILABLE = "actor_unavailable"
    HUNG = "hung"
    UNSCHEDULABLE = "unschedulable"
    STORAGE = "storage"
    ENVIRONMENT = "environment"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    CHECKPOINT_MISSING = "checkpoint_missing"
    PACKAGE_MISSING = "package_missing"


class Charge(Word):
    """Which account a failure is booked to. Only `FAILURE` spends `max_failures`."""

    FREE = "free"
    CHECKPOINT = "checkpoint"
    INFRASTRUCTURE = "infrastructure"
    RESTORE = "restore"
    FAILURE = "failure"


_ERRORS: Mapping[FaultClass, type[TrialError]] = {
    FaultClass.RESTORE: RestoreError,
    FaultClass.TRAINING: TrainingError,
    FaultClass.ACTOR: ActorError,
}


@dataclass(frozen=True)
class Fault:
    """One failure of one attempt.

    Attributes:
        trial_id: the trial.
        attempt: the attempt that failed, counted from 1.
        fault_class: restore, training or actor.
        phase: where the attempt was.
        cause: why it failed.
        node_id: hex id of the node it ran on, None if it never ran.
        detail: what Ray or the user's code said, shortened.
        time: seconds since the epoch on the driver's clock.
        exceptions: full names of the exception's class and its parents, the class first; empty
            where Ray kept none.
        exit_code: what the worker process exited with, None where Ray does not say.
    """

    trial_id: str
    attempt: int
    fault_class: FaultClass
    phase: Phase
    cause: Cause
    node_id: str | None
    detail: str
    time: float
    exceptions: tuple[str, ...] = ()
    exit_code: int | None = None

    @classmethod
    def of(
        cls,
        error: TrialError,
        time: float,
        *,
        exceptions: tuple[str, ...] = (),
        exit_code: int | None = None,
    ) -> Fault:
        """Return the fault that a typed error tells of."""
        return Fault(
            trial_id=error.trial_id,
            attempt=error.attempt,
            fault_class=FaultClass(error.fault_class),
            phase=Phase(error.phase),
            cause=Cause(error.cause),
            node_id=error.node_id,
            detail=error.detail,
            time=time,
            exceptions=exceptions,
            exit_code=exit_code,
        )

    def to_error(self) -> TrialError:
        """Return the typed error that this fault was made of (without its `__cause__`)."""
        return _ERRORS[self.fault_class](
            self.trial_id, self.attempt, self.phase, self.cause, self.node_id, self.detail
        )


@dataclass(frozen=True)
class ChargedFault(Fault):
    """A fault with what it cost.

    Attributes:
        charge: the account it was booked to.
        reason: why, in words, as decided at the time.
    """

    charge: Charge = Charge.FREE
    reason: str = ""

    @classmethod
    def book(cls, fault: Fault, charge: Charge, reason: str) -> ChargedFault:
        """Return `fault` as booked."""
        return cls(**_fields(fault), charge=charge, reason=reason)

    def unbooked(self) -> Fault:
        """Return the fault alone."""
        return Fault(**{key: getattr(self, key) for key in _fields_of(Fault)})

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, readable without raytrials."""
        values = {
            key: str(value) if isinstance(value, Enum) else value
            for key, value in _fields(self).items()
        }
        return {**values, "exceptions": list(self.exceptions)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChargedFault:
        """Return what :meth:`to_json` wrote. Raises TypeError or ValueError for anything else."""
        require(cls, data)
        return cls(
            **{
                **data,
                "fault_class": FaultClass(data["fault_class"]),
                "phase": Phase(data["phase"]),
                "cause": Cause(data["cause"]),
                "charge": Charge(data["charge"]),
                "exceptions": tuple(data["exceptions"]),
            }
        )


def _fields(fault: Fault) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in _fields_of(type(fault))}


def _fields_of(kind: type[Fault]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]
