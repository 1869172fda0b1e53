"""What our controller costs beside vanilla Ray Tune's, as ratios of medians of paired rounds.

Trivial trials (class trainable, `reuse_actors=True`, three results each) run under both in turns.
Printed are trials/s, results/s and the driver's CPU time per result, and ours over vanilla's: the
aim is CPU at most 1.05, throughput at least 0.95. `--quick` is one small round, which only shows
that the benchmark runs.
"""

from __future__ import annotations

import argparse
import json

from paired import SIDES, counting_fit, in_own_process, in_turns, own_ray, print_ratios


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    trials, rounds = (20, 1) if arguments.quick else (arguments.trials, arguments.rounds)
    if arguments.measure:
        with own_ray(2) as directory:
            figures = counting_fit(
                arguments.measure, directory, trials=trials, results=3, reuse_actors=True
            )
        print(json.dumps(figures))
        return

    def measure(side: str) -> dict[str, float]:
        return in_own_process(__file__, "--measure", side, "--trials", trials)

    print(f"{trials} trials, {rounds} paired rounds, medians")
    print_ratios(in_turns(measure, rounds))


if __name__ == "__main__":
    main()
