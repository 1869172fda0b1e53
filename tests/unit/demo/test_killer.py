"""What the demo kills."""

from __future__ import annotations

import subprocess
import sys

from raytrials.demo import killer


def test_a_worker_that_is_dead_already_is_no_kill() -> None:
    # The report of a dead worker is told when its checkpoint is taken over.
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert killer._kill(process.pid)
    process.communicate()
    assert not killer._kill(process.pid)
