"""What happens when, in virtual time: one thing after another, in an order that never varies."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from raytrials.chaos.clock import FakeClock


@dataclass(order=True)
class Timer:
    """Something that is to happen. Of two at the same moment the one made first comes first."""

    at_s: float
    number: int
    act: Callable[[], object] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        """Let it not happen."""
        self.cancelled = True


class Timeline:
    """A heap of timers that turns the clock.

    Args:
        clock: may also be turned by others; what they turned it past happens at the next look, and
            is dated when it was due.

    Attributes:
        now_s: the moment that things happen at, on the monotonic clock.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._timers: list[Timer] = []
        self._numbers = itertools.count()
        self._is_acting = False
        self.now_s = clock.monotonic()

    def after(self, seconds: float, act: Callable[[], object]) -> Timer:
        """Have something happen so many seconds from now.

        Raises:
            ValueError: the delay is negative.
        """
        if seconds < 0:
            raise ValueError(f"A delay of {seconds} s lies in the past.")
        timer = Timer(self.now_s + seconds, next(self._numbers), act)
        heapq.heappush(self._timers, timer)
        return timer

    def catch_up(self) -> None:
        """Let everything happen that is due on the clock. Within a happening this does nothing."""
        if self._is_acting:
            return
        while self.step(self._clock.monotonic()):
            pass
        self.now_s = self._clock.monotonic()

    def step(self, until_s: float | None) -> bool:
        """Let the next thing happen, if there is one until then.

        Raises:
            RuntimeError: called by what happens, which would break its order.
        """
        if self._is_acting:
            raise RuntimeError("What happens in virtual time cannot wait for what happens next.")
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        if not self._timers or (until_s is not None and self._timers[0].at_s > until_s):
            return False
        timer = heapq.heappop(self._timers)
        self._clock.advance_to(timer.at_s)
        self.now_s = timer.at_s
        self._is_acting = True
        try:
            timer.act()
        finally:
            self._is_acting = False
        return True
