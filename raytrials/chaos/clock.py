"""A clock that only the test turns."""

from __future__ import annotations

EPOCH_S = 1_700_000_000.0


class FakeClock:
    """A :class:`raytrials.store.clock.Clock` in virtual time: waiting takes none of the real one.

    Args:
        epoch_s: what the wall clock shows at first, in seconds since the epoch.
    """

    def __init__(self, epoch_s: float = EPOCH_S) -> None:
        self._monotonic_s = 0.0
        self._wall_ahead_s = epoch_s

    def time(self) -> float:
        """Return what the wall clock shows."""
        return self._wall_ahead_s + self._monotonic_s

    def monotonic(self) -> float:
        """Return the seconds since the clock was made; they never go back."""
        return self._monotonic_s

    def sleep(self, seconds: float) -> None:
        """Let time go by, as :meth:`advance`."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time go by.

        Raises:
            ValueError: it would go back, or nowhere (NaN).
        """
        if not seconds >= 0:
            raise ValueError(f"Time cannot go by {seconds} s; jump() moves the wall clock back.")
        self._monotonic_s += seconds

    def advance_to(self, monotonic_s: float) -> None:
        """Let time go by until a moment of the monotonic clock; nothing if that is past.

        A sum of many small steps would miss the moment by a rounding error.
        """
        self._monotonic_s = max(self._monotonic_s, monotonic_s)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative, while no time goes by."""
        self._wall_ahead_s += seconds
