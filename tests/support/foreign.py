"""A search that vanilla Ray and raytrials run in turn, each driver in a process of its own.

Nothing here imports raytrials: vanilla Ray runs it where that cannot be imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ray import tune

from support.telling import STEPS, note, saving

TRIALS = 3


def forbid() -> None:
    """Have every import of raytrials fail in this process."""
    sys.modules["raytrials"] = None  # type: ignore[assignment]


def train(config: dict[str, Any]) -> None:
    """Save at every step; the log tells where raytrials cannot be imported."""
    try:
        import raytrials  # noqa: F401, PLC0415 - whether it can be is the question
    except ImportError:
        note(Path(config["job"]["log"]), "without raytrials")
    saving(config["job"])


def space(directory: Path) -> dict[str, Any]:
    """Return a search space of `TRIALS` trials; the second one holds after its third step."""
    jobs = [{"log": str(directory / f"log{number}")} for number in range(TRIALS)]
    return {
        "job": tune.grid_search([{**job, "holds_at": 3 if job is jobs[1] else 0} for job in jobs]),
        "drawn": tune.uniform(0, 1),
    }


def arguments(directory: Path) -> dict[str, Any]:
    """Return what a tuner of the search is made with: one trial runs at a time."""
    return {
        "param_space": space(directory),
        "tune_config": tune.TuneConfig(
            max_concurrent_trials=1, metric="count", mode="max", num_samples=1
        ),
        "run_config": tune.RunConfig(
            name="fit", storage_path=str(directory / "storage"), verbose=0
        ),
    }


def seen(grid: tune.ResultGrid) -> list[list[Any]]:
    """Return what results tell of each trial: its id, its last step, what was drawn, its error."""
    return [
        [
            result.metrics.get("trial_id"),
            result.metrics.get("count", 0),
            (result.config or {}).get("drawn"),
            None if result.error is None else repr(result.error),
        ]
        for result in grid
    ]


__all__ = ["STEPS", "TRIALS", "arguments", "seen", "space", "train"]
