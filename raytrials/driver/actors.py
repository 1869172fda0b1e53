"""The actor manager: failures stay with their trial, and recovered trials go first.

Ray's manager knows two kinds of error on a task, and ends the whole `fit()` on any other: its own
memory monitor's kill, a lost object, a broken runtime environment. Here each of them is a failure
of the trial whose task it was. And an actor may be requested *ahead* of those that wait already,
and away from some nodes; which placement group it gets is `raytrials.driver.placement`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import ray
from ray import exceptions

from raytrials import _ray
from raytrials.driver.placement import Placement

URGENT_S = 0.01
"""How long the loop waits for actors while trials wait for the journal."""


class ActorManager(_ray.RayActorManager):  # type: ignore[misc]
    """Ray's actor manager, for which no error is unexpected.

    Args:
        resource_manager: where the placement groups come from.

    Attributes:
        is_urgent: whether something but an actor is about to happen.
        waiting: trials whose actors are requested as soon as the journal lets them.
    """

    def __init__(self, resource_manager: Placement) -> None:
        super().__init__(resource_manager=resource_manager)
        self._placement = resource_manager
        self._ahead: set[Any] = set()
        self._request_ahead_of_others = False
        self.is_urgent: Callable[[], bool] = lambda: False
        self.waiting: Collection[Any] = ()

    def next(self, timeout: float | None = None) -> bool:
        """Wait for what happens next; not for long while something else is about to happen."""
        if self.is_urgent() and (timeout is None or timeout > URGENT_S):
            timeout = URGENT_S
        return bool(super().next(timeout))

    @property
    def num_pending_actors(self) -> int:
        """How many actors are on their way: Ray requests no more than so many at a time."""
        return int(super().num_pending_actors) + len(self.waiting)

    # --- recovered trials go first ---------------------------------------------------------------

    @contextlib.contextmanager
    def ahead(self, avoided: frozenset[str]) -> Iterator[None]:
        """Within this block an actor is requested ahead of others, away from the `avoided` nodes.

        Args:
            avoided: hex ids of nodes.
        """
        self._request_ahead_of_others = True
        self._placement.avoid_next = avoided
        try:
            yield
        finally:
            self._request_ahead_of_others = False
            self._placement.avoid_next = frozenset()

    def add_actor(self, cls: Any, kwargs: dict[str, Any], resource_request: Any, **on: Any) -> Any:
        """Request an actor, ahead of those that wait if inside :meth:`ahead`."""
        avoided = self._placement.avoid_next
        if self._request_ahead_of_others:
            self._placement.give_way_to(resource_request)
        actor = super().add_actor(cls, kwargs, resource_request, **on)
        if self._request_ahead_of_others:
            line = self._line(resource_request)
            line.remove(actor)
            line.insert(sum(other in self._ahead for other in line), actor)
            self._ahead.add(actor)
            self._placement.avoided[actor] = avoided
        return actor

    def give_up_avoidance(self, actor: Any) -> None:
        """Let a waiting actor run on any node from now on."""
        self._placement.avoided.pop(actor, None)

    def is_waiting(self, actor: Any) -> bool:
        """Whether the actor still waits for a place."""
        return actor in self._pending_actors_to_attrs

    def is_idle(self, actor: Any) -> bool:
        """Whether the actor has answered everything that it was asked."""
        return not self._tracked_actors_to_task_futures.get(actor)

    def _line(self, request: Any) -> list[Any]:
        line: list[Any] = self._resource_request_to_pending_actors[request]
        return line

    def _try_start_actors(self, max_actors: int | None = None) -> int:
        self._placement.line = self._line
        started = int(super()._try_start_actors(max_actors))
        if self._ahead and started:
            for actor in [one for one in self._ahead if not self.is_waiting(one)]:
                self._no_longer_ahead(actor)
        return started

    def remove_actor(self, tracked_actor: Any, **how: Any) -> bool:
        """Remove an actor as Ray does; a waiting one no longer holds others back."""
        removed = bool(super().remove_actor(tracked_actor, **how))
        if tracked_actor in self._ahead and not self.is_waiting(tracked_actor):
            self._no_longer_ahead(tracked_actor)
        return removed

    def _no_longer_ahead(self, actor: Any) -> None:
        self._ahead.discard(actor)
        self._placement.avoided.pop(actor, None)
        if not self._ahead:
            self._placement.stop_giving_way()

    # --- failures stay with their trial ----------------------------------------------------------

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        tracked_actor = _ray.actor_of_task(tracked_actor_task)
        if isinstance(exception, exceptions.RayTaskError):
            # Also when it wraps the error of an actor that the trial's own code called, which Ray
            # would take for the death of the trial's actor.
            tell = _ray.error_handler_of_task(tracked_actor_task)
            if tell:
                tell(tracked_actor, exception)
            return
        actor_id = self._kill(tracked_actor)
        if not isinstance(exception, exceptions.RayActorError):
            exception = _ray.LostActorError(exception, actor_id)
        super()._actor_task_failed(tracked_actor_task, exception)

    def _actor_start_failed(self, tracked_actor: Any, exception: Exception) -> None:
        self._kill(tracked_actor)
        super()._actor_start_failed(tracked_actor, exception)

    def _kill(self, tracked_actor: Any) -> str | None:
        """Make sure that the failed actor is gone before another attempt starts."""
        handle, _ = self._live_actors_to_ray_actors_resources[tracked_actor]
        ray.kill(handle)
        return _ray.actor_id_of(handle)
