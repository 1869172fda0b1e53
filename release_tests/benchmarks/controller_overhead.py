"""What our controller costs beside vanilla Ray Tune's, as ratios of medians of paired rounds.

The same trivial trials (class trainable, `reuse_actors=True`, three results each) run under vanilla
and under raytrials in turn, each in a process and a Ray of its own, so that the machine's speed
cancels out. Printed are trials/s, results/s and the driver's CPU time per result, and ours over
vanilla's: the aim is CPU at most 1.05, throughput at least 0.95. `--quick` is one small round,
which only shows that the benchmark runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

RESULTS_PER_TRIAL = 3


def measure(tuner: str, trials: int) -> dict[str, float]:
    """Run one fit in this process and return its figures."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # noqa: PLC0415 - it reads the environment when it is imported
    from ray import tune  # noqa: PLC0415

    from raytrials import Tuner  # noqa: PLC0415

    class Trivial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.count = 0

        def step(self) -> dict[str, Any]:
            self.count += 1
            return {"count": self.count, "done": self.count >= RESULTS_PER_TRIAL}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.count = 0
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            pass

        def load_checkpoint(self, checkpoint_dir: str) -> None:
            pass

    with tempfile.TemporaryDirectory(prefix="rb") as directory:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=150_000_000,
            log_to_driver=False,
            _temp_dir=f"{directory}/ray",
        )
        try:
            built = {"vanilla": tune.Tuner, "raytrials": Tuner}[tuner](
                Trivial,
                param_space={"x": tune.grid_search(list(range(trials)))},
                tune_config=tune.TuneConfig(reuse_actors=True),
                run_config=tune.RunConfig(
                    name="fit",
                    storage_path=f"{directory}/storage",
                    verbose=0,
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                ),
            )
            cpu, wall = time.process_time(), time.perf_counter()
            grid = built.fit()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        finally:
            ray.shutdown()
    if grid.num_errors or len(grid) != trials:
        raise RuntimeError(f"{grid.num_errors} of {len(grid)} trials failed")
    results = trials * RESULTS_PER_TRIAL
    return {
        "trials_per_s": trials / wall,
        "results_per_s": results / wall,
        "driver_cpu_ms_per_result": 1000 * cpu / results,
    }


def in_own_process(tuner: str, trials: int) -> dict[str, float]:
    """Measure in a fresh process and Ray."""
    command = [sys.executable, __file__, "--measure", tuner, "--trials", str(trials)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", choices=["vanilla", "raytrials"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.trials)))
        return
    trials, rounds = (20, 1) if arguments.quick else (arguments.trials, arguments.rounds)
    seen: dict[str, list[dict[str, float]]] = {"vanilla": [], "raytrials": []}
    for number in range(rounds):
        # The order alternates, so that neither always runs on the warmer machine.
        for tuner in sorted(seen, reverse=number % 2 == 0):
            seen[tuner].append(in_own_process(tuner, trials))
    print(f"{trials} trials, {rounds} paired rounds, medians")
    for name in seen["vanilla"][0]:
        vanilla, ours = (
            [figures[name] for figures in seen[tuner]] for tuner in ("vanilla", "raytrials")
        )
        ratio = statistics.median(mine / its for mine, its in zip(ours, vanilla, strict=True))
        print(
            f"{name:26} vanilla {statistics.median(vanilla):8.2f}"
            f"  raytrials {statistics.median(ours):8.2f}  ratio {ratio:5.3f}"
        )


if __name__ == "__main__":
    main()
