"""How a trial goes on from what there is of it: its checkpoints, its files, what was decided.

Also of what nobody has seen: a checkpoint that a worker committed before it or its driver died.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

from ray.tune.schedulers import TrialScheduler

from raytrials import _ray, settings
from raytrials.core.fault import Cause
from raytrials.core.state import Row
from raytrials.driver import errorfile, recording
from raytrials.driver.account import iteration_of
from raytrials.driver.check import check
from raytrials.driver.history import History
from raytrials.driver.resume import rows_of
from raytrials.driver.saving import SavingController
from raytrials.driver.stage import PAUSE, STOP, TO_SEARCHER
from raytrials.driver.trial import FitContext, Trial
from raytrials.errors import NewerFormatError, NoCheckpointError, StorageError

logger = logging.getLogger(__name__)


class ResultRefusedError(Exception):
    """Carries out of Ray's code that a report lacks a metric; the trial fails with its cause."""


class RestoringController(SavingController):
    """Ray's trial controller, which restores the newest whole checkpoint, also an unseen one.

    Args:
        context: what all trials of this `fit()` share.
        **kwargs: as Ray's.
    """

    # Ray's
    _resumed: bool

    def __init__(self, context: FitContext, **kwargs: Any) -> None:
        self._places: dict[Trial, int] = {}
        super().__init__(context, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        state.pop("_places", None)
        return state

    # --- what a driver before has left ----------------------------------------------------------

    def setup_experiments(self, experiments: list[Any], total_num_samples: int) -> None:
        """Set up the callbacks, and take over what a driver before left unseen."""
        super().setup_experiments(experiments, total_num_samples)
        self._history = History(self._callbacks)
        if self._resumed:
            self._finish_call()
            if self._scheduling is not None:
                self._scheduling.tell_of_ends(list(self._trials), self)
        for trial in list(self._trials):
            if trial.status in {Trial.PENDING, Trial.PAUSED}:
                self._take_over(trial, trial.told_iteration)
                self._carry_out(trial)
                self._put_out(trial)
        self._restore_ended_files()
        if self._resumed:
            self._chronicle.take_snapshot(self._parts(), at_once=True)

    def _finish_call(self) -> None:
        """Do what the last call into the scheduler asked for, as far as it was not done."""
        last, self._last_call = self._last_call, None
        if last is None or self._scheduling is None:
            return
        with self._scheduling.muted():
            for act, trial in last.undone():
                self._act(act, trial)
        for trial in last.configured:
            recording.config_changed(trial)
            if trial.exploits():
                recording.cloned(trial, anew=True)
        if last.trial is None or last.result is None or not last.is_undecided():
            return
        result = dict(last.result)
        if last.answer != TrialScheduler.STOP and not last.is_told():
            self._search_alg.on_trial_result(last.trial.trial_id, result)
        recording.decided(last.trial, result, last.answer)
        last.trial.on_told(result, last.answer)

    def _act(self, act: str, trial: Trial) -> None:
        """Do to a trial what a scheduler asks for."""
        if act == STOP:
            self.stop_trial(trial)
        elif act == PAUSE:
            self._set_status_quietly(trial, Trial.PAUSED)
            trial.on_paused()
        else:
            getattr(self._search_alg.searcher, f"on_{TO_SEARCHER[act]}")(trial.trial_id)

    def _restore_ended_files(self) -> None:
        """Bring files of trials to storage that ended after their driver's last upload."""
        state = self._chronicle.state
        behind = [
            trial
            for trial in self._trials
            if trial.is_finished()
            and (record := recording.known(trial)) is not None
            and record.result_seq > state.mirrored_seq
        ]
        rows = rows_of(
            self._disk, self._storage.experiment_fs_path, [one.trial_id for one in behind]
        )
        for trial in self._trials:
            if trial.status == Trial.ERROR and trial.account.faults and self._lacks_errors(trial):
                errorfile.restore(trial, trial.account.faults)
        for trial in behind:
            iteration = self._chronicle.trial(trial.trial_id).iteration
            own = rows[trial.trial_id]
            self._history.restore(trial, iteration, functools.partial(iter, own))

    def _lacks_errors(self, trial: Trial) -> bool:
        if Path(trial.local_path, _ray.EXPR_ERROR_FILE).exists():
            return False
        try:
            return _ray.EXPR_ERROR_FILE not in self._disk.list_names(trial.path)
        except Exception:
            logger.warning("Could not list the files of %s.", trial, exc_info=True)
            return False

    # --- restoring -------------------------------------------------------------------------------

    def _restore_history(self, trial: Trial, saved: Any) -> None:
        """Bring a trial's files to what its attempt continues from."""
        record = recording.known(trial)
        if record is None or not record.high_water:
            return  # there is no history
        iteration = 0 if saved is None else iteration_of(saved.metrics)
        report = None if saved is None else saved.metrics
        if trial.exploits():
            iteration, report = min(iteration, record.iteration), None
        rows = functools.partial(self._rows_of, trial)
        self._history.restore(trial, iteration, rows, report)

    def _rows_of(self, trial: Trial) -> list[Row]:
        found = rows_of(self._disk, self._storage.experiment_fs_path, [trial.trial_id])
        return found[trial.trial_id]

    def _schedule_trial_restore(self, trial: Trial) -> bool:
        """Have the newest whole checkpoint restored; False if there never was one."""
        checkpoints = self._context.checkpoints
        try:
            saved = checkpoints.choose(trial)
            self._restore_history(trial, saved)
            if saved is None:
                trial.begin_anew()
                recording.started(trial, None)
                return False
            handed_out = trial.handed_out(saved)
            trial.temporary_state.restoring_from = saved
            if checkpoints.is_verifiable(trial, saved.checkpoint):
                self._schedule_check(trial, handed_out)
            else:
                self._schedule_load(trial, handed_out)
        except (NewerFormatError, NoCheckpointError, StorageError) as error:
            trial.on_restoring()
            self._process_trial_failure(trial, error)
        return True

    def _schedule_check(self, trial: Trial, handed_out: Any) -> None:
        """Have a checkpoint read, every byte, by the actor that is to load it."""

        def on_checked(trial: Trial, problem: str) -> None:
            if problem:
                self._on_bad_checkpoint(trial, problem)
            else:
                self._schedule_load(trial, handed_out)

        self._schedule_trial_task(
            trial=trial,
            method_name="__ray_call__",
            args=(check, handed_out.checkpoint, settings.STORAGE_RETRY_S.get()),
            on_result=on_checked,
            on_error=self._trial_task_failure,
        )

    def _on_bad_checkpoint(self, trial: Trial, problem: str) -> None:
        saved = trial.temporary_state.restoring_from
        trial.temporary_state.restoring_from = None
        try:
            self._context.checkpoints.reject(
                trial, saved.checkpoint, problem, Cause.CHECKPOINT_CORRUPT
            )
        except (NewerFormatError, StorageError) as error:
            self._process_trial_failure(trial, error)
            return
        if not self._schedule_trial_restore(trial):
            self._set_trial_status(trial, Trial.RUNNING)
            self._schedule_trial_train(trial)

    def _schedule_load(self, trial: Trial, handed_out: Any) -> None:
        recording.started(trial, trial.temporary_state.restoring_from)
        self._schedule_trial_task(
            trial=trial,
            method_name="restore",
            args=(handed_out,),
            on_result=self._on_restoring_result,
            on_error=self._trial_task_failure,
        )

    # --- what nobody has seen --------------------------------------------------------------------

    def _take_over(self, trial: Trial, known: int | None = None) -> None:
        """Take over checkpoints that a worker committed and no driver has seen.

        Each stands for a report that never arrived: it is processed as that report, and decided on.

        Args:
            trial: whose.
            known: the latest iteration that needs no decision; None for the latest reported one.
        """
        try:
            unseen = self._context.checkpoints.unseen(trial)
        except (NewerFormatError, StorageError):
            logger.warning("Could not look for newer checkpoints of %s.", trial, exc_info=True)
            return
        for result, attempt in unseen:
            status = trial.status
            trial.takes_over = attempt
            logger.info("Trial %s: taking over %s.", trial, result.checkpoint.path)
            self._set_status_quietly(trial, Trial.RUNNING)
            self._process_trial_save(trial, result)
            if iteration_of(result.metrics) > (_reported(trial) if known is None else known):
                trial.init_local_path()
                before = iteration_of(result.metrics) - 1
                self._history.restore(trial, before, functools.partial(self._rows_of, trial))
                try:
                    report = {**result.metrics, "config": trial.config}
                    self._process_trial_result(trial, report)
                except ResultRefusedError as refused:
                    trial.takes_over = 0
                    self._process_trial_failure(trial, ValueError(str(refused)))
                    return
                except (AttributeError, LookupError, TypeError, ValueError):
                    # A manifest holds plain values; a stopper may want others.
                    logger.warning("A report of %s could not be told.", trial, exc_info=True)
            trial.takes_over = 0
            decision = self._queued_trial_decisions.pop(trial.trial_id, None)
            if decision == TrialScheduler.STOP:
                self.stop_trial(trial)
                return
            paused = decision == TrialScheduler.PAUSE
            self._set_status_quietly(trial, Trial.PAUSED if paused else status)
            if paused:
                trial.on_paused()

    def _carry_out(self, trial: Trial) -> None:
        """Carry out what was decided before the driver before could."""
        record = recording.known(trial)
        if record is None or not record.is_decision_open or trial.is_finished():
            return
        if record.decision == TrialScheduler.STOP:
            self._set_status_quietly(trial, Trial.RUNNING)
            self.stop_trial(trial)
        elif self._lacks_checkpoint(trial):
            # A pause saves. It comes there again, told to nobody, and is paused then.
            trial.told_decision = record.decision
        else:
            self._set_status_quietly(trial, Trial.PAUSED)
            trial.on_paused()

    def _put_out(self, trial: Trial) -> None:
        """Delete what was put out, and nobody has deleted."""
        try:
            paths = self._context.checkpoints.put_out(trial)
        except (NewerFormatError, StorageError):
            logger.warning("Could not look for older checkpoints of %s.", trial, exc_info=True)
            return
        for path in paths:
            trial.retire(path)

    def _set_status_quietly(self, trial: Trial, status: str) -> None:
        """Change the status of a trial without an actor; it keeps its one place in the queue."""
        if trial in self._pending_trials_list:
            self._places[trial] = self._pending_trials_list.index(trial)
            self._pending_trials_list.remove(trial)
        self._set_trial_status(trial, status)
        if status == Trial.PENDING and trial in self._places:
            self._pending_trials_list.remove(trial)
            self._pending_trials_list.insert(self._places.pop(trial), trial)


def _reported(trial: Trial) -> int:
    """Return the latest iteration that a trial has reported, 0 for none."""
    record = recording.known(trial)
    if record is not None and record.adopts_from:  # what it reported before was another history
        return record.iteration
    return trial.account.high_water
