"""The syncing of artifacts, beside checkpoints that come and go all the time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune import SyncConfig
from support.looking import verdicts, verified
from support.telling import saving

from raytrials import Tuner
from raytrials.store.checkpoint import Verdict

pytestmark = pytest.mark.usefixtures("ray_local")


def littering(config: dict[str, Any]) -> None:
    """Save every 50 ms, and write artifacts and what looks like a checkpoint beside them."""

    def litter(step: int) -> None:
        time.sleep(0.05)  # the pace that is tested
        for name in ("checkpoint_000000", "checkpoint_000003", ".staging-000004-1", "plots"):
            Path(name).mkdir(exist_ok=True)
            Path(name, "litter").write_text(f"{step}")
        Path("checkpoint_best.pt").write_text(f"{step}")
        Path("notes.txt").write_text(f"{step}")

    saving({**config, "hook": litter})


class Listing:
    """Lists a trial's directory all the time, and notes what it sees."""

    def __init__(self, experiment: Path) -> None:
        self.experiment = experiment
        self.over = threading.Event()
        self.returned: list[str] = []
        self.litter: list[str] = []
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        gone: set[str] = set()
        seen: set[str] = set()
        while not self.over.wait(0.005):
            now = {path.name for path in self.experiment.glob("*/checkpoint_0*")}
            gone |= seen - now
            self.returned += sorted(now & gone)
            self.litter += map(str, self.experiment.glob("*/checkpoint_0*/litter"))
            seen |= now


def test_artifacts_arrive_and_no_checkpoint_is_touched_or_comes_back(workspace: Path) -> None:
    listing = Listing(workspace / "storage" / "fit")
    listing.thread.start()
    try:
        (result,) = Tuner(
            littering,
            param_space={"log": str(workspace / "log"), "steps": 30},
            run_config=tune.RunConfig(
                name="fit",
                storage_path=str(workspace / "storage"),
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
                sync_config=SyncConfig(
                    sync_artifacts=True, sync_artifacts_on_checkpoint=True, sync_period=0
                ),
            ),
        ).fit()
    finally:
        listing.over.set()
        listing.thread.join()
    assert (result.error, result.faults) == (None, ())
    trial = Path(result.path)
    for name in ("notes.txt", "checkpoint_best.pt", "plots/litter"):
        assert (trial / name).read_text() == "30", name
    assert listing.returned == []
    assert listing.litter == []
    assert not list(trial.glob(".staging-*"))
    assert {verdict for verdict, _ in verdicts(str(trial.parent)).values()} == {Verdict.VERIFIED}
    assert verified(str(trial.parent)) == [30]
