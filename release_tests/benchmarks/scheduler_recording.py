"""What it costs the driver to record a scheduler: 300 trials of 10 results under ASHA.

With and without the recording, in turns, each in a process and a Ray of its own. The aim is at most
3 % more driver CPU per result; exits with 1 if the median misses it. `--quick` is one small round,
which only shows that the benchmark runs.
"""

from __future__ import annotations

import argparse
import json
import sys

from paired import counting_fit, in_own_process, in_turns, own_ray, print_ratios

SIDES = ("unrecorded", "recorded")
AIM = 1.03
FIGURE = "driver_cpu_ms_per_result"


def measure_here(side: str, trials: int, results: int) -> None:
    """Fit in this process, and print the figures."""
    with own_ray(4) as directory:
        from ray.tune.schedulers import ASHAScheduler  # noqa: PLC0415 - see own_ray

        from raytrials.driver import scheduling  # noqa: PLC0415

        if side == "unrecorded":
            # As for FIFO: nothing stands in for the scheduler, and nothing is recorded of it.
            scheduling.FIFOScheduler = ASHAScheduler
        scheduler = ASHAScheduler(
            metric="count", mode="max", time_attr="training_iteration", max_t=1_000
        )
        figures = counting_fit(
            "raytrials",
            directory,
            trials=trials,
            results=results,
            reuse_actors=True,
            scheduler=scheduler,
        )
    print(json.dumps(figures))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        side, trials, results = arguments.measure
        measure_here(side, int(trials), int(results))
        return
    trials, results, rounds = (10, 3, 1) if arguments.quick else (300, 10, 5)
    print(f"{trials} trials of {results} results, {rounds} rounds")
    seen = in_turns(
        lambda side: in_own_process(__file__, "--measure", side, trials, results), rounds, SIDES
    )
    ratio = print_ratios(seen)[FIGURE]
    if ratio > AIM and not arguments.quick:
        sys.exit(f"MISSED: {FIGURE} is {ratio:.3f} of that without, the aim is {AIM}")


if __name__ == "__main__":
    main()
