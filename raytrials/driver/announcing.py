"""Announcing the end of a trial to callbacks when it is durable, and not before.

A callback may tell the world that a trial is done; after a death of the machine the trial must not
run again behind that. Searcher and scheduler die with the driver and are told at once.
"""

from __future__ import annotations

import functools
from typing import Any

from raytrials import _ray
from raytrials.driver.chronicle import Chronicle


class Announcer(_ray.CallbackList):  # type: ignore[misc]
    """Ray's list of callbacks, in which ends of trials wait for the journal.

    Args:
        callbacks: Ray's list.
        chronicle: knows what is durable.
    """

    def __init__(self, callbacks: Any, chronicle: Chronicle) -> None:
        super().__init__(_ray.callbacks_in(callbacks))
        self._chronicle = chronicle
        self._queue: list[functools.partial[Any]] = []

    def on_trial_complete(self, **info: Any) -> None:
        """Tell that a trial has ended, when that is durable."""
        self._announce(functools.partial(super().on_trial_complete, **info))

    def on_trial_error(self, **info: Any) -> None:
        """Tell that a trial has failed, when that is durable."""
        self._announce(functools.partial(super().on_trial_error, **info))

    def _announce(self, tell: functools.partial[Any]) -> None:
        self._queue.append(tell)
        self._chronicle.await_durable(self._chronicle.state.seq, self._tell_next)

    def _tell_next(self) -> None:
        if self._queue:
            self._queue.pop(0)()

    def awaits(self, trial: Any) -> bool:
        """Whether the end of a trial is still to be told."""
        return any(tell.keywords.get("trial") is trial for tell in self._queue)

    def flush(self) -> None:
        """Tell all that waits."""
        while self._queue:
            self._tell_next()
