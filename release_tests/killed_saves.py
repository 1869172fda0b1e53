"""Kill a worker with SIGKILL at random offsets of a large save, again and again.

One trial saves 200 MB at every step, on a local Ray. Each attempt may save once; when the bytes of
its second save pass an offset that is drawn for it, its worker is killed. After each kill the
newest verified checkpoint must be the one before or the one that was being saved, whole; the bytes
of committed checkpoints never change; the next attempt goes on from the newest. Exits with 1 if any
of this fails.

    python release_tests/killed_saves.py            # 50 kills
    python release_tests/killed_saves.py --quick    # 10 kills
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAYTRIALS_BACKOFF_INITIAL_S"] = "0"

import ray
from ray import tune

from raytrials import Tuner
from raytrials.store.checkpoint import STAGING, Verdict, inspect
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import index_of

FILES = 4
FILE_BYTES = 50_000_000
SAVE_BYTES = FILES * FILE_BYTES


def saves(config: dict[str, Any]) -> None:
    """Save until enough kills have struck, then once more."""
    directory = Path(config["directory"])
    step, checkpoint = 0, tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as path:
            steps = {Path(path, f"{number}").read_bytes()[0] for number in range(FILES)}
            assert len(steps) == 1, f"files of the saves {steps} are mixed"
            step = steps.pop()
    with (directory / "starts").open("a") as starts:
        starts.write(f"{step}\n")
    while True:
        over = (directory / "over").exists()
        step += 1
        with tempfile.TemporaryDirectory(dir=directory) as source:
            for number in range(FILES):
                Path(source, f"{number}").write_bytes(bytes([step % 256]) * FILE_BYTES)
            (directory / "worker").write_text(f"{os.getpid()} {step}")
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(source))
        if over:
            return


class Killer(threading.Thread):
    """Kills the worker when the save that it is at has come so far."""

    def __init__(self, directory: Path, kills: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.directory = directory
        self.kills = kills
        self.random = random.Random(seed)
        self.problems: list[str] = []
        self.struck = 0
        self._known: dict[str, str] = {}
        self._first_saves: dict[int, int] = {}

    def run(self) -> None:
        """Kill, check, and say when it is over."""
        try:
            self._kill()
        except Exception as error:  # noqa: BLE001 - whatever it is, the trial must end
            self.problems.append(f"the killer failed: {error!r}")
        (self.directory / "over").touch()

    def _kill(self) -> None:
        while self.struck < self.kills:
            pid, step = self._next_save()
            # Beyond its end: the kill strikes between the commit and the report.
            offset = self.random.uniform(0, 1.05 * SAVE_BYTES)
            while self._staged_bytes() < offset and not self._is_committed(step):
                time.sleep(0.0005)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while _lives(pid):
                time.sleep(0.01)
            self.struck += 1
            self._check(step)

    def _next_save(self) -> tuple[int, int]:
        """Wait for the second save of a worker; return its pid and the step."""
        path = self.directory / "worker"
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError):
                pid, step = map(int, path.read_text().split())
                if self._first_saves.setdefault(pid, step) < step:
                    path.unlink()
                    return pid, step
            time.sleep(0.0005)

    def _trial(self) -> Path | None:
        return next(self.directory.glob("storage/fit/[!.]*/"), None)

    def _staged_bytes(self) -> int:
        trial = self._trial()
        total = 0
        for path in trial.glob(f"{STAGING}*/*") if trial else ():
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def _committed(self) -> list[Path]:
        trial = self._trial()
        found = trial.iterdir() if trial else ()
        return sorted(path for path in found if index_of(path.name) is not None)

    def _is_committed(self, step: int) -> bool:
        committed = self._committed()
        return bool(committed) and _step_of(committed[-1]) >= step

    def _check(self, step: int) -> None:
        """Look at everything on storage after a kill in the save of `step`."""
        committed = self._committed()
        for path in committed:
            try:
                finding = inspect(LocalDisk(), str(path), full=True)
            except OSError:
                if path.exists():
                    raise
                continue  # the driver's retention took it meanwhile
            if not path.exists():
                continue  # likewise
            if finding.verdict is not Verdict.VERIFIED or finding.manifest is None:
                self.problems.append(f"{path.name} is {finding.verdict}: {finding.problem}")
                continue
            digest = finding.manifest.digest
            if self._known.setdefault(path.name, digest) != digest:
                self.problems.append(f"{path.name} has changed")
        newest = _step_of(committed[-1]) if committed else 0
        if newest not in {step - 1, step}:
            self.problems.append(f"killed in the save of step {step}, the newest is of {newest}")


def _step_of(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError), (path / "0").open("rb") as file:
        return file.read(1)[0]
    return 0


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # also while it is read
        return False


def main() -> int:
    """Run it; return 1 and say why if anything is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 kills instead of 50")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kills = 10 if arguments.quick else 50
    directory = Path(tempfile.mkdtemp(prefix="rk"))
    killer = Killer(directory, kills, arguments.seed)
    begun = time.monotonic()
    try:
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            _temp_dir=str(directory / "ray"),
        )
        killer.start()
        result = Tuner(
            saves,
            param_space={"directory": str(directory)},
            run_config=tune.RunConfig(
                name="fit",
                storage_path=str(directory / "storage"),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=-1),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            ),
        ).fit()[0]
        starts = [int(line) for line in (directory / "starts").read_text().split()]
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)
    problems = list(killer.problems)
    if result.error is not None:
        problems.append(f"the trial ended with {result.error}")
    if starts != sorted(starts):
        problems.append(f"an attempt went back: {starts}")
    if killer.struck < kills:
        problems.append(f"only {killer.struck} kills struck")
    print(f"{killer.struck} kills in {time.monotonic() - begun:.0f} s; attempts began at {starts}")
    print("\n".join(problems) or "all checkpoints whole, none lost")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
