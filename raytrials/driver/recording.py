"""What a trial tells the journal: a function for each event.

Each is called when the thing happens, before anything is made of it. Where no journal is kept, and
during the clean-up after a fit, they do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raytrials import _ray
from raytrials.core.event import (
    AttemptRestored,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointMarkedBad,
    DecisionMade,
    Event,
    FaultRecorded,
    ResultReported,
    RunnerAssigned,
    TrialAdded,
    TrialConfigChanged,
    TrialFinished,
    TrialPaused,
    TrialResumed,
)
from raytrials.core.fault import ChargedFault
from raytrials.core.plain import plain_metrics
from raytrials.core.retry import History
from raytrials.core.state import TrialRecord
from raytrials.core.status import Status
from raytrials.driver.account import iteration_of, without_config

if TYPE_CHECKING:
    from raytrials.driver.trial import Trial

ANY = "any"
"""The runner of a trial that is bound late: to the first place that is free."""


def known(trial: Trial) -> TrialRecord | None:
    """Return what the journal knows of a trial; None before it was added."""
    chronicle = trial.context.chronicle
    return None if chronicle is None else chronicle.state.trials.get(trial.trial_id)


def _record(trial: Trial, event: Event) -> int:
    chronicle = trial.context.chronicle
    return 0 if chronicle is None else chronicle.record(event)


def _is_kept(trial: Trial) -> bool:
    """Whether the journal takes events of a trial."""
    chronicle = trial.context.chronicle
    return chronicle is not None and chronicle.is_open and known(trial) is not None


def relative_path(trial: Trial, path: str) -> str:
    """Return a checkpoint's name, or its path below the experiment if another trial's."""
    own, inside = f"{trial.storage.trial_fs_path}/", f"{trial.storage.experiment_fs_path}/"
    return path.removeprefix(own).removeprefix(inside)


def added(trial: Trial) -> None:
    """The searcher gave the trial."""
    _record(
        trial,
        TrialAdded(
            trial.trial_id,
            trial.config,
            trial.experiment_tag,
            _ray.bundles_of(trial),
            trial.get_json_state()[0],
        ),
    )


def assigned(trial: Trial) -> int:
    """An attempt is about to be requested; return the number of the event, 0 without a journal."""
    if not _is_kept(trial):
        return 0
    if trial.exploits():
        cloned(trial, anew=False)
    return _record(trial, RunnerAssigned(trial.trial_id, ANY, trial.account.attempt))


def cloned(trial: Trial, *, anew: bool) -> None:
    """The trial goes on from another one's checkpoint, for the first time if `anew`."""
    record, saved = known(trial), trial.latest_checkpoint_result
    path = relative_path(trial, saved.checkpoint.path)
    if record is not None and (anew or record.restored_from != path):
        config_changed(trial, path, without_config(saved.metrics))


def new_clones(reconfigured: list[Trial]) -> None:
    """A scheduler configured these trials: note those that go on from another one's checkpoint.

    The list is emptied.
    """
    for trial in reconfigured:
        if trial.exploits():
            cloned(trial, anew=True)
    reconfigured.clear()


def config_changed(
    trial: Trial, checkpoint: str | None = None, metrics: dict[str, Any] | None = None
) -> None:
    """The trial has another config or other resources, or goes on from another's checkpoint."""
    record = known(trial)
    if record is None or not _is_kept(trial):
        return
    resources = _ray.bundles_of(trial)
    same = record.config == plain_metrics(trial.config) and list(record.resources) == resources
    if checkpoint is None and same:
        return
    trial.invalidate_json_state()
    _record(
        trial,
        TrialConfigChanged(
            trial.trial_id,
            trial.config,
            trial.experiment_tag,
            resources,
            trial.get_json_state()[0],
            checkpoint,
            metrics,
        ),
    )


def started(trial: Trial, saved: Any) -> None:
    """The attempt's actor is there, and it is known what it goes on from.

    Args:
        trial: whose.
        saved: the result with the checkpoint that it is restored from, None for none.
    """
    if not _is_kept(trial):
        return
    actor_id = _ray.actor_id_of(trial.temporary_state.ray_actor)
    metrics = {} if saved is None else without_config(saved.metrics)
    _record(
        trial,
        AttemptStarted(
            trial.trial_id,
            trial.account.attempt,
            _ray.node_of_actor(actor_id),
            None,
            iteration_of(metrics),
            trial.first_index,
            None if saved is None else relative_path(trial, saved.checkpoint.path),
            None if saved is None else metrics,
        ),
    )


def restored(trial: Trial) -> None:
    """The attempt has loaded its checkpoint."""
    record = known(trial)
    if record is not None and record.is_restoring and _is_kept(trial):
        _record(trial, AttemptRestored(trial.trial_id, record.attempt))


def reported(trial: Trial, result: dict[str, Any]) -> None:
    """A report arrived."""
    record = known(trial)
    if trial.takes_over and record is not None and record.iteration >= iteration_of(result):
        return  # a driver before recorded it, and died before anybody decided on it
    if _is_kept(trial):
        attempt = trial.takes_over or trial.account.attempt
        metrics = without_config(result)
        event = ResultReported(trial.trial_id, attempt, iteration_of(result), metrics)
        _record(trial, event)


def decided(trial: Trial, result: dict[str, Any], decision: str | None) -> None:
    """Scheduler or stopper decided on a report."""
    if decision and _is_kept(trial):
        _record(trial, DecisionMade(trial.trial_id, iteration_of(result), str(decision)))


def committed(trial: Trial, index: int, result: Any) -> None:
    """A checkpoint of the trial is on storage."""
    record = known(trial)
    if record is None or not _is_kept(trial) or index in record.checkpoints:
        return
    metrics = without_config(result.metrics)
    iteration = iteration_of(metrics)
    same = iteration == record.iteration and record.last_result
    attempt = trial.takes_over or trial.account.attempt
    seq = _record(
        trial,
        CheckpointCommitted(trial.trial_id, attempt, index, iteration, None if same else metrics),
    )
    if trial.context.chronicle is not None:
        # What was reported before it must not be lost when it is there.
        trial.context.chronicle.await_durable(seq)


def marked_bad(trial: Trial, key: str, problem: str) -> None:
    """A checkpoint is not whole."""
    if _is_kept(trial):
        _record(trial, CheckpointMarkedBad(trial.trial_id, key, problem))


def deleted(trial: Trial, index: int) -> int:
    """A checkpoint is about to be deleted; return the event's number, 0 if nobody knew of it."""
    record = known(trial)
    if record is None or index not in record.checkpoints or not _is_kept(trial):
        return 0
    return _record(trial, CheckpointDeleted(trial.trial_id, index))


def fault(  # noqa: PLR0913 - flags by name
    trial: Trial,
    charged: ChargedFault,
    history: History,
    *,
    settles: bool = False,
    decided: bool = True,
    ends_attempt: bool = True,
) -> None:
    """The trial failed, or the charge of a failure was decided."""
    record = known(trial)
    if record is None or not _is_kept(trial):
        return
    if record.is_finished and ends_attempt and not settles:
        # It failed while its end was told: it has not ended after all.
        _record(trial, TrialResumed(trial.trial_id))
    number = min(record.undecided) if settles else len(record.faults) + 1
    event = FaultRecorded(trial.trial_id, number, charged, history, decided, ends_attempt)
    _record(trial, event)


def paused(trial: Trial) -> None:
    """The trial waits for its scheduler."""
    record = known(trial)
    if record is not None and record.status is not Status.PAUSED and _is_kept(trial):
        _record(trial, TrialPaused(trial.trial_id))


def finished(trial: Trial, status: Status, reason: str) -> None:
    """The trial came to its end."""
    record = known(trial)
    if record is None or record.is_finished or not _is_kept(trial):
        return
    seq = _record(trial, TrialFinished(trial.trial_id, status, reason, trial.metric_analysis))
    if trial.context.chronicle is not None:
        trial.context.chronicle.await_durable(seq)
