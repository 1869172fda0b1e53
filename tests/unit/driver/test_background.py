"""Work in the background is done in order, told of, and waited for no longer than it may take."""

from __future__ import annotations

import subprocess
import sys
import threading

from raytrials.driver.background import Background


def test_what_is_submitted_is_done_in_order_and_failures_are_told() -> None:
    done: list[int] = []
    background = Background("test")
    futures = [
        background.submit(lambda number=number: done.append(1 // number)) for number in (1, 0, 2)
    ]
    assert background.close(10)
    assert done == [1, 0]
    assert [type(one.exception()) for one in futures] == [type(None), ZeroDivisionError, type(None)]


def test_one_that_was_cancelled_before_it_began_is_left_out() -> None:
    go = threading.Event()
    done: list[str] = []
    background = Background("test")
    background.submit(go.wait, 10)
    cancelled = background.submit(done.append, "cancelled")
    background.submit(done.append, "last")
    assert cancelled.cancel()
    go.set()
    assert background.close(10)
    assert done == ["last"]


def test_closing_without_work_is_done_at_once() -> None:
    assert Background("test").close(0)


def test_one_that_hangs_keeps_neither_close_nor_the_process() -> None:
    script = """
import threading
from raytrials.driver.background import Background
background = Background("test")
background.submit(threading.Event().wait)
print(background.close(0.1))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
