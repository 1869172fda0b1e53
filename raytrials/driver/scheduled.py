"""Ray's trial controller, whose scheduler survives the driver.

What is recorded and repeated of the scheduler is in `raytrials.driver.scheduling`; here is where
Ray's code is when it calls one, or changes what one looks at.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from raytrials import _ray, settings
from raytrials.core.event import Event, Record
from raytrials.driver import recording
from raytrials.driver.population import Population
from raytrials.driver.repeating import OpenCall, Replayed
from raytrials.driver.scheduling import Scheduling
from raytrials.driver.step import StepController
from raytrials.driver.trial import FitContext, Trial
from raytrials.store.recovery import Recovered

logger = logging.getLogger(__name__)

SCHEDULER = "scheduler"
"""Its part of a snapshot."""


class ScheduledController(StepController):
    """Ray's trial controller, with a scheduler that is recorded.

    Args:
        **kwargs: as Ray's.
    """

    _context: FitContext  # set before

    # Ray's
    _live_trials: set[Trial]
    _scheduler_alg: Any
    _storage: Any

    def __init__(self, **kwargs: Any) -> None:
        self._scheduling: Scheduling | None = None
        self._last_call: OpenCall | None = None  # of the driver before
        self._population = Population(settings.SYNC_WAIT_S.get())
        super().__init__(**kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        for name in ("_scheduling", "_last_call", "_population"):
            state.pop(name, None)
        return state

    def _record_scheduler(self, seed: int, record: Callable[[Event], object]) -> Scheduling:
        """Have the scheduler recorded from here on."""
        record_clones = functools.partial(recording.new_clones, self._context.reconfigured)
        self._scheduling = Scheduling(
            self._scheduler_alg, seed, record, self._storage, record_clones
        )
        self._scheduler_alg = self._scheduling.recorded
        return self._scheduling

    def _repeat_scheduler(
        self, recovered: Recovered, records: Callable[[], list[Record]], trials: list[Trial]
    ) -> Replayed:
        """Bring the scheduler to where it was.

        Where no snapshot holds it, it is taken through the whole journal. One that cannot be saved,
        or does not come back, goes on as it is, which is said.

        Args:
            recovered: what the driver before has left.
            records: give all events of the journal.
            trials: as they are now.
        """
        scheduling = self._scheduling
        if scheduling is None or scheduling.is_stateless:
            return Replayed()
        by_id = {trial.trial_id: trial for trial in trials}
        lost = ""
        if SCHEDULER in recovered.parts:
            try:
                scheduling.load(recovered.parts[SCHEDULER], by_id)
                return self._repeat(recovered.tail, recovered, by_id)
            except Exception as error:
                logger.exception("The scheduler did not come back.")
                lost = f"it did not come back: {error}"
        elif SCHEDULER in recovered.state.lost:
            lost = recovered.state.lost[SCHEDULER]
        if not lost:
            logger.warning("No snapshot holds the scheduler: it is taken through all events.")
            try:
                whole = Recovered(recovered.state)
                return self._repeat(records(), whole, by_id)
            except Exception as error:
                logger.exception("The scheduler did not come back.")
                lost = f"it did not come back: {error}"
        return Replayed(wrong=[("all trials", lost)])

    def _repeat(
        self,
        records: Any,
        recovered: Recovered,
        trials: dict[str, Trial],
    ) -> Replayed:
        if self._scheduling is None:
            return Replayed()
        replayed = self._scheduling.replay(
            records, recovered.results, recovered.before, trials, self
        )
        self._context.reconfigured.clear()  # then, and not now
        self._last_call = replayed.last
        return replayed

    def _knows(self, trial: Trial) -> bool:
        """Whether the scheduler knows a trial, and lets it go on when it is paused."""
        scheduling = self._scheduling
        return scheduling is None or scheduling.is_stateless or scheduling.knows(trial)

    def on_step_end(self) -> None:
        """Let a population go on that would wait in vain."""
        super().on_step_end()
        scheduling = self._scheduling
        if scheduling is None or scheduling.is_stateless:
            return
        stuck = self._population.look(scheduling.real, self._unfinished)
        if stuck is not None:
            scheduling.go_on_without(stuck, self._wrapped())

    # --- what a scheduler looks at ---------------------------------------------------------------

    def add_trial(self, trial: _ray.Trial) -> None:
        """Add a trial; one that the scheduler knows is not new to it."""
        scheduling = self._scheduling
        if scheduling is None or scheduling.is_stateless:
            super().add_trial(trial)
            return
        scheduling.note(trial)
        is_new = not scheduling.knows(trial)
        super().add_trial(trial)
        if trial.is_finished():
            self._live_trials.discard(trial)
        if is_new:
            recording.config_changed(trial)  # PBT fills in what the search space lacks

    def _set_trial_status(self, trial: Trial, status: str) -> None:
        super()._set_trial_status(trial, status)
        if status == Trial.ERROR:
            self._live_trials.discard(trial)  # as one that is stopped: nobody waits for it
        self._note(trial)

    def _note(self, trial: Trial) -> None:
        if self._scheduling is not None:
            self._scheduling.note(trial)

    def _schedule_trial_save(self, trial: Trial, result: dict[str, Any] | None = None) -> Any:
        saving = super()._schedule_trial_save(trial, result)
        scheduling = self._scheduling
        if scheduling is None or scheduling.is_stateless:
            return saving
        if saving is not None:
            saving = trial.temporary_state.saving_to = scheduling.promise(trial, saving.future)
            scheduling.note(trial)
        elif trial.takes_over:  # what would be saved is there: it is being taken over
            saving = scheduling.promise(trial)
        return saving

    def _process_trial_save(self, trial: Trial, checkpoint_value: Any) -> None:
        super()._process_trial_save(trial, checkpoint_value)
        self._note(trial)
