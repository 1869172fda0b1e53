"""What a driver costs that can be killed at any moment, beside vanilla Ray Tune's.

Three loads, class trainables with `reuse_actors=True`, each under both in turns:

- 300 trials of three results, and 4 trials of 500: vanilla saves its state when it likes to, and
  loses what came since. The aim is at least 0.95 of its trials/s and results/s.
- 2,000 trials of one result: vanilla saves its state after every step
  (`TUNE_GLOBAL_CHECKPOINT_S=0`), to lose as little as we. The aim is at least 3 times its trials/s.

Exits with 1 if a median ratio misses its aim. `--quick` is one small round of each, which only
shows that the benchmark runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass

from paired import counting_fit, in_own_process, in_turns, own_ray, print_ratios


@dataclass(frozen=True)
class Load:
    """What is run, and how often; what vanilla is told; what the ratio must be at least."""

    trials: int
    results: int
    rounds: int
    figure: str
    aim: float
    vanilla: tuple[tuple[str, str], ...] = ()


LOADS = {
    "many trials": Load(300, 3, 5, "trials_per_s", 0.95),
    "many results": Load(4, 500, 5, "results_per_s", 0.95),
    "nothing lost": Load(
        2_000, 1, 1, "trials_per_s", 3.0, vanilla=(("TUNE_GLOBAL_CHECKPOINT_S", "0"),)
    ),
}

QUICK = {
    "many trials": Load(10, 3, 1, "trials_per_s", 0.0),
    "many results": Load(2, 20, 1, "results_per_s", 0.0),
    "nothing lost": Load(10, 1, 1, "trials_per_s", 0.0, vanilla=LOADS["nothing lost"].vanilla),
}


def run(name: str, load: Load) -> bool:
    """Run a load in turns and print its ratios; return whether it met its aim."""

    def measure(side: str) -> dict[str, float]:
        environment = dict(load.vanilla) if side == "vanilla" else {}
        return in_own_process(__file__, "--measure", side, load.trials, load.results, **environment)

    said = "".join(f", vanilla with {key}={value}" for key, value in load.vanilla)
    print(f"{name}: {load.trials} trials of {load.results} results, {load.rounds} rounds{said}")
    ratio = print_ratios(in_turns(measure, load.rounds))[load.figure]
    if ratio < load.aim:
        print(f"MISSED: {load.figure} is {ratio:.3f} of vanilla's, the aim is {load.aim}")
    return ratio >= load.aim


def main() -> None:
    """Run the loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", default=list(LOADS), metavar="LOAD", help="all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        side, trials, results = arguments.measure
        with own_ray(4) as directory:
            figures = counting_fit(
                side, directory, trials=int(trials), results=int(results), reuse_actors=True
            )
        print(json.dumps(figures))
        return
    loads = QUICK if arguments.quick else LOADS
    if unknown := set(arguments.loads) - set(loads):
        parser.error(f"no such load: {sorted(unknown)}; there are {list(loads)}")
    met = [run(name, loads[name]) for name in arguments.loads]
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
