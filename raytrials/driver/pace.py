"""What looks at all trials only to show them, and takes at most 5 % of the driver's time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

REST = 19
"""How often as long as a report took, its end included, the loop goes on without one."""


def paced(report: Callable[..., None]) -> Callable[..., None]:
    """Return `report` as the loop calls it: left out as long as the time that it took says.

    The last report of a fit, which Ray calls with an argument of its own, is never left out.

    Args:
        report: takes controller and reporter; decides itself whether there is something to print.
    """
    next_s = float("-inf")

    def report_if_due(controller: Any, reporter: Any, **last: bool) -> None:
        nonlocal next_s
        if not last and time.monotonic() < next_s:
            return
        # Its own time: on a busy machine it must not become rarer for what others cost it.
        begun_s = time.thread_time()
        report(controller, reporter, **last)
        next_s = time.monotonic() + REST * (time.thread_time() - begun_s)

    return report_if_due
