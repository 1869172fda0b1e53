"""Where a scheduler is taken again through what a driver before it went through.

:class:`Stage` shows the scheduler Ray's trials as they were then, call by call, and puts them back
at the end. :class:`ScriptedController` stands for the controller meanwhile: what the scheduler does
to a trial is done to how the trial is shown, and noted; no actor and no searcher hears of it.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.tune import Checkpoint

from raytrials import _ray
from raytrials.core.event import (
    CheckpointCommitted,
    SchedulerActed,
    TrialAdded,
    TrialConfigChanged,
)
from raytrials.core.plain import plain_metrics
from raytrials.core.state import TrialRecord
from raytrials.driver.account import CONFIG
from raytrials.driver.trial import Trial
from raytrials.store.manifest import checkpoint_name

SAVING = " saving"
"""Behind the status of a trial with a save on its way."""

STOP, PAUSE = "stop", "pause"
TO_SEARCHER = {"tell of a pause": "pause", "tell of an unpause": "unpause"}
"""What a scheduler does to a trial, and what it tells the searcher of one, by Ray's word for it."""


def shown_status(trial: Trial) -> str:
    """Return a trial's status with what else a scheduler looks for."""
    return f"{trial.status}{SAVING if trial.is_saving else ''}"


class Promise(_ray.FutureTrainingResult):  # type: ignore[misc]
    """The result of a save that is on its way, or that died with the driver that asked for it.

    Args:
        trial: whose save.
        settle: what comes of it when the future does not say, or None.
        future: Ray's; None if there is none any more.
    """

    def __init__(self, trial: Trial, settle: Any, future: Any = None) -> None:
        super().__init__(future)
        self.trial = trial
        self._settle = settle

    def resolve(self, block: bool = True) -> Any:  # noqa: FBT001, FBT002 - Ray's signature
        """Return the result with the checkpoint, None if there is none, or none yet.

        A save that fails leaves what was saved before it, and so does one of a driver that died.
        """
        result = super().resolve(block) if self.future is not None else None
        return self._settle(self.trial, result, block)


@dataclass
class _Kept:
    """What of a trial is changed here."""

    status: str
    config: dict[str, Any]
    experiment_tag: str
    placement_group_factory: Any
    last_result: dict[str, Any]
    registered: list[Any]
    latest: Any
    saving_to: Any

    @classmethod
    def of(cls, trial: Trial) -> _Kept:
        return cls(
            trial.status,
            trial.config,
            trial.experiment_tag,
            trial.placement_group_factory,
            trial.run_metadata.last_result,
            _ray.registered_checkpoints(trial),
            _ray.latest_checkpoint(trial),
            trial.temporary_state.saving_to,
        )

    def put_back(self, trial: Trial, *, configured: bool) -> None:
        trial.status = self.status
        trial.temporary_state.saving_to = self.saving_to
        trial.run_metadata.last_result = self.last_result
        if not configured:
            trial.config = self.config
            trial.experiment_tag = self.experiment_tag
            trial.placement_group_factory = self.placement_group_factory
            _ray.set_checkpoints(trial, self.registered, self.latest)
        trial.invalidate_json_state()
        trial.run_metadata.invalidate_cache()


class Stage:
    """Ray's trials as they were at each call of the past.

    Args:
        trials: all of them, by id, in their order.
        statuses: as they are shown at the beginning, of the trials that the scheduler knows.
        before: what was known of the others then that something happened to since.
        settle: as for :class:`Promise`.
    """

    def __init__(
        self,
        trials: Mapping[str, Trial],
        statuses: Mapping[str, str],
        before: Mapping[str, TrialRecord],
        settle: Any,
    ) -> None:
        self._trials = trials
        self._settle = settle
        self._kept: dict[Trial, _Kept] = {}
        self.present: list[Trial] = [trial for one, trial in trials.items() if one in statuses]
        self.cluster: tuple[float, float] | None = None
        self.acts: list[tuple[str, Trial]] = []
        self.answers: collections.deque[SchedulerActed] = collections.deque()
        for trial_id, record in before.items():
            if trial_id in statuses:
                self._rewind(trials[trial_id], record)
        self.show(statuses)

    def _rewind(self, trial: Trial, record: TrialRecord) -> None:
        self._keep(trial)
        self._configure(trial, record.state)
        trial.run_metadata.last_result = {**record.last_result, CONFIG: trial.config}
        if record.checkpoints and not record.stands_on_another:
            latest = next(reversed(record.checkpoints.values()))
            self._save(trial, latest.index, latest.metrics)
        elif record.restored_from is None:
            _ray.set_checkpoints(trial, [], None)

    def _keep(self, trial: Trial) -> None:
        if trial not in self._kept:
            self._kept[trial] = _Kept.of(trial)

    def _configure(self, trial: Trial, state: str) -> None:
        """Give a trial the configuration, tag and resources of another moment."""
        then = _ray.trial_from_json(state, None)
        unresolved = _ray.unresolved_keys(then)
        trial.config = {
            key: trial.config.get(key, value) if key in unresolved else value
            for key, value in then.config.items()
        }
        trial.experiment_tag = then.experiment_tag
        trial.placement_group_factory = then.placement_group_factory

    def _save(self, trial: Trial, index: int, metrics: Mapping[str, Any]) -> None:
        path = f"{trial.storage.trial_fs_path}/{checkpoint_name(index)}"
        self._set_latest(trial, path, metrics)

    def _set_latest(self, trial: Trial, path: str, metrics: Mapping[str, Any]) -> None:
        checkpoint = Checkpoint(path, filesystem=trial.storage.storage_filesystem)
        result = _ray.TrainingResult(checkpoint=checkpoint, metrics=dict(metrics))
        _ray.set_checkpoints(trial, _ray.registered_checkpoints(trial), result)

    # --- what happened in between ----------------------------------------------------------------

    def show(self, statuses: Mapping[str, str]) -> None:
        """Show trials with other statuses."""
        for trial_id, shown in statuses.items():
            trial = self._trials.get(trial_id)
            if trial is None:
                continue
            self._keep(trial)
            trial.status = shown.removesuffix(SAVING)
            saving = trial.temporary_state.saving_to
            if shown.endswith(SAVING) != (saving is not None):
                trial.temporary_state.saving_to = None if saving else self.promise(trial)

    def promise(self, trial: Trial) -> Promise:
        """Return a save on its way."""
        return Promise(trial, self._settle)

    def add(self, trial: Trial) -> None:
        """A trial is added."""
        if trial not in self.present:
            self.present.append(trial)

    def committed(self, event: CheckpointCommitted) -> None:
        """A trial has a newer checkpoint."""
        trial = self._trials[event.trial_id]
        if not trial.status.startswith((Trial.TERMINATED, Trial.ERROR)):
            self._keep(trial)
            self._save(trial, event.index, event.metrics or trial.run_metadata.last_result)

    def reported(self, trial_id: str, metrics: Mapping[str, Any]) -> None:
        """A trial's latest result has gone through the controller."""
        trial = self._trials[trial_id]
        self._keep(trial)
        trial.run_metadata.last_result = {**metrics, CONFIG: trial.config}

    def configured(self, event: TrialAdded | TrialConfigChanged) -> str:
        """Hold a trial's configuration in an event against how the trial is shown.

        Returns:
            In what that is another, "" if in nothing. The journal is right.
        """
        trial = self._trials[event.trial_id]
        self._keep(trial)
        shown = (plain_metrics(trial.config), trial.experiment_tag, _ray.bundles_of(trial))
        right = (event.config, event.tag, list(event.resources))
        if shown == right:
            return ""
        self._configure(trial, event.state)
        names = ("configuration", "tag", "resources")
        parts = zip(names, shown, right, strict=True)
        return "; ".join(f"its {name} {a}, not {b}" for name, a, b in parts if a != b)

    def latest_now(self, trial: Trial) -> Any:
        """Return the newest checkpoint that a trial has today, as a result; None for none."""
        kept = self._kept.get(trial)
        return trial.latest_checkpoint_result if kept is None else kept.latest

    def configurations(self) -> dict[Trial, tuple[Any, ...]]:
        """Return how the trials are configured."""
        return {trial: _configuration(trial) for trial in self.present}

    def changed_since(self, then: Mapping[Trial, tuple[Any, ...]]) -> list[Trial]:
        """Return the trials that are configured in another way than they were."""
        return [
            trial
            for trial in self.present
            if trial in then and any(map(operator.is_not, then[trial], _configuration(trial)))
        ]

    def close(self, configured: Iterable[Trial]) -> None:
        """Put all trials back as they are now; of some only what does not configure them."""
        spared = set(configured)
        for trial, kept in self._kept.items():
            kept.put_back(trial, configured=trial in spared)


def _configuration(trial: Trial) -> tuple[Any, ...]:
    latest = _ray.latest_checkpoint(trial) if not trial.is_finished() else None
    return trial.config, trial.experiment_tag, trial.placement_group_factory, latest


class ScriptedController:
    """Stands for the controller, as far as a scheduler may call it.

    What it is asked beside goes on to the real one.

    Args:
        real: the controller.
        stage: its trials.
        scheduler: what is told when the scheduler stops a trial.
    """

    def __init__(self, real: Any, stage: Stage, scheduler: Any) -> None:
        self._real = real
        self._stage = stage
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def search_alg(self) -> Any:
        """The search algorithm, which hears of nothing."""
        return _Deaf(self._real.search_alg, self._stage)

    @property
    def trial_executor(self) -> Any:
        """What Ray's older schedulers call."""
        return self

    @property
    def _resource_updater(self) -> Any:
        if self._stage.cluster is None:
            return self._real._resource_updater  # noqa: SLF001 - what a scheduler asks of it
        return _Cluster(*self._stage.cluster)

    def get_trials(self) -> list[Trial]:
        """Return the trials there are."""
        return self._stage.present

    def get_live_trials(self) -> set[Trial]:
        """Return those that have not ended; in no order, as Ray's."""
        return {trial for trial in self._stage.present if not trial.is_finished()}

    def get_trial(self, tid: str) -> Trial | None:
        """Return the trial with an id, None if there is none."""
        return next((trial for trial in self._stage.present if trial.trial_id == tid), None)

    def has_resources_for_trial(self, trial: Trial) -> bool:  # noqa: ARG002 - Ray's signature
        """Return True, as Ray does."""
        return True

    def stop_trial(self, trial: Trial) -> None:
        """Stop a trial; the scheduler hears of it within its own call, as Ray tells it."""
        if trial.status in {Trial.ERROR, Trial.TERMINATED}:
            return
        self._stage.acts.append((STOP, trial))
        if trial.status in {Trial.PENDING, Trial.PAUSED}:
            self._scheduler.on_trial_remove(self, trial)
        else:
            result = _ray.flatten_dict(trial.last_result)
            self._scheduler.on_trial_complete(self, trial, result)
        self._stage.show({trial.trial_id: Trial.TERMINATED})

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:  # noqa: FBT001, FBT002 - Ray's signature
        """Pause a running trial, now or when it is saved."""
        if trial.status != Trial.RUNNING:
            return
        if should_checkpoint:
            self._stage.show({trial.trial_id: f"{Trial.RUNNING}{SAVING}"})
        else:
            self._stage.acts.append((PAUSE, trial))
            self._stage.show({trial.trial_id: Trial.PAUSED})

    _schedule_trial_pause = pause_trial

    def _schedule_trial_save(self, trial: Trial, result: Any = None) -> Promise | None:  # noqa: ARG002 - Ray's signature
        if trial.status != Trial.RUNNING:
            return None
        self._stage.show({trial.trial_id: f"{Trial.RUNNING}{SAVING}"})
        return self._stage.promise(trial)

    save = _schedule_trial_save

    def _set_trial_status(self, trial: Trial, status: str) -> None:
        self._stage.show({trial.trial_id: status})


class _Deaf:
    """Stands for a search algorithm or searcher: notes what it is told, and hears nothing.

    A searcher has a script of its own.
    """

    def __init__(self, real: Any, stage: Stage) -> None:
        self._real = real
        self._stage = stage

    @property  # type: ignore[misc]  # as unittest.mock has it, for isinstance
    def __class__(self) -> type:
        return type(self._real)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        return _Deaf(value, self._stage) if name == "searcher" else value

    def on_pause(self, trial_id: str) -> None:
        """Note it."""
        self._note("tell of a pause", trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """Note it."""
        self._note("tell of an unpause", trial_id)

    def on_trial_result(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def on_trial_complete(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def _note(self, act: str, trial_id: str) -> None:
        trial = next(one for one in self._stage.present if one.trial_id == trial_id)
        self._stage.acts.append((act, trial))


@dataclass(frozen=True)
class _Cluster:
    """The size of the cluster, as Ray tells it to schedulers."""

    cpus: float
    gpus: float

    def get_num_cpus(self) -> float:
        return self.cpus

    def get_num_gpus(self) -> float:
        return self.gpus
