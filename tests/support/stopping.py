"""Fits of one trial that a user's callback ends early, and what is restored of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray import tune

from raytrials import RetryPolicy, Tuner
from support.fits import wait_until
from support.telling import Stopping, anytime, lines, saving


def at_once() -> RetryPolicy:
    return RetryPolicy(backoff_initial_s=0, count_worker_death=False)


def tuner(  # noqa: PLR0913 - a run has many sides
    workspace: Path,
    filesystem: Any = None,
    *,
    kind: type[tune.Tuner] = Tuner,
    path: str | None = None,
    stop_when: Callable[[], bool] = anytime,
    config: dict[str, Any] | None = None,
    num_to_keep: int | None = 2,
    **run: Any,
) -> tune.Tuner:
    """A fit of one trial that saves `STEPS` times to `workspace`/storage/fit."""
    own = {"retry_policy": at_once()} if kind is Tuner else {}
    return kind(
        saving,
        param_space={"log": str(workspace / "log"), **(config or {})},
        run_config=tune.RunConfig(
            name="fit",
            storage_path=path or str(workspace / "storage"),
            storage_filesystem=filesystem,
            verbose=0,
            callbacks=[Stopping(workspace / "stop", stop_when)],
            checkpoint_config=tune.CheckpointConfig(num_to_keep=num_to_keep),
            **run,
        ),
        **own,
    )


def interrupt(workspace: Path, filesystem: Any = None, stop_at: int = 3, **kwargs: Any) -> str:
    """Run until the report of a step, and return the path of the unfinished experiment."""
    (workspace / "stop").write_text(str(stop_at))
    with pytest.raises(tune.TuneError, match="stopped here"):
        tuner(workspace, filesystem, **kwargs).fit()
    wait_for_silence(workspace / "log")
    return str(workspace / "storage" / "fit")


def restored(path: str, filesystem: Any = None, **kwargs: Any) -> Any:
    """Return the one result of an experiment that is restored and run to its end."""
    again = Tuner.restore(
        path, saving, storage_filesystem=filesystem, retry_policy=at_once(), **kwargs
    )
    (result,) = again.fit()
    return result


def wait_for_silence(log: Path) -> None:
    """Wait until nothing is left of a fit that was interrupted: its workers, and its uploads."""

    def is_silent() -> bool:
        pids = [int(line.split()[1]) for line in lines(log) if line.startswith("pid ")]
        uploads = [thread for thread in threading.enumerate() if "entrypoint" in thread.name]
        return not uploads and not any(psutil.pid_exists(pid) for pid in pids)

    wait_until(is_silent, alive=lambda: True, timeout_s=30)
