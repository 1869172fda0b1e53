"""Every name of Ray's that we rely on without a promise is still there, as it was.

These tests fail first when Ray moves, and say which name moved.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import threading
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import ray
from packaging.requirements import Requirement
from ray import tune
from ray.tune import Callback, schedulers
from ray.tune.execution import tune_controller
from ray.tune.execution.tune_controller import TrialRunnerWrapper
from ray.tune.impl import tuner_internal
from ray.tune.logger import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    TBXLoggerCallback,
)
from ray.tune.search import BasicVariantGenerator, Searcher, basic_variant
from ray.tune.search.search_generator import SearchGenerator
from ray.tune.trainable import trainable
from ray.tune.tune import run

from raytrials import _ray
from raytrials.driver.actors import ActorManager
from raytrials.driver.continued import ContinuedController
from raytrials.driver.controller import Controller
from raytrials.driver.launch import TunerInternal
from raytrials.driver.placement import Placement
from raytrials.driver.raystate import RayState
from raytrials.driver.result import TrialResultGrid
from raytrials.driver.retention import StateSyncer
from raytrials.driver.scheduler import METHODS
from raytrials.driver.storage import TrialStorage
from raytrials.driver.trial import Trial
from raytrials.errors import UnsupportedRayError

OURS = {
    _ray.TuneController: ContinuedController,
    _ray.Trial: Trial,
    _ray.RayActorManager: ActorManager,
    _ray.PlacementGroupResourceManager: Placement,
    _ray.TunerInternal: TunerInternal,
    _ray.ResultGrid: TrialResultGrid,
    _ray.StorageContext: TrialStorage,
    _ray.FilesystemSyncer: StateSyncer,
    _ray.ExperimentCheckpointManager: RayState,
}

# Ray's parameters, without self, as our overrides and calls pass them on.
PARAMETERS = {
    (_ray.TuneController, "add_trial"): ["trial"],
    (_ray.TuneController, "stop_trial"): ["trial"],
    (_ray.TuneController, "_restore_trials"): ["experiment_state"],
    (_ray.TuneController, "_requeue_restored_trials"): ["trials", "resume_config"],
    (_ray.TuneController, "_schedule_trial_actor"): ["trial"],
    (_ray.TuneController, "_maybe_reuse_cached_actor"): ["trial"],
    (_ray.TuneController, "_actor_started"): ["tracked_actor", "log"],
    (_ray.TuneController, "_schedule_trial_restore"): ["trial"],
    (_ray.TuneController, "_schedule_trial_stop"): ["trial", "exception"],
    (_ray.TuneController, "_on_training_result"): ["trial", "result"],
    (_ray.TuneController, "_validate_result_metrics"): ["result"],
    (_ray.TuneController, "_on_trial_reset"): ["trial", "success"],
    (_ray.TuneController, "_trial_task_failure"): ["trial", "exception"],
    (_ray.TuneController, "_process_trial_failure"): ["trial", "exception"],
    (_ray.TuneController, "_on_restoring_result"): ["trial", "result"],
    (_ray.TuneController, "_set_trial_status"): ["trial", "status"],
    (_ray.TuneController, "is_finished"): [],
    (_ray.TuneController, "_wrapped"): [],
    (_ray.TuneController, "_maybe_add_actors"): [],
    (_ray.ExperimentCheckpointManager, "sync_up_experiment_state"): ["save_fn", "force", "wait"],
    (_ray.ExperimentCheckpointManager, "_update_auto_checkpoint_time"): ["time_taken"],
    (_ray.TuneController, "_unstage_trial_with_resources"): ["trial"],
    (_ray.TuneController, "_mark_trial_to_checkpoint"): ["trial"],
    (_ray.Trial, "handle_error"): ["exc"],
    (_ray.Trial, "should_recover"): [],
    (_ray.Trial, "on_restore"): [],
    (_ray.Trial, "get_trainable_cls"): [],
    (_ray.Trial, "_get_default_result_or_future"): [],
    (_ray.TuneController, "_process_trial_result"): ["trial", "result"],
    (_ray.TuneController, "_schedule_trial_pause"): ["trial", "should_checkpoint"],
    (_ray.TuneController, "_try_recover"): ["trial", "exc"],
    (_ray.TuneController, "_requeue_trial"): ["trial"],
    (_ray.TuneController, "on_step_begin"): [],
    (_ray.TuneController, "on_step_end"): [],
    (_ray.RayActorManager, "__init__"): ["resource_manager"],
    (_ray.RayActorManager, "_try_start_actors"): ["max_actors"],
    (_ray.RayActorManager, "remove_actor"): ["tracked_actor", "kill", "stop_future"],
    (_ray.PlacementGroupResourceManager, "__init__"): ["update_interval_s"],
    (_ray.PlacementGroupResourceManager, "request_resources"): ["resource_request"],
    (_ray.PlacementGroupResourceManager, "cancel_resource_request"): ["resource_request"],
    (_ray.PlacementGroupResourceManager, "has_resources_ready"): ["resource_request"],
    (_ray.PlacementGroupResourceManager, "acquire_resources"): ["resource_request"],
    (_ray.RayActorManager, "_actor_task_failed"): ["tracked_actor_task", "exception"],
    (_ray.RayActorManager, "_actor_start_failed"): ["tracked_actor", "exception"],
    (_ray.TuneController, "setup_experiments"): ["experiments", "total_num_samples"],
    (_ray.TuneController, "save_to_dir"): [],
    (_ray.TuneController, "cleanup"): [],
    (_ray.TuneController, "checkpoint"): ["force", "wait"],
    (_ray.TuneController, "_process_trial_save"): ["trial", "checkpoint_value"],
    (_ray.TuneController, "_schedule_trial_train"): ["trial"],
    (_ray.TuneController, "_remove_actor"): ["tracked_actor"],
    (_ray.Trial, "on_checkpoint"): ["checkpoint_result"],
    (_ray.Trial, "init_local_path"): [],
    (_ray.StorageContext, "_create_validation_file"): [],
    (_ray.StorageContext, "_update_checkpoint_index"): ["metrics"],
    (_ray.StorageContext, "persist_current_checkpoint"): ["checkpoint"],
    (_ray.StorageContext, "persist_artifacts"): ["force"],
    (_ray.FilesystemSyncer, "__init__"): ["storage_filesystem", "kwargs"],
    (_ray.FilesystemSyncer, "_sync_up_command"): ["local_path", "uri", "exclude"],
    (_ray.TunerInternal, "_validate_trainable"): ["trainable", "required_trainable_name"],
    (_ray.TuneController, "resume"): ["resume_config"],
    (_ray.Trial, "resolve_config_placeholders"): ["placeholder_resolvers"],
    (_ray.TunerInternal, "_restore_from_path_or_uri"): [
        "path_or_uri",
        "trainable",
        "overwrite_param_space",
        "resume_config",
        "storage_filesystem",
    ],
    (_ray.TunerInternal, "_validate_param_space_on_restore"): [
        "new_param_space",
        "flattened_param_space_keys",
    ],
    (_ray.TunerInternal, "get_results"): [],
    (_ray.TunerInternal, "_fit_internal"): ["trainable", "param_space"],
    (_ray.TunerInternal, "_fit_resume"): ["trainable", "param_space"],
    (_ray.ResultGrid, "_populate_exception"): ["trial"],
    (_ray.ResultGrid, "_trial_to_result"): ["trial"],
}


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(
    ("kind", "name"), PARAMETERS, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_method_has_the_parameters_that_we_pass(kind: type, name: str) -> None:
    found = parameters(getattr(kind, name))
    assert found == PARAMETERS[kind, name], f"Ray moved {kind.__qualname__}.{name}: {found}"


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_the_list_of_overridden_methods_is_complete(kind: type) -> None:
    overridden = {
        name
        for part in OURS[kind].__mro__
        if part.__module__.startswith("raytrials")
        for name, value in vars(part).items()
        for ours in OURS[kind].__mro__[: OURS[kind].__mro__.index(kind)]
        for name, value in vars(ours).items()
        if callable(value) or isinstance(value, property | staticmethod)
        if hasattr(kind, name) and name not in {"__doc__", "__module__", "__annotations__"}
    }
    inherited_from_object = {"__reduce_ex__"}
    assert overridden - inherited_from_object == set(_ray.OVERRIDDEN[kind])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for names in (_ray.OVERRIDDEN, _ray.USED)
        for kind in names
        for name in names[kind]
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_a_name_that_we_rely_on_exists(kind: type, name: str) -> None:
    assert hasattr(kind, name), f"Ray no longer has {kind.__qualname__}.{name}"


def test_run_and_the_internal_tuner_read_the_names_that_we_rebind() -> None:
    assert {"TuneController", "Experiment", "run"} <= set(run.__code__.co_names)
    assert "run" in tuner_internal.TunerInternal._fit_internal.__code__.co_names
    assert "run" in tuner_internal.TunerInternal._fit_resume.__code__.co_names


def test_the_storage_context_can_be_replaced_where_ray_makes_one() -> None:
    assert "StorageContext" in tuner_internal.TunerInternal.__init__.__code__.co_names
    assert _ray.Experiment._storage_context_cls is _ray.StorageContext


def test_a_tuner_is_made_and_restored_by_the_names_that_we_rebind() -> None:
    made = inspect.getsource(_ray.TunerInternal.__init__)
    for part in (
        "storage_path=self._run_config.storage_path",
        "experiment_dir_name=self._run_config.name",
        "storage_filesystem=self._run_config.storage_filesystem",
        "StorageContext.get_experiment_dir_name(",
        "storage.experiment_fs_path, _TUNER_PKL",
        "f.write(pickle.dumps(self.__getstate__()))",
    ):
        assert part in made, f"Ray makes its internal tuner otherwise: {part}"
    restored = inspect.getsource(_ray.TunerInternal._restore_from_path_or_uri)
    for part in ("fs.open_input_file(", "pickle.loads(f.readall())", "except Exception:"):
        assert part in restored, f"Ray restores its internal tuner otherwise: {part}"
    _ray.restore_from_path(dict, dict)
    _ray.resume(lambda *_: None)
    assert parameters(_ray.get_fs_and_path) == ["storage_path", "storage_filesystem"]


def test_a_restored_trial_has_what_keeps_its_configuration() -> None:
    trial = _ray.Trial("__fake", config={"x": 1}, stub=True)
    assert trial.__dict__[_ray._UNRESOLVED] == {"x": 1}
    assert "self._placeholder_resolvers" in inspect.getsource(_ray.TuneController.add_trial)
    assert (_ray._RefResolver.TOKEN, _ray._FunctionResolver.TOKEN) == ("__ref_ph", "__fn_ph")


def test_the_search_algorithms_count_samples_as_we_raise_them(tmp_path: Path) -> None:
    generator = _ray.SearchGenerator(Searcher())
    generator._total_samples = 2
    _ray.raise_samples(generator, 5)
    assert generator.total_samples == 5
    _ray.raise_samples(generator, 3)
    assert generator.total_samples == 5
    variants = BasicVariantGenerator()
    space = {"a": tune.grid_search([1, 2]), "b": tune.uniform(0, 1)}
    experiment = _ray.Experiment(
        "e", lambda config: None, config=space, num_samples=2, storage_path=str(tmp_path)
    )
    variants.add_configurations([experiment])
    assert len(list(iter(variants.next_trial, None))) == 4
    assert variants.is_finished()
    _ray.raise_samples(variants, 3)
    state = variants.get_state()
    again = BasicVariantGenerator()
    again.set_state(state)
    added = list(iter(again.next_trial, None))
    assert [trial.experiment_tag.split("_")[0] for trial in added] == ["4", "5"]
    assert again.total_samples == 6


def test_registering_a_checkpoint_deletes_by_the_name_that_we_rebind() -> None:
    register = _ray.CheckpointManager.register_checkpoint
    assert "_delete_fs_path" in register.__code__.co_names


def test_the_loggers_have_the_names_that_we_use() -> None:
    assert parameters(LoggerCallback._restore_from_remote) == ["file_name", "trial"]
    assert parameters(CSVLoggerCallback._setup_trial) == ["trial"]
    for kind, name in (
        (CSVLoggerCallback, "self._restore_from_remote("),
        (JsonLoggerCallback, "self._restore_from_remote("),
        (CSVLoggerCallback, "self._setup_trial("),
        (CSVLoggerCallback, "if not self._trial_csv[trial]:"),
        (CSVLoggerCallback, "self._trial_continue[trial]"),
        (CSVLoggerCallback, "self._trial_files[trial]"),
        (TBXLoggerCallback, "self._summary_writer_cls("),
        (JsonLoggerCallback, "cls=SafeFallbackEncoder"),
        (CSVLoggerCallback, 'flatten_dict(tmp, delimiter="/")'),
    ):
        assert name in inspect.getsource(kind), f"Ray moved {kind.__qualname__}: {name}"
    for kind in (CSVLoggerCallback, JsonLoggerCallback):  # they open files again by themselves
        source = inspect.getsource(kind.log_trial_result)
        assert "if trial not in self._trial_files:" in source, f"Ray moved {kind.__qualname__}"
    assert issubclass(_ray.ProgressReporter, Callback)
    assert issubclass(_ray.TrialProgressCallback, Callback)
    assert list(_ray.CallbackList([None])) == [None]


def test_the_rebound_run_names_ours_and_leaves_rays_alone() -> None:
    event = threading.Event()
    told: list[Any] = []
    copy = _ray.tune_run(Controller, _ray.Experiment, lambda: event, lambda real: told.append)
    copy.__globals__["_report_progress"](1)
    copy.__globals__["_report_air_progress"](2)
    assert told == [1, 2]
    assert copy.__globals__["_setup_signal_catching"]() is event
    assert copy.__globals__["run"] is copy
    assert copy.__globals__["TuneController"] is Controller
    assert copy.__kwdefaults__ == run.__kwdefaults__
    assert run.__globals__["TuneController"] is _ray.TuneController
    assert run.__globals__["run"] is run


def test_a_scheduler_is_asked_first_when_actors_are_added_and_looks_as_we_think() -> None:
    adding = inspect.getsource(_ray.TuneController._maybe_add_actors)
    assert "self._scheduler_alg.choose_trial_to_run(self._wrapped())" in adding
    assert adding.count("_wrapped()") == 1
    seen = inspect.getsource(TrialRunnerWrapper)
    assert "def __getattr__" in seen, "Ray's wrapper has get_trials of its own now"
    assert "def get_trials" not in seen, "Ray's wrapper has get_trials of its own now"
    for kind, looks_at in {
        schedulers.FIFOScheduler: 2,
        schedulers.PopulationBasedTraining: 1,
        schedulers.HyperBandForBOHB: 1,
        schedulers.HyperBandScheduler: 0,
    }.items():
        source = inspect.getsource(kind.choose_trial_to_run)
        assert source.count("get_trials()") == looks_at, f"Ray moved {kind.__qualname__}"


def test_a_scheduler_is_called_where_we_record_it() -> None:
    calls = set(re.findall(r"_scheduler_alg\.(\w+)\(", inspect.getsource(tune_controller)))
    assert calls == set(METHODS.values()), "Ray calls schedulers by other methods now"


def test_schedulers_that_choose_without_an_effect_do_so() -> None:
    for kind in (
        schedulers.FIFOScheduler,
        schedulers.HyperBandScheduler,
        schedulers.PopulationBasedTraining,
    ):
        source = inspect.getsource(kind.choose_trial_to_run)
        assert not re.search(r"self\.\w+(\[.*\])? = |self\.\w+\(|set_|stop_|pause_", source)


def test_a_population_waits_by_the_names_that_we_look_at() -> None:
    source = inspect.getsource(schedulers.PopulationBasedTraining)
    for name in ("_synch", "_trial_state", "_next_perturbation_sync", "_log_config"):
        assert f"self.{name}" in source
    assert "last_train_time < self._next_perturbation_sync" in re.sub(r"\s+", " ", source)
    assert "isinstance(last_checkpoint, _FutureTrainingResult)" in source
    assert "_base_scheduler" in inspect.getsource(schedulers.ResourceChangingScheduler)


def test_a_save_on_its_way_is_asked_for_as_we_stand_for_it() -> None:
    assert list(inspect.signature(_ray.FutureTrainingResult).parameters) == ["future"]
    resolve = inspect.signature(_ray.FutureTrainingResult.resolve)
    assert list(resolve.parameters) == ["self", "block"]


def test_a_status_changes_in_one_place_once_a_trial_was_added() -> None:
    source = inspect.getsource(tune_controller)
    for name in ("_set_trial_status", "_requeue_restored_trials"):  # the latter adds them
        method = inspect.getsource(getattr(_ray.TuneController, name))
        assert ".set_status(" in method
        source = source.replace(method, "")
    assert ".set_status(" not in source


def test_progress_is_reported_as_we_pace_it() -> None:
    source = inspect.getsource(run)
    for call in (
        "_report_progress(runner, progress_reporter)",
        "_report_progress(runner, progress_reporter, done=True)",
        "_report_air_progress(runner, air_progress_reporter)",
        "_report_air_progress(runner, air_progress_reporter, force=True)",
    ):
        assert call in source, f"Ray reports progress otherwise: {call}"


def test_rays_state_is_paced_by_the_name_that_we_set() -> None:
    source = inspect.getsource(_ray.ExperimentCheckpointManager.sync_up_experiment_state)
    assert "now - self._last_save_time < self._checkpoint_period and not force" in source
    assert "self._update_auto_checkpoint_time(time_taken=checkpoint_time_taken)" in source


def test_rebinding_a_name_that_is_gone_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ray.rebind(run, no_such_name=1)


def test_the_controller_has_the_attributes_that_we_use() -> None:
    source = inspect.getsource(_ray.TuneController.__init__)
    for name in (
        "_actor_manager",
        "_actor_to_trial",
        "_fail_fast",
        "_has_errored",
        "_print_trial_errors",
        "_resetting_trials",
    ):
        assert f"self.{name}" in source, f"Ray no longer sets TuneController.{name}"
    assert "resource_manager_factory" in parameters(_ray.TuneController.__init__)
    assert "_live_actors_to_ray_actors_resources" in inspect.getsource(
        _ray.RayActorManager.__init__
    )
    state = inspect.getsource(_ray.Trial)
    for name in ("restoring_from", "ray_actor", "num_restore_failures"):
        assert f"temporary_state.{name}" in state, f"Ray no longer sets temporary_state.{name}"


def test_the_text_of_a_missing_checkpoint_is_as_it_was() -> None:
    source = textwrap.dedent(inspect.getsource(trainable.Trainable.restore))
    assert all(word in source for word in ("raise ValueError", "does not exist on", "storage any"))
    message = "".join(
        node.value
        for node in _string_constants(source)
        if "recover" in node.value or "storage anymore" in node.value
    )
    assert message.startswith(_ray.CHECKPOINT_GONE)


def _string_constants(source: str) -> list[Any]:
    import ast  # noqa: PLC0415

    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_the_generators_of_trials_have_the_attributes_that_we_use() -> None:
    variants = vars(BasicVariantGenerator())
    for name in ("_iterators", "_live_trials", "_random_state", "_trial_generator", "_trial_iter"):
        assert name in variants, f"Ray no longer sets BasicVariantGenerator.{name}"
    source = inspect.getsource(basic_variant)
    assert "iterator.lazy_eval for iterator in self._iterators" in source
    made_anew = inspect.getsource(BasicVariantGenerator.get_state)
    assert all(f'del state["{name}"]' in made_anew for name in ("_trial_generator", "_trial_iter"))
    searcher = Searcher(metric="m", mode="max")
    generator = SearchGenerator(searcher)
    assert generator.searcher is searcher
    assert {"counter", "experiment"} <= set(generator.get_state())


def test_the_search_generator_asks_and_tells_its_searcher_as_ours_stands_for_it() -> None:
    assert parameters(Searcher.suggest) == ["trial_id"]
    assert parameters(Searcher.on_trial_result) == ["trial_id", "result"]
    assert parameters(Searcher.on_trial_complete) == ["trial_id", "result", "error"]
    source = inspect.getsource(SearchGenerator)
    for call in (
        "self.searcher.suggest(trial_id)",
        "self.searcher.on_trial_result(trial_id, result)",
        "self.searcher.on_trial_complete(trial_id=trial_id, result=result, error=error)",
        "type(searcher).__name__",
    ):
        assert call in source, f"SearchGenerator no longer says {call}"


def test_the_actor_error_says_what_we_ask_it() -> None:
    error = ray.exceptions.RayActorError()
    assert (error.preempted, error.actor_init_failed, error.actor_id) == (False, False, None)


def test_the_tested_range_is_that_of_the_package() -> None:
    ((first_major, first_minor), (last_major, last_minor)) = _ray.TESTED
    (pinned,) = [
        Requirement(one) for one in requires("raytrials") or [] if one.startswith("ray[tune]")
    ]
    assert f"{first_major}.{first_minor}" in pinned.specifier
    assert f"{last_major}.{last_minor}.9" in pinned.specifier
    assert f"{first_major}.{first_minor - 1}.9" not in pinned.specifier
    assert f"{last_major}.{last_minor + 1}" not in pinned.specifier


def test_the_installed_ray_is_in_the_tested_range() -> None:
    _ray.check_version(ray.__version__)


@pytest.mark.parametrize("version", ["2.9.3", "2.99.0", "3.0.0"])
def test_an_untested_ray_is_refused_unless_allowed(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnsupportedRayError) as caught:
        _ray.check_version(version)
    for part in (version, "2.57 to 2.60", "RAYTRIALS_ALLOW_UNTESTED_RAY=1"):
        assert part in str(caught.value)
    monkeypatch.setenv("RAYTRIALS_ALLOW_UNTESTED_RAY", "1")
    _ray.check_version(version)


def test_ray_forgets_which_objects_of_saved_states_it_has_logged() -> None:
    metadata = _ray.TrainingRunMetadata()
    metadata.update_metric("loss", 0.123456)
    metadata.get_json_state()
    noted = [key for key in _ray.ray_debug._logged if "0.123456" in key]
    _ray.forget_encoded()
    assert noted
    assert not [key for key in _ray.ray_debug._logged if "0.123456" in key]


def test_metadata_has_what_is_packed_of_it() -> None:
    metadata = _ray.TrainingRunMetadata()
    assert {"metric_analysis", "metric_n_steps", "checkpoint_manager", "_cached_json"} <= set(
        vars(metadata)
    )
