"""What the demo prints: its lines while it runs, and the tables at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray import tune

from raytrials.demo.job import METRIC, SPACE, Scratch, load_data, read_model
from raytrials.driver.result import TrialResult


def tell(event: str) -> None:
    """Print an event with the time of day."""
    say(f"{time.strftime('%H:%M:%S')}  {event}")


def say(*lines: str) -> None:
    """Print lines at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def trial_table(results: Sequence[TrialResult], epochs: int) -> list[str]:
    """Return the lines that show each trial; one that did `epochs` epochs was not stopped."""
    header = ("trial", "config", "status", "epochs", "best validation accuracy", "faults")
    rows = [
        (
            _trial_id(result),
            _config(result),
            _status(result, epochs),
            str(_metrics(result).get("epoch", 0)),
            f"{_best_accuracy(result):.4f}",
            str(len(result.faults)),
        )
        for result in results
    ]
    errors = [f"Failed: {result.error}" for result in results if result.error]
    return ["TRIALS", *_table(header, rows), *errors]


def best_config(results: Sequence[TrialResult]) -> list[str]:
    """Return the lines that show the best config and its score on the held-out images."""
    best = max(results, key=_best_accuracy, default=None)
    if best is None or not best.best_checkpoints:
        return ["No trial left a checkpoint, so there is no best config."]
    checkpoint, metrics = max(best.best_checkpoints, key=lambda kept: kept[1][METRIC])
    with checkpoint.as_directory() as directory:
        _, model = read_model(directory)
    images, labels = load_data()["test"]
    score = model.score(images, labels)
    return [
        "BEST CONFIG",
        f"trial {_trial_id(best)}: {_config(best)}",
        f"validation accuracy {metrics[METRIC]:.4f} after epoch {metrics['epoch']}",
        f"test accuracy {score:.4f}: that checkpoint on {len(labels)} images held out until now",
    ]


def fault_table(results: Sequence[TrialResult]) -> list[str]:
    """Return the lines that show each fault, in the order of time."""
    faults = [fault for result in results for fault in result.faults]
    if not faults:
        return ["No faults."]
    header = ("trial", "attempt", "class", "phase", "cause", "charge", "reason")
    rows = [
        (
            fault.trial_id,
            str(fault.attempt),
            str(fault.fault_class),
            str(fault.phase),
            str(fault.cause),
            str(fault.charge),
            fault.reason,
        )
        for fault in sorted(faults, key=lambda fault: fault.time)
    ]
    return ["FAULTS", *_table(header, rows)]


def cost(results: Sequence[TrialResult], scratch: Scratch) -> str:
    """Return the line that says how many epochs were run twice."""
    epochs = [scratch.read_epochs(_trial_id(result)) for result in results]
    begun = sum(len(trial) for trial in epochs)
    repeated = begun - sum(len(set(trial)) for trial in epochs)
    return f"{begun} training steps (epochs) were run, {repeated} of them repeated after a fault."


def restore_hint(grid: tune.ResultGrid, storage: str | None) -> list[str]:
    """Return the lines that say how to open the results again."""
    path = grid.experiment_path
    if storage is not None and "://" in storage:
        path = f"{storage.rstrip('/')}/{Path(path).name}"
    return [
        f"The results are in {path}; to open them again:",
        "    import raytrials.demo",
        "    from raytrials import Tuner",
        f'    tuner = Tuner.restore("{path}", trainable=raytrials.demo.train)',
        "    results = tuner.get_results()",
    ]


def _trial_id(result: TrialResult) -> str:
    return Path(result.path).name


def _config(result: TrialResult) -> str:
    if not result.config:
        return "(no result yet)"
    values = [(name, result.config[name]) for name in SPACE]
    return " ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values
    )


def _status(result: TrialResult, epochs: int) -> str:
    if result.error:
        return "failed"
    if not is_finished(result):
        return "unfinished"
    return "finished" if _metrics(result)["epoch"] >= epochs else "stopped by ASHA"


def is_finished(result: TrialResult) -> bool:
    """Return whether the trial ended, without an error."""
    return not result.error and bool(_metrics(result).get("done"))


def _metrics(result: TrialResult) -> dict[str, Any]:
    return result.metrics or {}


def _best_accuracy(result: TrialResult) -> float:
    return max((metrics[METRIC] for _, metrics in result.best_checkpoints or ()), default=0.0)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
