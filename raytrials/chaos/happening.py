"""What a fake cluster tells its driver, as plain data: answers, errors and the node table.

Everything that is asked is answered once: a request for an actor by :class:`ActorStarted` or
:class:`ActorStartFailed`, a call by :class:`CallReturned` or :class:`CallFailed`, a stop by
:class:`ActorStopped`. As in Ray, the death of an actor that owes no answer is not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

# --- errors --------------------------------------------------------------------------------------


class Exit(Enum):
    """What Ray can tell of how an actor ended."""

    CRASHED = "the connection to its worker broke"
    EXITED = "its worker exited"
    NODE_DIED = "its node has died"
    KILLED = "it was killed by ray.kill"
    INTENDED = "it was stopped"
    SETUP_RAISED = "its constructor raised"


@dataclass(frozen=True)
class Unavailable:
    """The actor cannot be reached; nobody knows yet whether it is dead."""


@dataclass(frozen=True)
class Died:
    """The actor is dead, says the cluster. Its worker may live on, unseen.

    Attributes:
        exit: how it ended.
        preempted: its node was drained, and died after the deadline.
        exit_code: of the worker, if it left by `SystemExit`.
        detail: what its constructor raised, as text, which is all that Ray keeps.
    """

    exit: Exit
    preempted: bool = False
    exit_code: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class Raised:
    """The call raised; its actor lives."""

    exception: Exception


Failure = Unavailable | Died | Raised

# --- answers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ActorStarted:
    """An actor is ready for its calls."""

    at_s: float
    actor: int
    node: str


@dataclass(frozen=True)
class ActorStartFailed:
    """An actor died, or was withdrawn, before it was ready."""

    at_s: float
    actor: int
    error: Died


@dataclass(frozen=True)
class ActorStopped:
    """An actor that was asked to stop has stopped; with an error if in another way."""

    at_s: float
    actor: int
    error: Unavailable | Died | None = None


@dataclass(frozen=True)
class CallReturned:
    """A call is done."""

    at_s: float
    actor: int
    call: int
    name: str
    value: object


@dataclass(frozen=True)
class CallFailed:
    """A call raised, or its actor is out of reach or dead."""

    at_s: float
    actor: int
    call: int
    name: str
    error: Failure


Happening = ActorStarted | ActorStartFailed | ActorStopped | CallReturned | CallFailed

# --- the node table ------------------------------------------------------------------------------


class DeathReason(IntEnum):
    """Why a node died, by Ray's numbers."""

    UNEXPECTED = 2
    PREEMPTED = 3


@dataclass(frozen=True)
class NodeView:
    """A node as the cluster sees it, which may be seconds behind the truth.

    Attributes:
        name: stands for Ray's node id; never used again.
        slots: what it has in all.
        labels: as given when it was added.
        alive: not known to be dead.
        draining: alive, and to be preempted.
        death_reason: None while alive.
    """

    name: str
    slots: int
    labels: Mapping[str, str]
    alive: bool
    draining: bool
    death_reason: DeathReason | None
