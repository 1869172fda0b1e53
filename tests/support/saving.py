"""Trainables that save at every step, log what they restore, and die where their config says.

The config: `directory` (for the log and the marks), `steps` (how many there are), `die_committed`
(the step whose checkpoint is committed when the worker dies, before anyone hears of it; 0 for
none), `raise_at` (the step at which the user's code raises, once; 0 for none).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from ray import tune

STATE = "state.json"
WEIGHTS = "weights.bin"


def config(directory: Path, steps: int = 5, **plan: Any) -> dict[str, Any]:
    """Return a config; what is left out does not happen."""
    plain = {"die_committed": 0, "raise_at": 0}
    return {"directory": str(directory), "steps": steps, **plain, **plan}


def log_of(directory: Path) -> list[str]:
    """Return what all attempts have noted: "start N" with the step that each began from."""
    path = directory / "log"
    return path.read_text().splitlines() if path.exists() else []


def first_time(config: dict[str, Any], mark: str) -> bool:
    """Whether `mark` is asked for the first time."""
    try:
        Path(config["directory"], f"{mark}.mark").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def write(directory: str, step: int) -> None:
    """Write a checkpoint of two files."""
    Path(directory, WEIGHTS).write_bytes(bytes([step]) * 10_000)
    Path(directory, STATE).write_text(json.dumps({"step": step}))


def read(directory: str) -> int:
    """Read a checkpoint; an assertion fails if its files are not of one save."""
    step: int = json.loads(Path(directory, STATE).read_text())["step"]
    assert Path(directory, WEIGHTS).read_bytes() == bytes([step]) * 10_000
    return step


def _begin(config: dict[str, Any], step: int) -> None:
    with Path(config["directory"], "log").open("a") as log:
        log.write(f"start {step}\n")


def _arm(config: dict[str, Any]) -> None:
    """Let this worker die right after the planned commit."""
    from raytrials.driver.storage import TrialStorage  # noqa: PLC0415 - absent under vanilla

    commit = TrialStorage.persist_current_checkpoint

    def commit_and_die(self: TrialStorage, checkpoint: tune.Checkpoint) -> tune.Checkpoint:
        committed = commit(self, checkpoint)
        with checkpoint.as_directory() as directory:
            step = read(directory)
        if step == config["die_committed"] and first_time(config, "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return committed

    TrialStorage.persist_current_checkpoint = commit_and_die


def _break(config: dict[str, Any], step: int) -> None:
    if step == config["raise_at"] and first_time(config, "raised"):
        raise ValueError("planned")


def _report(config: dict[str, Any], step: int) -> dict[str, Any]:
    if step == config.get("omits_at") and first_time(config, f"omitted-{config['other']}"):
        return {"other": step}
    times = {"when": dt.datetime.now(dt.timezone.utc)} if config.get("reports_time") else {}
    return {"step": step, **times}


def saving(config: dict[str, Any]) -> None:
    """The function trainable."""
    if config["die_committed"]:
        _arm(config)
    step = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            step = read(directory)
    _begin(config, step)
    while step < config["steps"]:
        step += 1
        _break(config, step)
        with tempfile.TemporaryDirectory() as directory:
            write(directory, step)
            tune.report(_report(config, step), checkpoint=tune.Checkpoint.from_directory(directory))


class Saving(tune.Trainable):
    """The class trainable."""

    def setup(self, config: dict[str, Any]) -> None:
        if config["die_committed"]:
            _arm(config)
        self.count = 0
        self.begun = False

    def step(self) -> dict[str, Any]:
        if not self.begun:
            self.begun = True
            _begin(self.config, self.count)
        self.count += 1
        _break(self.config, self.count)
        return {"step": self.count, "done": self.count >= self.config["steps"]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        write(checkpoint_dir, self.count)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.count = read(checkpoint_dir)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True


TRAINABLES = {"class": Saving, "function": saving}
