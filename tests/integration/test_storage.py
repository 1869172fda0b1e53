"""Storage that misbehaves: the newest whole checkpoint is always there, and nothing else counts."""

from __future__ import annotations

import logging
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from support.saving import STEPS, saved, saving, starts, verdicts, verified
from support.stores import Awkward, Breaking, Flaky, Keeping

from raytrials import Cause, RetryPolicy, Tuner
from raytrials.core.fault import Charge
from raytrials.store.checkpoint import Verdict

pytestmark = pytest.mark.usefixtures("ray_local")
AT_ONCE = RetryPolicy(backoff_initial_s=0, count_worker_death=False)


class Stopping(tune.Callback):
    """Ends the fit by an exception once, at the first report from a step on when it is time."""

    def __init__(self, step: int, mark: Path, when: Callable[[], bool]) -> None:
        self.step, self.mark, self.when = step, mark, when

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if result["count"] >= self.step and not self.mark.exists() and self.when():
            self.mark.touch()
            raise RuntimeError("stopped here")


def tuner(
    workspace: Path,
    filesystem: Any = None,
    *,
    kind: type[tune.Tuner] = Tuner,
    path: str | None = None,
    stop_at: int | None = None,
    stop_when: Callable[[], bool] = lambda: True,
    config: dict[str, Any] | None = None,
    num_to_keep: int | None = 2,
    **run: Any,
) -> tune.Tuner:
    """A fit of one trial that saves `STEPS` times to `workspace`/storage/fit."""
    own = {"retry_policy": AT_ONCE} if kind is Tuner else {}
    return kind(
        saving,
        param_space={"log": str(workspace / "log"), **(config or {})},
        run_config=tune.RunConfig(
            name="fit",
            storage_path=path or str(workspace / "storage"),
            storage_filesystem=filesystem,
            verbose=0,
            callbacks=[Stopping(stop_at, workspace / "stopped", stop_when)] if stop_at else None,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=num_to_keep),
            **run,
        ),
        **own,
    )


def interrupt(workspace: Path, filesystem: Any = None, stop_at: int = 3, **kwargs: Any) -> str:
    """Run until the report of a step, and return the path of the unfinished experiment."""
    with pytest.raises(tune.TuneError, match="stopped here"):
        tuner(workspace, filesystem, stop_at=stop_at, **kwargs).fit()
    return str(workspace / "storage" / "fit")


def restored(path: str, filesystem: Any = None, **kwargs: Any) -> Any:
    """Return the one result of an experiment that is restored and run to its end."""
    again = Tuner.restore(
        path, saving, storage_filesystem=filesystem, retry_policy=AT_ONCE, **kwargs
    )
    (result,) = again.fit()
    return result


def test_what_a_driver_before_could_not_delete_is_deleted(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    keep = workspace / "keep"
    keep.touch()
    store = Keeping(str(keep)).filesystem()

    def state_is_newer() -> bool:
        (state,) = (workspace / "storage" / "fit").glob("experiment_state*.json")
        text = state.read_text()
        return "checkpoint_00000" in text and not re.search("checkpoint_00000[0-2]", text)

    path = interrupt(
        workspace, store, stop_at=4, stop_when=state_is_newer, config={"steps": 60}
    )
    assert {1, 2, 3} <= set(verified(path))
    keep.unlink()
    assert restored(path, store).error is None
    assert verified(path) == [59, 60]
