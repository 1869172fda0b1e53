"""Drivers stop at every operation, and nothing that was promised is lost."""

from __future__ import annotations

import pytest
from support.driving import STOPS, Stops


@pytest.mark.parametrize("stops", STOPS.values(), ids=STOPS)
def test_a_stop_anywhere_loses_nothing_that_was_promised_and_the_next_driver_goes_on(
    stops: Stops,
) -> None:
    stops()
