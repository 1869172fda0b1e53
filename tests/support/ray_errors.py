"""What Ray raises for the failures that a fake cluster tells of."""

from __future__ import annotations

from ray import exceptions

from raytrials.chaos.happening import Died, Exit, Failure, Raised, Unavailable

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


def ray_error(failure: Failure, method: str, actor_id: str | None = None) -> exceptions.RayError:
    """Return what Ray raises for a failure of an actor."""
    if isinstance(failure, Raised):
        return task_error(method, failure.exception)
    error = _actor_error(failure)
    error.actor_id = actor_id
    return error


def _actor_error(failure: Unavailable | Died) -> exceptions.RayActorError:
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
