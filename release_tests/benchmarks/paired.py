"""Fits of ours and of vanilla Ray Tune in turns, each in a process and a Ray of its own.

The machine's speed cancels out in the ratios: neither is always first, and each pair runs in the
same minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SIDES = ("vanilla", "raytrials")

Figures = dict[str, float]


@contextlib.contextmanager
def own_ray(num_cpus: int) -> Iterator[str]:
    """Run a Ray of its own; give a directory that goes with it."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # noqa: PLC0415 - it reads the environment when it is imported

    with tempfile.TemporaryDirectory(prefix="rb") as directory:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=150_000_000,
            log_to_driver=False,
            _temp_dir=f"{directory}/ray",
        )
        try:
            yield directory
        finally:
            ray.shutdown()


def counting_fit(
    side: str, storage_path: str, *, trials: int, results: int, **options: Any
) -> Figures:
    """Fit trials that count, in this process, and return trials/s, results/s and driver CPU.

    Args:
        side: one of `SIDES`.
        storage_path: of the fit.
        trials: how many.
        results: of each trial.
        **options: of the `TuneConfig`.
    """
    from ray import tune  # noqa: PLC0415 - see own_ray

    from raytrials import Tuner  # noqa: PLC0415

    class Counting(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.count = 0

        def step(self) -> dict[str, Any]:
            self.count += 1
            return {"count": self.count, "done": self.count >= results}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.count = 0
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            pass

        def load_checkpoint(self, checkpoint_dir: str) -> None:
            pass

    tuner = {"vanilla": tune.Tuner, "raytrials": Tuner}[side](
        Counting,
        param_space={"x": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(**options),
        run_config=tune.RunConfig(
            name="fit",
            storage_path=storage_path,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    cpu, wall = time.process_time(), time.perf_counter()
    grid = tuner.fit()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if grid.num_errors or len(grid) != trials:
        raise RuntimeError(f"{grid.num_errors} of {len(grid)} trials failed")
    return {
        "trials_per_s": trials / wall,
        "results_per_s": trials * results / wall,
        "driver_cpu_ms_per_result": 1000 * cpu / (trials * results),
    }


def in_own_process(script: str, *arguments: object, **environment: str) -> Figures:
    """Run a script that prints its figures as one line of JSON, last."""
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def in_turns(
    measure: Callable[[str], Figures], rounds: int, sides: tuple[str, str] = SIDES
) -> dict[str, list[Figures]]:
    """Measure each side in each round."""
    seen: dict[str, list[Figures]] = {side: [] for side in sides}
    for number in range(rounds):
        # The order alternates, so that neither always runs on the warmer machine.
        for side in sorted(seen, reverse=number % 2 == 0):
            seen[side].append(measure(side))
    return seen


def print_ratios(seen: Mapping[str, list[Figures]]) -> dict[str, float]:
    """Print the medians of both; return those of the second over the first in each round."""
    ratios = {}
    base, other = seen
    for name in seen[base][0]:
        its, ours = ([figures[name] for figures in seen[side]] for side in (base, other))
        pairs = [mine / one for mine, one in zip(ours, its, strict=True) if one]
        ratios[name] = statistics.median(pairs) if pairs else float("nan")
        print(
            f"{name:26} {base} {statistics.median(its):10.2f}"
            f"  {other} {statistics.median(ours):10.2f}  ratio {ratios[name]:6.3f}"
        )
    return ratios
