"""How an experiment goes on from its journal: trials, searcher, scheduler, stopper, callbacks.

Also what there is to go on with where vanilla Ray began the experiment, or went on with it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from ray.tune import ResumeConfig

from raytrials import _ray
from raytrials.core.event import (
    Record,
    SearcherTold,
    TrialAdded,
    TrialEvent,
    TrialImported,
    TrialResumed,
)
from raytrials.core.state import TrialRecord
from raytrials.core.status import Status
from raytrials.driver import recording
from raytrials.driver.rebuild import (
    RAY_STATUS,
    forget_progress,
    is_ahead,
    record_of,
    taken_over,
    trial_of,
)
from raytrials.driver.recorded import SEARCHER, STOPPER, RecordedController
from raytrials.driver.results import NOTHING_ADDED, Additions
from raytrials.driver.resume import kind_for, replay_stopper, rows_of
from raytrials.driver.scheduled import SCHEDULER
from raytrials.driver.search import Search
from raytrials.driver.trial import FitContext, Trial
from raytrials.errors import SearchSpaceNeededError
from raytrials.store.recovery import Recovered

logger = logging.getLogger(__name__)

TRIALS = "trials"

Lost = list[tuple[str, str]]
"""Parts that did not come back as they were, and what happened to them."""


def events_of(
    found: Mapping[str, TrialRecord], known: Mapping[str, TrialRecord]
) -> list[TrialEvent]:
    """Return what is recorded of trials that vanilla Ray brought further, or began.

    The searcher learns of those that it has begun after those that it knows.
    """
    events: list[TrialEvent] = []
    before = set(known)
    for one, there in sorted(found.items(), key=lambda item: (item[0] not in before, item[0])):
        if one not in before:
            events.append(TrialAdded(one, there.config, there.tag, there.resources, there.state))
        record = dataclasses.replace(there, told_complete=False)
        events.append(TrialImported(one, record.to_json()))
        if there.is_finished:
            failed = there.status is Status.FAILED
            events.append(SearcherTold(one, "complete", 0 if failed else there.iteration, failed))
    return events


class ResumingController(RecordedController):
    """Ray's trial controller, which goes on from a journal.

    Args:
        context: what all trials of this `fit()` share.
        **kwargs: as Ray's.
    """

    def __init__(self, context: FitContext, **kwargs: Any) -> None:
        self._begins_search: list[Record] | None = None
        self._interrupted: list[Trial] = []
        self._added_to_results: Additions = NOTHING_ADDED
        super().__init__(context, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        for name in ("_begins_search", "_interrupted", "_added_to_results"):
            state.pop(name, None)
        return state

    def setup_experiments(self, experiments: list[Any], total_num_samples: int) -> None:
        """Set up the callbacks; a search whose state is gone begins here."""
        if self._begins_search is not None:
            self._begin_search(experiments, self._begins_search)
        super().setup_experiments(experiments, total_num_samples)

    def _go_on(self, resume_config: ResumeConfig) -> None:
        """Take over what the driver before has left.

        Raises:
            JournalCorruptError: events are lost that nothing else holds; nothing was written.
            SearchSpaceNeededError: the searcher is lost, and what it searched is not known.
        """
        if not self._chronicle.has_events():
            self._import(resume_config)
            return
        recovered = self._chronicle.recover()
        state = recovered.state
        samples = state.num_samples
        self._context.experiment = state.experiment
        scheduling = self._record_scheduler(state.seed, self._chronicle.record)
        lost = self._recall(recovered)
        meanwhile, untaken = self._left_by_vanilla(state.trials)
        lost += untaken
        self._raise_samples()
        trials = self._rebuild(list({**state.trials, **meanwhile}.values()), resume_config)
        self._adapt(trials)
        replayed = self._repeat_scheduler(recovered, self._chronicle.records, trials)
        lost += [(SCHEDULER, f"{one}: {detail}") for one, detail in replayed.wrong[:1]]
        if meanwhile and not scheduling.is_stateless:
            lost.append((SCHEDULER, "vanilla Ray went on with it, and it saw none of that"))
        lost += self._repeat_searcher(recovered, replayed.added, meanwhile)
        if trials:
            _ray.keep_staging_directory(self._storage, trials[0].storage)
        self._chronicle.open()
        self._attach(self._search_alg.total_samples or samples, recovered.damage)
        for event in events_of(meanwhile, state.trials):
            self._chronicle.record(event)
        for part, detail in lost:
            self._note_lost(part, detail)
        self._context.checkpoints.restored(trials)
        self._decide_what_was_open(trials, resume_config)
        for trial in trials:
            if self._apply_resume(trial, kind_for(trial.status, resume_config)):
                scheduling.forget(trial)
            self.add_trial(trial)
        self._resumed_first = {one for one in trials if one.status == Trial.PENDING}
        self._interrupted = self._in_line(trials)
        self._restore_callbacks()
        if self._begins_search is None:
            self._tell_of_ends(trials)

    def _repeat_searcher(
        self, recovered: Recovered, added: Additions, meanwhile: Mapping[str, TrialRecord]
    ) -> Lost:
        """Take the searcher through what came after its state was saved, then through vanilla's."""
        if self._search is None or self._begins_search is not None:
            self._added_to_results = added
            return []
        diverged = self._search.replay(recovered.tail, recovered.results, added)
        lost = [(SEARCHER, f"{one}: {detail}") for one, detail in diverged[:1]]
        if meanwhile:
            known = recovered.state.trials
            events = events_of(meanwhile, known)
            records = [Record(number, 0, 0.0, event) for number, event in enumerate(events, 1)]
            wrong = self._search.replay(records, {})
            new = [one for one in meanwhile if one not in known]
            if wrong or (new and not self._search.is_listed):
                detail = (
                    f"vanilla Ray went on with it, and it learned of {list(meanwhile)} afterwards"
                )
                lost.append((SEARCHER, detail))
        return lost

    def _begin_search(self, experiments: list[Any], records: list[Record]) -> None:
        """Begin a search anew whose state is gone, and take it through all that was done.

        It comes to the same, unless it depends on more than its own state and seeds.
        """
        self._begins_search = None
        self._search_alg.add_configurations(experiments)
        self._search = Search(self._search_alg, self._chronicle.state.seed, self._chronicle.record)
        diverged = self._search.replay(records, {}, self._added_to_results)
        for trial_id, detail in diverged[:1]:
            self._note_lost(SEARCHER, f"{trial_id}: {detail}")
        self._tell_of_ends(list(self._trials))

    def _in_line(self, trials: list[Trial]) -> list[Trial]:
        """Return the trials that have, or wait for, an actor, in the order in which they get one.

        Those that ran, those that were to be tried again, those that waited; whatever the
        scheduler would choose now.
        """

        def place(trial: Trial) -> tuple[int, int]:
            record = self._chronicle.trial(trial.trial_id)
            waits = {Status.INTERRUPTED: 0, Status.PENDING: 1}
            return waits.get(record.status, 2), record.assigned_seq

        bound = [one for one in trials if self._chronicle.trial(one.trial_id).assigned_seq]
        return sorted((one for one in bound if one.status == Trial.PENDING), key=place)

    def _import(self, resume_config: ResumeConfig) -> None:
        """Go on with an experiment that was begun without a journal."""
        self.resume(resume_config)
        self._search = self._new_search()
        self._record_scheduler(self._search.seed, self._chronicle.record).know(self._trials)
        self._create(self._search.seed, self._search_alg.total_samples)
        for trial in self._trials:
            record = record_of(trial)
            trial.account.attempt = record.attempt
            self._chronicle.record(TrialImported(trial.trial_id, record.to_json()))
        self._resumed_first = {one for one in self._trials if one.status == Trial.PENDING}

    def _left_by_vanilla(
        self, known: Mapping[str, TrialRecord]
    ) -> tuple[dict[str, TrialRecord], Lost]:
        """Look what vanilla Ray did with the experiment after the journal's last driver.

        Args:
            known: the trials of the journal, which is right about what it knows.

        Returns:
            Trials that it brought further or began, and what of its doing cannot be taken over.
        """
        state = self._state_of_vanilla()
        if state is None:
            return {}, []
        try:
            left = [record_of(trial) for trial in self._restore_trials(state)]
        except Exception as error:
            logger.exception("What vanilla Ray did in between cannot be read.")
            return {}, [(TRIALS, f"what vanilla Ray did in between cannot be read: {error}")]
        found, others, lost = {}, [], []
        for there in sorted(left, key=lambda one: one.trial_id):
            here = known.get(there.trial_id)
            if here is None:
                found[there.trial_id] = there
            elif is_ahead(there, here):
                if there.tag == here.tag:
                    found[there.trial_id] = taken_over(there, here)
                else:
                    others.append(there.trial_id)
        logger.warning("Vanilla Ray went on with the experiment; taken over: %s.", list(found))
        if others:
            detail = f"vanilla Ray ran {others} with other configs, and that is not taken over"
            lost.append((TRIALS, detail))
        return found, lost

    def _state_of_vanilla(self) -> dict[str, Any] | None:
        """Return the newest state of Ray's if vanilla Ray wrote it."""
        return None

    def _recall(self, recovered: Recovered) -> Lost:
        """Load searcher and stopper; return what did not come back as it was."""
        lost = [(part, detail) for part, detail in recovered.state.lost.items()]
        search = Search(self._search_alg, recovered.state.seed, self._chronicle.record)
        self._search = search
        if SEARCHER in recovered.parts:
            try:
                search.load(recovered.parts[SEARCHER])
            except Exception as error:
                logger.exception("The searcher did not come back.")
                lost.append((SEARCHER, f"it did not come back: {error}"))
                self._begins_search = self._chronicle.records()
        else:
            logger.warning("No snapshot holds the searcher: it is taken through all events.")
            # Read now: what is damaged must be known before anything is written.
            self._begins_search = self._chronicle.records()
        if self._begins_search is not None and not self._context.param_space:
            missing = tuple(recovered.state.param_space)
            if missing:
                raise SearchSpaceNeededError(self._storage.experiment_fs_path, missing)
        if STOPPER in recovered.parts:
            try:
                self._stopper = _ray.cloudpickle.loads(recovered.parts[STOPPER])
                replay_stopper(self._stopper, recovered.tail, recovered.results)
            except Exception as error:
                logger.exception("The stopper did not come back.")
                lost.append((STOPPER, f"it did not come back: {error}"))
        return lost

    def _rebuild(self, records: list[TrialRecord], resume_config: ResumeConfig) -> list[Trial]:
        skipped = ResumeConfig.ResumeType.SKIP
        run_on = [
            one.trial_id
            for one in records
            if one.iteration and kind_for(RAY_STATUS[one.status], resume_config) != skipped
        ]
        rows = rows_of(self._disk, self._storage.experiment_fs_path, run_on)
        return [
            trial_of(
                record,
                rows.get(record.trial_id, ()),
                self._storage,
                self._trial_checkpoint_config,
                self._context,
            )
            for record in records
        ]

    def _raise_samples(self) -> None:
        """Let more be sampled than before, if more is asked for."""

    def _adapt(self, trials: list[Trial]) -> None:
        """Give restored trials what this fit has in another way."""

    def _decide_what_was_open(self, trials: list[Trial], resume_config: ResumeConfig) -> None:
        """Decide charges that were open; `raytrials.driver.controller` knows how."""

    def _apply_resume(self, trial: Trial, kind: ResumeConfig.ResumeType) -> bool:
        """Let a trial run again, begin anew or stay ended, as Ray's words say.

        Returns whether it had ended, and goes on.
        """
        kinds = ResumeConfig.ResumeType
        record = self._chronicle.trial(trial.trial_id)
        if kind == kinds.SKIP:
            if not record.is_finished:
                reason = "it is not resumed, by order"
                recording.finished(trial, Status.ABORTED, reason)
                trial.set_status(Trial.TERMINATED)
            return False
        if kind == kinds.RESTART:
            if not record.is_finished:
                recording.finished(trial, Status.ABORTED, "it is restarted, by order")
            forget_progress(trial)
        was_finished = record.is_finished
        if was_finished:
            self._chronicle.record(TrialResumed(trial.trial_id, kind == kinds.RESTART))
            trial.renew_budgets()
            _ray.forget_analysis_without_steps(trial)
        trial.run_metadata.error_filename = None
        trial.run_metadata.pickled_error_filename = None
        if kind == kinds.RESTART or trial.status != Trial.PAUSED or not self._knows(trial):
            trial.set_status(Trial.PENDING)
        return was_finished

    def _tell_of_ends(self, trials: list[Trial]) -> None:
        """Tell the searcher of trials that ended when their driver had no time for it."""
        for trial in trials:
            record = self._chronicle.trial(trial.trial_id)
            if record.is_finished and not record.told_complete:
                self._tell_complete(trial, error=record.status is Status.FAILED)

    def _tell_complete(self, trial: Trial, *, error: bool) -> None:
        result = None if error else _ray.flatten_dict(trial.last_result)
        if self._search is not None:
            self._search.on_complete(trial.trial_id, error=error)
        self._search_alg.on_trial_complete(trial.trial_id, result=result or None, error=error)

    def _restore_callbacks(self) -> None:
        """Give callbacks the state that Ray saved for them, as far as it can be read."""
        try:
            self._checkpoint_manager.sync_down_experiment_state()
            directory = self._storage.experiment_driver_staging_path
            if self._callbacks.can_restore(directory):
                self._callbacks.restore_from_dir(directory)
        except Exception as error:
            logger.exception("The callbacks did not come back.")
            self._note_lost("callbacks", f"they did not come back: {error}")
