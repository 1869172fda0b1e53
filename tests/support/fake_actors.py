"""An actor manager on a fake cluster, so that a real trial controller runs without Ray's processes.

Actors are plain objects of this process. What they do happens when its virtual time has come, in
:meth:`FakeActorManager.next`, and callbacks are called there too, in the caller's thread. What goes
to an actor and comes from it is pickled on the way. Ray's `TuneController` runs on it, and ours:
it has the order and the avoidance of our own manager, but what gives way to an actor that is ahead
is the next free place only, not one that is too small for it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from raytrials.chaos import FakeCluster
from raytrials.chaos.actor import State
from raytrials.chaos.fault import Stopped
from raytrials.chaos.happening import (
    ActorStarted,
    ActorStartFailed,
    ActorStopped,
    CallFailed,
    CallReturned,
    Died,
    Happening,
    Unavailable,
)
from raytrials.chaos.worker import Work
from support.fake_handles import Acquired, ActorId, Handle, Task, Told, Tracked, over_the_wire
from support.ray_errors import ray_error

TAKES_S = {"train": 10.0, "save": 2.0, "restore": 2.0}

Takes = Callable[[str, dict[str, Any]], float]
"""How long a method takes in an actor with a configuration."""


def takes_usual_s(method: str, config: dict[str, Any]) -> float:
    return TAKES_S.get(method, 0.1)


class FakeActorManager:
    """What a trial controller uses of Ray's `RayActorManager`, or of our `ActorManager`.

    Args:
        cluster: where the actors are.
        takes_s: how long each method takes.
    """

    def __init__(self, cluster: FakeCluster, takes_s: Takes = takes_usual_s) -> None:
        self._cluster = cluster
        self._takes_s = takes_s
        self._avoided: frozenset[str] | None = None
        self._stopped: Stopped | None = None
        self._actors: dict[int, Tracked] = {}
        self._handles: dict[Tracked, tuple[Handle, Acquired]] = {}
        self._tasks: dict[int, Task] = {}
        self._to_kill: list[Tracked] = []
        self._failed: set[int] = set()
        self.waiting: Collection[Any] = ()

    # --- asking ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def ahead(self, avoided: frozenset[str]) -> Iterator[None]:
        self._avoided = avoided
        try:
            yield
        finally:
            self._avoided = None

    def give_up_avoidance(self, actor: Tracked) -> None:
        self._cluster.avoid_none(actor.actor_id)

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
        handle.config = kwargs.get("config", {})
        sent = over_the_wire(kwargs)

        def construct() -> None:
            handle.instance = kind(**sent)

        number = self._cluster.request(
            sum(int(bundle.get("CPU", 0)) for bundle in resource_request.bundles),
            avoid=self._avoided or (),
            ahead=self._avoided is not None,
            setup=self._work("__init__", handle, construct),
        )
        handle._actor_id = ActorId(number)
        actor = Tracked(number, on_start, on_stop, on_error)
        self._actors[number] = actor
        self._handles[actor] = handle, Acquired(resource_request)
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

        if method_name == "reset":
            handle.config = (args or ({},))[0]
        sent_args, sent_kwargs = over_the_wire((args or (), kwargs or {}))

        def run() -> Any:
            if method_name == "__ray_call__":
                function, *rest = sent_args
                return function(handle.instance, *rest, **sent_kwargs)
            return getattr(handle.instance, method_name)(*sent_args, **sent_kwargs)

        work = self._work(method_name, handle, lambda: over_the_wire(run()))
        call = self._cluster.call(tracked_actor.actor_id, method_name, work)
        self._tasks[call] = Task(tracked_actor, method_name, on_result, on_error)
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

    def _work(self, method: str, handle: Handle, run: Callable[[], Any]) -> Work:
        def noted() -> Any:
            try:
                return run()
            except Stopped as stopped:
                self._stopped = stopped
                raise

        return Work(self._takes_s(method, handle.config), noted)

    # --- telling ---------------------------------------------------------------------------------

    def next(self, timeout: float | None = None) -> bool:
        """Let time go by until one thing happened that somebody waits for.

        Raises:
            Stopped: all is dead with what a worker did last.
        """
        if self._to_kill:
            actor = self._to_kill.pop()
            if actor in self._handles:
                self._cluster.kill(actor.actor_id)
                self._forget(actor)
                actor.tell(actor.on_stop)
            return True
        while (happening := self._cluster.next(timeout)) is not None:
            if self._stopped:
                raise self._stopped
            if self._is_awaited(happening):
                self._resolve(happening)
                return True
        if self._stopped:
            raise self._stopped
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
                actor.tell(actor.on_error, ray_error(error, "__init__", actor.ray_id))
            case ActorStopped():
                # Ray lets go of an actor whose stop failed, too.
                self._cluster.kill(actor.actor_id)
                self._forget(actor)
                actor.tell(actor.on_stop)
            case CallReturned(call=call, value=value):
                actor.tell(self._tasks.pop(call).on_result, value)
            case CallFailed(call=call, error=failure):
                task = self._tasks.pop(call)
                error = ray_error(failure, task.method, actor.ray_id)
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

    def is_waiting(self, actor: Tracked) -> bool:
        return actor in self.pending_actors

    def is_idle(self, actor: Tracked) -> bool:
        return all(task.actor is not actor for task in self._tasks.values())

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
        return len(self.pending_actors) + len(self.waiting)

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
    def _live_actors_to_ray_actors_resources(self) -> dict[Tracked, tuple[Handle, Acquired]]:
        return {actor: self._handles[actor] for actor in self.live_actors}
