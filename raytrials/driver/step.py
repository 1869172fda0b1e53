"""Ray's trial controller with steps that cost the same however many trials there are.

Ray looks at every trial to find one to run, and to see whether all have ended. Here both are
answered from `raytrials.driver.unfinished`, with the same answers in the same order. What happens
in a step is Ray's; what of it is recorded is in `raytrials.driver.recorded`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raytrials import _ray
from raytrials.driver.scheduler import real_of
from raytrials.driver.unfinished import Unfinished


class StepController(_ray.TuneController):  # type: ignore[misc]
    """Ray's trial controller, whose steps look at no trial that has ended.

    Args:
        **kwargs: as Ray's.
    """

    # Ray's
    _scheduler_alg: Any
    _search_alg: Any

    def __init__(self, **kwargs: Any) -> None:
        self._unfinished = Unfinished()
        self._is_choosing = False
        super().__init__(**kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        for name in ("_unfinished", "_is_choosing"):
            state.pop(name, None)
        return state

    def add_trial(self, trial: _ray.Trial) -> None:
        """Add a trial as Ray does."""
        super().add_trial(trial)
        self._unfinished.note(trial)

    def _set_trial_status(self, trial: _ray.Trial, status: str) -> None:
        super()._set_trial_status(trial, status)
        self._unfinished.note(trial)

    def is_finished(self) -> bool:
        """Return whether all trials have ended, and there will be no others."""
        return not self._unfinished and bool(self._search_alg.is_finished())

    # --- which trial is next ---------------------------------------------------------------------

    def _maybe_add_actors(self) -> None:
        self._is_choosing = True
        try:
            super()._maybe_add_actors()
        finally:
            self._is_choosing = False

    def _wrapped(self) -> Any:
        """Return what a scheduler sees of the controller.

        One of Ray's that only looks for a trial to run, which is what Ray asks first when it adds
        actors, sees no others than those.
        """
        seen = super()._wrapped()
        if self._is_choosing:
            self._is_choosing = False
            kind = _ray.chooses_among(real_of(self._scheduler_alg))
            if kind == "first":
                seen.get_trials = self._first_waiting
            elif kind == "unfinished":
                seen.get_trials = lambda: list(self._unfinished)
        return seen

    def _first_waiting(self) -> Iterable[_ray.Trial]:
        """Return the first pending trial, else the first paused one, as a list."""
        statuses = (_ray.Trial.PENDING, _ray.Trial.PAUSED)
        found = next(filter(None, map(self._unfinished.first, statuses)), None)
        return [] if found is None else [found]
