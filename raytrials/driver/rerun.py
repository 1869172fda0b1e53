"""Iterations that a recovered trial runs again are not told again.

Searcher, scheduler and stopper saw them before the failure; told twice, they would count the data
twice and decide anew. So Ray's controller processes such a result as any other, with these
stand-ins in their places, which tell nothing on and give back what was decided then.
"""

from __future__ import annotations

from typing import Any


class Silent:
    """Stands for a searcher or scheduler: answers `on_trial_result` itself, passes the rest on.

    Args:
        real: the searcher or scheduler.
        answer: what `on_trial_result` returns.
    """

    def __init__(self, real: Any, answer: Any = None) -> None:
        self._real = real
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def on_trial_result(self, *_: Any) -> Any:
        """Return the answer; the real one is not told."""
        return self._answer


class NeverStops:
    """Stands for a stopper."""

    def __call__(self, *_: Any) -> bool:
        """Return False."""
        return False
