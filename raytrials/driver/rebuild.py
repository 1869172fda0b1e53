"""Ray's trials, made again of what the journal knows.

The journal is the truth: Ray's saved state is not asked. And the other way round, for an experiment
that vanilla Ray began: what the journal has to know of its trials.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ray.tune import Checkpoint, CheckpointConfig

from raytrials import _ray
from raytrials.core.state import CheckpointRecord, Row, TrialRecord
from raytrials.core.status import Status
from raytrials.driver.account import CONFIG, Account, account_of, iteration_of, without_config
from raytrials.driver.trial import FitContext, Trial, adopt
from raytrials.store.manifest import checkpoint_name, index_of

RAY_STATUS: Mapping[Status, str] = {
    Status.PENDING: Trial.PENDING,
    Status.SCHEDULED: Trial.PENDING,
    Status.RUNNING: Trial.PENDING,
    Status.INTERRUPTED: Trial.PENDING,
    Status.PAUSED: Trial.PAUSED,
    Status.SUCCEEDED: Trial.TERMINATED,
    Status.ABORTED: Trial.TERMINATED,
    Status.FAILED: Trial.ERROR,
}
"""What Ray calls a trial that does not run now."""

STATUS: Mapping[str, Status] = {
    Trial.PENDING: Status.PENDING,
    Trial.RUNNING: Status.INTERRUPTED,
    Trial.PAUSED: Status.PAUSED,
    Trial.TERMINATED: Status.SUCCEEDED,
    Trial.ERROR: Status.FAILED,
}
"""What we call a trial of vanilla Ray's that does not run now."""


def trial_of(
    record: TrialRecord,
    rows: Iterable[Row],
    storage: _ray.StorageContext,
    checkpoint_config: CheckpointConfig,
    context: FitContext,
) -> Trial:
    """Return a trial as it was.

    Args:
        record: what is known of it.
        rows: its history, for what Ray keeps of each metric; nothing for a trial that has ended.
        storage: of the experiment, as it is now.
        checkpoint_config: which checkpoints are kept.
        context: what all trials of the fit share.
    """
    trial = _ray.trial_from_json(record.state, checkpoint_config)
    own = copy.copy(trial.storage)
    own.storage_filesystem = storage.storage_filesystem
    own.storage_fs_path = storage.storage_fs_path
    own.experiment_dir_name = storage.experiment_dir_name
    trial.storage = own
    trial.set_status(RAY_STATUS[record.status])
    trial.__dict__["account"] = _account_of(record, trial.max_failures)
    trial = adopt(trial, context)
    _fill_metadata(trial, record, rows)
    home = trial.storage.trial_fs_path
    for checkpoint in record.checkpoints.values():
        for path in _ray.register_checkpoint(trial, _result_of(trial, home, checkpoint)):
            trial.retire(path)
    if record.adopts_from and not record.own_indices and not record.stands_on_another:
        # It began anew, and has saved nothing since: what it had saved before is not used.
        _ray.set_checkpoints(trial, [], None)
    if record.adopts_from > record.attempt:
        trial.run_metadata.last_result = {}
        trial.run_metadata.metric_analysis = {}
    if record.stands_on_another and record.restored_from is not None:
        found = Checkpoint(
            f"{trial.storage.experiment_fs_path}/{record.restored_from}",
            filesystem=trial.storage.storage_filesystem,
        )
        saved = _ray.TrainingResult(
            checkpoint=found, metrics=dict(record.restored_metrics or record.last_result)
        )
        _ray.set_checkpoints(trial, _ray.registered_checkpoints(trial), saved)
    trial.storage.current_checkpoint_index = record.next_index - 1
    trial.told_iteration = record.decided_iteration
    if record.told_iteration > record.decided_iteration:
        trial.told_searcher_until = record.told_iteration
    trial.init_local_path()
    trial.invalidate_json_state()
    trial.run_metadata.invalidate_cache()
    return trial


def _account_of(record: TrialRecord, max_failures: int) -> Account:
    decided = [
        fault for number, fault in enumerate(record.faults, 1) if number not in record.undecided
    ]
    undecided = [record.faults[number - 1] for number in record.undecided]
    interrupted = record.status in {Status.INTERRUPTED, Status.RUNNING}
    return Account(
        attempt=max(record.attempt, record.reserved),
        history=dataclasses.replace(record.history, max_failures=max_failures),
        high_water=record.high_water,
        faults=[*decided, *undecided],
        next_index=record.next_index,
        ended_cleanly=not record.attempt or record.status in {Status.SUCCEEDED, Status.ABORTED},
        adopts_from=record.adopts_from,
        bad=dict(record.bad),
        unverified=list(record.unverified),
        may_be_alive=interrupted,
        undecided=list(record.undecided.values()),
    )


def _fill_metadata(trial: Trial, record: TrialRecord, rows: Iterable[Row]) -> None:
    metadata = trial.run_metadata
    for row in rows:
        trial.update_last_result({**row.metrics, CONFIG: trial.config})
        metadata.last_result_time = row.time
    if record.last_result:
        metadata.last_result = {**record.last_result, CONFIG: trial.config}
    if not metadata.metric_n_steps:
        metadata.metric_analysis = dict(record.analysis)  # made anew with each use
    metadata.start_time = record.started_s
    metadata.num_failures = record.history.failures
    if record.ended_s is not None:
        metadata.last_result_time = record.ended_s
    if record.status is Status.FAILED:
        metadata.error_filename = _ray.EXPR_ERROR_FILE
        metadata.pickled_error_filename = _ray.EXPR_ERROR_PICKLE_FILE


def _result_of(trial: Trial, home: str, record: CheckpointRecord) -> Any:
    path = f"{home}/{checkpoint_name(record.index)}"
    checkpoint = Checkpoint(path, filesystem=trial.storage.storage_filesystem)
    return _ray.TrainingResult(
        checkpoint=checkpoint, metrics={**record.metrics, CONFIG: trial.config}
    )


def record_of(trial: Trial) -> TrialRecord:
    """Return what the journal has to know of a trial that was there before it."""
    account = account_of(trial)
    metadata = trial.run_metadata
    last_result = without_config(metadata.last_result)
    checkpoints = {}
    for result in _ray.registered_checkpoints(trial):
        home, _, name = result.checkpoint.path.rpartition("/")
        index = index_of(name)
        if index is not None and home == trial.storage.trial_fs_path:
            metrics = without_config(result.metrics)
            checkpoints[index] = CheckpointRecord(
                max(account.attempt, 1), index, iteration_of(metrics), metrics
            )
    status = STATUS[trial.status]
    iteration = iteration_of(last_result)
    return TrialRecord(
        trial_id=trial.trial_id,
        number=0,
        config=trial.config,
        tag=trial.experiment_tag,
        resources=_ray.bundles_of(trial),
        state=trial.get_json_state()[0],
        status=status,
        attempt=max(account.attempt, 1) if iteration or checkpoints else account.attempt,
        adopts_from=account.adopts_from,
        next_index=max([account.next_index, *(index + 1 for index in checkpoints)]),
        first_index=max([account.next_index, *(index + 1 for index in checkpoints)]),
        iteration=iteration,
        high_water=max(account.high_water, iteration),
        last_result=last_result,
        checkpoints=checkpoints,
        bad=dict(account.bad),
        faults=list(account.faults),
        history=account.history,
        decided_iteration=iteration,
        told_iteration=iteration,
        told_complete=status in Status.FINISHED,
        analysis=metadata.metric_analysis if status in Status.FINISHED else {},
        unverified=list(account.unverified),
        started_s=metadata.start_time,
        ended_s=metadata.last_result_time if status in Status.FINISHED else None,
    )


def is_ahead(there: TrialRecord, known: TrialRecord) -> bool:
    """Whether vanilla Ray brought a trial further than the journal knows."""
    if known.is_finished:
        return False
    return there.iteration > known.iteration or (
        there.iteration == known.iteration and there.is_finished
    )


def taken_over(there: TrialRecord, known: TrialRecord) -> TrialRecord:
    """Return a trial of the journal as vanilla Ray left it.

    Args:
        there: what :func:`record_of` gives.
        known: what the journal knows; what it spent, and what its searcher heard, stays.
    """
    next_index = max(there.next_index, known.next_index)
    failures = max(there.history.failures, known.history.failures)
    return dataclasses.replace(
        there,
        attempt=max(there.attempt, known.attempt, known.reserved),
        next_index=next_index,
        first_index=next_index,
        high_water=max(there.high_water, known.high_water),
        adopts_from=max(there.adopts_from, known.adopts_from),
        faults=known.faults,
        undecided=known.undecided,
        history=dataclasses.replace(known.history, failures=failures),
        told_complete=known.told_complete,
        started_s=there.started_s if known.started_s is None else known.started_s,
    )


def forget_progress(trial: Trial) -> None:
    """Let a trial begin from the beginning: what it has saved stays, and is not used."""
    _ray.set_checkpoints(trial, [], None)
    trial.run_metadata.last_result = {}
    trial.run_metadata.metric_analysis = {}
    trial.account.adopts_from = trial.account.attempt + 1
    trial.invalidate_json_state()
    trial.run_metadata.invalidate_cache()
