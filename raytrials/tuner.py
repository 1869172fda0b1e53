"""The drop-in `Tuner`."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune import ResultGrid, ResumeConfig, RunConfig, Trainable, TuneConfig

from raytrials import _ray, settings
from raytrials.core.retry import RetryPolicy
from raytrials.driver.launch import TunerInternal
from raytrials.driver.result import TrialResultGrid
from raytrials.errors import ConfigurationError, UnserializableError, UnsupportedPathError
from raytrials.store.location import is_known_to_pyarrow, resolve

TrainableLike = str | Callable[..., Any] | type[Trainable]


class Tuner(tune.Tuner):  # type: ignore[misc]
    """`ray.tune.Tuner` under the trial controller of raytrials.

    Takes what `ray.tune.Tuner` takes and does what it does; searchers, schedulers, stoppers and
    callbacks work unchanged. Failures are typed and charged as `docs/failures.md` says, and results
    are :class:`raytrials.driver.result.TrialResult`, which show each trial's faults.

    `RunConfig(storage_path=...)` may also be a URL of fsspec whose package is installed, and
    `RunConfig(storage_filesystem=...)` a filesystem of fsspec, or one that renews its credentials
    (`raytrials.refreshing_filesystem`).

    Args:
        trainable: as in Ray.
        param_space: as in Ray.
        tune_config: as in Ray.
        run_config: as in Ray.
        retry_policy: what failures cost. Default: a `RetryPolicy()` made when a fit starts, that
            is, from the environment of that moment.

    Raises:
        ConfigurationError: an argument or environment variable has a value that is not allowed.
        UnserializableError: the trainable or a value of `param_space` cannot be sent to a worker.
        StorageUnwritableError: the storage path cannot be written.
        UnsupportedPathError: Ray Client is connected.
    """

    def __init__(
        self,
        trainable: TrainableLike | None = None,
        *,
        param_space: dict[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        retry_policy: RetryPolicy | None = None,
        _tuner_kwargs: dict[str, Any] | None = None,
        _tuner_internal: TunerInternal | None = None,
        _entrypoint: _ray.AirEntrypoint = _ray.AirEntrypoint.TUNER,
    ) -> None:
        _refuse_client()
        if _tuner_internal is None:
            _check_policy(retry_policy)
            _check_inputs(param_space, run_config)
            run_config = _with_storage(run_config)
            _tuner_internal = TunerInternal(
                retry_policy=retry_policy,
                trainable=trainable,
                param_space=param_space,
                tune_config=tune_config,
                run_config=run_config,
                _tuner_kwargs=_tuner_kwargs,
                _entrypoint=_entrypoint,
            )
        elif not isinstance(_tuner_internal, TunerInternal):
            raise UnsupportedPathError(
                "an internal tuner of vanilla Ray",
                "Make the tuner with raytrials.Tuner(...) or raytrials.Tuner.restore(...).",
            )
        super().__init__(_tuner_internal=_tuner_internal)

    @classmethod
    def restore(  # noqa: PLR0913, PLR0917 - Ray's signature
        cls,
        path: str,
        trainable: TrainableLike,
        resume_unfinished: bool = True,  # noqa: FBT001, FBT002
        resume_errored: bool = False,  # noqa: FBT001, FBT002
        restart_errored: bool = False,  # noqa: FBT001, FBT002
        param_space: dict[str, Any] | None = None,
        storage_filesystem: Any = None,
        _resume_config: ResumeConfig | None = None,
        *,
        retry_policy: RetryPolicy | None = None,
    ) -> Tuner:
        """Return a tuner that continues the experiment at `path`.

        Args as in `ray.tune.Tuner.restore`; `path` and `storage_filesystem` may be fsspec's, as in
        the constructor; `retry_policy` as in the constructor (a policy is not
        saved with the experiment). What each trial has spent survives; a trial resumed by
        `resume_errored` starts with fresh budgets, and keeps its ledger of faults.

        Raises:
            As the constructor; what Ray raises when there is nothing to restore at `path`.
        """
        _refuse_client()
        _check_policy(retry_policy)
        kinds = ResumeConfig.ResumeType
        unfinished = kinds.RESUME if resume_unfinished else kinds.SKIP
        errored = kinds.SKIP
        if resume_errored:
            errored = kinds.RESUME
        elif restart_errored:
            errored = kinds.RESTART
        path, storage_filesystem = _storage_of(path, storage_filesystem)
        internal = TunerInternal(
            retry_policy=retry_policy,
            restore_path=path,
            resume_config=_resume_config or ResumeConfig(unfinished=unfinished, errored=errored),
            trainable=trainable,
            param_space=param_space,
            storage_filesystem=storage_filesystem,
        )
        return cls(_tuner_internal=internal)

    @classmethod
    def can_restore(cls, path: str, storage_filesystem: Any = None) -> bool:
        """Return whether there is an experiment at `path`; both arguments as in `restore`."""
        resolved, filesystem = _storage_of(path, storage_filesystem)
        return bool(super().can_restore(resolved, filesystem))

    def fit(self) -> ResultGrid:
        """Run the experiment and return its results.

        Returns:
            A `ray.tune.ResultGrid` of :class:`raytrials.driver.result.TrialResult`, in trial order.

        Raises:
            As the constructor; an exception from a user's callback, as in Ray.
        """
        _refuse_client()
        settings.validate()
        return TrialResultGrid(_ray.analysis_of(super().fit()))

    def get_results(self) -> ResultGrid:
        """Return the results of the experiment as it stands, without running it."""
        return TrialResultGrid(_ray.analysis_of(super().get_results()))


def _refuse_client() -> None:
    if _ray.is_client_connected():
        raise UnsupportedPathError(
            "Ray Client (ray.init('ray://...'))",
            "Run the script on the cluster, with `ray job submit` or on the head node, where "
            "ray.init() connects directly.",
        )


def _check_policy(policy: RetryPolicy | None) -> None:
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise ConfigurationError(
            "Tuner(retry_policy=...)", policy, "a raytrials.RetryPolicy, or None for the default"
        )
    settings.validate()
    if policy is None:
        RetryPolicy()  # the environment's: what is wrong with it shows before anything starts


def _check_inputs(param_space: object, run_config: RunConfig | None) -> None:
    """Refuse what Ray would trip over later, or take for something else."""
    if isinstance(param_space, dict):
        for key, value in param_space.items():
            try:
                copy.deepcopy(value)
            except TypeError as error:
                raise UnserializableError(f"param_space[{key!r}]", str(error)) from error
    failure_config = getattr(run_config, "failure_config", None)
    max_failures = getattr(failure_config, "max_failures", 0)
    if not isinstance(max_failures, int) or max_failures < -1:
        raise ConfigurationError(
            "FailureConfig(max_failures=...)",
            max_failures,
            "a whole number, 0 or more, or -1 for no limit",
        )


def _with_storage(run_config: RunConfig | None) -> RunConfig | None:
    """Return a configuration whose storage Ray can use, also when fsspec alone knows it."""
    if run_config is None or run_config.storage_path is None:
        return run_config
    path, filesystem = _storage_of(run_config.storage_path, run_config.storage_filesystem)
    own = copy.copy(run_config)
    own.storage_path, own.storage_filesystem = path, filesystem
    return own


def _storage_of(path: str | os.PathLike[str], filesystem: Any) -> tuple[str, Any]:
    """Return a storage path and its filesystem as Ray takes them; None where Ray finds it itself.

    Raises:
        ConfigurationError: nobody knows the scheme, its package is missing, or it is no filesystem.
    """
    text = os.fspath(path)
    try:
        if filesystem is None and is_known_to_pyarrow(text):
            return text, None
        resolved, on_it = resolve(text, filesystem)
    except (ImportError, TypeError, ValueError) as error:
        if filesystem is None:
            name, value = "the storage path", text
            expected = "a path, a URI of pyarrow, or a URL of fsspec whose package is installed"
        else:
            name, value = "the storage filesystem", filesystem
            expected = "a filesystem of pyarrow or fsspec"
        raise ConfigurationError(name, value, f"{expected} ({error})") from error
    return on_it, resolved
