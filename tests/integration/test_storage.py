"""Storage that misbehaves: the newest whole checkpoint is always there, and nothing else counts."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs
from support.bad_stores import Awkward, Breaking, Flaky, Keeping
from support.full import fill, small_disk
from support.looking import verified
from support.stopping import interrupt, restored, tuner
from support.telling import STEPS, saved, saving, starts

from raytrials import Cause, TrainingError, Tuner
from raytrials.core.fault import Charge

pytestmark = pytest.mark.usefixtures("ray_local")


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

    path = interrupt(workspace, store, stop_at=4, stop_when=state_is_newer, config={"steps": 60})
    assert {1, 2, 3} <= set(verified(path))
    keep.unlink()
    assert restored(path, store).error is None
    assert verified(path) == [59, 60]


# --- stores with ways of their own ---------------------------------------------------------------


def test_a_store_that_takes_no_empty_file_has_no_rename_and_lists_all(workspace: Path) -> None:
    store = Awkward().filesystem()
    path = interrupt(workspace, store)
    assert not (workspace / "storage" / "fit" / "checkpoint_000000").exists()
    assert verified(path, store)[-1] == 3
    result = restored(path, store)
    assert (result.error, result.faults) == (None, ())
    assert starts(workspace / "log") == [0, 3]
    assert verified(path, store) == [STEPS - 1, STEPS]
    assert not list(Path(path).rglob("empty"))
    with result.checkpoint.as_directory() as directory:
        assert Path(directory, "a").exists()


def test_writes_that_time_out_are_tried_again_and_named_in_the_log(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = workspace / "timeouts"
    store = Flaky(18, 0.3, str(log)).filesystem()
    with caplog.at_level(logging.WARNING, logger="raytrials"):
        (result,) = tuner(workspace, store).fit()
    assert (result.error, result.faults) == (None, ())
    assert starts(workspace / "log") == [0]
    assert saved(workspace / "log") == [1, 2, 3, 4, 5]
    failed = log.read_text().splitlines()
    assert [name for name in failed if name.startswith("checkpoint_")]
    assert {"fit/tuner.pkl", "fit/.validate_storage_marker"} <= set(failed)
    told = [record.message for record in caplog.records if "trying again" in record.message]
    assert any("timed out" in message and "/fit" in message for message in told)
    path = str(workspace / "storage" / "fit")
    assert verified(path) == [STEPS - 1, STEPS]
    again = Tuner.restore(path, saving, storage_filesystem=store).get_results()
    assert again[0].metrics["count"] == STEPS


@pytest.mark.parametrize("kind", ["timeout", "forbidden", "full"])
def test_a_store_that_fails_for_good_costs_no_checkpoint_and_is_no_ones_fault(
    workspace: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIALS_STORAGE_RETRY_S", "0.5")
    monkeypatch.setenv("RAYTRIALS_MAX_INFRA_FAILURES", "1")
    broken = workspace / "broken"
    store = Breaking(str(broken), kind).filesystem()

    def break_it(step: int) -> None:
        if step == 3 and not (workspace / "was_broken").exists():
            broken.touch()
            (workspace / "was_broken").touch()

    (result,) = tuner(workspace, store, config={"hook": break_it}).fit()
    check_storage_faults(result, "unavailable" if kind == "timeout" else kind)
    assert starts(workspace / "log") == [0, 2]
    path = str(workspace / "storage" / "fit")
    assert verified(path) == [1, 2]
    broken.unlink()
    result = restored(path, store, resume_errored=True)
    assert result.error is None
    assert starts(workspace / "log") == [0, 2, 2]
    assert verified(path) == [STEPS - 1, STEPS]


def check_storage_faults(result: Any, kind: str) -> None:
    """The first failure was free, the second ended the trial; both are the storage's."""
    assert isinstance(result.error, TrainingError)
    assert [fault.cause for fault in result.faults] == [Cause.STORAGE] * 2
    assert [fault.charge for fault in result.faults] == [Charge.INFRASTRUCTURE, Charge.FAILURE]
    assert all(f"Storage {kind}: " in fault.detail for fault in result.faults)


# --- a full disk ---------------------------------------------------------------------------------


@contextlib.contextmanager
def sampled(path: str) -> Iterator[Counter[bool]]:
    """Count whether there is a verified checkpoint, every few ms from the first one on."""
    over = threading.Event()
    seen: Counter[bool] = Counter()

    def sample() -> None:
        while not verified(path) and not over.is_set():
            over.wait(0.01)
        while not over.wait(0.01):
            # One may go, and a newer one come, between listing and reading.
            seen[any(verified(path) for _ in range(3))] += 1

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_a_full_disk_costs_no_checkpoint_and_is_forgotten_when_there_is_space(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIALS_STORAGE_RETRY_S", "0.5")
    monkeypatch.setenv("RAYTRIALS_MAX_INFRA_FAILURES", "1")
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    # The end of a fit waits for what it has recorded, so long and no longer.
    monkeypatch.setattr("raytrials.driver.recorded.CLOSE_S", 3.0)
    monkeypatch.setattr("raytrials.driver.recorded.LEAST_PATIENCE_S", 0.5)
    filler = workspace / "small" / "filler"

    def fill_once(step: int) -> None:
        if step == 4 and not (workspace / "was_full").exists():
            (workspace / "was_full").touch()
            fill(filler)

    path = str(workspace / "small" / "fit")
    with small_disk(workspace / "small") as disk, sampled(path) as seen:
        (result,) = tuner(
            workspace, path=str(disk), config={"hook": fill_once}, num_to_keep=1
        ).fit()
        check_storage_faults(result, "full")
        # What the deletion of an older one gives back may do for one more.
        newest = verified(path)[-1]
        assert newest in {3, 4}
        filler.unlink()
        result = restored(path, resume_errored=True)
        assert result.error is None
        # Also for the one that the fault was about, when it is tried again.
        first, again, last = starts(workspace / "log")
        assert (first, last) == (0, newest)
        assert again in {3, 4}
        assert verified(path) == [STEPS]
    assert seen[True] > 10
    assert not seen[False]


# --- filesystems by other names ------------------------------------------------------------------


@pytest.mark.parametrize("way", ["file-url", "fsspec", "subtree"])
def test_a_local_disk_is_one_by_whatever_name_it_is_given(workspace: Path, way: str) -> None:
    storage = workspace / "storage"
    storage.mkdir()
    path, filesystem = {
        "file-url": (f"file://{storage}", None),
        "fsspec": (str(storage), LocalFileSystem()),
        "subtree": ("storage", fs.SubTreeFileSystem(str(workspace), fs.LocalFileSystem())),
    }[way]
    interrupt(workspace, filesystem, path=path)
    result = restored(f"{path}/fit", filesystem)
    assert (result.error, result.faults) == (None, ())
    assert starts(workspace / "log") == [0, 3]
    assert verified(str(storage / "fit")) == [STEPS - 1, STEPS]
