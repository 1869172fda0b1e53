"""Iterations that a recovered trial runs again are not told again.

Searcher, scheduler and stopper saw them before the failure; told twice, they would count the data
twice and decide anew. So Ray's controller processes such a result as any other, with these
stand-ins in their places, which tell nothing on and give back what was decided then. Of the
callbacks only those learn of it that make the tables, where the row of the re-run takes the place
of the earlier one, and those that print.
"""

from __future__ import annotations

from typing import Any

from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

from raytrials import _ray


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


def file_loggers(callbacks: Any) -> Any:
    """Return the callbacks that are told of iterations that are run again, in their order.

    The loggers of Ray's that make a trial's files, whose earlier rows were cut. The user's own and
    those that send results elsewhere would count them twice. Reporters are told too: they say what
    is happening now, keep nothing, and a console that is silent through a long re-run looks hung.

    Args:
        callbacks: a `CallbackList`.

    Returns:
        another one with a part of them.
    """
    return _ray.CallbackList([one for one in callbacks if isinstance(one, _TOLD_AGAIN)])


_TOLD_AGAIN = (
    CSVLoggerCallback,
    JsonLoggerCallback,
    TBXLoggerCallback,
    _ray.ProgressReporter,
    _ray.TrialProgressCallback,
)


class Tables:
    """Stands for the callbacks: tells results to :func:`file_loggers` alone, passes the rest on.

    Args:
        real: the `CallbackList`.
    """

    def __init__(self, real: Any) -> None:
        self._real = real
        self._told = file_loggers(real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def on_trial_result(self, **info: Any) -> None:
        """Tell a result."""
        self._told.on_trial_result(**info)
