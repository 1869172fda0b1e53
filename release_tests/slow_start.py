"""A trial whose actor takes minutes to start is not timed out, charged or started from scratch.

The first attempt is killed after its second checkpoint; the `setup` of the second takes
`--setup-s`. `--quick` takes 20 s, with all time limits of raytrials scaled down likewise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run it; exit with 1 and say why if anything is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setup-s", type=float, default=180.0)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    setup_s = 20.0 if arguments.quick else arguments.setup_s
    if arguments.quick:
        os.environ["RAYTRIALS_CHARGE_DECISION_S"] = "3"
        os.environ["RAYTRIALS_AVOID_NODE_S"] = "5"
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray  # noqa: PLC0415 - it reads the environment when it is imported
    from ray import tune  # noqa: PLC0415

    from raytrials import Tuner  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="rs") as directory:
        starts = Path(directory, "starts")

        class Slow(tune.Trainable):
            def setup(self, config: dict[str, Any]) -> None:
                with starts.open("a") as log:
                    log.write("start\n")
                if len(starts.read_text().split()) > 1:
                    time.sleep(setup_s)
                self.count = 0

            def step(self) -> dict[str, Any]:
                self.count += 1
                if self.count == 3 and len(starts.read_text().split()) == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return {"count": self.count, "done": self.count >= 4}

            def save_checkpoint(self, checkpoint_dir: str) -> None:
                Path(checkpoint_dir, "count").write_text(json.dumps(self.count))

            def load_checkpoint(self, checkpoint_dir: str) -> None:
                self.count = json.loads(Path(checkpoint_dir, "count").read_text())
                with starts.open("a") as log:
                    log.write(f"from-{self.count}\n")

        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=150_000_000,
            log_to_driver=False,
            _temp_dir=f"{directory}/ray",
        )
        try:
            (result,) = Tuner(
                Slow,
                run_config=tune.RunConfig(
                    name="fit",
                    storage_path=f"{directory}/storage",
                    verbose=0,
                    checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
                    failure_config=tune.FailureConfig(max_failures=1),
                ),
            ).fit()
        finally:
            ray.shutdown()
        seen = {
            "log": starts.read_text().split(),
            "count": result.metrics["count"],
            "faults": [str(fault.cause) for fault in result.faults],
            "error": repr(result.error),
        }
    expected = {
        "log": ["start", "start", "from-2"],
        "count": 4,
        "faults": ["worker_died"],
        "error": "None",
    }
    if seen != expected:
        sys.exit(f"expected {expected}, saw {seen}")
    print(f"a setup of {setup_s:g} s was waited for; nothing was charged for it")


if __name__ == "__main__":
    main()
