"""A scheduler in Ray's controller: every call into it goes through whoever records them.

:class:`RecordedScheduler` takes the scheduler's place in the controller. Everything but the calls
that may change it goes on to the real one, so that Ray and the user see that one in everything.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

METHODS: Mapping[str, str] = {
    "add": "on_trial_add",
    "error": "on_trial_error",
    "result": "on_trial_result",
    "complete": "on_trial_complete",
    "remove": "on_trial_remove",
    "choose": "choose_trial_to_run",
}
"""Ray's name of each call that may change a scheduler."""

_CALLS = {method: call for call, method in METHODS.items()}

Through = Callable[..., Any]
"""Makes a call: is given its name, the controller, and what else the method is given."""


class RecordedScheduler:
    """Stands for a scheduler in its controller. Made by :func:`recorded` only.

    It is no subclass of Ray's `TrialScheduler`, whose methods would hide the real ones;
    `isinstance` takes it for the real one's class. A copy or a pickle of it is one of the real one.

    Args:
        real: the scheduler.
        through: makes its calls.
    """

    # No `__dict__`: that of the real one is found instead, also by what looks for attributes.
    __slots__ = ("__real", "__through")

    def __init__(self, real: Any, through: Through) -> None:
        put = functools.partial(object.__setattr__, self)
        put("_RecordedScheduler__real", real)
        put("_RecordedScheduler__through", through)

    @property  # type: ignore[misc]  # as unittest.mock has it, for isinstance
    def __class__(self) -> type:
        return type(self.__real)

    def __getattr__(self, name: str) -> Any:
        if name in _CALLS:
            return functools.partial(self.__through, _CALLS[name])
        return getattr(self.__real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__real, name, value)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # With a function of Python's own: who loads it may not have raytrials.
        return operator.getitem, ((self.__real,), 0)


def recorded(real: Any, through: Through) -> Any:
    """Return what stands for the scheduler, named as its class is: messages name it so."""
    return type(type(real).__name__, (RecordedScheduler,), {"__slots__": ()})(real, through)


def real_of(scheduler: Any) -> Any:
    """Return the scheduler that something may stand for."""
    if issubclass(type(scheduler), RecordedScheduler):
        return object.__getattribute__(scheduler, "_RecordedScheduler__real")
    return scheduler
