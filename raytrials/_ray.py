"""The one seam to Ray: every name of Ray without a public promise is imported here.

No policy lives here: one short function or alias per use. Each says which of Ray's names it
stands for and what breaks if that moves. `tests/seam` asserts every name, signature and overridden
method on the installed Ray, so that a new Ray fails there first, with the name that moved.

Subclasses of Ray's private classes live in `raytrials.driver`; `OVERRIDDEN` lists the methods they
override.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import csv
import functools
import json
import re
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import ray
from ray import cloudpickle, exceptions
from ray.air._internal.usage import AirEntrypoint
from ray.air.constants import (
    EXPR_ERROR_FILE,
    EXPR_ERROR_PICKLE_FILE,
    EXPR_PROGRESS_FILE,
    EXPR_RESULT_FILE,
)
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution.resources.placement_group import PlacementGroupResourceManager
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.train._internal.checkpoint_manager import (
    _CheckpointManager as CheckpointManager,  # a trial's checkpoints, in its metadata
)
from ray.train._internal.session import (
    _FutureTrainingResult as FutureTrainingResult,  # a save on its way; PBT waits for it
)
from ray.train._internal.session import (
    _TrainingResult,
    get_session,
)
from ray.train._internal.storage import (
    _VALIDATE_STORAGE_MARKER_FILENAME,
    StorageContext,
    get_fs_and_path,
)
from ray.train._internal.storage import (
    _FilesystemSyncer as FilesystemSyncer,  # uploads the driver's files in a thread
)
from ray.tune import ResultGrid
from ray.tune.callback import CallbackList
from ray.tune.execution.experiment_state import (
    _ExperimentCheckpointManager as ExperimentCheckpointManager,  # when the state is written
)
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Experiment, Trial
from ray.tune.experimental.output import ProgressReporter  # prints, with RAY_AIR_NEW_OUTPUT
from ray.tune.impl.placeholder import (
    _FunctionResolver,
    _RefResolver,
    inject_placeholders,
)
from ray.tune.impl.tuner_internal import TunerInternal
from ray.tune.logger import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    TBXLoggerCallback,
)
from ray.tune.progress_reporter import TrialProgressCallback  # prints, without it
from ray.tune.registry import _has_trainable, get_trainable_cls
from ray.tune.result import RESULT_DUPLICATE
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.tune.search import BasicVariantGenerator, SearchGenerator
from ray.tune.search.variant_generator import _count_spec_samples
from ray.tune.stopper import TimeoutStopper
from ray.tune.trainable import FunctionTrainable, wrap_function
from ray.tune.trainable.metadata import (
    _TrainingRunMetadata as TrainingRunMetadata,  # what a trial has done; its second saved text
)
from ray.tune.tune import _report_air_progress, _report_progress
from ray.tune.tune import run as _tune_run
from ray.tune.utils import flatten_dict
from ray.tune.utils.util import SafeFallbackEncoder
from ray.util import debug as ray_debug
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytrials import settings
from raytrials.errors import UnsupportedRayError

TESTED = ((2, 57), (2, 60))
"""First and last minor version of Ray that the seam tests passed on."""

__all__ = [
    "EXPR_ERROR_FILE",
    "EXPR_ERROR_PICKLE_FILE",
    "EXPR_PROGRESS_FILE",
    "EXPR_RESULT_FILE",
    "OVERRIDDEN",
    "RESULT_DUPLICATE",
    "USED",
    "AirEntrypoint",
    "CallbackList",
    "CheckpointManager",
    "Experiment",
    "ExperimentCheckpointManager",
    "FilesystemSyncer",
    "FunctionTrainable",
    "FutureTrainingResult",
    "PlacementGroupResourceManager",
    "ProgressReporter",
    "RayActorManager",
    "StorageContext",
    "TrainingResult",
    "TrainingRunMetadata",
    "Trial",
    "TrialProgressCallback",
    "TuneController",
    "TunerInternal",
    "cloudpickle",
    "flatten_dict",
]

# `checkpoint` and `metrics` of one save; what `restore` is called with.
TrainingResult = _TrainingResult

OVERRIDDEN: Mapping[type, tuple[str, ...]] = {
    TuneController: (
        "__init__",
        "__getstate__",
        "setup_experiments",
        "save_to_dir",
        "checkpoint",
        "_mark_trial_to_checkpoint",
        "cleanup",
        "add_trial",
        "stop_trial",
        "resume",
        "_restore_trials",
        "_requeue_restored_trials",
        "_maybe_update_trial_queue",
        "_update_trial_queue",
        "_create_checkpoint_manager",
        "_stop_experiment_if_needed",
        "_schedule_trial_actor",
        "_maybe_reuse_cached_actor",
        "_actor_started",
        "_schedule_trial_restore",
        "_remove_actor",
        "_schedule_trial_stop",
        "_schedule_trial_train",
        "_schedule_trial_pause",
        "_try_recover",
        "_requeue_trial",
        "on_step_begin",
        "on_step_end",
        "_on_training_result",
        "_process_trial_result",
        "_validate_result_metrics",
        "_on_trial_reset",
        "_trial_task_failure",
        "_process_trial_failure",
        "_set_trial_status",
        "is_finished",
        "_wrapped",
        "_maybe_add_actors",
        "_schedule_trial_save",
        "_process_trial_save",
    ),
    Trial: (
        "__getstate__",
        "get_trainable_cls",
        "last_result",
        "handle_error",
        "should_recover",
        "on_checkpoint",
        "on_restore",
        "set_config",
        "update_resources",
        "_get_default_result_or_future",
    ),
    RayActorManager: (
        "__init__",
        "add_actor",
        "remove_actor",
        "_try_start_actors",
        "_actor_task_failed",
        "_actor_start_failed",
        "next",
        "num_pending_actors",
    ),
    PlacementGroupResourceManager: (
        "__init__",
        "request_resources",
        "cancel_resource_request",
        "has_resources_ready",
        "acquire_resources",
    ),
    StorageContext: (
        "_create_validation_file",
        "_update_checkpoint_index",
        "persist_current_checkpoint",
        "persist_artifacts",
    ),
    FilesystemSyncer: ("__init__", "_sync_up_command"),
    TrainingRunMetadata: ("invalidate_cache", "get_json_state"),
    ResultGrid: ("__init__", "_populate_exception", "_trial_to_result"),
    ExperimentCheckpointManager: (
        "__init__",
        "sync_up_experiment_state",
        "_update_auto_checkpoint_time",
    ),
    TunerInternal: (
        "__init__",
        "__getstate__",
        "_validate_trainable",
        "_validate_param_space_on_restore",
        "_restore_from_path_or_uri",
        "_fit_internal",
        "_fit_resume",
        "get_results",
    ),
}

USED: Mapping[type, tuple[str, ...]] = {
    TuneController: (
        "RAISE",
        "_on_restoring_result",
        "_schedule_trial_task",
        "_schedule_trial_train",
        "_unstage_trial_with_resources",
    ),
    Trial: (
        "checkpoint",
        "create_placement_group_factory",
        "error_file",
        "from_json_state",
        "get_json_state",
        "get_error",
        "get_pickled_error",
        "has_checkpoint",
        "init_local_path",
        "invalidate_json_state",
        "latest_checkpoint_result",
        "local_path",
        "pickled_error_file",
        "resolve_config_placeholders",
        "set_status",
        "update_last_result",
    ),
}
"""Methods that our subclasses call on themselves; attributes are asserted on live objects."""


def check_version(installed: str = ray.__version__) -> None:
    """Refuse a Ray outside the tested range, unless the user allows it.

    Raises:
        UnsupportedRayError: names the tested range and the way out.
    """
    major, minor = (int(part) for part in installed.split(".")[:2])
    first, last = TESTED
    if not first <= (major, minor) <= last and not settings.ALLOW_UNTESTED_RAY.get():
        tested = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
        raise UnsupportedRayError(installed, tested)


# --- how a fit is launched -----------------------------------------------------------------------


def rebind(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """Return a copy of `function` that sees `names` in place of its module's globals.

    Nothing of Ray is changed: other callers of the original, in this or another thread, see none
    of it. Breaks if the function stops reading one of `names` as a global.
    """
    missing = [name for name in names if name not in function.__code__.co_names]
    if missing:
        raise AttributeError(f"{function.__qualname__} no longer reads the globals {missing}")
    copy = types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__ = function.__module__
    return copy


def tune_run(
    controller: Callable[..., TuneController],
    experiment: type[Experiment],
    catch_signals: Callable[[], threading.Event],
    paced: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[..., Any]:
    """Return `ray.tune.run` with our controller and experiment in place of Ray's.

    `run` asks `isinstance(x, Experiment)`, so the experiment has to be a class. The copy also names
    itself as `run`, so that no path inside leads back to the original. `run` calls `catch_signals`
    when it has started Ray, and ends its loop when the event is set. After each step it calls
    `_report_progress` or `_report_air_progress` with controller and reporter, and at the end with
    `done` or `force` as well; `paced` returns what is called in their place.
    """
    copy = rebind(
        _tune_run,
        TuneController=controller,
        Experiment=experiment,
        _setup_signal_catching=catch_signals,
        _report_progress=paced(_report_progress),
        _report_air_progress=paced(_report_air_progress),
        run=_tune_run,
    )
    copy.__globals__["run"] = copy
    return copy


def fit_internal(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `TunerInternal._fit_internal`, which fits a fresh experiment, calling `run`."""
    return rebind(TunerInternal._fit_internal, run=run)


def fit_resume(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `TunerInternal._fit_resume`, which fits a restored experiment, calling `run`."""
    return rebind(TunerInternal._fit_resume, run=run)


def initialise_internal(storage: Any) -> Callable[..., None]:
    """Return `TunerInternal.__init__`, which finds its storage through another `StorageContext`.

    It calls it with `storage_path`, `experiment_dir_name` and `storage_filesystem`, asks it for
    `get_experiment_dir_name` when there is no name, and uses of what it returns
    `storage_filesystem`, on which it writes `tuner.pkl`, and `experiment_fs_path`.
    """
    return rebind(TunerInternal.__init__, StorageContext=storage)


def filesystem_and_path(storage_path: Any, filesystem: Any) -> tuple[Any, str]:
    """Return the filesystem of a storage path and the path on it (`get_fs_and_path`)."""
    found, path = get_fs_and_path(storage_path, filesystem)
    return found, str(path)


def fresh_name(trainable: Any) -> str:
    """Return a name for an experiment with this trainable: its own, and the second."""
    return str(StorageContext.get_experiment_dir_name(trainable))


def restore_from_path(load: Callable[[], Any], analyse: Callable[..., Any]) -> Callable[..., None]:
    """Return `TunerInternal._restore_from_path_or_uri`, which reads `tuner.pkl` and the results.

    Args:
        load: returns what it unpickles, in place of reading and `pickle.loads`.
        analyse: makes the `ExperimentAnalysis`; Ray takes an exception of it for no results.
    """
    opened = types.SimpleNamespace(readall=lambda: b"")
    storage = types.SimpleNamespace(open_input_file=lambda _: contextlib.nullcontext(opened))
    return rebind(
        TunerInternal._restore_from_path_or_uri,
        get_fs_and_path=lambda *_: (storage, ""),
        pickle=types.SimpleNamespace(loads=lambda _: load()),
        ExperimentAnalysis=analyse,
    )


def resume(find: Callable[..., str | None]) -> Callable[..., None]:
    """Return `TuneController.resume`, which takes up the state file whose path `find` returns."""
    return rebind(TuneController.resume, _find_newest_experiment_checkpoint=find)


def raise_samples(search_algorithm: Any, num_samples: int) -> None:
    """Have a restored search algorithm make trials up to a higher `num_samples`.

    For Ray's two algorithms (`SearchGenerator._total_samples`, which counts trials, and the
    iterators of `BasicVariantGenerator`, which count samples of the whole grid).
    """
    if isinstance(search_algorithm, SearchGenerator):
        search_algorithm._total_samples = max(search_algorithm._total_samples, num_samples)
    elif isinstance(search_algorithm, BasicVariantGenerator):
        for iterator in search_algorithm._iterators:
            more = num_samples - iterator.num_samples
            if more > 0:
                iterator.num_samples += more
                iterator.num_samples_left += more
                grid = _count_spec_samples(iterator.unresolved_spec, 1)
                search_algorithm._total_samples += more * grid
                search_algorithm._finished = False


# --- placeholders: what Ray saves of values in a search space that are no plain ones --------------


def placeholder_keys(param_space: Any) -> list[str]:
    """Return the keys, with dots, of the values that Ray puts placeholders in the place of."""
    resolvers: Any = collections.defaultdict(list)
    inject_placeholders(copy.deepcopy(param_space), resolvers)
    return [".".join(map(str, path)) for path in resolvers]


def references_alone(resolvers: Any, trial: Trial) -> Any:
    """Return the resolvers of a controller (`_placeholder_resolvers`) for a trial that is kept.

    Those for the placeholders in it. Ray trips over values where it expects placeholders.
    """
    hashes = {token[1] for _, token in _placeholders(trial.__dict__.get(_UNRESOLVED))}
    found = {
        path: [one for one in some if isinstance(one, _RefResolver) and one.hash in hashes]
        for path, some in (resolvers or {}).items()
    }
    return {path: some for path, some in found.items() if some}


def keep_config(trial: Trial) -> bool:
    """Have a restored trial keep its configuration when Ray resolves placeholders in it.

    Ray takes `Trial.__unresolved_config`, as it was sampled, puts the objects of the new search
    space in and *samples its functions again*. Here it becomes what the trial has, with
    placeholders for the objects alone. False for a trial that was just sampled.
    """
    unresolved = trial.__dict__.get(_UNRESOLVED)
    found = list(_placeholders(unresolved))
    if any(_is_placeholder(_at(trial.config, path)) for path, _ in found):
        return False
    kept = copy.deepcopy(trial.config) if not found else _copy_without(trial.config, found)
    trial.__dict__[_UNRESOLVED] = kept
    return True


def unresolved_keys(trial: Trial) -> list[str]:
    """Return the keys, with dots, where a trial's configuration has placeholders and no values."""
    return [".".join(map(str, path)) for path, _ in _placeholders(trial.config)]


def object_values(trial: Trial) -> dict[str, Any]:
    """Return the values of a trial's configuration, by key, that stand where placeholders did."""
    unresolved = trial.__dict__.get(_UNRESOLVED)
    return {
        ".".join(map(str, path)): _at(trial.config, path)
        for path, token in _placeholders(unresolved)
        if token[0] == _RefResolver.TOKEN
    }


_UNRESOLVED = "_Trial__unresolved_config"
_TOKENS = {_RefResolver.TOKEN, _FunctionResolver.TOKEN}


def _is_placeholder(value: Any) -> bool:
    # A tuple as it is made, a list once it was saved as JSON.
    return isinstance(value, tuple | list) and len(value) == 2 and value[0] in _TOKENS  # noqa: PLR2004 - as above


def _placeholders(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any]]:
    if isinstance(config, dict):
        for key, value in config.items():
            yield from _placeholders(value, (*path, key))
    elif _is_placeholder(config):
        yield path, tuple(config)
    elif isinstance(config, list | tuple):
        for index, value in enumerate(config):
            yield from _placeholders(value, (*path, index))


def _at(config: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        try:
            config = config[key]
        except (KeyError, IndexError, TypeError):
            return None
    return config


def _copy_without(config: Any, found: list[tuple[Any, Any]]) -> Any:
    """Return a copy with placeholders of objects in the place of the objects, as far as it goes."""
    tokens = {path: token for path, token in found if token[0] == _RefResolver.TOKEN}

    def copied(value: Any, path: tuple[Any, ...]) -> Any:
        if path in tokens:
            return tokens[path]
        if isinstance(value, dict):
            return {key: copied(one, (*path, key)) for key, one in value.items()}
        if isinstance(value, list):
            return [copied(one, (*path, index)) for index, one in enumerate(value)]
        if type(value) is tuple:
            return tuple(copied(one, (*path, index)) for index, one in enumerate(value))
        return copy.deepcopy(value)

    return copied(config, ())


def analysis_of(grid: ResultGrid) -> Any:
    """Return the `ExperimentAnalysis` that a result grid was made of (`_experiment_analysis`)."""
    return grid._experiment_analysis


def is_client_connected() -> bool:
    """Whether this process talks to the cluster through Ray Client (`ray.util.client`)."""
    return bool(ray.util.client.ray.is_connected())


# --- trainables ----------------------------------------------------------------------------------


def trainable_class(trainable: Any) -> type | None:
    """Return the class that runs `trainable`, as `register_trainable` would make it.

    None for what only Ray can resolve (a search space over trainables). A name is looked up.
    """
    if isinstance(trainable, str):
        return cast("type", get_trainable_cls(trainable))
    if isinstance(trainable, type):
        return trainable
    return cast("type", wrap_function(trainable)) if callable(trainable) else None


def is_registered(name: Any) -> bool:
    """Whether Ray's registry knows a trainable of this name."""
    return not isinstance(name, str) or bool(_has_trainable(name))


def is_registry_race(error: RuntimeError) -> bool:
    """Whether two threads wrote to Ray's registry, one dictionary a process, at the same time."""
    return "dictionary changed size" in str(error)


# --- checkpoints ---------------------------------------------------------------------------------


def register_checkpoint(trial: Trial, result: Any) -> list[str]:
    """Register a checkpoint with a trial, and return the paths of those that it puts out.

    `_CheckpointManager.register_checkpoint` with `_delete_fs_path`, by which it deletes them at
    once, replaced by a note of what it would have deleted.
    """
    out: list[str] = []
    register = rebind(
        CheckpointManager.register_checkpoint,
        _delete_fs_path=lambda fs, fs_path: out.append(str(fs_path)),  # noqa: ARG005 - Ray's names
    )
    register(trial.run_metadata.checkpoint_manager, result)
    return out


def keep_staging_directory(storage: StorageContext, before: StorageContext) -> None:
    """Let a driver use the local directory of the one before (`StorageContext._timestamp`)."""
    storage._timestamp = before._timestamp


def callbacks_in(callbacks: Any) -> list[Any]:
    """Return the callbacks in Ray's `CallbackList` (`_callbacks`): the list itself."""
    return cast("list[Any]", callbacks._callbacks)


def trial_from_json(text: str, checkpoint_config: Any) -> Trial:
    """Return a trial of the first half of its JSON (`Trial.get_json_state`), without its results.

    What `Trial.from_json_state` leaves out is `run_metadata`, which has the checkpoint manager.
    """
    trial = Trial.from_json_state(text)
    trial.run_metadata.checkpoint_manager = CheckpointManager(checkpoint_config)
    return trial


def forget_encoded() -> None:
    """Have Ray forget which objects of saved states it has logged (`log_once`, `_logged`).

    It notes each as a text, with all that is in it, and keeps that until the process ends.
    """
    for key in list(ray_debug._logged):
        if key.startswith("tune_func_encode:"):
            ray_debug.reset_log_once(key)


def max_concurrent_of(search_alg: Any) -> int | None:
    """Return how many trials a search algorithm lets run at once, None for no limit.

    `max_concurrent` of `BasicVariantGenerator`, or of a `ConcurrencyLimiter` in the chain of
    `searcher` attributes.
    """
    part, limits = search_alg, []
    while part is not None:
        limits.append(getattr(part, "max_concurrent", None) or 0)
        part = part.__dict__.get("searcher")
    return min((limit for limit in limits if limit > 0), default=None)


def charge_time(stopper: Any, seconds: float) -> None:
    """Take running time off what a `TimeoutStopper` has left (`_budget`), also a combined one."""
    for one in getattr(stopper, "_stoppers", [stopper]):
        if isinstance(one, TimeoutStopper):
            one._budget -= seconds


def bundles_of(trial: Trial) -> list[dict[str, float]]:
    """Return the bundles of a trial's placement group (`Trial.placement_group_factory`)."""
    factory = trial.placement_group_factory
    return [dict(bundle) for bundle in factory.bundles] if factory is not None else []


def forget_analysis_without_steps(trial: Trial) -> None:
    """Drop what is known of metrics of which the latest values are not: Ray cannot add to it."""
    metadata = trial.run_metadata
    known = metadata.metric_n_steps
    metadata.metric_analysis = {
        name: one for name, one in metadata.metric_analysis.items() if name in known
    }


def registered_checkpoints(trial: Trial) -> list[Any]:
    """Return the results of a trial's checkpoints, in Ray's order."""
    return checkpoints_in(trial.run_metadata.checkpoint_manager)


def checkpoints_in(manager: Any) -> list[Any]:
    """Return the results in a trial's checkpoint manager (`_checkpoint_results`)."""
    return list(manager._checkpoint_results)


def num_to_keep(trial: Trial) -> int | None:
    """Return how many checkpoints a trial keeps, None for all (`_checkpoint_config`)."""
    config = trial.run_metadata.checkpoint_manager._checkpoint_config
    return cast("int | None", config.num_to_keep)


def latest_checkpoint(trial: Trial) -> Any:
    """Return the result with a trial's latest checkpoint, None for none."""
    return trial.run_metadata.checkpoint_manager._latest_checkpoint_result


def set_checkpoints(trial: Trial, results: list[Any], latest: Any) -> None:
    """Put other results in the place of a trial's checkpoints; `latest` may be None."""
    manager = trial.run_metadata.checkpoint_manager
    manager._checkpoint_results = results
    manager._latest_checkpoint_result = latest
    trial._restore_checkpoint_result = None
    trial.run_metadata.invalidate_cache()


def session_iteration() -> tuple[int, Any]:
    """Return how often a function trainable has reported here, and the checkpoint it has loaded.

    0 and None outside of a function trainable (`get_session`).
    """
    session = get_session()
    return (0, None) if session is None else (session.iteration, session.loaded_checkpoint)


def temporary_directory_of(checkpoint: Any) -> str:
    """Return where a checkpoint that is not on a local disk is downloaded to by itself."""
    return str(checkpoint._get_temporary_checkpoint_dir())


def validation_file_of(storage: StorageContext) -> str:
    """Return the path of the marker by which workers know the driver's storage."""
    return f"{storage.experiment_fs_path}/{_VALIDATE_STORAGE_MARKER_FILENAME}"


def session_directory_of(storage: StorageContext) -> str:
    """Return the experiment's directory on this node, which goes with the Ray session."""
    return str(storage._get_session_path())


def checkpoints_kept_by(scheduler: Any) -> list[str]:
    """Return the paths of checkpoints that a scheduler means to hand to other trials.

    Those of PBT and its kin (`_trial_state[trial].last_checkpoint`, a checkpoint or its future).
    """
    states = getattr(scheduler, "_trial_state", None)
    kept = []
    for state in states.values() if isinstance(states, dict) else ():
        checkpoint: Any = getattr(state, "last_checkpoint", None)
        if hasattr(checkpoint, "resolve"):
            result = checkpoint.resolve(block=False)
            checkpoint = None if result is None else result.checkpoint
        if checkpoint is not None:
            kept.append(str(checkpoint.path))
    return kept


_CHOOSES_FIRST = FIFOScheduler.choose_trial_to_run
_CHOOSES_UNFINISHED = (
    PopulationBasedTraining.choose_trial_to_run,
    HyperBandForBOHB.choose_trial_to_run,
)


def chooses_among(scheduler: Any) -> Literal["first", "unfinished"] | None:
    """Return which trials a scheduler looks at when it chooses one to run (`get_trials`).

    "first": at the first pending trial, else the first paused one, which it takes: FIFO and all
    that leave the choice to it. "unfinished": at pending, paused and running ones: those whose
    code is known here. None: who knows, such as a scheduler of the user's.
    """
    while type(scheduler) is ResourceChangingScheduler:
        scheduler = scheduler._base_scheduler
    choose = getattr(scheduler.choose_trial_to_run, "__func__", None)
    if choose is _CHOOSES_FIRST:
        return "first"
    return "unfinished" if choose in _CHOOSES_UNFINISHED else None


_ONLY_LOOKS = (
    _CHOOSES_FIRST,
    HyperBandScheduler.choose_trial_to_run,
    PopulationBasedTraining.choose_trial_to_run,
)


def only_looks(scheduler: Any) -> bool:
    """Whether a scheduler that chooses a trial to run is sure to change nothing by it."""
    return getattr(scheduler.choose_trial_to_run, "__func__", None) in _ONLY_LOOKS


def is_synchronous(scheduler: Any) -> bool:
    """Whether a scheduler lets its trials wait for each other: PBT with `synch` (`_synch`)."""
    return isinstance(scheduler, PopulationBasedTraining) and bool(scheduler._synch)


def is_behind(scheduler: Any, trial: Trial) -> bool:
    """Whether a population waits for a trial (`_trial_state`, `_next_perturbation_sync`)."""
    state = scheduler._trial_state.get(trial)
    return state is None or bool(state.last_train_time < scheduler._next_perturbation_sync)


def changes_resources(scheduler: Any) -> bool:
    """Whether a scheduler may give trials other resources, by what the cluster has."""
    return isinstance(scheduler, ResourceChangingScheduler)


def cluster_size(controller: Any) -> tuple[float, float]:
    """Return the processors and GPUs of the cluster as schedulers see them."""
    found = controller._resource_updater
    return found.get_num_cpus(), found.get_num_gpus()


@contextlib.contextmanager
def without_log(scheduler: Any) -> Iterator[None]:
    """Within this block PBT writes no log of its exploits (`_log_config`), also as a base."""
    part, logging_ones = scheduler, []
    while part is not None:
        if getattr(part, "_log_config", False):
            logging_ones.append(part)
        part = getattr(part, "_base_scheduler", None)
    for one in logging_ones:
        one._log_config = False
    try:
        yield
    finally:
        for one in logging_ones:
            one._log_config = True


# --- search algorithms ---------------------------------------------------------------------------

VARIANTS_MADE = ("_iterators", "_random_state")
"""Attributes of a `BasicVariantGenerator` that go on with each trial that it makes."""


def is_lazy(generator: BasicVariantGenerator) -> bool:
    """Whether a `BasicVariantGenerator` makes its variants one by one (`_iterators`, `lazy_eval`).

    Its `get_state` then has none to give.
    """
    return any(iterator.lazy_eval for iterator in generator._iterators)


def variants_state(generator: BasicVariantGenerator) -> dict[str, Any]:
    """Return what `set_state` takes, as `get_state` makes it; of a lazy one, before its first."""
    made_anew = {"_trial_generator", "_trial_iter"}
    return {name: value for name, value in vars(generator).items() if name not in made_anew}


def rename_variant(generator: BasicVariantGenerator, old: str, new: str) -> None:
    """Let `max_concurrent` count a trial under another id (`_live_trials`)."""
    generator._live_trials.discard(old)
    generator._live_trials.add(new)


# --- loggers -------------------------------------------------------------------------------------


def keep_longer_logs(callbacks: Any, kept: Collection[tuple[str, str]] = ()) -> None:
    """Let loggers not go back to older files of a trial when one of its attempts starts.

    Then they fetch what they logged before from storage (`_restore_from_remote`), over newer files
    that are still here.

    Args:
        callbacks: a `CallbackList`.
        kept: files that are not fetched at all, as id of the trial and name; it may grow.
    """
    for callback in callbacks:
        if isinstance(callback, LoggerCallback):
            callback._restore_from_remote = functools.partial(_fetch_if_longer, callback, kept)


def _fetch_if_longer(
    callback: Any, kept: Collection[tuple[str, str]], file_name: str, trial: Trial
) -> None:
    if (trial.trial_id, file_name) in kept:
        return
    path = Path(trial.local_path, file_name)
    here = path.read_bytes() if path.exists() else b""
    type(callback)._restore_from_remote(callback, file_name, trial)
    if here and (not path.exists() or path.stat().st_size < len(here)):
        path.write_bytes(here)


def continue_tables(callbacks: Any) -> None:
    """Let CSV loggers that continue a file keep to the columns of its header.

    By themselves they take those of the first result that they write, in its order, and write no
    header (`_setup_trial` leaves `_trial_csv[trial]` empty, and the first result fills it).
    """
    for callback in callbacks:
        if isinstance(callback, CSVLoggerCallback):
            callback._setup_trial = functools.partial(_continue_table, callback)


def _continue_table(callback: Any, trial: Trial) -> None:
    type(callback)._setup_trial(callback, trial)
    table = getattr(callback, "_trial_files", {}).get(trial)
    if table is None or not callback._trial_continue[trial]:
        return
    path = Path(trial.local_path, EXPR_PROGRESS_FILE)
    with contextlib.suppress(OSError, ValueError, csv.Error):
        with path.open(encoding=table.encoding, newline="") as file:
            header = next(csv.reader(file), None)
        if header:
            callback._trial_csv[trial] = csv.DictWriter(table, header)


def purge_steps(callbacks: Any, steps: Mapping[str, int], opened: Writers) -> None:
    """Let TensorBoard forget steps that are run again.

    A writer that is opened (`_summary_writer_cls`, once for each attempt) begins its file with the
    step from which on earlier files of the directory do not count.

    Args:
        callbacks: a `CallbackList`.
        steps: that step, by the trial's local directory; it may grow.
        opened: what is opened is added, by that directory.
    """
    for callback in callbacks:
        if isinstance(callback, TBXLoggerCallback):
            callback._summary_writer_cls = functools.partial(
                _open_writer, _writer_class(callback), steps, opened
            )


def _writer_class(callback: Any) -> Any:
    made = callback._summary_writer_cls
    return made.args[0] if isinstance(made, functools.partial) else made


def _open_writer(
    make: Callable[..., Any],
    steps: Mapping[str, int],
    opened: Writers,
    log_dir: str,
    **options: Any,
) -> Any:
    if log_dir in steps:
        options["purge_step"] = steps[log_dir]
    writer = make(log_dir, **options)
    opened.setdefault(log_dir, []).append(getattr(writer, "file_writer", None))
    return writer


def release_logs(callbacks: Any, trial: Trial, opened: Writers) -> None:
    """Let loggers hold nothing of a trial that has ended, whatever a user's override has left open.

    Beside files (`log_trial_end`) they keep its config (`_trial_configs`) and whether its table is
    continued (`_trial_continue`).
    """
    for callback in callbacks:
        for kind in (JsonLoggerCallback, CSVLoggerCallback, TBXLoggerCallback):
            if isinstance(callback, kind):
                kind.log_trial_end(callback, trial)
        for name in ("_trial_configs", "_trial_continue"):
            getattr(callback, name, {}).pop(trial, None)
    close_writers(opened.pop(trial.local_path, []))


def close_logs(callbacks: Any) -> None:
    """Close the files of trials that have not ended, which no logger is told of any more."""
    for callback in callbacks:
        if isinstance(callback, TBXLoggerCallback):
            for writer in callback._trial_writer.values():
                writer.close()
            callback._trial_writer.clear()
            callback._trial_result.clear()
        for kind in (JsonLoggerCallback, CSVLoggerCallback):
            if isinstance(callback, kind):
                for trial in list(callback._trial_files):
                    kind.log_trial_end(callback, trial)


def close_writers(writers: list[Any]) -> None:
    """Close TensorBoard's writers, and leave nothing in them.

    tensorboardX holds every `FileWriter` to the end of the process (`atexit`), with all in it.
    """
    for writer in writers:
        if getattr(writer, "event_writer", None) is not None:
            writer.event_writer.close()
            writer.event_writer = _CLOSED


Writers = dict[str, list[Any]]
_CLOSED = types.SimpleNamespace(close=lambda: None)


def leave_loggers(callbacks: Any) -> None:
    """Undo what the functions above did; the user may give the same callbacks to another fit."""
    for callback in callbacks:
        for name in ("_restore_from_remote", "_setup_trial"):
            vars(callback).pop(name, None)
        if isinstance(callback, TBXLoggerCallback):
            callback._summary_writer_cls = _writer_class(callback)


def result_as_json(result: Mapping[str, Any]) -> str:
    """Return a result as `JsonLoggerCallback` writes it (`SafeFallbackEncoder`)."""
    return json.dumps(result, cls=SafeFallbackEncoder)


def flattened(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as `CSVLoggerCallback` writes it (`flatten_dict`)."""
    flat = {name: value for name, value in result.items() if name != "config"}
    return cast("dict[str, Any]", flatten_dict(flat, delimiter="/"))


# --- errors --------------------------------------------------------------------------------------


class LostActorError(exceptions.RayActorError):  # type: ignore[misc]
    """Stands for an error on a task that Ray raised outside its actor and task errors.

    Ray's actor manager and controller know only those two and end the whole `fit()` on any other
    (out of memory, a lost object, ...). Internal: `raytrials.driver.classify` looks at `origin`.
    """

    def __init__(self, origin: BaseException, actor_id: str | None) -> None:
        super().__init__(actor_id=actor_id, error_msg=str(origin))
        self.origin = origin


CHECKPOINT_GONE = "Could not recover from checkpoint as it does not exist on storage anymore"


def is_checkpoint_gone(error: BaseException) -> bool:
    """Whether `Trainable.restore` found no checkpoint. Ray offers a ValueError's text alone."""
    return isinstance(error, ValueError) and str(error).startswith(CHECKPOINT_GONE)


_EXIT_CODE = re.compile(r"exit code (\d+)")
_LAST_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)


def exit_code_in(text: str) -> int | None:
    """Return the exit code that the text of an actor's death names; Ray offers the text alone."""
    found = _EXIT_CODE.search(text)
    return int(found.group(1)) if found else None


def exception_named_in(text: str) -> tuple[str, ...]:
    """Return the class that the last line of a traceback names, as the traceback writes it."""
    named = _LAST_EXCEPTION.findall(text.strip().rpartition("\n")[2])
    return tuple(named[:1])


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def without_colours(text: str) -> str:
    """Return Ray's text without the terminal colours that it puts into tracebacks."""
    return _COLOUR.sub("", text)


def is_package_missing(error: BaseException) -> bool:
    """Whether a worker could not import raytrials; Ray offers the text alone."""
    return "No module named 'raytrials" in str(error)


def actor_of_task(task: Any) -> Any:
    """Return the tracked actor of a `TrackedActorTask` (`_tracked_actor`)."""
    return task._tracked_actor


def error_handler_of_task(task: Any) -> Callable[[Any, Exception], None] | None:
    """Return who is told when a `TrackedActorTask` fails (`_on_error`)."""
    handler: Callable[[Any, Exception], None] | None = task._on_error
    return handler


# --- actors --------------------------------------------------------------------------------------


def actor_id_of(handle: Any) -> str | None:
    """Return the hex id of an actor handle (`ActorHandle._actor_id`)."""
    return None if handle is None else str(handle._actor_id.hex())


def node_of_actor(actor_id: str | None) -> str | None:
    """Return the hex id of the node that an actor runs or ran on (`ray._private.state.actors`).

    None if the cluster does not know, or did not place it.
    """
    if actor_id is None:
        return None
    try:
        record = ray._private.state.actors(actor_id)
    except exceptions.RayError:
        return None
    node_id: str = (record or {}).get("Address", {}).get("NodeID", "")
    return node_id if node_id.strip("f") else None


# --- nodes ---------------------------------------------------------------------------------------

NODE_ID_LABEL = "ray.io/node-id"


def group_arguments(request: Any, avoided: frozenset[str]) -> dict[str, Any]:
    """Return the arguments of `placement_group` for a request, kept off some nodes.

    `request` is a `ResourceRequest`, whose bound arguments (`_bound`) these are. Nodes are told by
    the label that Ray gives each of them; a selector that asks for a node by itself is left alone.
    """
    arguments = dict(request._bound.arguments)
    given = arguments.get("bundle_label_selector") or [{} for _ in arguments["bundles"]]
    off = {NODE_ID_LABEL: f"!in({','.join(sorted(avoided))})"}
    arguments["bundle_label_selector"] = [{**off, **selector} for selector in given]
    return arguments


def draining_nodes() -> frozenset[str]:
    """Return the hex ids of nodes with an accepted drain (`state.get_draining_nodes`)."""
    return frozenset(ray._private.state.state.get_draining_nodes())


def own_node() -> str:
    """Return the hex id of the node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


def has_runtime_environment() -> bool:
    """Whether workers of this job may have other packages than their node's own."""
    environment = ray.get_runtime_context().runtime_env or {}
    return bool(
        set(environment) & {"pip", "uv", "conda", "py_executable", "container", "image_uri"}
    )


def ask_for_package(node_id: str) -> ray.ObjectRef:
    """Ask a worker on a node, in the job's runtime environment, whether it finds raytrials.

    The question is code without a module, so that cloudpickle sends it by value: a worker that
    lacks the package must be able to answer.
    """
    question = types.FunctionType(
        _finds_package.__code__, {"__builtins__": __builtins__}, "finds_raytrials"
    )
    question.__module__ = "__main__"
    on_node = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=on_node)(question)
    return task.remote()


def _finds_package() -> bool:
    import importlib  # noqa: PLC0415 - runs in a worker, by itself

    try:
        importlib.import_module("raytrials")
    except ImportError:
        return False
    return True


PREEMPTED_DEATH = 3
"""`NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED`, as the node table's `DeathReason` has it."""


# --- the cluster's key-value store ---------------------------------------------------------------

_NAMESPACE = b"raytrials"


def kv_put(key: str, value: str) -> None:
    """Store a small value in the cluster's key-value store (0.3 to 2 ms)."""
    _internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)


def kv_get(key: str) -> str | None:
    """Return a value of the cluster's key-value store, None if there is none."""
    value = _internal_kv_get(key, namespace=_NAMESPACE)
    return None if value is None else bytes(value).decode()


def kv_del(key: str) -> None:
    """Delete a value from the cluster's key-value store."""
    _internal_kv_del(key, namespace=_NAMESPACE)


check_version()
