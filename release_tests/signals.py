"""Stop the driver of an experiment by signals at random moments, again and again.

Each life is a process with a Ray of its own. A moment after it has taken the lease, before its
first trial or in the middle of all, it gets SIGTERM, SIGHUP, SIGUSR1 or SIGINT, sometimes two of
them. It has to be gone within the grace time and what Ray takes to end; in the end every trial has
made each of its steps. Prints a JSON summary, also of how many steps were made again; exits with 1
if any of this fails.

    python release_tests/signals.py            # 100 signals
    python release_tests/signals.py --quick    # 6 signals
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.fits import finish, kill_driver, last_json, tell, wait_until
from support.signalled import RETURNED, Plan, begin, signalled

from raytrials.chaos.oracle import Oracle

LEASES = ".raytrials/lease/*.json"
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT)
CODES = {0, 75}
EXIT_S = 20.0
"""How long Ray takes at most to end, beside the grace time."""
LIVES = 10
"""How many lives an experiment has before it may come to its end."""


def stop_once(plan: Plan, luck: random.Random) -> str:
    """Start a driver and stop it at a random moment; return what is wrong, "" if nothing."""
    before = set(plan.path.glob(LEASES))
    driver = begin(plan)
    try:
        wait_until(
            lambda: bool(set(plan.path.glob(LEASES)) - before),
            alive=lambda: driver.poll() is None,
        )
        # A random moment is what is wanted: there is nothing to wait for.
        time.sleep(luck.uniform(0, 4))
        numbers = luck.sample(SIGNALS, 1 + (luck.random() < 0.2))
        code, seconds, output = signalled(plan, driver, *numbers, timeout_s=plan.grace_s + 60)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported, and nothing is left
        return f"{type(error).__name__}: {error}\n{kill_driver(driver)}"
    names = [number.name for number in numbers]
    if code not in CODES and -code not in numbers:
        return f"{names}: exit code {code}\n{output}"
    if seconds > plan.grace_s + EXIT_S:
        return f"{names}: gone after {seconds:.0f} s"
    return ""


def experiment(seed: int, signals: int) -> dict[str, Any]:
    """Run one experiment with its signals; return what is to be said of it."""
    luck = random.Random(seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rs", ignore_cleanup_errors=True) as directory:
        plan = Plan(directory, trials=2, steps=60 + 40 * signals, step_s=0.05)
        wrong = [found for _ in range(signals) if (found := stop_once(plan, luck))]
        found = last_json(finish(begin(plan)))
        if found[RETURNED] != [plan.steps] * plan.trials or any(found["errors"]):
            wrong.append(f"the table is {found}")
        made = {(trial, step) for trial, step, _ in plan.lines()}
        missing = plan.trials * plan.steps - len(made)
        if missing:
            wrong.append(f"{missing} steps were never made")
        again = len(plan.lines()) - len(made)
        wrong += [str(one) for one in Oracle(plan.path, num_samples=plan.trials).violations()]
    return {
        "seed": seed,
        "signals": signals,
        "steps made again": again,
        "seconds": round(time.monotonic() - begun),
        "violations": wrong,
    }


def main() -> int:
    """Run it; return 1 if anything is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6 signals instead of 100")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    experiments, signals = (1, 6) if arguments.quick else (100 // LIVES, LIVES)
    return tell(experiment(arguments.seed + number, signals) for number in range(experiments))


if __name__ == "__main__":
    sys.exit(main())
