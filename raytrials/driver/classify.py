"""From whatever Ray raised to one of three typed errors.

:func:`classify` decides by type; where Ray offers a text alone, the test stands in
`raytrials._ray`. It only names what happened: the charge is `raytrials.core.retry`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray import exceptions

from raytrials import _ray
from raytrials.core.fault import Cause, Phase
from raytrials.errors import (
    ActorError,
    NewerFormatError,
    NoCheckpointError,
    RestoreError,
    StorageError,
    TrainingError,
    TrialError,
)

MAX_DETAIL_CHARS = 2000

# The first row that fits gives the cause. `RayActorError` itself is last: it is the parent of most.
_CAUSES: Sequence[tuple[type[BaseException], Cause]] = (
    (StorageError, Cause.STORAGE),
    (NewerFormatError, Cause.ENVIRONMENT),
    (NoCheckpointError, Cause.CHECKPOINT_MISSING),
    (exceptions.OutOfMemoryError, Cause.OUT_OF_MEMORY),
    (exceptions.NodeDiedError, Cause.NODE_LOST),
    (exceptions.LocalRayletDiedError, Cause.NODE_LOST),
    (exceptions.ActorUnschedulableError, Cause.UNSCHEDULABLE),
    (exceptions.TaskUnschedulableError, Cause.UNSCHEDULABLE),
    (exceptions.ActorPlacementGroupRemoved, Cause.UNSCHEDULABLE),
    (exceptions.TaskPlacementGroupRemoved, Cause.UNSCHEDULABLE),
    (exceptions.ActorUnavailableError, Cause.ACTOR_UNAVAILABLE),
    (exceptions.WorkerCrashedError, Cause.WORKER_DIED),
    (exceptions.RayActorError, Cause.WORKER_DIED),
    (exceptions.RuntimeEnvSetupError, Cause.ENVIRONMENT),
    (exceptions.OutOfDiskError, Cause.ENVIRONMENT),
    (exceptions.ObjectStoreFullError, Cause.ENVIRONMENT),
    (exceptions.ObjectLostError, Cause.ENVIRONMENT),
    (exceptions.RaySystemError, Cause.ENVIRONMENT),
)

# Errors of Ray's that stand for an exception of the user's code.
_USER_ERRORS = (
    exceptions.UnserializableException,
    exceptions.TaskCancelledError,
    exceptions.UserCodeException,
)


def unwrap(error: BaseException) -> BaseException:
    """Return what is inside Ray's wrappers: the user's exception, or the error of a nested actor.

    A `RayTaskError` without a cause is returned as it is.
    """
    while True:
        inner: BaseException | None = None
        if isinstance(error, _ray.LostActorError):
            inner = error.origin
        elif isinstance(error, exceptions.RayTaskError):
            inner = error.cause
        if inner is None or inner is error:
            return error
        error = inner


def classify(
    error: BaseException,
    *,
    trial_id: str,
    attempt: int,
    phase: Phase,
    node_id: str | None,
) -> TrialError:
    """Return the typed error for `error`, chained to Ray's own.

    Phase restoring makes a `RestoreError` of anything. Otherwise the user's code gives a
    `TrainingError` (an exception in a task, in `__init__` or in `setup`), and everything that Ray
    says of processes, machines and objects gives an `ActorError`. An actor error that a trial's
    code passed on from an actor of its own is an `ActorError` too, with that actor's words.
    """
    inner = unwrap(error)
    cause = _cause(inner)
    kind: type[TrialError]
    if phase is Phase.RESTORING:
        kind = RestoreError
    elif is_actor_error(error):
        kind = ActorError
    else:
        kind = TrainingError
    typed = kind(trial_id, attempt, phase, cause, node_id, _detail(inner))
    typed.__cause__ = error.origin if isinstance(error, _ray.LostActorError) else error
    return typed


def describe(error: BaseException) -> tuple[tuple[str, ...], int | None]:
    """Return the full names of the exception's class and its parents, and the exit code.

    Empty and None where Ray kept neither. Of an exception in `__init__` Ray keeps the text alone.
    """
    inner = unwrap(error)
    if isinstance(inner, exceptions.RayActorError) and inner.actor_init_failed:
        return _ray.exception_named_in(str(inner)), None
    if isinstance(inner, exceptions.RayActorError):
        return (), _ray.exit_code_in(str(inner))
    kinds = [kind for kind in type(inner).__mro__ if kind not in {Exception, BaseException, object}]
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds), None


def may_be(error: BaseException, name: str) -> bool:
    """Whether `error` may be an exception of the class called `name` that a worker raised.

    Ray does not bring every exception back as what it was: one that cannot be made again arrives
    under another class with the name in its text, an interrupt as a cancelled task.
    """
    inner = unwrap(error)
    if isinstance(inner, exceptions.TaskCancelledError):
        return name == KeyboardInterrupt.__name__
    return type(inner).__name__ == name or name in str(error)


def _cause(inner: BaseException) -> Cause:
    if _ray.is_package_missing(inner):
        return Cause.PACKAGE_MISSING
    if isinstance(inner, _USER_ERRORS):
        return Cause.USER_CODE
    if isinstance(inner, exceptions.RayActorError):
        if inner.preempted:
            return Cause.PREEMPTED
        if inner.actor_init_failed:
            return Cause.USER_CODE
    if _ray.is_checkpoint_gone(inner):
        return Cause.CHECKPOINT_MISSING
    for kind, cause in _CAUSES:
        if isinstance(inner, kind):
            return cause
    return Cause.USER_CODE


def is_actor_error(error: BaseException) -> bool:
    """Whether `error` tells of a process, a machine or an object rather than of user code."""
    inner = unwrap(error)
    if isinstance(inner, exceptions.RayActorError):
        return not inner.actor_init_failed
    if isinstance(error, exceptions.RayTaskError) or isinstance(inner, _USER_ERRORS):
        return False
    return isinstance(inner, exceptions.RayError)


def _detail(inner: BaseException) -> str:
    if isinstance(inner, exceptions.RayError):
        text = _ray.without_colours(str(inner)).strip()
        if isinstance(inner, exceptions.RayActorError) and inner.actor_init_failed:
            text = f"{text.rpartition(chr(10))[2]}\n{text}"
    else:
        text = f"{type(inner).__name__}: {inner}"
    if len(text) <= MAX_DETAIL_CHARS:
        return text
    half = MAX_DETAIL_CHARS // 2
    return f"{text[:half]} … {text[-half:]}"
