"""Actors of a fake cluster, as the cluster knows them; their worker may be in another state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from raytrials.chaos.happening import (
    ActorStarted,
    ActorStartFailed,
    ActorStopped,
    CallFailed,
    CallReturned,
    Died,
    Exit,
    Failure,
    Happening,
    Unavailable,
)
from raytrials.chaos.worker import Job, Question, Returned, Worker


class State(Enum):
    """What the cluster takes an actor for."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    DEAD = "dead"


ACTOR_STEPS: Mapping[tuple[State, str], State] = {
    (State.WAITING, "place"): State.STARTING,
    (State.WAITING, "die"): State.DEAD,
    (State.STARTING, "start"): State.RUNNING,
    (State.STARTING, "die"): State.DEAD,
    (State.RUNNING, "die"): State.DEAD,
}


@dataclass
class Actor:
    """What was asked of an actor, and what it still owes.

    Attributes:
        number: its name to the driver.
        slots: what it takes of a node.
        avoid: names of nodes that it must not be on.
        pin: names of the only nodes that it may be on, None for any.
        labels: that its node must have.
        ahead: whether it gets its place before those that are not, whenever they asked.
        state: what the cluster takes it for.
        node: where it was placed.
        worker: the process, None before it was placed.
        is_cut_off: its worker does not answer, and the cluster does not know yet.
        died: how, once it is dead.
        owed: jobs without an answer, by number, in the order of asking.
    """

    number: int
    slots: int
    avoid: frozenset[str]
    pin: frozenset[str] | None
    labels: Mapping[str, str]
    ahead: bool = False
    state: State = State.WAITING
    node: str | None = None
    worker: Worker | None = None
    is_cut_off: bool = False
    died: Died | None = None
    owed: dict[int, Job] = field(default_factory=dict)

    def step(self, step: str) -> None:
        """Change the state.

        Raises:
            ValueError: there is no such step.
        """
        if (self.state, step) not in ACTOR_STEPS:
            raise ValueError(f"Actor {self.number} cannot {step}: it is {self.state.value}.")
        self.state = ACTOR_STEPS[self.state, step]

    def is_asked_to_stop(self) -> bool:
        """Whether a stop is still to be answered."""
        return any(job.question is Question.STOP for job in self.owed.values())

    def answer(self, job: Job, result: Returned | Failure, at_s: float) -> Happening:
        """Return the one answer to a job, which is owed no more."""
        del self.owed[job.number]
        match job.question, result:
            case Question.START, Returned():
                return ActorStarted(at_s, self.number, str(self.node))
            case Question.START, Died():
                return ActorStartFailed(at_s, self.number, result)
            case Question.STOP, Died(exit=Exit.INTENDED) | Returned():
                return ActorStopped(at_s, self.number)
            case Question.STOP, Died() | Unavailable():
                return ActorStopped(at_s, self.number, result)
            case Question.CALL, Returned(value):
                return CallReturned(at_s, self.number, job.number, job.name, value)
            case Question.CALL, _ if not isinstance(result, Returned):
                return CallFailed(at_s, self.number, job.number, job.name, result)
            case _:
                raise ValueError(f"{result} is no answer to {job}.")
