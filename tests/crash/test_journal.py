"""Drivers stop, fail and are replaced at every operation, and nothing that was promised is lost.

What is promised, and what else has to hold then, is `support.driving.check`.
"""

from __future__ import annotations

import pytest
from support.driving import (
    FAILURES,
    REPLACEMENTS,
    STOPS,
    Failures,
    Replacement,
    Stops,
)


@pytest.mark.parametrize("stops", STOPS.values(), ids=STOPS)
def test_a_stop_anywhere_loses_nothing_that_was_promised_and_the_next_driver_goes_on(
    stops: Stops,
) -> None:
    stops()


@pytest.mark.parametrize("failures", FAILURES.values(), ids=FAILURES)
def test_a_storage_that_fails_for_a_while_loses_and_doubles_nothing(failures: Failures) -> None:
    failures()


@pytest.mark.parametrize("replacement", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_a_driver_that_was_replaced_changes_nothing_wherever_it_was(
    replacement: Replacement,
) -> None:
    replacement()
