"""What a controller writes beside the journal, and lets go of.

Ray's own state, last checkpoints before a fit that is asked to stop ends, checkpoints that were put
out, and what the driver holds of trials that have ended.
"""

from __future__ import annotations

import logging
from typing import Any

from raytrials import _ray
from raytrials.core.event import FilesMirrored
from raytrials.driver import recording
from raytrials.driver.account import iteration_of
from raytrials.driver.ended import Ended, PackedState, latest_path
from raytrials.driver.history import History
from raytrials.driver.resuming import ResumingController
from raytrials.driver.retention import Retention, StateSyncer
from raytrials.driver.trial import FitContext, Trial

logger = logging.getLogger(__name__)


class SavingController(ResumingController):
    """Ray's trial controller, which saves what others read, and ends when it is asked to.

    Args:
        context: what all trials of this `fit()` share.
        **kwargs: as Ray's.
    """

    # Ray's
    _scheduler_alg: Any

    # set up beside the callbacks
    _history: History

    def __init__(self, context: FitContext, **kwargs: Any) -> None:
        self._written_seq: dict[int, int] = {}
        self._at_rest: set[Trial] = set()
        self._ended = Ended(self._is_done_with, self._keep_state, self._release)
        super().__init__(context, **kwargs)
        lease = self._lease
        self._syncer = StateSyncer(self._storage, lease.check)
        self._storage.syncer = self._syncer
        self._retention = context.retention = Retention(
            self._syncer,
            self._paths_in_use,
            context.checkpoints.unverified,
            self._chronicle.await_durable,
            lease.check,
        )

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        for name in ("_history", "_written_seq", "_at_rest", "_ended", "_syncer", "_retention"):
            state.pop(name, None)
        return state

    # --- being stopped ---------------------------------------------------------------------------

    def _schedule_trial_train(self, trial: Trial) -> None:
        stop = self._context.stop
        if not stop.is_requested:
            super()._schedule_trial_train(trial)
        elif self._lacks_checkpoint(trial) and not stop.hurry:
            logger.info("Trial %s is asked for a last checkpoint.", trial)
            self._schedule_trial_task(
                trial=trial,
                method_name="save",
                on_result=self._on_last_save,
                on_error=self._on_last_save_failure,
            )
        else:
            self._at_rest.add(trial)

    def _lacks_checkpoint(self, trial: Trial) -> bool:
        """Whether a trial that can be asked for a checkpoint has got further than its latest."""
        record = recording.known(trial)
        if trial.is_function or record is None:
            return False
        latest = trial.latest_checkpoint_result
        return record.iteration > (0 if latest is None else iteration_of(latest.metrics))

    def _on_last_save(self, trial: Trial, saved: Any) -> None:
        self._at_rest.add(trial)
        self._on_saving_result(trial, saved)

    def _on_last_save_failure(self, trial: Trial, error: Exception) -> None:
        # It is no failure of the trial: nobody but the stop has asked for it.
        logger.warning("Trial %s has no last checkpoint: %s", trial, error)
        self._at_rest.add(trial)

    def _stop_if_asked(self) -> None:
        """End the loop of a fit that is asked to stop, when its trials are at rest."""
        stop = self._context.stop
        if not stop.is_requested or stop.done.is_set():
            return
        busy = [
            trial
            for trial in self._trial_to_actor
            if trial.status == Trial.RUNNING and not trial.is_function
            if trial not in self._at_rest
        ]
        if busy and not stop.hurry and stop.grace_left_s():
            return
        if busy:
            logger.warning("No last checkpoints of %s: there is no more time.", busy)
        stop.done.set()

    # --- saving ----------------------------------------------------------------------------------

    def save_to_dir(self) -> None:
        """Write Ray's state files, and note that there is a new state to upload."""
        with self._syncer.writing:
            super().save_to_dir()
            self._syncer.written += 1
            self._written_seq[self._syncer.written] = self._chronicle.state.seq

    def checkpoint(self, force: bool = False, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - Ray's signature
        """Save the state as Ray does, and delete what it no longer names."""
        self._syncer.is_last = wait
        if self._context.stop.is_requested:
            self._syncer.sync_timeout = self._patience_s()
        super().checkpoint(force=force, wait=wait)
        self._note_mirrored()
        if wait:
            self._retention.start()
            self.settle()
            self._retention.finish(self._patience_s())
        else:
            self._retention.tick()

    def _note_mirrored(self) -> None:
        """Record what has arrived on storage since the last time."""
        done = [number for number in self._written_seq if number <= self._syncer.durable]
        seq = max((self._written_seq.pop(number) for number in done), default=0)
        if seq:
            self._chronicle.record(FilesMirrored(seq))

    def cleanup(self) -> None:
        """Clean up as Ray does, and wait for what is still written or deleted.

        Also when an exception ends the fit: whoever restores the experiment next must not read a
        state that is half uploaded.
        """
        try:
            super().cleanup()
        finally:
            self._retention.close(self._patience_s())
            self._wait_for_upload()
            self._history.close()

    def _wait_for_upload(self) -> None:
        try:
            # One who has lost the lease is in another's way.
            self._syncer.wait(self._patience_s() if self._lease.is_lost else None)
        except Exception:
            logger.warning("Could not upload the state of the experiment.", exc_info=True)

    def _paths_in_use(self) -> set[str]:
        """Return the checkpoints that some trial is restored from, or may be."""
        used = set(_ray.checkpoints_kept_by(self._scheduler_alg))
        for trial in self._live_trials:
            restoring_from = trial.temporary_state.restoring_from
            if restoring_from is not None:
                used.add(restoring_from.checkpoint.path)
            latest = latest_path(trial)
            if latest is not None:
                used.add(latest)
        return used

    # --- ended trials ----------------------------------------------------------------------------

    def on_step_end(self) -> None:
        """Let go of what trials hold that have ended."""
        super().on_step_end()
        self._ended.tick(self._trials)

    def _schedule_trial_stop(self, trial: Trial, exception: Exception | None = None) -> None:
        self._ended.note(trial)
        super()._schedule_trial_stop(trial, exception=exception)

    def _mark_trial_to_checkpoint(self, trial: Trial) -> None:
        super()._mark_trial_to_checkpoint(trial)
        if trial.is_finished():
            self._ended.note(trial)

    def _is_done_with(self, trial: Trial) -> bool:
        """Whether all know of a trial's end who are to be told, and nothing of it is open."""
        return not (
            trial in self._trial_to_actor
            or trial.is_saving
            or trial.open_charges
            or self._announcer.awaits(trial)
        )

    def _keep_state(self, trial: Trial, state: PackedState) -> None:
        self._trial_metadata[trial.trial_id] = state
        self._trials_to_cache.discard(trial)

    def _release(self, trial: Trial) -> None:
        self._history.release(trial)
        self._retention.forget(trial.kept_paths())
