"""How a fit is launched: Ray's `tune.run`, rebound to our controller for this one fit."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pyarrow.lib
from ray import cloudpickle
from ray.tune import RunConfig
from ray.util import inspect_serializability

from raytrials import _ray, settings
from raytrials.core.retry import RetryPolicy
from raytrials.driver.asked import Asked
from raytrials.driver.beginning import Beginning
from raytrials.driver.checkpoints import Checkpoints
from raytrials.driver.continued import ContinuedController
from raytrials.driver.controller import Controller
from raytrials.driver.pace import paced
from raytrials.driver.reopened import Reopened
from raytrials.driver.signals import StopRequest, catching_signals
from raytrials.driver.space import describe
from raytrials.driver.storage import TrialStorage
from raytrials.driver.trial import FitContext
from raytrials.errors import StorageError, StorageUnwritableError, UnserializableError
from raytrials.store.disk import Disk
from raytrials.store.holding import holding
from raytrials.store.local import LocalDisk
from raytrials.store.retrying import retry
from raytrials.store.tenure import Lease

# Ray's registry of trainables is one dictionary a process, and loses entries or raises when two
# threads write to it at once. The lock keeps our fits apart; a vanilla fit beside them knows none.
_registry_lock = threading.Lock()
_REGISTRY_TRIES = 10

_STORAGE_ERRORS = (OSError, StorageError, pyarrow.lib.ArrowException)


class TunerInternal(_ray.TunerInternal):  # type: ignore[misc]
    """Ray's internal tuner, whose fits run our controller.

    Args:
        retry_policy: what failures cost; None is the policy of the environment when a fit starts.
        resume: as of `raytrials.Tuner`; with `restore_path`, "auto" means that the configurations
            given here go before those of the experiment.
        **kwargs: as Ray's.
    """

    # Ray's
    _experiment_analysis: Any
    _run_config: Any
    _tune_config: Any

    def __init__(
        self, retry_policy: RetryPolicy | None = None, resume: str | None = None, **kwargs: Any
    ) -> None:
        self._retry_policy = retry_policy
        self._asked: Asked | None = None
        self._context: FitContext | None = None
        self._stop = StopRequest()
        self._reopened: Reopened | None = None
        if kwargs.get("restore_path"):
            if resume == "auto":
                self._asked = Asked(kwargs.get("tune_config"), kwargs["run_config"])
            super().__init__(**kwargs)
            return
        run_config = kwargs.get("run_config") or RunConfig()
        self._beginning = Beginning(run_config, overwrite=resume == "overwrite")
        initialise = functools.partial(_ray.initialise_internal(self._beginning), self, **kwargs)
        try:
            _patiently(initialise)
            self._beginning.save()
        except _STORAGE_ERRORS as error:
            raise _unwritable(self._run_config.storage_path, error) from error

    def _validate_trainable(
        self, trainable: Any, required_trainable_name: str | None = None
    ) -> None:
        try:
            cloudpickle.dumps(trainable)
        except Exception as error:
            found = io.StringIO()
            inspect_serializability(trainable, print_file=found)
            name = getattr(trainable, "__name__", repr(trainable))
            detail = f"{error}\n{found.getvalue()}"
            raise UnserializableError(f"trainable {name}", detail) from error
        super()._validate_trainable(trainable, required_trainable_name)

    def _restore_from_path_or_uri(
        self, path_or_uri: str, *, storage_filesystem: Any, **kwargs: Any
    ) -> None:
        self._reopened = Reopened(path_or_uri, storage_filesystem)
        restore = _ray.restore_from_path(self._reopened.load, self._reopened.analyse)
        restore(self, path_or_uri, storage_filesystem=storage_filesystem, **kwargs)
        if self._asked is not None:
            self._tune_config, self._run_config = self._asked.over(
                self._tune_config, self._run_config
            )

    def _validate_param_space_on_restore(
        self, new_param_space: dict[str, Any], flattened_param_space_keys: list[str] | None
    ) -> None:
        if self._reopened is not None and self._reopened.has_journal:
            self._reopened.check_space(new_param_space)
        else:
            super()._validate_param_space_on_restore(new_param_space, flattened_param_space_keys)

    def stop(self) -> None:
        """Have the fit that runs, or the next one, stop as soon as what it has reached is saved."""
        self._stop.stop()

    def _fit_internal(self, trainable: Any, param_space: dict[str, Any] | None) -> Any:
        beginning = self._beginning
        with contextlib.ExitStack() as stack:
            try:
                beginning.require_free()
                context, lease = stack.enter_context(
                    self._driving(beginning.disk, beginning.path, param_space)
                )
                beginning.start(param_space, lease)
            except StorageError as error:
                raise _unwritable(self._run_config.storage_path, error) from error
            run = _run(Controller, context, stack)
            return _ray.fit_internal(run)(self, trainable, param_space)

    def _fit_resume(self, trainable: Any, param_space: dict[str, Any] | None) -> Any:
        reopened = cast("Reopened", self._reopened)
        param_space = reopened.complete_space(param_space)
        num_samples = self._tune_config.num_samples
        controller = functools.partial(
            ContinuedController,
            reopened=reopened,
            num_samples=sys.maxsize if num_samples == -1 else num_samples,
            max_failures=self._run_config.failure_config.max_failures,
            stop=self._run_config.stop if isinstance(self._run_config.stop, dict) else {},
        )
        with contextlib.ExitStack() as stack:
            context, _ = stack.enter_context(
                self._driving(reopened.disk, reopened.path, param_space)
            )
            reopened.mend()
            # Ray leaves the number out, as it means to find it in what it saved.
            run = functools.partial(_run(controller, context, stack), num_samples=num_samples)
            return _ray.fit_resume(run)(self, trainable, param_space)

    @contextlib.contextmanager
    def _driving(
        self, disk: Disk, path: str, param_space: dict[str, Any] | None
    ) -> Iterator[tuple[FitContext, Lease]]:
        """Drive an experiment: hold its lease, and let go of it however the fit ends.

        Raises:
            InterruptedRunError: a signal ended the fit, and means to end the process.
        """
        stop = self._stop
        with holding(disk, path, retry_s=settings.STORAGE_RETRY_S.get()) as lease:
            self._context = context = FitContext(
                self._retry_policy or RetryPolicy(),
                Checkpoints(),
                charge_decision_s=settings.CHARGE_DECISION_S.get(),
                param_space=describe(param_space),
                lease=lease,
                stop=stop,
            )
            try:
                yield context, lease
            except BaseException as error:
                # Ray cleans up after some exceptions, and not when the clean-up raises too.
                if context.chronicle is not None:
                    context.chronicle.close(f"{type(error).__name__}: {error}")
                raise
            finally:
                self._stop = StopRequest()
        stop.raise_if_interrupted(path)

    @property
    def lost(self) -> Mapping[str, str]:
        """What the journal says is not exact: of the fit, or of the experiment as it was found."""
        if self._context is not None and self._context.chronicle is not None:
            return self._context.chronicle.state.lost
        return {} if self._reopened is None else self._reopened.lost

    def get_results(self) -> Any:
        """Return the results as Ray does.

        Raises:
            ExperimentCorruptError: no state file of the restored experiment can be read.
            MissingCodeError: one needs code that is not found here.
            RayError: one holds references, and Ray is not started.
        """
        error = self._reopened.results_error if self._reopened is not None else None
        if self._experiment_analysis is None and error is not None:
            raise error
        return super().get_results()

    def __getstate__(self) -> dict[str, Any]:
        """Return what `tuner.pkl` holds: nothing that vanilla Ray could not read."""
        state: dict[str, Any] = super().__getstate__()
        for name in ("_retry_policy", "_asked", "_reopened", "_beginning", "_context", "_stop"):
            state.pop(name, None)
        return state


def _run(
    controller: Callable[..., Controller], context: FitContext, stack: contextlib.ExitStack
) -> Any:
    """Return `tune.run` with our controller, which signals stop until the stack is left."""

    def catch_signals() -> threading.Event:
        stack.enter_context(catching_signals(context.stop))
        return context.stop.done

    return _ray.tune_run(
        functools.partial(controller, context), _experiment_class(context), catch_signals, paced
    )


def _unwritable(storage_path: Any, error: Exception) -> StorageUnwritableError:
    cause = error.__cause__ if isinstance(error, StorageError) else None
    return StorageUnwritableError(str(storage_path), str(cause or error))


def _patiently(operation: Callable[[], None]) -> None:
    """Do what Ray does on storage by itself, again while the storage may come back."""
    other: list[Exception] = []

    def once() -> None:
        try:
            operation()
        except _STORAGE_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - raised below: the storage is not to blame
            other.append(error)

    try:
        retry(
            LocalDisk(), "opening", "the experiment", once, limit_s=settings.STORAGE_RETRY_S.get()
        )
    except StorageError as error:
        raise error.__cause__ or error from None
    if other:
        raise other[0]


def _experiment_class(context: FitContext) -> type[_ray.Experiment]:
    """Return what `tune.run` makes its experiment with: Ray's own class, made under our eyes."""

    class ObservedExperiment(_ray.Experiment):  # type: ignore[misc]
        def __new__(cls, **kwargs: Any) -> Any:
            experiment = _make_experiment(kwargs)
            context.trainable_name = experiment.run_identifier
            context.trainable_cls = _ray.trainable_class(kwargs["run"])
            return experiment

    return ObservedExperiment


class _Experiment(_ray.Experiment):  # type: ignore[misc]
    """Ray's experiment, on a storage that need not take empty files."""

    _storage_context_cls = TrialStorage

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A searcher saves the experiment's specification, which must not need raytrials.
        self.storage.__class__ = _ray.StorageContext


def _make_experiment(kwargs: dict[str, Any]) -> _ray.Experiment:
    """Return Ray's experiment, with its trainable registered whatever other threads register."""
    for remaining in reversed(range(_REGISTRY_TRIES)):
        try:
            with _registry_lock:
                experiment = _Experiment(**kwargs)
        except _STORAGE_ERRORS as error:
            raise StorageUnwritableError(str(kwargs.get("storage_path")), str(error)) from error
        except RuntimeError as error:
            if not _ray.is_registry_race(error) or not remaining:
                raise
        else:
            if _ray.is_registered(experiment.run_identifier):
                break
    return experiment
