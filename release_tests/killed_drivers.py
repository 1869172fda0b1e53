"""Kill the driver of an experiment with SIGKILL, again and again, and go on with it.

Each life is a process with a Ray of its own, killed when its journal shows a number of events that
is drawn for it. In the end nothing may be lost, doubled, changed or done again beyond one step for
each running trial and kill; with one slot and seeds the table is that of a run that nobody
disturbed. Prints a JSON summary; exits with 1 if any of this fails.

    python release_tests/killed_drivers.py            # 10 kills in each of 10 experiments
    python release_tests/killed_drivers.py --quick    # 1 kill in one of them
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.fits import tell
from support.killed import Plan, moments, problems, run

SAMPLES = 20
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "random search": {"reuses": False},
    "optuna": {"searcher": "optuna", "num_to_keep": 1},
    "random search, one slot, seeded": {"slots": 1, "seed": 11, "num_to_keep": 3},
    "optuna, one slot, seeded": {"searcher": "optuna", "slots": 1, "seed": 11, "num_to_keep": 1},
    "optuna, slow storage that fails": {
        "searcher": "optuna",
        "num_to_keep": 3,
        "steps": 2,
        "is_bad": True,
    },
}
QUICK = ("optuna",)


def experiment(name: str, seed: int, kills: int) -> dict[str, Any]:
    """Run one experiment with its kills; return what is to be said of it."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rk", ignore_cleanup_errors=True) as directory:
        for part in ("killed", "whole"):
            Path(directory, part).mkdir()
        plan = Plan(f"{directory}/killed", samples=SAMPLES, **EXPERIMENTS[name])
        whole = replace(plan, directory=f"{directory}/whole") if plan.seed is not None else None
        drawn = moments(f"{name} {seed}", kills, plan)
        try:
            if whole is not None:
                run(whole)
            found = problems(plan, run(plan, drawn), drawn, against=whole)
        except (RuntimeError, TimeoutError) as error:
            found = [f"a driver ended otherwise: {error}"]
    return {
        "experiment": name,
        "seed": seed,
        "kills": [f"{moment.count} {moment.kind}" for moment in drawn],
        "seconds": round(time.monotonic() - begun),
        "violations": found,
    }


def main() -> int:
    """Run it; return 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1 kill instead of 10, and 1 seed")
    parser.add_argument("--seeds", type=int, default=2, help="how many seeds, of the kills")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", help="one experiment, by its name")
    arguments = parser.parse_args()
    seeds, kills = (1, 1) if arguments.quick else (arguments.seeds, arguments.kills)
    names = QUICK if arguments.quick else tuple(EXPERIMENTS)
    return tell(
        experiment(name, seed, kills)
        for name in ([arguments.only] if arguments.only else names)
        for seed in range(seeds)
    )


if __name__ == "__main__":
    sys.exit(main())
