"""A process without time, threads and chance of its own: what runs in it is the same each time.

Everything that reads `time` by its module is turned by a fake clock, Ray's code and ours; what runs
in threads of its own is run where it is started; leases are renewed between the controller's
steps. Threads that only wait (`threading.Event`) are not touched: who starts one here must not wait
for it.

Files on the real disk have real times, some milliseconds apart at the least, in which hours go by
here: a mirror would take what was written twice for unchanged. It finds them numbered instead.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import secrets
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from ray.train._internal import syncer  # noqa: TID251 - its thread is to be none

from raytrials.chaos import FakeClock
from raytrials.driver import recorded, retention
from raytrials.driver.chronicle import Chronicle
from raytrials.driver.controller import Controller
from raytrials.errors import RaytrialsError
from raytrials.store import holding
from raytrials.store.mirror import Mirror
from raytrials.store.tenure import RENEW_S, Lease

_LAST_NUMBER_NS = 10**15
"""Above it a file's time is a real one: it was written since it was numbered."""


@contextlib.contextmanager
def virtual(clock: FakeClock, seed: int, temporary: Path) -> Iterator[None]:
    """Within this block time is the clock's, uuids are drawn from `seed`, and threads are none."""
    luck = random.Random(seed)
    threads = pa.io_thread_count()
    numbers = itertools.count(1)
    run_mirror = Mirror.run

    def next_uuid(*_: Any) -> uuid.UUID:
        return uuid.UUID(int=luck.getrandbits(128), version=4)

    def run_numbered(mirror: Mirror, source: str, *args: Any, **kwargs: Any) -> None:
        for path in sorted(Path(source).rglob("*")):
            if path.stat().st_mtime_ns > _LAST_NUMBER_NS:
                number = next(numbers)
                os.utime(path, ns=(number, number))
        run_mirror(mirror, source, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        # Of several files that are copied at once the first would be chance.
        pa.set_io_thread_count(1)
        stack.callback(pa.set_io_thread_count, threads)
        # Ray names a directory there by the checkpoint's path alone.
        temporary.mkdir(parents=True, exist_ok=True)
        patch.setattr(tempfile, "tempdir", str(temporary))
        patch.setattr(time, "time", clock.time)
        patch.setattr(time, "sleep", clock.sleep)
        for name in ("monotonic", "thread_time"):
            patch.setattr(time, name, clock.monotonic)
        for name in ("uuid1", "uuid4"):
            patch.setattr(uuid, name, next_uuid)
        patch.setattr(secrets, "token_hex", lambda count: luck.randbytes(count).hex())
        patch.setattr(Mirror, "run", run_numbered)
        renewals: list[InlineKeeper] = []
        step = Controller.on_step_begin

        def on_step_begin(controller: Controller) -> None:
            for one in renewals:
                one.renew_if_due()
            step(controller)

        patch.setattr(holding, "LeaseKeeper", functools.partial(InlineKeeper, renewals))
        patch.setattr(Controller, "on_step_begin", on_step_begin)
        patch.setattr(retention, "Background", InlineBackground)
        patch.setattr(recorded, "Chronicle", functools.partial(Chronicle, in_background=False))
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 - the global one
        np.random.seed(luck.getrandbits(32))  # noqa: NPY002 - likewise
        patch.setattr(syncer._BackgroundProcess, "start", _start_inline)
        yield


class InlineKeeper:
    """A keeper of a lease that works when it is told to."""

    def __init__(self, all_of_them: list[InlineKeeper], lease: Lease) -> None:
        self._all = all_of_them
        self._lease = lease
        self._renewed_s = time.monotonic()
        self._all.append(self)

    def renew_if_due(self) -> None:
        """Renew the lease when that is due; a failure is made up for by the next renewal."""
        if time.monotonic() - self._renewed_s >= RENEW_S:
            self._renewed_s = time.monotonic()
            with contextlib.suppress(RaytrialsError):
                self._lease.renew()

    def close(self) -> None:
        """Renew no more."""
        self._all.remove(self)


class InlineBackground:
    """A background whose work is done when it is submitted."""

    def __init__(self, name: str) -> None:
        """Take what a `Background` takes."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Do the work; what is no `Exception` ends the caller, whose process would end, too."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:  # noqa: BLE001 - whatever the work raises is its result
            future.set_exception(error)
        return future

    def close(self, timeout_s: float) -> bool:
        """Nothing runs."""
        return True


class _Done:
    """A thread that has ended."""

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        """Return at once."""


def _start_inline(process: Any, *args: Any, **kwargs: Any) -> None:
    process._process = _Done()
    process._start_time = time.time()
    try:
        process._result = {"result": process._fn(*args, **kwargs)}
    except Exception as error:  # noqa: BLE001 - likewise
        process._result = {"exception": error}
