"""Ray's actor manager on a fake cluster, so that the real trial controller runs without Ray's.

Actors are plain objects of this process. What they do happens when its virtual time has come, in
:meth:`FakeActorManager.next`, and callbacks are called there too, in the caller's thread. A plain
`TuneController` runs on it; the order and avoidance of our own manager are not here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray import exceptions

from raytrials.chaos import FakeCluster
from raytrials.chaos.actor import State
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
    Raised,
    Unavailable,
)
from raytrials.chaos.worker import Work

Told = Callable[..., None] | None

TAKES_S = {"train": 10.0, "save": 2.0, "restore": 2.0}

_TEXTS = {
    Exit.CRASHED: "The actor is dead because its worker process has died. Worker exit type: "
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. "
    "End of file.",
    Exit.EXITED: "The actor is dead because its worker process has died. Worker exit type: "
    "INTENDED_USER_EXIT Worker exit detail: Worker exits with an exit code {exit_code}.",
    Exit.NODE_DIED: "The actor died because its node has died.",
    Exit.KILLED: "The actor is dead because it was killed by `ray.kill`.",
    Exit.INTENDED: "The actor is dead because all references to the actor were removed.",
}


def ray_error(failure: Failure, method: str) -> exceptions.RayError:
    """Return what Ray raises for a failure."""
    if isinstance(failure, Raised):
        return task_error(method, failure.exception)
    if isinstance(failure, Unavailable):
        return exceptions.ActorUnavailableError("RpcError: socket closed", None)
    if failure.exit is Exit.SETUP_RAISED:
        return exceptions.ActorDiedError(
            exceptions.RayTaskError("__init__", failure.detail, RuntimeError(failure.detail))
        )
    died = exceptions.ActorDiedError()
    text = _TEXTS[failure.exit].format(exit_code=failure.exit_code)
    died.error_msg = f"{died.error_msg}\n{text}"
    died._preempted = failure.preempted
    return died


def task_error(method: str, cause: Exception) -> exceptions.RayTaskError:
    """Return what Ray raises for an exception in a call."""
    error: exceptions.RayTaskError = exceptions.RayTaskError(
        method, f"{type(cause).__name__}: {cause}", cause
    ).as_instanceof_cause()
    return error


class Tracked:
    """What Ray calls a `TrackedActor`."""

    def __init__(self, number: int, on_start: Told, on_stop: Told, on_error: Told) -> None:
        self.actor_id = number
        self.set_on_start(on_start)
        self.set_on_stop(on_stop)
        self.set_on_error(on_error)

    def set_on_start(self, on_start: Told) -> None:
        self.on_start = on_start

    def set_on_stop(self, on_stop: Told) -> None:
        self.on_stop = on_stop

    def set_on_error(self, on_error: Told) -> None:
        self.on_error = on_error

    def tell(self, told: Told, *what: Any) -> None:
        if told:
            told(self, *what)


class Handle:
    """What Ray calls an `ActorHandle`; what it knows of itself is asked without the cluster."""

    def __init__(self) -> None:
        self.instance: Any = None

    def __getattr__(self, method: str) -> Any:
        return _Method(getattr(self.instance, method))


@dataclass(frozen=True)
class _Method:
    remote: Callable[..., Any]


@dataclass(frozen=True)
class _Acquired:
    resource_request: Any


@dataclass(frozen=True)
class _Task:
    actor: Tracked
    method: str
    on_result: Told
    on_error: Told


class FakeActorManager:
    """What a trial controller uses of Ray's `RayActorManager`.

    Args:
        cluster: where the actors are.
        takes_s: how long each method takes; others take a tenth of a second.
    """

    def __init__(self, cluster: FakeCluster, takes_s: dict[str, float] | None = None) -> None:
        self._cluster = cluster
        self._takes_s = TAKES_S if takes_s is None else takes_s
        self._actors: dict[int, Tracked] = {}
        self._handles: dict[Tracked, tuple[Handle, _Acquired]] = {}
        self._tasks: dict[int, _Task] = {}
        self._to_kill: list[Tracked] = []
        self._failed: set[int] = set()

    # --- asking ----------------------------------------------------------------------------------

    def add_actor(  # noqa: PLR0913 - Ray's signature
        self,
        cls: Any,
        kwargs: dict[str, Any],
        resource_request: Any,
        *,
        on_start: Told = None,
        on_stop: Told = None,
        on_error: Told = None,
    ) -> Tracked:
        plain = getattr(cls, "__ray_metadata__", None)
        kind = plain.modified_class if plain else cls
        handle = Handle()

        def construct() -> None:
            handle.instance = kind(**kwargs)

        slots = sum(int(bundle.get("CPU", 0)) for bundle in resource_request.bundles)
        number = self._cluster.request(slots, setup=Work(self._takes("__init__"), construct))
        actor = Tracked(number, on_start, on_stop, on_error)
        self._actors[number] = actor
        self._handles[actor] = handle, _Acquired(resource_request)
        return actor

    def schedule_actor_task(  # noqa: PLR0913, PLR0917 - likewise
        self,
        tracked_actor: Tracked,
        method_name: str,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        on_result: Told = None,
        on_error: Told = None,
        _return_future: bool = False,
    ) -> int | None:
        if tracked_actor.actor_id in self._failed:
            return None
        if tracked_actor not in self._handles:
            raise ValueError(f"Unknown tracked actor: {tracked_actor}")
        handle, _ = self._handles[tracked_actor]

        def run() -> Any:
            if method_name == "__ray_call__":
                function, *rest = args or ()
                return function(handle.instance, *rest, **(kwargs or {}))
            return getattr(handle.instance, method_name)(*(args or ()), **(kwargs or {}))

        work = Work(self._takes(method_name), run)
        call = self._cluster.call(tracked_actor.actor_id, method_name, work)
        self._tasks[call] = _Task(tracked_actor, method_name, on_result, on_error)
        return call if _return_future else None

    def remove_actor(
        self, tracked_actor: Tracked, kill: bool = False, stop_future: int | None = None
    ) -> bool:
        if tracked_actor.actor_id in self._failed:
            return False
        if tracked_actor in self.pending_actors:
            self._forget(tracked_actor)
            self._cluster.stop(tracked_actor.actor_id)
            return False
        if tracked_actor not in self._handles:
            raise ValueError(f"Unknown tracked actor: {tracked_actor}")
        if kill:
            self._to_kill.append(tracked_actor)
            return True
        if stop_future is not None:
            self._tasks.pop(stop_future, None)
        if self._cluster.state_of(tracked_actor.actor_id) is State.STARTING:
            # As Ray: an actor that was not ready yet stops without a word.
            for quiet in (
                tracked_actor.set_on_start,
                tracked_actor.set_on_stop,
                tracked_actor.set_on_error,
            ):
                quiet(None)
        self._cluster.stop(tracked_actor.actor_id)
        return True

    def clear_actor_task_futures(self, tracked_actor: Tracked) -> None:
        self._tasks = {
            call: task for call, task in self._tasks.items() if task.actor is not tracked_actor
        }

    def cleanup(self) -> None:
        for number in list(self._actors):
            self._cluster.kill(number)
        self.__init__(self._cluster, self._takes_s)  # type: ignore[misc]

    def _takes(self, method: str) -> float:
        return self._takes_s.get(method, 0.1)

    # --- telling ---------------------------------------------------------------------------------

    def next(self, timeout: float | None = None) -> bool:
        """Let time go by until one thing happened that somebody waits for."""
        if self._to_kill:
            actor = self._to_kill.pop()
            if actor in self._handles:
                self._cluster.kill(actor.actor_id)
                self._forget(actor)
                actor.tell(actor.on_stop)
            return True
        while (happening := self._cluster.next(timeout)) is not None:
            if self._is_awaited(happening):
                self._resolve(happening)
                return True
        return False

    def _is_awaited(self, happening: Happening) -> bool:
        if isinstance(happening, CallReturned | CallFailed):
            return happening.call in self._tasks
        return happening.actor in self._actors

    def _resolve(self, happening: Happening) -> None:
        actor = self._actors[happening.actor]
        match happening:
            case ActorStarted():
                actor.tell(actor.on_start)
            case ActorStartFailed(error=error):
                self._fail(actor)
                actor.tell(actor.on_error, ray_error(error, "__init__"))
            case ActorStopped():
                # Ray lets go of an actor whose stop failed, too.
                self._cluster.kill(actor.actor_id)
                self._forget(actor)
                actor.tell(actor.on_stop)
            case CallReturned(call=call, value=value):
                actor.tell(self._tasks.pop(call).on_result, value)
            case CallFailed(call=call, error=failure):
                task = self._tasks.pop(call)
                error = ray_error(failure, task.method)
                if isinstance(failure, Died | Unavailable):
                    self._fail(actor)
                    actor.tell(actor.on_error, error)
                actor.tell(task.on_error, error)

    def _fail(self, actor: Tracked) -> None:
        self._failed.add(actor.actor_id)
        self._cluster.kill(actor.actor_id)
        self._forget(actor)

    def _forget(self, actor: Tracked) -> None:
        self.clear_actor_task_futures(actor)
        del self._actors[actor.actor_id]
        del self._handles[actor]

    # --- looking ---------------------------------------------------------------------------------

    @property
    def live_actors(self) -> list[Tracked]:
        return [actor for actor in self.all_actors if actor not in self.pending_actors]

    @property
    def pending_actors(self) -> list[Tracked]:
        waiting = State.WAITING
        return [one for one in self.all_actors if self._cluster.state_of(one.actor_id) is waiting]

    @property
    def all_actors(self) -> list[Tracked]:
        return list(self._actors.values())

    @property
    def num_live_actors(self) -> int:
        return len(self.live_actors)

    @property
    def num_pending_actors(self) -> int:
        return len(self.pending_actors)

    @property
    def num_total_actors(self) -> int:
        return len(self._actors)

    @property
    def num_actor_tasks(self) -> int:
        return len(self._tasks)

    def is_actor_started(self, tracked_actor: Tracked) -> bool:
        return tracked_actor in self._handles and tracked_actor not in self.pending_actors

    def is_actor_failed(self, tracked_actor: Tracked) -> bool:
        return tracked_actor.actor_id in self._failed

    def get_live_actors_resources(self) -> dict[str, float]:
        used: Counter[str] = Counter()
        for actor in self.live_actors:
            for bundle in self._handles[actor][1].resource_request.bundles:
                used.update(bundle)
        return dict(used)

    @property
    def _live_actors_to_ray_actors_resources(self) -> dict[Tracked, tuple[Handle, _Acquired]]:
        return {actor: self._handles[actor] for actor in self.live_actors}
