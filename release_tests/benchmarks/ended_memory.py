"""What the driver still holds of a trial that has ended, beside vanilla Ray Tune.

The same trials (class trainable, `reuse_actors=True`) run under vanilla and under raytrials, each
in a process and a Ray of its own. Between two moments of a fit, the first when a quarter of the
trials has ended and the second when all but a few have, it is counted what came to stay for each
trial that ended in between: Python's own memory (`tracemalloc`), and, in a second fit without that,
the driver's resident memory, threads and open files. The aim is at most 20 KB of Python's memory,
no thread and no file.

Three kinds of trials: trivial ones, some with 20 metrics and 10 results, and the same with 10
checkpoints. `--quick` runs few trivial ones once, which only shows that the benchmark runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

from paired import SIDES, Figures, in_own_process, own_ray

KINDS = {
    # metrics, results and checkpoints of a trial
    "trivial": (1, 3, 0),
    "20 metrics, 10 results": (20, 10, 0),
    "20 metrics, 10 results, 10 checkpoints": (20, 10, 10),
}
LAST = 10
"""How many trials the second moment is before the end."""


def held() -> Figures:
    """Return what this process holds now."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if tracemalloc.is_tracing():
        return {"python_kb": tracemalloc.get_traced_memory()[0] / 1000}
    return {
        "resident_kb": resident / 1000,
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


class Watch:
    """Looks twice at what is held. Made a callback of Ray's, which is imported late."""

    def __init__(self, trials: int) -> None:
        self.wanted = [trials // 4, trials - LAST]
        self.ended: set[str] = set()
        self.seen: list[tuple[int, Figures]] = []

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Count."""
        self.ended.add(trial.trial_id)

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        """Look when it is time."""
        if self.wanted and len(self.ended) >= self.wanted[0]:
            del self.wanted[0]
            self.seen.append((len(self.ended), held()))


def measure(tuner: str, kind: str, trials: int, *, traced: bool) -> Figures:
    """Run one fit in this process and return what each ended trial left."""
    # Trials that wait take memory too; there are as many of them at both moments.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(LAST // 2)
    from ray import tune  # noqa: PLC0415 - it reads the environment when it is imported

    from raytrials import Tuner  # noqa: PLC0415

    metrics, results, checkpoints = KINDS[kind]

    class Trivial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.count = 0

        def step(self) -> dict[str, Any]:
            self.count += 1
            values = {f"metric_{number}": self.count / (number + 1) for number in range(metrics)}
            return {**values, "done": self.count >= results}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.count = 0
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            Path(checkpoint_dir, "state").write_text(str(self.count))

        def load_checkpoint(self, checkpoint_dir: str) -> None:
            pass

    watch = type("Watching", (Watch, tune.Callback), {})(trials)
    with own_ray(2) as directory:
        if traced:
            tracemalloc.start()
        grid = {"vanilla": tune.Tuner, "raytrials": Tuner}[tuner](
            Trivial,
            param_space={"x": tune.grid_search(list(range(trials)))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(
                name="fit",
                storage_path=f"{directory}/storage",
                verbose=0,
                callbacks=[watch],
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=int(bool(checkpoints)), checkpoint_at_end=False
                ),
            ),
        ).fit()
    if grid.num_errors or len(grid) != trials:
        raise RuntimeError(f"{grid.num_errors} of {len(grid)} trials failed")
    (before, first), (after, last) = watch.seen
    return {name: (last[name] - first[name]) / (after - before) for name in first}


def measured(tuner: str, kind: str, trials: int, *, quick: bool) -> Figures:
    """Measure in fresh processes and Rays."""
    figures: Figures = {}
    for traced in ["--traced"] if quick else ["--traced", "--no-traced"]:
        command = ("--measure", tuner, "--kind", kind, traced, "--trials", trials)
        figures |= in_own_process(__file__, *command)
    return figures


def main() -> None:
    """Run each kind under both, and print what an ended trial left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=410)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--measure", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        kind, trials, traced = arguments.kind, arguments.trials, arguments.traced
        print(json.dumps(measure(arguments.measure, kind, trials, traced=traced)))
        return
    trials = 40 if arguments.quick else arguments.trials
    for kind in [arguments.kind] if arguments.kind else list(KINDS)[: 1 if arguments.quick else 3]:
        print(f"each ended trial of {trials}, {kind}")
        vanilla, ours = (measured(side, kind, trials, quick=arguments.quick) for side in SIDES)
        for name in vanilla:
            print(f"  {name:12} vanilla {vanilla[name]:8.2f}  raytrials {ours[name]:8.2f}")


if __name__ == "__main__":
    main()
