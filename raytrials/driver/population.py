"""A population that waits for each of its trials, as synchronous PBT does, and for one in vain.

Ray's scheduler goes on when the last trial of a population reports. When that one has ended
instead, nobody reports any more: the others would wait for ever. And a trial that finds no place to
run holds up the whole population as long as it does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from raytrials import _ray
from raytrials.driver.trial import Trial

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stuck:
    """A population that would wait for ever.

    Attributes:
        trial: one that waits; told its latest result again, the scheduler goes on.
        absent: those that it goes on without.
    """

    trial: Trial
    absent: tuple[Trial, ...] = ()


class Population:
    """Watches over a scheduler's population.

    Args:
        wait_s: how long a trial that does not run is waited for; 0 for ever.
        now_s: a monotonic clock.
    """

    def __init__(self, wait_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._wait_s = wait_s
        self._now_s = now_s
        self._since: tuple[frozenset[Trial], float] | None = None

    def look(self, scheduler: Any, unfinished: Iterable[Trial]) -> Stuck | None:
        """Return what has to be done for the population to go on; None for nothing.

        Args:
            scheduler: Ray's, or one of the user's.
            unfinished: the trials that have not ended.
        """
        if not _ray.is_synchronous(scheduler):
            return None
        trials = list(unfinished)
        behind = [one for one in trials if _ray.is_behind(scheduler, one)]
        waiting = [one for one in trials if one not in behind]
        if not waiting or any(one.status != Trial.PAUSED or one.is_saving for one in waiting):
            self._since = None
            return None
        if not behind:
            return Stuck(waiting[-1])
        if not self._wait_s or any(one.status == Trial.RUNNING for one in behind):
            self._since = None
            return None
        if self._since is None or self._since[0] != frozenset(behind):
            self._since = frozenset(behind), self._now_s()
        if self._now_s() - self._since[1] < self._wait_s:
            return None
        self._since = None
        logger.warning(
            "The population goes on without %s, which found no place to run for %g s.",
            ", ".join(map(str, behind)),
            self._wait_s,
        )
        return Stuck(waiting[-1], tuple(behind))


class WithoutAbsent:
    """The controller as a scheduler sees it that does not wait for some trials.

    Args:
        seen: the controller.
        absent: those trials.
    """

    def __init__(self, seen: Any, absent: Iterable[Trial]) -> None:
        self._seen = seen
        self._absent = set(absent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seen, name)

    def get_trials(self) -> list[Trial]:
        """Return the others."""
        return [trial for trial in self._seen.get_trials() if trial not in self._absent]

    def get_live_trials(self) -> set[Trial]:
        """Return the others that have not ended."""
        live = self._seen.get_live_trials()
        return {trial for trial in live if trial not in self._absent and not trial.is_finished()}
