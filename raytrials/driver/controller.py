"""The trial controller: Ray's `TuneController` with typed failures.

It adopts every trial, tells each one when its attempts begin, run, stop and end, and hands it the
typed error when one fails. What that costs is the trial's decision; whether the trial is requeued
or ended with it is Ray's code, as before.
"""

from __future__ import annotations

import logging
from typing import Any

from ray import exceptions

from raytrials import _ray
from raytrials.driver.actors import ActorManager
from raytrials.driver.trial import FitContext, Trial, adopt

logger = logging.getLogger(__name__)


class _ResultRefusedError(Exception):
    """A report lacks a metric that the search needs."""


class _ActorReuseError(Exception):
    """The trainable did not take another trial's config in the same actor."""


class Controller(_ray.TuneController):  # type: ignore[misc]
    """Ray's trial controller, with our trials in it.

    Args:
        context: what all trials of this `fit()` share.
        **kwargs: as Ray's.
    """

    _has_errored: bool  # Ray's

    def __init__(self, context: FitContext, **kwargs: Any) -> None:
        self._context = context
        resource_manager = _ray.PlacementGroupResourceManager()
        super().__init__(resource_manager_factory=lambda: resource_manager, **kwargs)
        self._actor_manager = ActorManager(resource_manager=resource_manager)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        state.pop("_context", None)
        return state

    # --- every trial is ours ---------------------------------------------------------------------

    def add_trial(self, trial: _ray.Trial) -> None:
        """Add a trial, whichever searcher made it, as one of ours."""
        super().add_trial(adopt(trial, self._context))

    def _restore_trials(self, experiment_state: dict[str, Any]) -> list[Trial]:
        return [adopt(trial, self._context) for trial in super()._restore_trials(experiment_state)]

    def _requeue_restored_trials(self, trials: list[Trial], resume_config: Any) -> None:
        if resume_config.errored == resume_config.ResumeType.RESUME:
            for trial in trials:
                if trial.status == Trial.ERROR:
                    trial.renew_budgets()
        super()._requeue_restored_trials(trials, resume_config)

    # --- the life of an attempt ------------------------------------------------------------------

    def _schedule_trial_actor(self, trial: Trial) -> None:
        trial.begin_attempt()
        super()._schedule_trial_actor(trial)

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        reused = bool(super()._maybe_reuse_cached_actor(trial))
        if reused:
            trial.begin_attempt()
        return reused

    def _actor_started(self, tracked_actor: Any, log: str = "STARTED") -> None:
        self._actor_to_trial[tracked_actor].on_start()
        super()._actor_started(tracked_actor, log=log)

    def _schedule_trial_restore(self, trial: Trial) -> bool:
        saved = trial.latest_checkpoint_result
        if not saved:
            return False
        trial.temporary_state.restoring_from = saved
        self._schedule_trial_task(
            trial=trial,
            method_name="restore",
            args=(
                _ray.TrainingResult(
                    checkpoint=trial.watched(saved.checkpoint), metrics=saved.metrics
                ),
            ),
            on_result=self._on_restoring_result,
            on_error=self._trial_task_failure,
        )
        return True

    def _on_training_result(
        self, trial: Trial, result: dict[str, Any] | list[dict[str, Any]]
    ) -> None:
        for report in result if isinstance(result, list) else [result]:
            trial.on_report(report)
        try:
            super()._on_training_result(trial, result)
        except _ResultRefusedError as refused:
            self._process_trial_failure(trial, refused)

    def _validate_result_metrics(self, result: dict[str, Any]) -> None:
        try:
            super()._validate_result_metrics(result)
        except ValueError as error:
            raise _ResultRefusedError(str(error)) from error

    def stop_trial(self, trial: Trial) -> None:
        """Stop a trial as Ray does; what fails from here on failed while stopping."""
        trial.on_stopping()
        super().stop_trial(trial)

    def _schedule_trial_stop(self, trial: Trial, exception: Exception | None = None) -> None:
        super()._schedule_trial_stop(trial, exception=exception)
        trial.end_attempt()

    # --- failures --------------------------------------------------------------------------------

    def _on_trial_reset(self, trial: Trial, success: bool) -> None:  # noqa: FBT001 - Ray's signature
        if success:
            super()._on_trial_reset(trial, success)
            return
        self._process_trial_failure(
            trial,
            _ActorReuseError(
                "reuse_actors=True, but reset_config() of the trainable did not return True"
            ),
        )

    def _trial_task_failure(self, trial: Trial, exception: Exception) -> None:
        if trial.phase is None and isinstance(exception, exceptions.RayActorError):
            # Ray tells of an actor that dies while it changes trials twice, once for the actor and
            # once for the task. One attempt fails at most once.
            return
        self._process_trial_failure(trial, exception)

    def _process_trial_failure(self, trial: Trial, exception: Exception) -> None:
        self._take_off_reset(trial)
        error = trial.typed_error(exception)
        had_errored = self._has_errored
        super()._process_trial_failure(trial, error)
        self._has_errored = had_errored or trial.was_charged
        self._mark_trial_to_checkpoint(trial)
        self._log_failure(trial, exception)
        if self._fail_fast == self.RAISE and trial.was_charged:
            raise exception

    def _take_off_reset(self, trial: Trial) -> None:
        """Let a trial that failed while its actor was made ready for it take Ray's way to recover.

        Ray recovers running trials only; one that is still pending would end with the error.
        """
        if trial in self._resetting_trials:
            self._resetting_trials.discard(trial)
            if trial.status == Trial.PENDING:
                self._set_trial_status(trial, Trial.RUNNING)
                self._unstage_trial_with_resources(trial)

    def _log_failure(self, trial: Trial, exception: Exception) -> None:
        fault = trial.account.faults[-1]
        outcome = "is ended" if trial.status == Trial.ERROR else "is tried again"
        logger.error(
            "Trial %s %s after a %s failure in phase %s on attempt %d: %s.",
            trial,
            outcome,
            fault.fault_class,
            fault.phase,
            fault.attempt,
            fault.reason,
            exc_info=exception if self._print_trial_errors else None,
        )
