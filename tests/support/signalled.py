"""Drivers that get signals, and class trainables that are asked for a last checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray import tune

from raytrials import Tuner
from raytrials.driver.signals import STOPPING
from raytrials.store import holding
from support.fits import Stored, output_of, wait_until
from support.session import local_ray

SCRIPT = "import sys; from support.signalled import live; live(sys.argv[1])"
RETURNED = "fit returned"


@dataclass(frozen=True)
class Plan(Stored):
    """An experiment of class trainables that save when they are asked to, and not by themselves.

    Attributes:
        trials: how many, all at once.
        steps: of each.
        step_s: how long a step takes; with a file `fast` hardly any time.
        grace_s: how long last checkpoints may take.
        handler: whether the script has a SIGTERM handler of its own.
        locked_s: how long another driver is waited for.
        keeps_one: whether there is a checkpoint of each step, and the newest one is kept.
    """

    trials: int = 2
    steps: int = 40
    step_s: float = 0.1
    grace_s: float = 20.0
    handler: bool = False
    locked_s: float = 60.0
    keeps_one: bool = False

    @property
    def saving(self) -> Path:
        """What saving does, if it is there: `raise` or `hang`."""
        return Path(self.directory, "saving")

    @property
    def fast(self) -> Path:
        """Lets steps take hardly any time, if it is there."""
        return Path(self.directory, "fast")

    @property
    def handled(self) -> Path:
        """Written by the script's own handler."""
        return Path(self.directory, "handled")

    def lines(self) -> list[list[Any]]:
        """Return trial and step of each step that was made, in order."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]


class Climber(tune.Trainable):
    """Counts its steps, and logs each."""

    def setup(self, config: dict[str, Any]) -> None:
        self.plan = Plan(**config["plan"])
        self.count = 0

    def step(self) -> dict[str, Any]:
        time.sleep(0.01 if self.plan.fast.exists() else self.plan.step_s)
        self.count += 1
        with self.plan.log.open("a") as log:
            log.write(json.dumps([self.config["trial"], self.count, os.getpid()]) + "\n")
        return {"count": self.count, "done": self.count >= self.plan.steps}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        if self.plan.saving.exists():
            if self.plan.saving.read_text() == "raise":
                raise ValueError("this one cannot save")
            time.sleep(600)
        Path(checkpoint_dir, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint: str) -> None:
        self.count = int(Path(checkpoint, "count").read_text())


def tuner(plan: Plan, store: Any = None) -> Tuner:
    """The tuner of an experiment, which continues it if there is one."""
    kept = tune.CheckpointConfig(num_to_keep=1, checkpoint_frequency=1)
    return Tuner(
        Climber,
        param_space={"trial": tune.grid_search(list(range(plan.trials))), "plan": asdict(plan)},
        run_config=tune.RunConfig(
            name="fit",
            storage_path=str(plan.path.parent),
            storage_filesystem=store,
            checkpoint_config=kept if plan.keeps_one else None,
            verbose=0,
        ),
        resume="auto",
    )


def live(plan_json: str) -> None:
    """Be a driver: start an experiment or go on with it, and print the steps of its trials."""
    plan = Plan(**json.loads(plan_json))
    holding.LOCKED_S = plan.locked_s
    for number in STOPPING:  # whatever who runs the tests ignores, as `nohup` does
        signal.signal(number, signal.SIG_DFL)
    with local_ray(num_cpus=plan.trials):
        if plan.handler:
            signal.signal(signal.SIGTERM, lambda *_: plan.handled.write_text("handled"))
        grid = tuner(plan).fit()
        counts = [(result.metrics or {}).get("count") for result in grid]
        errors = [None if result.error is None else repr(result.error) for result in grid]
    sys.stdout.write(json.dumps({RETURNED: counts, "errors": errors}) + "\n")


def begin(plan: Plan) -> subprocess.Popen[str]:
    """Start a driver."""
    return plan.start(SCRIPT, RAYTRIALS_GRACE_S=str(plan.grace_s))


def wait_for_steps(plan: Plan, driver: subprocess.Popen[str], number: int) -> None:
    """Wait until its workers have made so many steps more than now."""
    before = len(plan.lines())
    wait_until(lambda: len(plan.lines()) >= before + number, alive=lambda: driver.poll() is None)


def signalled(
    plan: Plan, driver: subprocess.Popen[str], *numbers: int, timeout_s: float = 200
) -> tuple[int, float, str]:
    """Send signals to a driver; return its exit code, the seconds that it took, and its output."""
    begun = time.monotonic()
    for number in numbers:
        driver.send_signal(number)
    output = output_of(driver, timeout_s)
    return driver.returncode, time.monotonic() - begun, output
