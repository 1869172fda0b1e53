"""From each of Ray's errors to its type and cause."""

from __future__ import annotations

import pickle

import pytest
from ray import exceptions

from raytrials import ActorError, Cause, RestoreError, TrainingError, _ray
from raytrials.core.fault import Phase
from raytrials.driver.classify import MAX_DETAIL_CHARS, classify, unwrap
from raytrials.errors import TrialError


def task_error(cause: BaseException) -> exceptions.RayTaskError:
    return exceptions.RayTaskError("step", "Traceback ...", cause).as_instanceof_cause()


def typed(error: BaseException, phase: Phase = Phase.RUNNING) -> TrialError:
    return classify(error, trial_id="t", attempt=1, phase=phase, node_id=None)


def actor_error(**flags: bool) -> exceptions.RayActorError:
    return exceptions.RayActorError(error_msg="gone", **flags)


class PickyError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(code)


LOST = [
    (exceptions.OutOfMemoryError("too much"), Cause.OUT_OF_MEMORY),
    (exceptions.NodeDiedError("node"), Cause.NODE_LOST),
    (exceptions.LocalRayletDiedError(), Cause.NODE_LOST),
    (exceptions.WorkerCrashedError(), Cause.WORKER_DIED),
    (exceptions.RuntimeEnvSetupError("pip"), Cause.ENVIRONMENT),
    (exceptions.OutOfDiskError(), Cause.ENVIRONMENT),
    (exceptions.ObjectStoreFullError("full"), Cause.ENVIRONMENT),
    (exceptions.ObjectLostError("ff", None, "here"), Cause.ENVIRONMENT),
    (exceptions.OwnerDiedError("ff", None, "here"), Cause.ENVIRONMENT),
    (exceptions.RaySystemError("broken"), Cause.ENVIRONMENT),
    (exceptions.ActorUnschedulableError("nowhere"), Cause.UNSCHEDULABLE),
    (exceptions.TaskUnschedulableError("nowhere"), Cause.UNSCHEDULABLE),
    (exceptions.ActorPlacementGroupRemoved(), Cause.UNSCHEDULABLE),
]
ACTORS = [
    (actor_error(), Cause.WORKER_DIED),
    (actor_error(preempted=True), Cause.PREEMPTED),
    (exceptions.ActorDiedError(), Cause.WORKER_DIED),
    (exceptions.ActorUnavailableError("gone", None), Cause.ACTOR_UNAVAILABLE),
]
USERS = [ValueError("mine"), MemoryError("mine"), ConnectionError("mine"), PickyError(code=1)]


@pytest.mark.parametrize(("error", "cause"), LOST + ACTORS)
def test_what_ray_says_of_processes_machines_and_objects_is_an_actor_error(
    error: BaseException, cause: Cause
) -> None:
    for raised in (error, _ray.LostActorError(error, "actor")):
        result = typed(raised)
        assert type(result) is ActorError
        assert result.cause is cause


@pytest.mark.parametrize(("error", "cause"), ACTORS)
def test_an_actor_error_inside_a_task_error_is_unwrapped(
    error: BaseException, cause: Cause
) -> None:
    nested = task_error(task_error(error))
    assert unwrap(nested) is error
    result = typed(nested)
    assert type(result) is ActorError
    assert result.cause is cause


@pytest.mark.parametrize("error", USERS)
def test_an_exception_of_the_users_code_is_a_training_error(error: BaseException) -> None:
    for raised in (task_error(error), task_error(task_error(error)), error):
        result = typed(raised)
        assert type(result) is TrainingError
        assert result.cause is Cause.USER_CODE


@pytest.mark.parametrize(
    "error",
    [
        actor_error(actor_init_failed=True),
        exceptions.UnserializableException("traceback"),
        exceptions.TaskCancelledError(),
    ],
)
def test_an_error_that_stands_for_the_users_exception_is_a_training_error(
    error: BaseException,
) -> None:
    result = typed(error)
    assert type(result) is TrainingError
    assert result.cause is Cause.USER_CODE


@pytest.mark.parametrize("error", [error for error, _ in LOST + ACTORS] + USERS)
def test_the_phase_restoring_decides_first(error: BaseException) -> None:
    result = typed(error, Phase.RESTORING)
    assert type(result) is RestoreError
    assert result.cause is typed(error).cause


def test_a_missing_checkpoint_is_named() -> None:
    error = task_error(ValueError(f"{_ray.CHECKPOINT_GONE}. Got ..."))
    assert typed(error, Phase.RESTORING).cause is Cause.CHECKPOINT_MISSING


def test_a_typed_error_is_chained_to_rays_own() -> None:
    origin = exceptions.OutOfMemoryError("too much")
    assert typed(_ray.LostActorError(origin, None)).__cause__ is origin
    raised = task_error(ValueError("mine"))
    assert typed(raised).__cause__ is raised


def test_a_long_text_is_shortened_in_the_middle() -> None:
    error = typed(task_error(ValueError("a" * 9000 + "the end")))
    assert len(error.detail) <= MAX_DETAIL_CHARS + 3
    assert error.detail.startswith("ValueError: aaa")
    assert error.detail.endswith("the end")
    assert pickle.loads(pickle.dumps(error)).detail == error.detail
