"""The trial controller: Ray's `TuneController` with typed failures.

It adopts every trial, tells each one when its attempts begin, run, stop and end, and hands it the
typed error when one fails. What that costs is the trial's decision; when and where a failed trial
is tried again is `raytrials.driver.recovery`. A trial that recovers keeps its place in the table,
and neither searcher nor scheduler learns of it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

from ray.tune import ResumeConfig
from ray.tune.schedulers import TrialScheduler

from raytrials import _ray, settings
from raytrials.core.status import Status
from raytrials.driver import recording
from raytrials.driver.account import iteration_of
from raytrials.driver.actors import ActorManager
from raytrials.driver.placement import Placement
from raytrials.driver.recovery import Recovery, tell_decided
from raytrials.driver.rerun import NeverStops, Silent, Tables
from raytrials.driver.restoring import RestoringController, ResultRefusedError
from raytrials.driver.trial import FitContext, Trial, adopt

logger = logging.getLogger(__name__)


class Controller(RestoringController):
    """Ray's trial controller, with our trials in it.

    Args:
        context: what all trials of this `fit()` share.
        resume_config: what is to be resumed, None for a new experiment.
        **kwargs: as Ray's.
    """

    # Ray's
    _has_errored: bool
    _max_pending_trials: int
    _scheduler_alg: Any
    _search_alg: Any
    _stopper: Any

    def __init__(
        self, context: FitContext, resume_config: ResumeConfig | None = None, **kwargs: Any
    ) -> None:
        self._recovery = Recovery(
            context.cluster,
            settings.AVOID_NODE_S.get(),
            start=self._start_ahead,
            end=self._end_with_error,
            settled=self._on_settled,
        )
        self._replaced: dict[Trial, Any] = {}
        self._latest_failure: Exception | None = None
        placement = Placement()
        placement.shunned = context.cluster.without_package
        super().__init__(context, resource_manager_factory=lambda: placement, **kwargs)
        self._actor_manager = ActorManager(resource_manager=placement)
        self._actor_manager.is_urgent = lambda: self._chronicle.is_awaited
        self._actor_manager.waiting = self._waiting
        context.cluster.require_package()
        if resume_config is not None:
            # Not in Ray's constructor: that one passes over every error, and starts anew.
            self._go_on(resume_config)
            self._resumed = True

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        for name in ("_recovery", "_replaced", "_latest_failure"):
            state.pop(name, None)
        return state

    # --- every trial is ours ---------------------------------------------------------------------

    def _restore_trials(self, experiment_state: dict[str, Any]) -> list[Trial]:
        trials = [
            adopt(trial, self._context) for trial in super()._restore_trials(experiment_state)
        ]
        self._context.checkpoints.restored(trials)
        return trials

    def setup_experiments(self, experiments: list[Any], total_num_samples: int) -> None:
        """Set up the callbacks; trials that the driver before ran go on first."""
        super().setup_experiments(experiments, total_num_samples)
        for trial in self._interrupted:
            if self._actor_manager.num_pending_actors < self._max_pending_trials:
                self._stage(trial)

    def _stage(self, trial: Trial) -> None:
        """Request an actor for a trial, as Ray does for the next one."""
        is_next = trial.status == Trial.PENDING and trial not in self._staged_trials
        if is_next and trial not in self._trial_to_actor:
            self._staged_trials.add(trial)
            self._actor_cache.increase_max(trial.placement_group_factory)
            self._schedule_trial_actor(trial)

    def _requeue_restored_trials(self, trials: list[Trial], resume_config: Any) -> None:
        self._decide_what_was_open(trials, resume_config)
        if resume_config.errored == resume_config.ResumeType.RESUME:
            for trial in trials:
                if trial.status == Trial.ERROR:
                    trial.renew_budgets()
        super()._requeue_restored_trials(trials, resume_config)

    def _decide_what_was_open(self, trials: list[Trial], resume_config: Any) -> None:
        """Decide the charges that were open when the driver before died; end whom they end."""
        resumed = resume_config.errored == resume_config.ResumeType.RESUME
        for trial in trials:
            booked = trial.settle_undecided()
            if not booked or trial.is_finished() or trial.should_recover():
                tell_decided(trial, booked, self._recovery.outlook(trial))
                continue
            tell_decided(trial, booked, "is resumed with fresh budgets" if resumed else "is ended")
            trial.set_status(Trial.ERROR)
            recording.finished(trial, Status.FAILED, trial.account.faults[-1].reason)
            if not resumed and not self._chronicle.is_open:
                self._search_alg.on_trial_complete(trial.trial_id, error=True)

    def _maybe_update_trial_queue(self) -> None:
        # A trial that is held is pending for Ray; it must not keep new ones from being sampled.
        held = self._recovery.held
        self._max_pending_trials += held
        try:
            super()._maybe_update_trial_queue()
        finally:
            self._max_pending_trials -= held

    # --- the life of an attempt ------------------------------------------------------------------

    def _schedule_trial_actor(self, trial: Trial) -> None:
        if self._recovery.is_held(trial) or not self._is_cleared(trial, self._schedule_trial_actor):
            return
        if trial.exploits():
            self._put_out(trial)
        super()._schedule_trial_actor(trial)

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        if self._recovery.is_held(trial):
            return False
        if trial not in self._resetting_trials and self._actor_cache.has_cached_object(
            trial.placement_group_factory
        ):
            # The attempt's names travel with the call that makes the actor ready for the trial.
            start = self._waiting.get(trial, self._reuse)
            if trial not in self._trial_to_actor and not self._is_cleared(trial, start):
                return False
        return bool(super()._maybe_reuse_cached_actor(trial))

    def _reuse(self, trial: Trial) -> None:
        self._maybe_reuse_cached_actor(trial)

    def _actor_started(self, tracked_actor: Any, log: str = "STARTED") -> None:
        trial = self._actor_to_trial[tracked_actor]
        self._restore_history(trial, trial.latest_checkpoint_result)
        trial.on_start()
        self._kill_replaced(trial)
        super()._actor_started(tracked_actor, log=log)

    # --- results ---------------------------------------------------------------------------------

    def _on_training_result(
        self, trial: Trial, result: dict[str, Any] | list[dict[str, Any]]
    ) -> None:
        try:
            super()._on_training_result(trial, result)
        except ResultRefusedError as refused:
            self._process_trial_failure(trial, ValueError(str(refused)))

    def _process_trial_result(self, trial: Trial, result: dict[str, Any]) -> str | None:
        trial.on_report(result)
        if _ray.RESULT_DUPLICATE not in result:
            recording.reported(trial, result)
        if trial.is_rerun(result):
            last = result["training_iteration"] == trial.told_iteration
            with self._muted(trial.told_decision if last else None):
                decision: str | None = super()._process_trial_result(trial, result)
            return decision
        with self._searcher_muted(trial, result):
            decision = super()._process_trial_result(trial, result)
        made = decision or self._cached_trial_decisions.get(trial.trial_id)
        recording.decided(trial, result, made)
        trial.on_told(result, made)
        return decision

    @contextlib.contextmanager
    def _searcher_muted(self, trial: Trial, result: dict[str, Any]) -> Iterator[None]:
        """Within this block the searcher is not told of a result that it knows."""
        search_alg = self._search_alg
        if 0 < iteration_of(result) <= trial.told_searcher_until:
            self._search_alg = Silent(search_alg)
        try:
            yield
        finally:
            self._search_alg = search_alg

    @contextlib.contextmanager
    def _muted(self, decision: str | None) -> Iterator[None]:
        """Within this block nobody is told of results but those who write the trial's files."""
        parts = (self._scheduler_alg, self._search_alg, self._stopper, self._callbacks)
        self._scheduler_alg = Silent(parts[0], decision or TrialScheduler.CONTINUE)
        self._search_alg = Silent(parts[1])
        self._stopper = NeverStops()
        self._callbacks = Tables(self._callbacks)
        try:
            yield
        finally:
            self._scheduler_alg, self._search_alg, self._stopper, self._callbacks = parts

    def _validate_result_metrics(self, result: dict[str, Any]) -> None:
        try:
            super()._validate_result_metrics(result)
        except ValueError as error:
            raise ResultRefusedError(str(error)) from error

    def stop_trial(self, trial: Trial) -> None:
        """Stop a trial as Ray does; what fails from here on failed while stopping."""
        trial.on_stopping()
        super().stop_trial(trial)

    def _schedule_trial_stop(self, trial: Trial, exception: Exception | None = None) -> None:
        actor = self._trial_to_actor.get(trial)
        if exception and actor is not None:
            self._replaced[trial] = actor
        idle = actor is None or self._actor_manager.is_idle(actor)
        super()._schedule_trial_stop(trial, exception=exception)
        trial.end_attempt(cleanly=idle and not exception)
        waited = self._waiting.pop(trial, None) is not None
        if (self._recovery.drop(trial) or waited) and trial in self._staged_trials:
            self._unstage_trial_with_resources(trial)

    def _schedule_trial_pause(self, trial: Trial, should_checkpoint: bool = True) -> None:  # noqa: FBT001, FBT002 - Ray's signature
        super()._schedule_trial_pause(trial, should_checkpoint=should_checkpoint)
        if trial.status == Trial.PAUSED:
            trial.on_paused()

    def _kill_replaced(self, trial: Trial) -> None:
        """End the actor of the attempt before, should it still be cleaning up."""
        actor = self._replaced.pop(trial, None)
        if actor in self._stopping_actors and self._actor_manager.is_actor_started(actor):
            self._actor_manager.remove_actor(actor, kill=True)

    # --- failures --------------------------------------------------------------------------------

    def _on_trial_reset(self, trial: Trial, success: bool) -> None:  # noqa: FBT001 - Ray's signature
        if success:
            super()._on_trial_reset(trial, success)
            return
        self._process_trial_failure(
            trial,
            RuntimeError(
                "reuse_actors=True, but reset_config() of the trainable did not return True"
            ),
        )

    def _trial_task_failure(self, trial: Trial, exception: Exception) -> None:
        if exception is self._latest_failure:
            # Ray tells of an actor that dies while it changes trials twice, once for the actor and
            # once for the task. One attempt fails at most once.
            return
        self._latest_failure = exception
        self._process_trial_failure(trial, exception)

    def _process_trial_failure(self, trial: Trial, exception: Exception) -> None:
        self._take_off_reset(trial)
        error = trial.typed_error(exception)
        had_errored = self._has_errored
        super()._process_trial_failure(trial, error)
        self._has_errored = had_errored
        record = recording.known(trial)
        if record is not None and record.is_finished and not record.told_complete:
            self._search_complete(trial)
        self._log_failure(trial, exception)
        self._on_settled(trial)
        if self._fail_fast == self.RAISE and trial.was_charged:
            raise exception

    def _on_settled(self, trial: Trial) -> None:
        """Charges of a trial were decided."""
        self._has_errored = self._has_errored or trial.was_charged
        trial.sweep_leftovers()
        self._mark_trial_to_checkpoint(trial)

    def _try_recover(self, trial: Trial, exc: Exception) -> None:
        # A trial that was on its way into a pause is paused, with the checkpoint that it has.
        to_pause = self._cached_trial_decisions.get(trial.trial_id) == TrialScheduler.PAUSE
        super()._try_recover(trial, exc)
        if to_pause and trial.status == Trial.PENDING:
            self._set_trial_status(trial, Trial.PAUSED)
            trial.on_paused()
            self._take_over(trial)
        self._recovery.requeue(trial)

    def _requeue_trial(self, trial: Trial) -> None:
        # Ray tells the scheduler of an error and of a new trial, and moves the trial to the end.
        self._set_trial_status(trial, Trial.PENDING)
        self._live_trials.add(trial)

    def _start_ahead(self, trial: Trial) -> None:
        """Request an actor for a recovered trial before any trial that waits already."""
        if trial.status != Trial.PENDING or trial in self._trial_to_actor:
            return
        self._take_over(trial)
        if trial.status != Trial.PENDING or trial in self._trial_to_actor:
            return  # what was taken over stopped it, or failed it, and it is on its way again
        line = self._pending_trials_list
        if line and line[-1] is trial:  # as after each failure that need not wait
            line.pop()
        elif trial in line:
            line.remove(trial)
        line.insert(0, trial)
        if trial not in self._staged_trials:
            self._staged_trials.add(trial)
            self._actor_cache.increase_max(trial.placement_group_factory)
        self._request_ahead(trial)

    def _request_ahead(self, trial: Trial) -> None:
        if not self._is_cleared(trial, self._request_ahead):
            return
        avoided = self._recovery.nodes_to_avoid(trial)
        with self._actor_manager.ahead(avoided):
            self._schedule_trial_actor(trial)
        if avoided and trial in self._trial_to_actor:
            self._recovery.avoids(trial, self._trial_to_actor[trial])

    def _end_with_error(self, trial: Trial) -> None:
        """End a held trial whose charge turned out to be one too many, as Ray ends others."""
        error = trial.latest_error
        recording.finished(trial, Status.FAILED, trial.account.faults[-1].reason)
        self._scheduler_alg.on_trial_error(self, trial)
        self._search_complete(trial)
        self._search_alg.on_trial_complete(trial.trial_id, error=True)
        self._schedule_trial_stop(trial, exception=error)
        self._callbacks.on_trial_error(iteration=self._iteration, trials=self._trials, trial=trial)
        if self._fail_fast == self.RAISE and error is not None:
            raise error.__cause__ or error

    def _search_complete(self, trial: Trial) -> None:
        if self._search is not None:
            self._search.on_complete(trial.trial_id, error=True)

    def on_step_begin(self) -> None:
        """Look after the trials that wait for a retry or for a charge."""
        super().on_step_begin()
        self._stop_if_asked()
        self._context.cluster.look()
        self._recovery.tick(self._actor_manager, self.is_finished)
        if not self._actor_manager.num_total_actors:
            time.sleep(self._recovery.idle_s())

    def on_step_end(self) -> None:
        """Book what was still open when the last trial ended."""
        super().on_step_end()
        self._recovery.tick(self._actor_manager, self.is_finished)

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
        if trial.open_charges:
            fault, reason = trial.open_charges[-1].fault, str(trial.open_charges[-1])
        else:
            fault = trial.account.faults[-1]
            reason = trial.account.faults[-1].reason
        logger.error(
            "Trial %s %s. Its attempt %d failed (%s, phase %s): %s.",
            trial,
            self._recovery.outlook(trial),
            fault.attempt,
            fault.fault_class,
            fault.phase,
            reason,
            exc_info=exception if self._print_trial_errors else None,
        )
