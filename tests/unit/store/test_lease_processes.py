"""The lease among real processes, on a real disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.full import kept_full, small_disk

from raytrials.errors import ExperimentLockedError
from raytrials.store.clock import SystemClock
from raytrials.store.lease import Lease, acquire
from raytrials.store.local import LocalDisk
from raytrials.store.process import this_process

DRIVER = """
import os, sys
from raytrials.errors import ExperimentLockedError, LeaseLostError
from raytrials.store.clock import SystemClock
from raytrials.store.lease import LeaseKeeper, acquire
from raytrials.store.local import LocalDisk
from raytrials.store.process import this_process

print("ready", flush=True)
for line in sys.stdin:
    answer = "done"
    if line == "start\\n":
        try:
            lease = acquire(LocalDisk(), sys.argv[1], clock=SystemClock(),
                            identity=this_process(), wait_s=0, experiment="e")
            answer = str(lease.epoch)
        except ExperimentLockedError as error:
            answer = "locked"
    elif line == "renew\\n":
        try:
            lease.renew()
        except LeaseLostError as error:
            answer = f"lost to {error.pid}"
    elif line == "fork\\n":
        if os.fork() == 0:
            os.close(1)
            sys.stdin.read()
            os._exit(0)
    elif line == "keep\\n":
        LeaseKeeper(lease, renew_s=0.01)
    elif line == "release\\n":
        lease.release()
    elif line == "end\\n":
        break
    print(answer, flush=True)
"""


class Driver:
    """A driver in a process of its own, which does what it is told."""

    def __init__(self, directory: Path, *before: str) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", DRIVER, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, word: str) -> str:
        self.send(word)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / ".raytrials" / "lease"


@pytest.fixture
def driver(directory: Path) -> Iterator[Driver]:
    driver = Driver(directory)
    assert driver.answer() == "ready"
    yield driver
    driver.end()


def start(directory: Path, *, wait_s: float = 0.0, expiry_s: float = 30.0) -> Lease:
    return acquire(
        LocalDisk(),
        str(directory),
        clock=SystemClock(),
        identity=this_process(),
        wait_s=wait_s,
        experiment="/experiment",
        expiry_s=expiry_s,
    )


def test_of_drivers_that_start_at_the_same_moment_one_wins(directory: Path) -> None:
    count, epoch = 3, 0
    barrier = threading.Barrier(count)

    def race(_: int) -> Lease | None:
        barrier.wait(10)
        with contextlib.suppress(ExperimentLockedError):
            return start(directory)
        return None

    with ThreadPoolExecutor(count) as pool:
        for _ in range(100):
            won = [lease for lease in pool.map(race, range(count)) if lease is not None]
            assert len(won) == 1
            assert won[0].epoch > epoch
            epoch = won[0].epoch
            won[0].release()


def test_of_processes_that_start_at_the_same_moment_one_wins(directory: Path) -> None:
    drivers = [Driver(directory) for _ in range(3)]
    assert [driver.answer() for driver in drivers] == ["ready"] * 3
    epochs = [0]
    for _ in range(20):
        for driver in drivers:
            driver.send("start")
        answers = [driver.answer() for driver in drivers]
        won = [n for n, answer in enumerate(answers) if answer != "locked"]
        assert len(won) == 1, answers
        epochs.append(int(answers[won[0]]))
        drivers[won[0]].ask("release")
    assert epochs == sorted(set(epochs))
    for driver in drivers:
        driver.end()


@pytest.mark.parametrize("forks", [False, True])
def test_a_killed_driver_is_taken_over_from_at_once(
    driver: Driver, directory: Path, forks: bool
) -> None:
    assert driver.ask("start") == "1"
    if forks:
        driver.ask("fork")  # a child that lives on has the lock
    with pytest.raises(ExperimentLockedError) as caught:
        start(directory)
    assert caught.value.pid == driver.process.pid
    driver.process.kill()
    os.waitid(os.P_PID, driver.process.pid, os.WEXITED | os.WNOWAIT)  # nobody took note of it
    assert start(directory).epoch == 2


def test_a_stopped_driver_is_taken_over_from_only_when_its_lease_expires(
    driver: Driver, directory: Path
) -> None:
    assert driver.ask("start") == "1"
    driver.process.send_signal(signal.SIGSTOP)
    with pytest.raises(ExperimentLockedError):
        start(directory, wait_s=0.1, expiry_s=2.0)
    began_s = time.monotonic()
    lease = start(directory, wait_s=30, expiry_s=0.5)
    assert lease.epoch == 2
    assert time.monotonic() - began_s >= 0.5
    driver.process.send_signal(signal.SIGCONT)
    assert driver.ask("renew") == f"lost to {os.getpid()}"
    lease.renew()


def test_a_driver_that_is_kept_renewing_is_not_taken_over_from(
    driver: Driver, directory: Path
) -> None:
    assert driver.ask("start") == "1"
    driver.ask("keep")
    with pytest.raises(ExperimentLockedError):
        start(directory, wait_s=2.5, expiry_s=2.0)


def test_a_keeper_does_not_keep_a_process_from_ending(driver: Driver, directory: Path) -> None:
    driver.ask("start")
    driver.ask("keep")
    driver.send("end")
    assert driver.process.wait(20) == 0
    assert start(directory).epoch == 2


ISOLATED = ("unshare", "-U", "-r", "-p", "-f", "--kill-child", "--mount-proc")


def can_isolate() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*ISOLATED, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_isolate(), reason="the system makes no namespaces for us")
def test_a_container_that_restarts_takes_over_from_its_predecessor_at_once(directory: Path) -> None:
    first, second = (Driver(directory, *ISOLATED) for _ in range(2))
    assert [first.answer(), second.answer()] == ["ready", "ready"]
    assert first.ask("start") == "1"
    assert second.ask("start") == "locked"
    with pytest.raises(ExperimentLockedError) as caught:
        start(directory)
    assert caught.value.pid == 1
    first.end()
    lock, until_s = str(directory / "000001.lock"), time.monotonic() + 10
    while LocalDisk().is_held(lock) and time.monotonic() < until_s:
        time.sleep(0.01)  # the children of what was killed end after it
    assert second.ask("start") == "2"
    second.end()


def test_a_lease_is_renewed_on_a_disk_that_others_keep_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "256k") as disk:
        lease = start(disk / "lease")
        with kept_full(disk / "filler"):
            for _ in range(300):
                lease.renew()
        with pytest.raises(ExperimentLockedError):
            start(disk / "lease")
        lease.release()
