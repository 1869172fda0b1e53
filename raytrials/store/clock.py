"""Time, as what waits is given it: the system's, or one that a test turns by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. `raytrials.chaos` has one in virtual time."""

    def time(self) -> float:
        """Return the seconds since the epoch. May jump, also backwards."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Let so many seconds go by."""


class SystemClock:
    """The clock of this machine."""

    def time(self) -> float:
        """See :meth:`Clock.time`."""
        return time.time()

    def monotonic(self) -> float:
        """See :meth:`Clock.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See :meth:`Clock.sleep`."""
        time.sleep(seconds)
