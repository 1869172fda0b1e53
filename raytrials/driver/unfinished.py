"""Which trials have not ended, in the order in which the controller has them.

A search of thousands of trials has few that are not over. What asks for those at each step asks
here, and never looks at the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import itemgetter

from raytrials import _ray

_WAITING = (_ray.Trial.PENDING, _ray.Trial.PAUSED)


class Unfinished:
    """The trials of a controller that have not ended, in the order of all its trials.

    A trial that ends and goes on after all, as one that is paused does in Ray, has its place again.
    """

    def __init__(self) -> None:
        self._places: dict[_ray.Trial, int] = {}  # of all trials
        self._open: dict[_ray.Trial, int] = {}
        # Of each status a heap of places with trials. Those of another status by now are passed
        # over when they come to its top.
        self._lines: dict[str, list[tuple[int, _ray.Trial]]] = {one: [] for one in _WAITING}
        self._lined: dict[str, set[_ray.Trial]] = {one: set() for one in _WAITING}

    def note(self, trial: _ray.Trial) -> None:
        """Take note of a trial that was added or has another status; costs O(log n)."""
        place = self._places.setdefault(trial, len(self._places))
        if trial.is_finished():
            self._open.pop(trial, None)
            return
        self._open[trial] = place
        lined = self._lined.get(trial.status)
        if lined is not None and trial not in lined:
            lined.add(trial)
            heapq.heappush(self._lines[trial.status], (place, trial))

    def first(self, status: str) -> _ray.Trial | None:
        """Return the first trial that is pending, or paused; None if there is none."""
        line = self._lines[status]
        while line and line[0][1].status != status:
            self._lined[status].discard(heapq.heappop(line)[1])
        return line[0][1] if line else None

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[_ray.Trial]:
        in_order = sorted(self._open.items(), key=itemgetter(1))
        return iter([trial for trial, _ in in_order])
