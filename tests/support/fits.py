"""Fits as the integration tests need them, and drivers that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from ray import tune

from raytrials.core.event import Record
from raytrials.store.local import LocalDisk
from raytrials.store.segment import Reading
from support.breaking import Counting, counting

TRAINABLES = {"class": Counting, "function": counting}


def run_config(
    directory: Path, trainable: Any, *, max_failures: int = 0, **kwargs: Any
) -> tune.RunConfig:
    """A quiet run under `directory`/storage/fit that saves at every step."""
    frequency = 0 if trainable is counting else 1
    return tune.RunConfig(
        name="fit",
        storage_path=str(directory / "storage"),
        verbose=0,
        failure_config=tune.FailureConfig(max_failures=max_failures),
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=frequency),
        **kwargs,
    )


def space(directory: Path, faults: Sequence[str]) -> dict[str, Any]:
    """One trial for each fault."""
    return {"fault": tune.grid_search(list(faults)), "marks": str(directory)}


def wait_until(
    condition: Callable[[], bool], *, alive: Callable[[], bool], timeout_s: float = 120
) -> None:
    """Wait for a condition while something lives, at most `timeout_s`.

    Raises:
        TimeoutError: it did not come in time.
        RuntimeError: what it depends on has died.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if not alive():
            raise RuntimeError("ended before the condition came true")
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing in {timeout_s} s")
        time.sleep(0.05)


def start(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a Python script in a process group of its own; it can import `support`."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONFAULTHANDLER": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@dataclass(frozen=True)
class Stored:
    """An experiment of drivers in processes of their own.

    Attributes:
        directory: everything of it is below.
    """

    directory: str

    @property
    def path(self) -> Path:
        """Of the experiment."""
        return Path(self.directory, "storage", "fit")

    @property
    def log(self) -> Path:
        """What its workers did."""
        return Path(self.directory, "log")

    def records(self) -> list[Record]:
        """Return what is in the journal."""
        return list(Reading(LocalDisk(), f"{self.path}/.raytrials/journal"))

    def start(self, script: str, **environment: str) -> subprocess.Popen[str]:
        """Start a driver: a script that is given this as JSON."""
        # Ray's sessions too are below the directory, which whoever made it removes.
        temporary = Path(self.directory, "t")
        temporary.mkdir(exist_ok=True)
        return start(script, json.dumps(asdict(self)), TMPDIR=str(temporary), **environment)


def output_of(process: subprocess.Popen[str], timeout_s: float = 200) -> str:
    """Return what a script printed, once it has ended.

    Raises:
        RuntimeError: it does not end; says where its threads are.
    """
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the fault handler prints all stacks
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise RuntimeError(f"not ended in {timeout_s} s:\n{output}") from None
    return output


def finish(process: subprocess.Popen[str], timeout_s: float = 200) -> str:
    """Return what a script printed, once it has ended well."""
    output = output_of(process, timeout_s)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}:\n{output}")
    return output


def last_json(output: str) -> Any:
    """Return the value of the last line that a script printed."""
    return json.loads(output.strip().splitlines()[-1])


def kill_driver(driver: subprocess.Popen[str]) -> str:
    """SIGKILL a driver and whatever it has started, and return what it printed."""
    family = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    output, _ = driver.communicate()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=30)
    return output


def tell(experiments: Iterable[dict[str, Any]]) -> int:
    """Print what experiments of a release test came to, each at once and all as JSON at the end.

    Args:
        experiments: what is to be said of each; its `violations` are what is wrong.

    Returns:
        The exit code: 1 if anything is wrong.
    """
    found = []
    for one in experiments:
        found.append(one)
        sys.stderr.write(json.dumps(one) + "\n")
    violations = sum(len(one["violations"]) for one in found)
    sys.stdout.write(json.dumps({"violations": violations, "experiments": found}) + "\n")
    return 1 if violations else 0
