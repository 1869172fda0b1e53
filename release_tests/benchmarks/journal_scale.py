"""What the journal costs as it grows, and a recovery from it beside vanilla Ray Tune's resume.

- Append: events per second into the page cache, with fsyncs in groups (an fsync at least once a
  second), and with an fsync for each event; beside them plain `write` + `fsync` of the same lines.
- Replay: time per event of reading and folding a whole journal, of 100 trials and of 10,000, each
  with 10 results of 20 metrics and 10 checkpoints.
- Recovery of 10,000 such trials from the newest snapshot and the 2,000 events after it, beside
  `TuneController(resume_config=...)` of vanilla Ray with the same trials in its state.
- Bytes: KB per result, with 20 metrics and Ray's own, and per event on average.

All is measured in one run, in turns where it is compared. Exit code 1 if a target is missed: groups
at least 20 times one by one; a replayed event at 10,000 trials at most 1.3 times one at 100;
recovery at least 4 times faster than vanilla's; at most 1.5 KB a result. `--quick` is small, and
only shows that the benchmark runs: no target is judged.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raytrials.core.event import (
    AttemptStarted,
    CheckpointCommitted,
    DriverAttached,
    Event,
    ExperimentCreated,
    Record,
    ResultReported,
    RunnerAssigned,
    TrialAdded,
    TrialFinished,
)
from raytrials.core.fold import fold
from raytrials.core.status import Status
from raytrials.store import snapshot as snapshots
from raytrials.store.clock import SystemClock
from raytrials.store.journal import Journal, open_journal
from raytrials.store.local import LocalDisk
from raytrials.store.pump import Pump
from raytrials.store.record import encode
from raytrials.store.recovery import JOURNAL, SNAPSHOTS, recover
from raytrials.store.segment import Reading
from raytrials.store.snapshot import Snapshot

RESULTS = 10
TAIL = 2_000
KB = 1_000
DISK = LocalDisk()


def result(trial_id: str, iteration: int) -> dict[str, Any]:
    """Return a report as Ray completes it: 20 metrics, and its own 14."""
    return {
        **{f"metric_{n}": 0.123456789 * iteration + n for n in range(20)},
        "training_iteration": iteration,
        "trial_id": trial_id,
        "time_total_s": iteration * 1.0,
        "time_this_iter_s": 1.0,
        "timestamp": 1700000000 + iteration,
        "pid": 1234,
        "hostname": "host",
        "node_ip": "10.0.0.1",
        "config": {"x": 0.5, "lr": 1e-3},
        "done": False,
        "date": "2026-01-01_00-00-00",
        "iterations_since_restore": iteration,
        "time_since_restore": iteration * 1.0,
        "checkpoint_dir_name": f"checkpoint_{iteration - 1:06d}",
    }


def events_of(trials: int, running: int = 8) -> Iterator[Event]:
    """Return the events of an experiment in which all trials but the last few have ended."""
    yield ExperimentCreated("experiment", "name", 1)
    yield DriverAttached("host", 1)
    for number in range(trials):
        trial_id = f"aaaaa_{number:05d}"
        yield TrialAdded(
            trial_id, {"x": number, "lr": 1e-3}, f"{number}_x={number}", [{"CPU": 1}], "s" * KB
        )
        yield RunnerAssigned(trial_id, "any")
        yield AttemptStarted(trial_id, 1, "node", 1234)
        for iteration in range(1, RESULTS + 1):
            yield ResultReported(trial_id, 1, iteration, result(trial_id, iteration))
            yield CheckpointCommitted(trial_id, 1, iteration - 1, iteration)
        if number < trials - running:
            yield TrialFinished(trial_id, Status.SUCCEEDED)


def tail_of(trials: int, events: int) -> Iterator[Event]:
    """Return what the trials that still run report next."""
    trial_id = f"aaaaa_{trials - 1:05d}"
    for iteration in range(RESULTS + 1, RESULTS + 1 + events):
        yield ResultReported(trial_id, 1, iteration, result(trial_id, iteration))


# --- append ----------------------------------------------------------------------------------


def append_rates(directory: str, events: int, synced: int) -> dict[str, float]:
    """Return events per second of each way to write."""
    reports = [ResultReported("aaaaa_00000", 1, n, result("aaaaa_00000", n)) for n in range(events)]
    lines = [encode(Record(n + 1, 1, time.time(), one)) for n, one in enumerate(reports)]
    rates = {}

    def journal(name: str) -> Journal:
        return open_journal(DISK, f"{directory}/{name}", epoch=1, seq=0, clock=SystemClock())

    buffered = journal("buffered")
    start = time.perf_counter()
    for one in reports:
        buffered.append(one)
    rates["buffered"] = events / (time.perf_counter() - start)

    grouped = journal("grouped")
    pump = Pump(grouped, 1.0)
    pump.start()
    start = time.perf_counter()
    for one in reports:
        grouped.append(one)
    if not pump.close(60):
        raise RuntimeError("the disk did not take the journal in 60 s")
    rates["group fsync"] = events / (time.perf_counter() - start)

    single = journal("single")
    start = time.perf_counter()
    for one in reports[:synced]:
        single.append(one)
        single.sync()
    rates["one fsync each"] = synced / (time.perf_counter() - start)

    start = time.perf_counter()
    descriptor = os.open(f"{directory}/raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for line in lines[:synced]:
        os.write(descriptor, line)
        os.fsync(descriptor)
    rates["raw write + fsync"] = synced / (time.perf_counter() - start)
    os.close(descriptor)
    return rates


# --- replay and recovery ---------------------------------------------------------------------


def write_home(home: str, trials: int) -> tuple[int, float]:
    """Write journal and snapshot of an experiment; return its number of events, bytes of each."""
    journal = open_journal(DISK, f"{home}/{JOURNAL}", epoch=1, seq=0, clock=SystemClock())
    state = fold(journal.append(event) for event in events_of(trials))
    journal.sync()
    snapshot = Snapshot(state)
    directory = f"{home}/{SNAPSHOTS}"
    snapshots.write(DISK, directory, snapshot.name, snapshot.encode(), retry_s=0)
    for event in tail_of(trials, TAIL):
        journal.append(event)
    journal.sync()
    journal.close()
    size = sum(entry.size for entry in DISK.list_files(f"{home}/{JOURNAL}").values())
    return journal.seq, size / journal.seq


def replay_us(home: str) -> float:
    """Return the microseconds for each event of reading and folding a whole journal."""
    start = time.perf_counter()
    state = fold(Reading(DISK, f"{home}/{JOURNAL}"))
    return 1e6 * (time.perf_counter() - start) / state.seq


def recovery_s(home: str, trials: int) -> float:
    """Return the seconds of a recovery from snapshot and tail."""
    start = time.perf_counter()
    recovered = recover(DISK, home)
    seconds = time.perf_counter() - start
    if len(recovered.state.trials) != trials or len(recovered.tail) != TAIL:
        raise RuntimeError(f"recovered {len(recovered.state.trials)} trials")
    return seconds


def vanilla_resume_s(directory: str, trials: int, running: int = 8) -> float:
    """Return the seconds that vanilla takes for its resume; runs in a process of its own."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import logging  # noqa: PLC0415 - only here

    import ray  # noqa: PLC0415 - it reads the environment when it is imported
    from ray import tune  # noqa: PLC0415
    from ray.train._internal.session import _TrainingResult  # noqa: PLC0415, TID251
    from ray.train._internal.storage import StorageContext  # noqa: PLC0415, TID251
    from ray.tune.execution.tune_controller import TuneController  # noqa: PLC0415, TID251
    from ray.tune.experiment import Trial  # noqa: PLC0415, TID251
    from ray.tune.tune_config import ResumeConfig  # noqa: PLC0415

    logging.disable(logging.CRITICAL)
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
        _temp_dir=f"{directory}/ray",
    )
    try:
        tune.register_trainable("nothing", lambda config: None)
        storage = StorageContext(directory, "experiment")
        Path(storage.experiment_driver_staging_path).mkdir(parents=True, exist_ok=True)
        controller = TuneController(storage=storage, checkpoint_period=1e9)
        set_status = controller._set_trial_status  # noqa: SLF001 - as the controller does
        for number in range(trials):
            config = {"x": number, "lr": 1e-3}
            trial = Trial(
                "nothing",
                config=config,
                evaluated_params=config,
                trial_id=f"aaaaa_{number:05d}",
                storage=storage,
                experiment_tag=f"{number}_x={number}",
            )
            trial.relative_logdir = None
            trial.storage.trial_dir_name = f"t_{number:05d}"
            controller.add_trial(trial)
            for iteration in range(1, RESULTS + 1):
                metrics = result(trial.trial_id, iteration)
                trial.update_last_result(metrics)
                path = f"{directory}/experiment/t_{number:05d}/checkpoint_{iteration - 1:06d}"
                trial.run_metadata.checkpoint_manager.register_checkpoint(
                    _TrainingResult(tune.Checkpoint(path), dict(metrics))
                )
            trial.invalidate_json_state()
            trial.run_metadata.invalidate_cache()
            set_status(trial, Trial.RUNNING)
            if number < trials - running:
                set_status(trial, Trial.TERMINATED)
        controller._search_alg.set_finished()  # noqa: SLF001 - likewise
        controller.checkpoint(force=True, wait=True)
        start = time.perf_counter()
        resumed = TuneController(
            storage=StorageContext(directory, "experiment"),
            resume_config=ResumeConfig(),
            checkpoint_period=1e9,
        )
        seconds = time.perf_counter() - start
    finally:
        ray.shutdown()
    if len(resumed.get_trials()) != trials:
        raise RuntimeError(f"vanilla resumed {len(resumed.get_trials())} trials")
    return seconds


def measure_vanilla(trials: int) -> float:
    """Return :func:`vanilla_resume_s` of a fresh process."""
    with tempfile.TemporaryDirectory(prefix="js") as directory:
        command = [sys.executable, __file__, "--vanilla", str(trials), "--dir", directory]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", help="where to write; a temporary directory by default")
    parser.add_argument("--vanilla", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.vanilla:
        print(vanilla_resume_s(arguments.dir, arguments.vanilla))
        return 0
    few, many, rounds = (20, 200, 1) if arguments.quick else (100, 10_000, arguments.rounds)
    appended, synced = (2_000, 100) if arguments.quick else (50_000, 500)
    with tempfile.TemporaryDirectory(prefix="js", dir=arguments.dir) as directory:
        rates = append_rates(directory, appended, synced)
        sizes = {trials: write_home(f"{directory}/{trials}", trials) for trials in (few, many)}
        replays: dict[int, list[float]] = {few: [], many: []}
        recoveries, vanilla = [], []
        for _ in range(rounds):
            # As many events of the few as of the many, so that both meet the same machine.
            turns = max(1, sizes[many][0] // sizes[few][0] // 4)
            replays[few].append(
                statistics.median(replay_us(f"{directory}/{few}") for _ in range(turns))
            )
            replays[many].append(replay_us(f"{directory}/{many}"))
            recoveries.append(recovery_s(f"{directory}/{many}", many))
            vanilla.append(measure_vanilla(many))
    report = ResultReported("aaaaa_00000", 1, 1, result("aaaaa_00000", 1))
    figures = {
        "append, events/s": {name: round(rate) for name, rate in rates.items()},
        "replay, us/event": {n: round(statistics.median(us), 2) for n, us in replays.items()},
        "recovery, s": round(statistics.median(recoveries), 2),
        "vanilla's resume, s": round(statistics.median(vanilla), 2),
        "bytes/event": round(sizes[many][1]),
        "bytes/result": len(encode(Record(1, 1, time.time(), report))),
    }
    ratios = {
        "group fsync / one fsync each": (rates["group fsync"] / rates["one fsync each"], 20, None),
        "replay at many / at few": (
            statistics.median(replays[many]) / statistics.median(replays[few]),
            None,
            1.3,
        ),
        "vanilla's resume / recovery": (
            statistics.median(vanilla) / statistics.median(recoveries),
            4,
            None,
        ),
        "KB/result": (figures["bytes/result"] / KB, None, 1.5),
    }
    missed = []
    for name, figure in figures.items():
        print(f"{name:24} {figure}")
    for name, (ratio, least, most) in ratios.items():
        bound = f"at least {least}" if most is None else f"at most {most}"
        is_missed = (least is not None and ratio < least) or (most is not None and ratio > most)
        judged = "not judged" if arguments.quick else "missed" if is_missed else "ok"
        print(f"{name:32} {ratio:9.2f}  {bound:12} {judged}")
        if is_missed and not arguments.quick:
            missed.append(f"{name} {ratio:.2f}")
    if arguments.quick:
        print("Quick: it runs, and targets are not judged.")
    shown = {name: round(ratio, 3) for name, (ratio, _, _) in ratios.items()}
    print(json.dumps({"figures": figures, "ratios": shown, "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
