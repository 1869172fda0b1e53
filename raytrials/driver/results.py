"""What trials reported, read from the journal for those who are told of it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune.utils.util import flatten_dict

from raytrials.core.event import (
    AttemptStarted,
    CheckpointCommitted,
    Event,
    ResultReported,
    TrialImported,
)
from raytrials.driver.searcher import iteration_in

Additions = Mapping[tuple[str, int], Mapping[str, Any]]
"""What a scheduler has written into flat results, by trial and iteration."""

NOTHING_ADDED: Additions = {}


class Results:
    """What the trials reported, as searcher and scheduler are told it: flat.

    Args:
        latest: the latest result of each trial at the beginning.
        added: what belongs to results that come.
    """

    def __init__(
        self, latest: Mapping[str, Mapping[str, Any]], added: Additions = NOTHING_ADDED
    ) -> None:
        self._added = added
        self._of: dict[str, dict[int, Mapping[str, Any]]] = {}
        for trial_id, metrics in latest.items():
            self._add(trial_id, iteration_in(metrics), metrics)

    def add(self, event: Event) -> None:
        """Take note of the result in an event, if there is one."""
        if isinstance(event, ResultReported | CheckpointCommitted):
            self._add(event.trial_id, event.iteration, event.metrics)
        elif isinstance(event, AttemptStarted):
            self._add(event.trial_id, event.from_iteration, event.metrics)
        elif isinstance(event, TrialImported):
            self._add(event.trial_id, event.record["iteration"], event.record["last_result"])

    def _add(self, trial_id: str, iteration: int, metrics: Mapping[str, Any] | None) -> None:
        if metrics:
            of_trial = self._of.setdefault(trial_id, {})
            of_trial.pop(iteration, None)  # the one that came last is the latest
            of_trial[iteration] = metrics

    def latest(self, trial_id: str) -> int:
        """Return the iteration of a trial's latest result, 0 for none."""
        return next(reversed(self._of.get(trial_id) or [0]))

    def get(self, trial_id: str, iteration: int) -> dict[str, Any] | None:
        """Return the latest result of an iteration; the latest at all if there is none of it."""
        of_trial = self._of.get(trial_id)
        if not iteration or not of_trial:
            return None
        if iteration not in of_trial:
            iteration = self.latest(trial_id)
        flat: dict[str, Any] = flatten_dict(dict(of_trial[iteration]))
        return {**flat, **self._added.get((trial_id, iteration), {})}

    def reported(self, trial_id: str, iteration: int) -> dict[str, Any]:
        """Return the result of an iteration as it was reported, {} if it is not known."""
        return dict(self._of.get(trial_id, {}).get(iteration, {}))
