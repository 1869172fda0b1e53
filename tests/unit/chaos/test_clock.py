"""Virtual time goes by when the test says so, and its wall clock is as bad as a real one."""

from __future__ import annotations

import pytest

from raytrials.chaos import FakeClock
from raytrials.store.clock import Clock


def test_sleep_lets_both_clocks_go_on() -> None:
    clock: Clock = FakeClock(epoch_s=1000.0)
    clock.sleep(2.5)
    assert (clock.time(), clock.monotonic()) == (1002.5, 2.5)


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_jump_moves_the_wall_clock_alone(seconds: float) -> None:
    clock = FakeClock(epoch_s=10_000.0)
    clock.advance(1.0)
    clock.jump(seconds)
    assert (clock.time(), clock.monotonic()) == (10_001.0 + seconds, 1.0)
    clock.advance(1.0)
    assert (clock.time(), clock.monotonic()) == (10_002.0 + seconds, 2.0)


def test_monotonic_never_goes_back() -> None:
    clock = FakeClock()
    clock.advance(5.0)
    clock.advance_to(3.0)
    for seconds in (-1.0, float("nan"), -float("inf")):
        with pytest.raises(ValueError, match="cannot go by"):
            clock.advance(seconds)
        with pytest.raises(ValueError, match="cannot go by"):
            clock.sleep(seconds)
    assert clock.monotonic() == 5.0


def test_a_moment_is_met_exactly() -> None:
    clock = FakeClock()
    clock.advance(0.1)
    clock.advance_to(0.3)
    assert clock.monotonic() == 0.3
