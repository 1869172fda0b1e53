"""Trainables that count to `STEPS` and break once, where their config says.

A trial saves a checkpoint at every step. Its first planned `fault` strikes exactly once, at the
place that the fault's name tells; a `.log` beside the marks records every attempt. Faults that need
a restore first kill the worker (`_kill`), so that there is something to restore.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune

STEPS = 4
KILL_AT = 2
STATE = "state.json"
NEED_A_RESTORE = ("restoring:", "loaded:", "load_always_raises")


class PickyError(Exception):
    """Cannot be made again from what pickle keeps of it."""

    def __init__(self, *, code: int) -> None:
        super().__init__("picky")
        self.code = code


@ray.remote(num_cpus=0)
class Helper:
    """An actor that a trial starts for itself."""

    def die(self) -> None:
        os._exit(1)

    def fail(self) -> None:
        raise ValueError("in the helper")


def once(config: dict[str, Any], place: str) -> bool:
    """Whether the planned fault is `place` and has not struck yet."""
    return config["fault"] == place and first_time(config, place)


def first_time(config: dict[str, Any], mark: str) -> bool:
    """Whether this trial asks for `mark` for the first time."""
    try:
        Path(config["marks"], f"{config['fault']}.{mark}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def note(config: dict[str, Any], event: str) -> None:
    """Append a line to the trial's log."""
    with Path(config["marks"], f"{config['fault']}.log").open("a") as log:
        log.write(event + "\n")


def log_of(marks: Path, fault: str) -> list[str]:
    """Return the lines of a trial's log."""
    path = marks / f"{fault}.log"
    return path.read_text().splitlines() if path.exists() else []


def die() -> None:
    """End this process as the kernel's OOM killer would."""
    os.kill(os.getpid(), signal.SIGKILL)


def break_in_step(config: dict[str, Any], step: int) -> None:
    """Strike, if the plan is for a step, at the start of step `KILL_AT + 1`."""
    fault = config["fault"]
    if step != KILL_AT + 1:
        return
    if fault.startswith(NEED_A_RESTORE) and first_time(config, "killed"):
        die()
    if not fault.startswith("step:") or not first_time(config, "struck"):
        return
    match fault.removeprefix("step:"):
        case "exception":
            raise ValueError("in step")
        case "memory_error":
            raise MemoryError("in step")
        case "keyboard_interrupt":
            raise KeyboardInterrupt
        case "picky_exception":
            raise PickyError(code=3)
        case "sigkill":
            die()
        case "os_exit":
            os._exit(1)
        case "sys_exit":
            sys.exit(3)
        case "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        case "exit_actor":
            ray.actor.exit_actor()
        case "helper_died":
            ray.get(Helper.remote().die.remote())
        case "helper_raised":
            ray.get(Helper.remote().fail.remote())
        case _:
            raise AssertionError(fault)


def write(directory: str, step: int) -> None:
    """Write a checkpoint."""
    Path(directory, STATE).write_text(json.dumps({"step": step}))


def read(directory: str) -> int:
    """Read a checkpoint."""
    step: int = json.loads(Path(directory, STATE).read_text())["step"]
    return step


class Counting(tune.Trainable):
    """The class trainable."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0
        if once(config, "setup:exception"):
            raise ValueError("in setup")
        if once(config, "setup:exit"):
            os._exit(1)
        if log_of(Path(config["marks"]), config["fault"]):
            if once(config, "restoring:setup_exception"):
                raise ValueError("in setup")
            if once(config, "restoring:setup_exit"):
                os._exit(1)
        note(config, "start")

    def step(self) -> dict[str, Any]:
        self.count += 1
        break_in_step(self.config, self.count)
        return {"count": self.count, "done": self.count >= STEPS}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        if self.count == KILL_AT and once(self.config, "save:exception"):
            raise ValueError("in save")
        if self.count == KILL_AT and once(self.config, "save:sigkill"):
            die()
        write(checkpoint_dir, self.count)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        note(self.config, f"load {Path(checkpoint_dir).name}")
        if self.config["fault"] == "load_always_raises":
            raise ValueError("in load")
        if once(self.config, "restoring:exception"):
            raise ValueError("in load")
        if once(self.config, "restoring:sigkill"):
            die()
        self.count = read(checkpoint_dir)
        note(self.config, f"from {self.count}")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.count = 0
        if once(new_config, "reset:sigkill"):
            die()
        if once(new_config, "reset:exception"):
            raise ValueError("in reset_config")
        if once(new_config, "reset:refused"):
            return False
        note(new_config, "start")
        return True


def counting(config: dict[str, Any]) -> None:
    """The function trainable."""
    note(config, "start")
    count = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        count = _load(config, checkpoint)
    for step in range(count + 1, STEPS + 1):
        break_in_step(config, step)
        with tempfile.TemporaryDirectory() as directory:
            write(directory, step)
            tune.report({"count": step}, checkpoint=tune.Checkpoint.from_directory(directory))


def _load(config: dict[str, Any], checkpoint: tune.Checkpoint) -> int:
    if once(config, "restoring:sigkill_before"):
        die()
    if once(config, "loaded:exception_before"):
        raise ValueError("before the checkpoint was touched")
    if once(config, "restoring:copy_exception"):
        checkpoint.to_directory("/dev/null/nowhere")
    if once(config, "loaded:exception_after_another"):
        with contextlib.suppress(KeyError), checkpoint.as_directory():
            raise KeyError("taken by the user's code")
        raise ValueError("behind the checkpoint")
    with checkpoint.as_directory() as directory:
        note(config, f"load {Path(directory).name}")
        if config["fault"] == "load_always_raises":
            raise ValueError("in load")
        if once(config, "restoring:exception"):
            raise ValueError("in load")
        if once(config, "restoring:sigkill"):
            die()
        count = read(directory)
    if once(config, "loaded:sigkill"):
        die()
    if once(config, "loaded:exception"):
        raise ValueError("behind the checkpoint")
    note(config, f"from {count}")
    return count
