"""Signals that ask a fit to stop, and what becomes of them when it is over.

A signal may come while the interrupted code holds any lock or is in the middle of any write. So its
handler notes it in a :class:`StopRequest` and does nothing else; the loop of the fit asks the
request, and the handlers that were there before get their signal once the run is durable. Nothing
here knows what stopping means.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from signal import Signals
from types import FrameType
from typing import Any

from raytrials import settings
from raytrials.errors import InterruptedRunError
from raytrials.store.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

_LEAVE_SIGINT = "TUNE_DISABLE_SIGINT_HANDLER"

STOPPING: tuple[Signals, ...] = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    if hasattr(signal, name)
)
"""The signals that ask for a stop: those of them that the platform has."""


class StopRequest:
    """Whether one run is asked to stop, by whom, and how much time it has.

    Signals and :meth:`stop` note the request; the loop of the run reads it. There is no lock: all
    that happens to the shared list is that something is appended, which is one step.

    Args:
        grace_s: seconds from the first request that last checkpoints may take; None is
            `RAYTRIALS_GRACE_S` as it is now.
        clock: its `monotonic` is called by the handler, so it must take no lock.

    Attributes:
        done: set by the loop when it does nothing more for the request.
    """

    def __init__(self, *, grace_s: float | None = None, clock: Clock | None = None) -> None:
        self._grace_s = settings.GRACE_S.get() if grace_s is None else grace_s
        self._clock = clock or SystemClock()
        self._requests: list[tuple[Signals | None, float]] = []
        self.done = threading.Event()

    @property
    def is_requested(self) -> bool:
        """Whether anything asked for a stop."""
        return bool(self._requests)

    @property
    def by_signal(self) -> Signals | None:
        """The signal that asked first; None if :meth:`stop` did, or nobody."""
        return self._requests[0][0] if self._requests else None

    @property
    def hurry(self) -> bool:
        """Whether a signal came after the first request: skip the last checkpoints."""
        return any(number is not None for number, _ in self._requests[1:])

    @property
    def signals(self) -> tuple[Signals, ...]:
        """The signals that came, each once, in the order in which they came first."""
        return tuple(dict.fromkeys(number for number, _ in self._requests if number is not None))

    def grace_left_s(self) -> float:
        """Return the seconds that are left, 0 at least; all of them while nobody has asked."""
        if not self._requests:
            return self._grace_s
        passed_s = self._clock.monotonic() - self._requests[0][1]
        return max(0.0, self._grace_s - passed_s)

    def stop(self) -> None:
        """Ask for a stop, from any thread; after another request this changes nothing."""
        self._note(None)

    def note(self, number: int) -> None:
        """Note a signal; for handlers."""
        self._note(Signals(number))

    def _note(self, number: Signals | None) -> None:
        # Python runs handlers between two steps of the main thread, not inside of a system call, so
        # a clock can be read there; and the grace time runs however late the loop looks.
        self._requests.append((number, self._clock.monotonic()))

    def raise_if_interrupted(self, path: str) -> None:
        """End the process's work if a signal wants that; call it when the run is over and durable.

        After SIGINT and :meth:`stop` the run returns what it has, as Ray's does.

        Args:
            path: of the experiment.

        Raises:
            InterruptedRunError: another signal came, first or later.
        """
        for number in self.signals:
            if number is not Signals.SIGINT:
                error = InterruptedRunError(number.name, path)
                # Python prints nothing when a SystemExit with a number ends it.
                logger.warning("%s", error)
                raise error


class _Handler:
    """Notes signals, also in the requests of the fits around this one: they are to stop too."""

    def __init__(self, request: StopRequest) -> None:
        self.previous: dict[int, Any] = {}
        self.came: list[int] = []
        self._request = request

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._request.note(number)
        self.came.append(number)
        around = self.previous[number]
        if isinstance(around, _Handler):
            around(number, frame)


@contextlib.contextmanager
def catching_signals(request: StopRequest) -> Iterator[StopRequest]:
    """Let signals ask for a stop while the block runs, in the main thread; elsewhere do nothing.

    A signal that is ignored stays ignored (`nohup`, background jobs), and one whose handler is not
    Python's is left alone, since it could not be put back. However the block ends, all handlers are
    put back; then the user's are called, once for each signal that came, in the order of their
    coming. All of them are called; what they raise goes on, the last of it with the others as its
    context. What `faulthandler.register` installs cannot be told from the default.

    Enter it after `ray.init`, which sets a handler of its own. As in Ray, SIGINT is left alone with
    `TUNE_DISABLE_SIGINT_HANDLER=1`.

    Args:
        request: takes the signals; one for each run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    handler = _Handler(request)
    try:
        with contextlib.ExitStack() as stack:
            for number in STOPPING:
                previous = signal.getsignal(number)
                if number is signal.SIGINT and os.environ.get(_LEAVE_SIGINT, "0") != "0":
                    continue
                if previous is not None and previous is not signal.SIG_IGN:
                    handler.previous[number] = previous
                    stack.callback(_put_back, number, previous)
                    signal.signal(number, handler)
            yield request
    finally:
        # Each once: signals that wait are merged, so no handler can rely on their number.
        came = [(number, handler.previous[number]) for number in dict.fromkeys(handler.came)]
        _call_all([one for one in came if _is_users(one[1])])


def _put_back(number: int, handler: Any) -> None:
    try:
        signal.signal(number, handler)
    except BaseException:
        # A signal came just now, and its handler, put back already, raised out of the call.
        signal.signal(number, handler)
        raise


def _is_users(handler: Any) -> bool:
    if not callable(handler) or isinstance(handler, _Handler):
        return False
    # Ray's would end the process on the spot.
    of_ray = str(getattr(handler, "__module__", "")).split(".")[0] == "ray"
    return handler is not signal.default_int_handler and not of_ray


def _call_all(handlers: Sequence[tuple[int, Callable[[int, FrameType | None], object]]]) -> None:
    if not handlers:
        return
    number, handler = handlers[0]
    try:
        handler(number, inspect.currentframe())
    finally:
        _call_all(handlers[1:])
