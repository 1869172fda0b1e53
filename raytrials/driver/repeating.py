"""A scheduler's calls, repeated from the journal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raytrials import _ray
from raytrials.core.event import (
    CheckpointCommitted,
    DecisionMade,
    Event,
    Record,
    SchedulerActed,
    SchedulerCalled,
    SearcherTold,
    TrialAdded,
    TrialConfigChanged,
    TrialFinished,
    TrialPaused,
)
from raytrials.driver.population import WithoutAbsent
from raytrials.driver.results import Results
from raytrials.driver.searcher import iteration_in
from raytrials.driver.stage import PAUSE, STOP, TO_SEARCHER, ScriptedController, Stage
from raytrials.driver.trial import Trial

if TYPE_CHECKING:
    from raytrials.driver.scheduling import Scheduling

logger = logging.getLogger(__name__)

RESOLVE, CLUSTER, ABSENT = "resolve", "cluster", "absent"
"""What a scheduler is told in a call, by its name in the journal."""


@dataclass(frozen=True)
class OpenCall:
    """The last call of a driver that died: not all that it asked for may have been done.

    Attributes:
        call: as in :class:`raytrials.core.event.SchedulerCalled`.
        trial: the trial that it is about, None for `choose`.
        answer: what the scheduler answers.
        result: the result that it was told, flat; None if it was told none.
        acts: what it does to trials, in order.
        configured: the trials that have another configuration or checkpoint by it.
        after: the events after it.
    """

    call: str
    trial: Trial | None
    answer: Any
    result: Mapping[str, Any] | None
    acts: tuple[tuple[str, Trial], ...]
    configured: tuple[Trial, ...]
    after: tuple[Event, ...]

    def undone(self) -> Iterator[tuple[str, Trial]]:
        """Yield what it does to trials and has no event after it."""
        told = {(one.call, one.trial_id) for one in self.after if isinstance(one, SearcherTold)}
        done = {(type(one), getattr(one, "trial_id", None)) for one in self.after}
        for act, trial in self.acts:
            if act in TO_SEARCHER:
                is_done = (TO_SEARCHER[act], trial.trial_id) in told
            else:
                is_done = ({STOP: TrialFinished, PAUSE: TrialPaused}[act], trial.trial_id) in done
            if not is_done:
                yield act, trial

    def is_undecided(self) -> bool:
        """Whether it answers a result on which no decision was made."""
        return bool(self.answer) and not any(
            isinstance(one, DecisionMade) and one.trial_id == self._trial_id for one in self.after
        )

    def is_told(self) -> bool:
        """Whether the searcher was told of the result."""
        return any(
            isinstance(one, SearcherTold) and (one.call, one.trial_id) == ("result", self._trial_id)
            for one in self.after
        )

    @property
    def _trial_id(self) -> str | None:
        return None if self.trial is None else self.trial.trial_id


@dataclass
class Replayed:
    """What came of a replay.

    Attributes:
        wrong: each trial of which the scheduler decided something else than at first, and what.
        added: what it wrote into results, for the searcher that is told of them after it.
        last: the last call, None if there was none.
    """

    wrong: list[tuple[str, str]] = field(default_factory=list)
    added: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    last: OpenCall | None = None


class Replay:
    """One pass through the calls after a dump.

    Args:
        scheduling: makes the calls.
        records: the events after the dump, in order.
        stage: shows the trials as they were.
        results: those that were known at the dump.
        controller: answers what is not of the past.
    """

    def __init__(
        self,
        scheduling: Scheduling,
        records: Sequence[Record],
        stage: Stage,
        results: Results,
        controller: Any,
    ) -> None:
        self._scheduling = scheduling
        self._records = records
        self._stage = stage
        self._results = results
        self._scripted = ScriptedController(controller, stage, scheduling.recorded)
        self._played = Replayed()
        self._before: Mapping[str, Any] = {}
        self._answers: dict[str, str] = {}  # of the latest results, until their decision is there

    def run(self, trials: Mapping[str, Trial]) -> Replayed:
        """Repeat the calls; `trials` are all of the experiment, by id."""
        calls = [n for n, one in enumerate(self._records) if type(one.event) is SchedulerCalled]
        last = calls[-1] if calls else None
        for number, record in enumerate(self._records):
            event = record.event
            self._results.add(event)
            if isinstance(event, SchedulerCalled):
                self._take_answers(number + 1)
                self._repeat(number, event, trials, is_last=number == last)
            elif isinstance(event, DecisionMade):
                self._compare(event)
            elif isinstance(event, TrialAdded):
                self._stage.configured(event)
            elif isinstance(event, TrialConfigChanged):
                wrong = self._stage.configured(event)
                if wrong:
                    self._played.wrong.append((event.trial_id, wrong))
            elif isinstance(event, CheckpointCommitted):
                self._stage.committed(event)
        return self._played

    def _take_answers(self, start: int) -> None:
        """Take what the scheduler was told within a call: it stands before the next one."""
        answers = self._stage.answers
        answers.clear()
        for record in self._records[start:]:
            if isinstance(record.event, SchedulerCalled):
                break
            if isinstance(record.event, SchedulerActed):
                answers.append(record.event)

    def _controller_at(self, number: int, trials: Mapping[str, Trial]) -> Any:
        """Return what the scheduler sees in a call: some of it stands before the call."""
        absent = []
        while number and isinstance(self._records[number - 1].event, SchedulerActed):
            number -= 1
            told = self._records[number].event
            if isinstance(told, SchedulerActed) and told.call == CLUSTER:
                cpus, gpus = told.arguments
                self._stage.cluster = (cpus, gpus)
            elif isinstance(told, SchedulerActed) and told.call == ABSENT:
                absent.append(trials[str(told.trial_id)])
        return WithoutAbsent(self._scripted, absent) if absent else self._scripted

    def _repeat(
        self, number: int, event: SchedulerCalled, trials: Mapping[str, Trial], *, is_last: bool
    ) -> None:
        stage = self._stage
        after = tuple(one.event for one in self._records[number + 1 :]) if is_last else ()
        stage.show(event.statuses)
        stage.acts.clear()
        trial = None if event.trial_id is None else trials[event.trial_id]
        if trial is not None and event.call == "add":
            stage.add(trial)
        result = self._result_of(event, trial)
        arguments = [one for one in (trial, result) if one is not None]
        configured = stage.configurations() if is_last else {}
        # A decision made while a trial is saved gives way to one that waits for the save already.
        is_binding = trial is not None and not trial.is_saving
        was_logged = not is_last or any(type(one) is TrialConfigChanged for one in after)
        answer = None
        with self._scheduling.quiet() if was_logged else contextlib.nullcontext():
            try:
                controller = self._controller_at(number, trials)
                answer = self._scheduling.repeat(event, controller, *arguments)
            except Exception:  # whatever a scheduler raises; it did so at first, too
                logger.debug("Repeated, %s raised.", event, exc_info=True)
        if event.call == "result" and trial is not None and result is not None:
            self._note_result(trial, result, answer if is_binding else None)
        if is_last:
            changed = stage.changed_since(configured)
            done = {event.trial_id for event in after if isinstance(event, TrialConfigChanged)}
            self._played.last = OpenCall(
                event.call,
                trial,
                answer,
                result,
                tuple(stage.acts),
                tuple(one for one in changed if one.trial_id not in done),
                after,
            )

    def _result_of(self, event: SchedulerCalled, trial: Trial | None) -> dict[str, Any] | None:
        if trial is None:
            return None
        if event.call == "result":
            latest = self._results.latest(trial.trial_id)
            self._before = self._results.get(trial.trial_id, latest) or {}
            return dict(self._before)
        if event.call == "complete":
            return dict(_ray.flatten_dict(trial.run_metadata.last_result))
        return None

    def _note_result(self, trial: Trial, result: Mapping[str, Any], answer: Any) -> None:
        trial_id = trial.trial_id
        added = {key: value for key, value in result.items() if key not in self._before}
        if added:
            self._played.added[trial_id, iteration_in(result)] = added
        if answer is not None:
            self._answers[trial_id] = str(answer)

    def _compare(self, event: DecisionMade) -> None:
        """Hold an answer against the decision that was made on the result."""
        trial_id = event.trial_id
        answer = self._answers.pop(trial_id, None)
        reported = self._results.reported(trial_id, event.iteration)
        if reported:
            self._stage.reported(trial_id, reported)
        if answer is not None and answer != event.decision:
            detail = f"{answer} for iteration {event.iteration}, the journal has {event.decision}"
            self._played.wrong.append((trial_id, detail))
