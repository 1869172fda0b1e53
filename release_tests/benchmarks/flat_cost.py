"""What an event costs the driver with few trials and with many, ours and vanilla Ray Tune's.

A controller that has run N trials already, with 10 results of 20 metrics and 10 checkpoints each,
goes on with more: new trials, actors that start, results, checkpoints, ends (see `filled.py`).
Printed is the driver's CPU time per event, as median over rounds; each controller is in a process
of its own, and they step in turns. Beside it stands what is done with all trials from time to time:
writing Ray's state, cold and with one trial changed, and for ours a snapshot of the journal. Ours
do each of the two in at most one part in twenty of the time.

Exit code 1 if an event of ours at 10,000 trials costs more than 1.3 times one at 100. `--quick` is
small, and only shows that the benchmark runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

KINDS = ("raytrials", "vanilla")
MOST = 1.3
WARM_UP = 200
"""Events before the first round. In a round of 200 some ten trials are added."""


def serve(kind: str, trials: int, directory: str) -> None:
    """Fill a controller, and answer what is asked on stdin, a line each."""
    from filled import filled  # noqa: PLC0415 - it sets Ray's environment

    with filled(kind, trials, directory) as (controller, actors):
        event_us(controller, actors, WARM_UP)
        if kind == "raytrials":
            controller.settle()
        print("filled", flush=True)
        for line in sys.stdin:
            what, count = line.split()
            if what == "events":
                print(event_us(controller, actors, int(count)), flush=True)
            else:
                print(json.dumps(whole_s(controller, kind)), flush=True)


def event_us(controller: Any, actors: Any, events: int) -> float:
    """Return the CPU time of an event, in microseconds."""
    until = actors.told + events
    begun = time.process_time()
    while actors.told < until:
        controller.step()
    return 1e6 * (time.process_time() - begun) / events


def whole_s(controller: Any, kind: str) -> dict[str, float]:
    """Return how long it takes to write what has all trials."""

    def timed(write: Any) -> float:
        begun = time.perf_counter()
        write()
        return time.perf_counter() - begun

    trials = controller.get_trials()
    for trial in trials:
        trial.invalidate_json_state()
        trial.run_metadata.invalidate_cache()
        controller._mark_trial_to_checkpoint(trial)  # noqa: SLF001 - as the controller does
    figures = {"state, cold": timed(controller.save_to_dir)}
    controller._mark_trial_to_checkpoint(trials[0])  # noqa: SLF001 - likewise
    figures["state, one change"] = timed(controller.save_to_dir)
    if kind == "raytrials":
        chronicle = controller._chronicle  # noqa: SLF001 - what `tick` does from time to time
        figures["snapshot"] = timed(lambda: chronicle.take_snapshot(controller._parts()))  # noqa: SLF001
    return figures


class Served:
    """A controller in a process of its own."""

    def __init__(self, kind: str, trials: int, directory: str) -> None:
        command = [sys.executable, __file__, "--serve", kind, "--trials", str(trials)]
        self._process = subprocess.Popen(
            [*command, "--dir", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def answer(self) -> str:
        """Return the next line that it says."""
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"a controller ended with exit code {self._process.wait()}")
        return line.strip()

    def ask(self, what: str, count: int = 0) -> Any:
        """Return what it answers."""
        self._process.stdin.write(f"{what} {count}\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return json.loads(self.answer())

    def end(self) -> None:
        """Let it go."""
        self._process.kill()
        self._process.wait()


def measure(sizes: list[int], rounds: int, events: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return microseconds per event in each round, and seconds of each whole write."""
    with tempfile.TemporaryDirectory(prefix="fc") as directory:
        served = {
            (kind, trials): Served(kind, trials, f"{directory}/{kind}-{trials}")
            for trials in sizes
            for kind in KINDS
        }
        try:
            for one in served.values():
                one.answer()
            events_us: dict[Any, list[float]] = {key: [] for key in served}
            for number in range(rounds):
                # The order alternates, so that none always runs on the warmer machine.
                for key in sorted(served, reverse=number % 2 == 0):
                    events_us[key].append(served[key].ask("events", events))
            return events_us, {key: one.ask("whole") for key, one in served.items()}
        finally:
            for one in served.values():
                one.end()


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--dir", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.trials, arguments.dir)
        return 0
    sizes = [20, 200] if arguments.quick else [100, 1_000, 10_000]
    rounds, events = (3, 100) if arguments.quick else (arguments.rounds, 200)
    events_us, whole = measure(sizes, rounds, events)
    print(f"{events} events a round, {rounds} rounds in turns, medians")
    print(f"{'':12}" + "".join(f"{trials:>12,}" for trials in sizes) + "   many / few")
    ratios = {}
    for kind in KINDS:
        medians = [statistics.median(events_us[kind, trials]) for trials in sizes]
        ratios[kind] = statistics.median(
            many / few
            for few, many in zip(events_us[kind, sizes[0]], events_us[kind, sizes[-1]], strict=True)
        )
        shown = "".join(f"{one:9.0f} us" for one in medians)
        print(f"{kind:12}{shown}   {ratios[kind]:10.2f}")
    for kind in KINDS:
        for name in whole[kind, sizes[0]]:
            shown = "".join(f"{whole[kind, trials][name]:10.3f} s" for trials in sizes)
            print(f"{kind + ', ' + name:30}{shown}")
    is_missed = ratios["raytrials"] > MOST
    judged = "not judged" if arguments.quick else "missed" if is_missed else "ok"
    print(f"ours, many / few {ratios['raytrials']:.2f}, at most {MOST}: {judged}")
    return 1 if is_missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
