"""What a trial controller holds of an actor, and what reaches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raytrials import _ray

Told = Callable[..., None] | None


def over_the_wire(what: Any) -> Any:
    """Return what arrives at the other end."""
    return _ray.cloudpickle.loads(_ray.cloudpickle.dumps(what))


class Tracked:
    """What Ray calls a `TrackedActor`."""

    def __init__(self, number: int, on_start: Told, on_stop: Told, on_error: Told) -> None:
        self.actor_id = number
        self.set_on_start(on_start)
        self.set_on_stop(on_stop)
        self.set_on_error(on_error)

    @property
    def ray_id(self) -> str:
        """What Ray's errors call the actor."""
        return ActorId(self.actor_id).hex()

    def set_on_start(self, on_start: Told) -> None:
        self.on_start = on_start

    def set_on_stop(self, on_stop: Told) -> None:
        self.on_stop = on_stop

    def set_on_error(self, on_error: Told) -> None:
        self.on_error = on_error

    def tell(self, told: Told, *what: Any) -> None:
        if told:
            told(self, *what)


@dataclass(frozen=True)
class ActorId:
    """What Ray calls an `ActorID`."""

    number: int

    def hex(self) -> str:
        return f"{self.number:032x}"


class Handle:
    """What Ray calls an `ActorHandle`; what it knows of itself is asked without the cluster."""

    def __init__(self) -> None:
        self.instance: Any = None
        self.config: dict[str, Any] = {}
        self._actor_id = ActorId(0)

    def __getattr__(self, method: str) -> Any:
        return _Method(getattr(self.instance, method))


@dataclass(frozen=True)
class _Method:
    remote: Callable[..., Any]


@dataclass(frozen=True)
class Acquired:
    resource_request: Any


@dataclass(frozen=True)
class Task:
    actor: Tracked
    method: str
    on_result: Told
    on_error: Told
