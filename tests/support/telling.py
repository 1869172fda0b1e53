"""A trainable whose checkpoints tell by themselves whether they are whole, and its logs.

Nothing here imports raytrials: vanilla Ray runs it too.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

STEPS = 5
PARTS = ("a", "b", "below/c")
HUGE_BYTES = 48 * 1024 * 1024


def saving(config: dict[str, Any]) -> None:
    """Save at every step; `config["log"]` is the log.

    Optional in `config`: `steps`; `dies_in`: the step in whose upload the worker is killed, once;
    `holds_at`: the step after which it goes on only when the log's directory holds a file `go`;
    `hook`: a function that is called with each step before it is saved.
    """
    log = Path(config["log"])
    note_pid(log)
    start, checkpoint = 0, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            start = read(directory)
    note(log, f"from {start}")
    for step in range(start + 1, config.get("steps", STEPS) + 1):
        if config.get("hook") is not None:
            config["hook"](step)
        with tempfile.TemporaryDirectory(dir=log.parent) as directory:
            write(directory, step)
            if step == config.get("dies_in") and _is_first(log, "killed"):
                _die_in_upload(Path(directory))
            tune.report({"count": step}, checkpoint=tune.Checkpoint.from_directory(directory))
        note(log, f"saved {step}")
        if step == config.get("holds_at"):
            while not (log.parent / "go").exists():
                time.sleep(0.02)


def write(directory: str, step: int) -> None:
    """Write a checkpoint of several files, one of them empty."""
    Path(directory, "below").mkdir()
    Path(directory, "empty").touch()
    for part in PARTS:
        Path(directory, part).write_text(json.dumps([part, step]))


def read(directory: str) -> int:
    """Return the step that a checkpoint holds.

    Raises:
        AssertionError: it is not whole, or mixed with another.
    """
    found = sorted(str(path.relative_to(directory)) for path in Path(directory).rglob("*"))
    found = [name for name in found if name != "below" and not name.startswith(".")]
    assert found == ["a", "b", "below/c", "empty"], found
    assert not Path(directory, "empty").read_bytes()
    parts = [json.loads(Path(directory, part).read_text()) for part in PARTS]
    steps = {step for _, step in parts}
    assert [part for part, _ in parts] == list(PARTS)
    assert len(steps) == 1, parts
    return int(steps.pop())


def _is_first(log: Path, mark: str) -> bool:
    try:
        (log.parent / f"{log.name}.{mark}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _die_in_upload(directory: Path) -> None:
    """Kill this process when the first file of the next checkpoint is on the store.

    One of the files is so large that others arrive long before it.
    """
    with (directory / "huge").open("wb") as file:
        file.truncate(HUGE_BYTES)
    storage = tune.get_context().get_storage()
    final = f"{storage.trial_fs_path}/checkpoint_{storage.current_checkpoint_index + 1:06d}"
    disk = storage.disk

    def watch() -> None:
        while not disk.list_names(final):
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def note_pid(log: Path) -> None:
    """Note which process works for a log."""
    note(log, f"pid {os.getpid()}")


def note(log: Path, line: str) -> None:
    """Add a line to a log."""
    with log.open("a") as file:
        file.write(f"{line}\n")


def lines(log: Path) -> list[str]:
    """Return the log so far."""
    return log.read_text().splitlines() if log.exists() else []


def starts(log: Path) -> list[int]:
    """Return the step that each attempt went on from."""
    return [int(line.split()[1]) for line in lines(log) if line.startswith("from ")]


def saved(log: Path) -> list[int]:
    """Return the steps that were saved, in order, by all attempts."""
    return [int(line.split()[1]) for line in lines(log) if line.startswith("saved ")]


def anytime() -> bool:
    """Return True."""
    return True


class Stopping(tune.Callback):
    """Ends the fit by an exception at the first report from the step that a file names.

    The file is deleted with it, so that a restored fit goes on.
    """

    def __init__(self, stop: Path, when: Callable[[], bool] = anytime) -> None:
        self.stop, self.when = stop, when

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if self.stop.exists() and result["count"] >= int(self.stop.read_text()) and self.when():
            self.stop.unlink()
            raise RuntimeError("stopped here")
