"""The actor manager: whatever goes wrong with one actor stays with its trial.

Ray's manager knows two kinds of error on a task, and ends the whole `fit()` on any other: its own
memory monitor's kill, a lost object, a broken runtime environment. Here each of them is a failure
of the trial whose task it was.
"""

from __future__ import annotations

from typing import Any

import ray
from ray import exceptions

from raytrials import _ray


class ActorManager(_ray.RayActorManager):  # type: ignore[misc]
    """Ray's actor manager, for which no error is unexpected."""

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
