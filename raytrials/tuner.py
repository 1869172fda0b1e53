"""The drop-in `Tuner`."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ray import tune
from ray.tune import ResumeConfig, RunConfig, Trainable, TuneConfig

from raytrials import _ray, settings
from raytrials.core.retry import RetryPolicy
from raytrials.driver.beginning import experiment_at, is_free
from raytrials.driver.launch import TunerInternal
from raytrials.driver.reopened import is_restorable
from raytrials.driver.result import TrialResultGrid
from raytrials.errors import ConfigurationError, UnserializableError, UnsupportedPathError
from raytrials.store.location import is_known_to_pyarrow, resolve

logger = logging.getLogger(__name__)

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
        resume: what to do with an experiment that is at the path already. None refuses it. "auto"
            continues it, as `restore` with this trainable and `param_space`, and starts it if there
            is none; `tune_config` and `run_config` may differ where nothing that is done
            contradicts them, and go before what was saved. "overwrite" removes it when `fit()`
            starts.

    Raises:
        ExperimentExistsError: the path holds an experiment, and `resume` does not say what to do.
        ConfigurationError: an argument or environment variable has a value that is not allowed, or
            contradicts the experiment that is continued.
        UnserializableError: the trainable or a value of `param_space` cannot be sent to a worker.
        StorageUnwritableError: the storage path cannot be written.
        UnsupportedPathError: Ray Client is connected.

    With `resume="auto"` also what `restore` raises.
    """

    def __init__(  # noqa: PLR0913 - Ray's, and ours
        self,
        trainable: TrainableLike | None = None,
        *,
        param_space: dict[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
        retry_policy: RetryPolicy | None = None,
        resume: Literal["auto", "overwrite"] | None = None,
        _tuner_kwargs: dict[str, Any] | None = None,
        _tuner_internal: TunerInternal | None = None,
        _entrypoint: _ray.AirEntrypoint = _ray.AirEntrypoint.TUNER,
    ) -> None:
        _refuse_client()
        if _tuner_internal is None:
            _check_policy(retry_policy)
            _check_inputs(param_space, run_config)
            _check_resume(resume, run_config)
            run_config = _with_storage(run_config)
            _tuner_internal = TunerInternal(
                retry_policy=retry_policy,
                resume=resume,
                **(_place_to_continue(run_config) if resume == "auto" else {}),
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
        `resume_errored`, which goes before `restart_errored`, starts with fresh budgets, and keeps
        its ledger of faults.

        Raises:
            As the constructor.
            NotAnExperimentError: nothing was ever started at `path`.
            ExperimentCorruptError: what it is restored with is damaged, and nothing mends it.
            JournalCorruptError: likewise, of the journal.
            MissingCodeError: what is saved needs a module that is not found here.
            SearchSpaceChangedError: `param_space` is another than the experiment's.
            ValueError: `trainable` has another name than the experiment's, as in Ray.
            StorageError: the storage does not answer.
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
        if storage_filesystem is None and "://" not in path:
            path = str(Path(path).expanduser().absolute())
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
        """Return whether `restore` would find a whole experiment at `path`.

        Args:
            path: as in `restore`. False for one that cannot be.
            storage_filesystem: likewise.

        Raises:
            StorageError: the storage does not answer.
        """
        return is_restorable(path, storage_filesystem)

    def fit(self) -> TrialResultGrid:
        """Run the experiment and return its results.

        Returns:
            A `ray.tune.ResultGrid` of :class:`raytrials.driver.result.TrialResult`, in trial order,
            with `lost`: what of the search is not exact, empty if all is.

        Raises:
            As the constructor.
            TuneError: a user's callback raised, as in Ray: with its traceback as the text.
            ExperimentExistsError: an experiment was started at the path since the tuner was made,
                by this tuner or another.
            ExperimentLockedError: a driver that is alive has the experiment.
            SearchSpaceNeededError: the search space of a restored experiment holds what ended with
                its cluster, and was not given again.
        """
        _refuse_client()
        settings.validate()
        grid = TrialResultGrid(_ray.analysis_of(super().fit()), self._local_tuner.lost)
        if grid.lost:
            parts = "; ".join(f"{part}: {detail}" for part, detail in grid.lost.items())
            logger.warning("The run is not exact. %s", parts)
        else:
            logger.info("Nothing broke the exactness of the run.")
        return grid

    def stop(self) -> None:
        """Stop the fit that runs in another thread, or the next one if none runs.

        It starts no trial any more, asks running class trainables for a last checkpoint and gives
        them `RAYTRIALS_GRACE_S` for it; then `fit()` returns what there is. The experiment goes on
        with `Tuner.restore` or `resume="auto"`. Returns at once, from any thread.
        """
        self._local_tuner.stop()

    def get_results(self) -> TrialResultGrid:
        """Return the results of the experiment as it stands, without running it.

        Raises:
            ExperimentCorruptError: they cannot be read from any state file of the experiment.
        """
        return TrialResultGrid(_ray.analysis_of(super().get_results()), self._local_tuner.lost)


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


def _check_resume(resume: object, run_config: RunConfig | None) -> None:
    if resume not in {None, "auto", "overwrite"}:
        raise ConfigurationError("Tuner(resume=...)", resume, "None, 'auto' or 'overwrite'")
    if resume == "auto" and not getattr(run_config, "name", None):
        raise ConfigurationError(
            "RunConfig(name=...)", None, "a name, by which resume='auto' finds the experiment"
        )


def _place_to_continue(run_config: RunConfig) -> dict[str, Any]:
    """Return the arguments that restore the experiment at the path; none if there is no such."""
    filesystem, root = run_config.storage_filesystem, str(run_config.storage_path)
    path = experiment_at(root, run_config.name)
    if is_free(path, filesystem):
        return {}
    return {
        "restore_path": path,
        "storage_filesystem": filesystem,
        "resume_config": ResumeConfig(),
    }


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
