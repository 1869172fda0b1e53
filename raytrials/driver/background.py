"""Work on storage that keeps neither the driver's loop nor its end waiting."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec

P = ParamSpec("P")


class Background:
    """A thread that does one thing after another, from the first one on.

    It does not keep the process from ending, unlike the threads of a pool, which the interpreter
    waits for: a storage that hangs would hold a driver that was told to go.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], object], Future[None]] | None]
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Future[None]:
        """Have something called; the future has its exception, and no result."""
        future: Future[None] = Future()
        self._queue.put((functools.partial(work, *args, **kwargs), future))
        if self._thread.ident is None:
            self._thread.start()
        return future

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - whoever asks for the future is told
                future.set_exception(error)
            else:
                future.set_result(None)

    def close(self, timeout_s: float) -> bool:
        """Wait until all that was submitted is done; return whether it is.

        Args:
            timeout_s: how long; what is not done then may still happen, or not.
        """
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()
