"""The controller of an experiment that goes on, where Ray's own resume is used.

Ray starts a whole experiment anew when its resume fails, and changes the configurations of trials
when it is given the search space again. Here the one is an error, and the others stay as they are
but for the objects in them, which are the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import exceptions

from raytrials import _ray
from raytrials.driver.controller import Controller
from raytrials.driver.recorded import WRITTEN_BY
from raytrials.driver.reopened import Reopened
from raytrials.driver.space import is_reference
from raytrials.driver.trial import FitContext, Trial
from raytrials.errors import (
    ExperimentCorruptError,
    MissingCodeError,
    RaytrialsError,
    SearchSpaceNeededError,
)


class ContinuedController(Controller):
    """Our controller, with trials that were there before.

    Args:
        context: as :class:`raytrials.driver.controller.Controller`.
        reopened: the experiment.
        num_samples: how many samples there are to be; more than before are made up for.
        max_failures: what each trial may fail now.
        stop: when a trial ends, by metric; empty for nothing that is said so.
        **kwargs: as Ray's.

    Raises:
        RaytrialsError: the experiment cannot go on.
    """

    _placeholder_resolvers: Any

    def __init__(
        self,
        context: FitContext,
        reopened: Reopened,
        *,
        num_samples: int,
        max_failures: int,
        stop: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        self._reopened = reopened
        self._num_samples = num_samples
        self._max_failures = max_failures
        self._stop = dict(stop)
        super().__init__(context, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        for name in ("_reopened", "_num_samples", "_max_failures", "_stop"):
            state.pop(name, None)
        return state

    def resume(self, resume_config: Any) -> None:
        """Take up the newest whole state as Ray does. Raises RaytrialsError if it does not work."""
        state: list[str] = []

        def find(*_: Any, **__: Any) -> str:
            state.append(self._reopened.find_state())
            return state[0]

        try:
            _ray.resume(find)(self, resume_config)
            _ray.raise_samples(self._search_alg, self._num_samples)
        except (RaytrialsError, exceptions.RayError):
            raise
        except ImportError as error:
            raise MissingCodeError(self._reopened.path, str(error)) from error
        except Exception as error:
            detail = f"the search does not resume from it: {type(error).__name__}: {error}"
            path = state[0] if state else self._reopened.path
            raise ExperimentCorruptError(path, detail) from error

    def _restore_trials(self, experiment_state: dict[str, Any]) -> list[Trial]:
        trials = super()._restore_trials(experiment_state)
        self._adapt(trials)
        return trials

    def _state_of_vanilla(self) -> dict[str, Any] | None:
        return self._reopened.state_without(WRITTEN_BY)

    def _raise_samples(self) -> None:
        _ray.raise_samples(self._search_alg, self._num_samples)

    def _adapt(self, trials: list[Trial]) -> None:
        """Give restored trials what this fit has in another way."""
        for trial in trials:
            self._bring_up_to_date(trial)
            # Now, and not when it is added: a trial that starts anew is made from it before.
            _ray.keep_config(trial)
            resolvers = _ray.references_alone(self._placeholder_resolvers, trial)
            if resolvers:
                trial.resolve_config_placeholders(resolvers)

    def _bring_up_to_date(self, trial: _ray.Trial) -> None:
        if isinstance(trial, Trial):
            trial.limit_failures(self._max_failures)
        trial.max_failures = self._max_failures
        trial.stopping_criterion = self._stop

    def add_trial(self, trial: _ray.Trial) -> None:
        """Add a trial; one that was there before keeps its configuration.

        Raises:
            SearchSpaceNeededError: its configuration lacks values that only the search space has.
        """
        self._bring_up_to_date(trial)  # a new one is made from what the searcher had saved
        if not _ray.keep_config(trial):
            keys = _ray.unresolved_keys(trial)
            if keys and not self._placeholder_resolvers:
                raise SearchSpaceNeededError(self._reopened.path, tuple(keys))
            super().add_trial(trial)
            return
        resolvers = self._placeholder_resolvers
        self._placeholder_resolvers = _ray.references_alone(resolvers, trial)
        if not resolvers and not trial.is_finished():
            objects = _ray.object_values(trial)
            lost = [key for key, value in objects.items() if is_reference(value)]
            if lost:
                raise SearchSpaceNeededError(self._reopened.path, tuple(lost))
        try:
            super().add_trial(trial)
        finally:
            self._placeholder_resolvers = resolvers
