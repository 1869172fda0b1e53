"""The scheduler of an experiment over the death of its driver.

Brackets, rungs, medians and populations are afterwards what they were: each call into the scheduler
is recorded before it is made, each has seeds of its own, and the next driver loads the state and
repeats the calls after it, with Ray's trials shown as they were then. What the last of them asked
for and the driver before did not get done is handed back. Nothing here writes but through `record`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ray.tune import Checkpoint
from ray.tune.schedulers import FIFOScheduler

from raytrials import _ray
from raytrials.core.event import (
    Event,
    Record,
    SchedulerActed,
    SchedulerCalled,
)
from raytrials.core.state import TrialRecord
from raytrials.driver.account import iteration_of
from raytrials.driver.pickled import dump, load
from raytrials.driver.population import Stuck, WithoutAbsent
from raytrials.driver.repeating import ABSENT, CLUSTER, RESOLVE, Replay, Replayed
from raytrials.driver.results import Results
from raytrials.driver.scheduler import METHODS, real_of, recorded
from raytrials.driver.searcher import check_kinds, take_state
from raytrials.driver.seeding import Seeding
from raytrials.driver.stage import Promise, Stage, shown_status
from raytrials.driver.trial import Trial
from raytrials.errors import NewerFormatError, NoCheckpointError, StorageError

logger = logging.getLogger(__name__)

VERSION = 1
"""Of what is dumped."""

_ENDS = {"complete", "error", "remove"}
"""Calls that tell of a trial's end."""

_TRIAL, _CHECKPOINT, _SAVE = "trial", "checkpoint", "save"


class Scheduling:
    """The scheduler of an experiment, recorded.

    Args:
        scheduler: of the controller. It stays the object that it is.
        seed: of the experiment.
        record: writes an event into the journal.
        storage: of the experiment.
        after: is called after each call that was recorded.

    Attributes:
        recorded: what takes its place in the controller.
        real: the scheduler itself.
        is_stateless: whether there is nothing to it: FIFO.
    """

    def __init__(
        self,
        scheduler: Any,
        seed: int,
        record: Callable[[Event], object],
        storage: _ray.StorageContext,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self._after = after
        self._storage = storage
        self.real = real_of(scheduler)
        self._record = record
        self._seeding = Seeding("scheduler", seed)
        self.is_stateless = type(self.real) is FIFOScheduler
        self.recorded = self.real if self.is_stateless else recorded(self.real, self._through)
        self._only_looks = _ray.only_looks(self.real)
        self._asks_for_cluster = _ray.changes_resources(self.real)
        self._known: dict[str, None] = {}
        self._open: dict[str, None] = {}  # those of whose end it has not heard
        self._statuses: dict[str, str] = {}
        self._changed: dict[Trial, None] = {}  # in the order in which they did
        self._depth = 0
        self._is_muted = False
        self._has_chosen = False
        self._cluster: tuple[float, float] | None = None
        self._stage: Stage | None = None
        self._results: Results | None = None

    # --- while it runs ---------------------------------------------------------------------------

    def note(self, trial: Trial) -> None:
        """A trial is about to be shown, or has another status, or a save on its way or done."""
        if not self.is_stateless:
            self._changed[trial] = None

    def knows(self, trial: Trial) -> bool:
        """Whether the scheduler was told of a trial."""
        return trial.trial_id in self._known

    def know(self, trials: Sequence[Trial]) -> None:
        """Take note of trials that the scheduler was told of before it was recorded."""
        ids = dict.fromkeys(one.trial_id for one in trials)
        self._known.update(ids)
        self._open.update({one.trial_id: None for one in trials if not one.is_finished()})
        self._changed.update(dict.fromkeys(trials))

    def tell_of_ends(self, trials: Sequence[Trial], controller: Any) -> None:
        """Tell the scheduler of trials that ended when their driver had no time for it."""
        for trial in trials:
            if trial.trial_id not in self._open or not trial.is_finished():
                continue
            if trial.status == Trial.ERROR:
                self.recorded.on_trial_error(controller, trial)
            elif self._statuses.get(trial.trial_id, "").startswith((Trial.PENDING, Trial.PAUSED)):
                self.recorded.on_trial_remove(controller, trial)
            else:
                result = dict(_ray.flatten_dict(trial.last_result))
                self.recorded.on_trial_complete(controller, trial, result)
            self.note(trial)

    def forget(self, trial: Trial) -> None:
        """An ended trial goes on by order: it is added again."""
        self._known.pop(trial.trial_id, None)

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Within this block the scheduler hears of nothing: it knows already."""
        self._is_muted = True
        try:
            yield
        finally:
            self._is_muted = False

    def go_on_without(self, stuck: Stuck, controller: Any) -> Any:
        """Tell the result of a trial that waits again, so that its population goes on."""
        for trial in stuck.absent:
            self._record(SchedulerActed(ABSENT, trial.trial_id))
        seen = WithoutAbsent(controller, stuck.absent) if stuck.absent else controller
        result = dict(_ray.flatten_dict(stuck.trial.run_metadata.last_result))
        return self._through("result", seen, stuck.trial, result)

    def _through(self, call: str, controller: Any, *arguments: Any, **named: Any) -> Any:
        """Make a call into the scheduler: record it, unless another one causes it, and seed it."""
        if self._is_muted:
            return None
        if self._depth or self._stage is not None:
            return self._make(call, controller, *arguments, **named)
        trial: Any = arguments[0] if arguments else None
        if call == "choose":
            if self._only_looks:
                return self.real.choose_trial_to_run(controller)
            if self._has_chosen and not self._changed:
                # Nothing has happened since: it answers the same, and changes nothing by it.
                with self._seeding.call():
                    return self.real.choose_trial_to_run(controller, **named)
        elif call == "add":
            if self.knows(trial):
                return None
            self._known[trial.trial_id] = None
        self._note_cluster(controller)
        self._record(SchedulerCalled(call, trial and trial.trial_id, self._take_changes()))
        self._has_chosen = call == "choose"
        before, self._changed = self._changed, {}
        try:
            return self._make(call, controller, *arguments, **named)
        finally:
            # What the call itself changes is told with the next one, whatever it is by then.
            for changed in self._changed:
                self._statuses.pop(changed.trial_id, None)
            self._changed = before | self._changed
            self._after()

    def _make(self, call: str, controller: Any, *arguments: Any, **named: Any) -> Any:
        number = self._seeding.number
        self._seeding.number += 1
        self._depth += 1
        if call == "add":
            self._open[arguments[0].trial_id] = None
        elif call in _ENDS:
            self._open.pop(arguments[0].trial_id, None)
        try:
            with self._seeding.call(number):
                return getattr(self.real, METHODS[call])(controller, *arguments, **named)
        finally:
            self._depth -= 1

    def _take_changes(self) -> dict[str, str]:
        changes = {}
        for trial in self._changed:
            shown = shown_status(trial)
            if self._statuses.get(trial.trial_id) != shown:
                changes[trial.trial_id] = shown
        self._changed = {trial: None for trial in self._changed if trial.is_saving}
        self._statuses.update(changes)
        return changes

    def _note_cluster(self, controller: Any) -> None:
        if not self._asks_for_cluster:
            return
        size = _ray.cluster_size(controller)
        if size != self._cluster:
            self._cluster = size
            self._record(SchedulerActed(CLUSTER, None, size))

    def promise(self, trial: Trial, future: Any = None) -> Promise:
        """Return what a scheduler is given for a save on its way, or one that is there already."""
        return Promise(trial, self._settle, future)

    def _settle(self, trial: Trial, result: Any, block: bool) -> Any:  # noqa: FBT001 - as Ray's
        if self._stage is not None:
            return self._resolved_then(trial) if block else None
        if result is None and block:
            try:
                result = trial.context.checkpoints.choose(trial)
            except (NewerFormatError, NoCheckpointError, StorageError):
                logger.warning("Trial %s has nothing to be cloned.", trial, exc_info=True)
        if block and not self._is_muted:
            found = []
            if result is not None and result.checkpoint is not None:
                found = [self._relative(result.checkpoint), iteration_of(result.metrics)]
            self._record(SchedulerActed(RESOLVE, trial.trial_id, found))
        return result

    # --- saved and loaded ------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Return all that :meth:`load` needs, as of now.

        Raises:
            UnpicklableStateError: it has no such form.
        """
        shown = {one.trial_id: shown_status(one) for one in self._changed}
        statuses = {**self._statuses, **shown}
        told = list(self._known), list(self._open), statuses, self._cluster
        state = (VERSION, self._seeding.number, *told, self.real)
        return dump("scheduler", state, type(self.real).__name__, self._refer)

    def load(self, data: bytes, trials: Mapping[str, Trial]) -> None:
        """Make the scheduler what it was at the dump.

        Args:
            data: of :meth:`dump`.
            trials: the trials of the experiment, by id.

        Raises:
            ConfigurationError: it is another kind of scheduler.
            NewerFormatError: a newer release made the dump.
            UnpicklableStateError: a class in it is gone or changed.
        """

        def find(reference: tuple[str, str]) -> Any:
            kind, name = reference
            if kind == _CHECKPOINT:
                return self._checkpoint(name)
            return trials[name] if kind == _TRIAL else Promise(trials[name], self._settle)

        version, *rest = load("scheduler", data, find)
        if version > VERSION:
            raise NewerFormatError(version, VERSION, "scheduler's state")
        self._seeding.number, known, still_open, self._statuses, self._cluster, loaded = rest
        check_kinds("scheduler", [self.real], [loaded])
        self._known = dict.fromkeys(known)
        self._open = dict.fromkeys(still_open)
        take_state(self.real, loaded)

    def replay(
        self,
        records: Sequence[Record],
        results: Mapping[str, Mapping[str, Any]],
        before: Mapping[str, TrialRecord],
        trials: Mapping[str, Trial],
        controller: Any,
    ) -> Replayed:
        """Repeat the calls that came after the dump. Nothing is recorded.

        Args:
            records: the events after the dump, in order.
            results: the latest result of each trial at the dump.
            before: what was known at the dump of the trials that these events are about.
            trials: the trials as they are now, by id; they are the same afterwards, but for those
                that the last call has configured.
            controller: answers what is not of the past.
        """
        self._stage = stage = Stage(trials, self._statuses, before, self._settle)
        stage.cluster = self._cluster
        self._results = known = Results(results)
        configured: Sequence[Trial] = ()
        try:
            played = Replay(self, records, stage, known, controller).run(trials)
            configured = played.last.configured if played.last is not None else ()
        finally:
            self._cluster = stage.cluster
            self._stage = self._results = None
            stage.close(configured)
        for trial_id in self._known:
            trial = trials[trial_id]
            if trial.is_finished() and trial_id not in self._open:
                self._statuses[trial_id] = shown_status(trial)
            elif not trial.is_finished():
                self._statuses.pop(trial_id, None)
                self._changed[trial] = None
        return played

    def repeat(self, event: SchedulerCalled, controller: Any, *arguments: Any) -> Any:
        """Make a recorded call again. Raises whatever the scheduler raises."""
        if event.call == "add" and event.trial_id is not None:
            self._known[event.trial_id] = None
        self._statuses.update(event.statuses)
        return self._make(event.call, controller, *arguments)

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Within this block the scheduler writes no files of its own."""
        return _ray.without_log(self.real)

    def _resolved_then(self, trial: Trial) -> Any:
        """Return what a save came to at first; what is there now if nobody lived to know."""
        stage, results = self._stage, self._results
        if stage is None or results is None:
            return None
        answers = stage.answers
        while answers and answers[0].call != RESOLVE:
            answers.popleft()
        if not answers or answers[0].trial_id != trial.trial_id:
            return stage.latest_now(trial)
        found = answers.popleft().arguments
        if not found:
            return None
        path, iteration = found
        return _ray.TrainingResult(
            checkpoint=self._checkpoint(path),
            metrics=results.reported(trial.trial_id, iteration),
        )

    def _refer(self, value: Any) -> tuple[str, str] | None:
        """Name what belongs to the experiment, and not to the scheduler."""
        if isinstance(value, Trial):
            return _TRIAL, value.trial_id
        if isinstance(value, Promise):
            return _SAVE, value.trial.trial_id
        if type(value) is Checkpoint and value.path.startswith(self._home):
            return _CHECKPOINT, self._relative(value)
        return None

    @property
    def _home(self) -> str:
        return f"{self._storage.experiment_fs_path}/"

    def _relative(self, checkpoint: Checkpoint) -> str:
        return str(checkpoint.path.removeprefix(self._home))

    def _checkpoint(self, path: str) -> Checkpoint:
        return Checkpoint(f"{self._home}{path}", filesystem=self._storage.storage_filesystem)
