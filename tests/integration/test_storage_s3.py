"""An experiment on S3: workers and drivers are killed, and the newest whole checkpoint counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import s3fs
from pyarrow.fs import FileSelector
from ray import tune
from support.fits import finish, kill_driver, last_json, start, wait_until
from support.looking import verdicts, verified
from support.s3 import BUCKET, CREDENTIALS, WAYS, filesystem, gate, place, s3_server
from support.telling import lines, saved, saving, starts

from raytrials import Cause, RetryPolicy, Tuner, refreshing_filesystem
from raytrials.core.fault import Charge
from raytrials.errors import StorageError
from raytrials.store.checkpoint import Verdict
from raytrials.store.location import disk_at, disk_of

SCRIPT = "from support.s3 import main; main()"


@pytest.fixture(scope="module")
def s3() -> Iterator[int]:
    with s3_server() as port:
        yield port


@dataclass(frozen=True)
class Run:
    """What one experiment left behind.

    Attributes:
        log: of its trial.
        at_kill: the checkpoints when the driver was killed.
        at_end: the checkpoints after the restored fit.
        result: what the restored fit gave.
    """

    log: Path
    at_kill: dict[str, tuple[Verdict, int]]
    at_end: dict[str, tuple[Verdict, int]]
    result: dict[str, Any]


@pytest.fixture(scope="module")
def runs(s3: int) -> Iterator[dict[str, Run]]:
    """Kill a worker in an upload, then the driver, then restore; by all ways at once."""
    store = filesystem(s3)

    def all_hold() -> bool:
        return all("saved 4" in lines(workspace / way) and has_state(way) for way in WAYS)

    def has_state(way: str) -> bool:
        names = [
            one.base_name
            for one in store.get_file_info(FileSelector(f"{BUCKET}/{way}", allow_not_found=True))
        ]
        return any(name.startswith("experiment_state") for name in names)

    def look() -> dict[str, Any]:
        return {way: verdicts(f"{BUCKET}/{way}", store) for way in WAYS}

    with TemporaryDirectory(prefix="rw") as directory:
        workspace = Path(directory)
        environment = {**CREDENTIALS, "TMPDIR": directory}
        driver = start(SCRIPT, directory, str(s3), "fit", **environment)
        try:
            wait_until(all_hold, alive=lambda: driver.poll() is None)
        finally:
            output = kill_driver(driver)
        at_kill = look()
        (workspace / "go").touch()
        output = finish(start(SCRIPT, directory, str(s3), "restore", **environment))
        results, at_end = last_json(output), look()
        yield {way: Run(workspace / way, at_kill[way], at_end[way], results[way]) for way in WAYS}


@pytest.mark.parametrize("way", WAYS)
def test_a_trial_goes_on_from_its_newest_checkpoint_whoever_is_killed(
    runs: dict[str, Run], way: str
) -> None:
    run = runs[way]
    assert run.result["count"] == 6, run
    assert starts(run.log) == [0, 2, 4]
    assert saved(run.log) == [1, 2, 3, 4, 5, 6]
    assert run.result["error"] == "None"


@pytest.mark.parametrize("way", WAYS)
def test_an_upload_that_was_cut_off_is_no_checkpoint(runs: dict[str, Run], way: str) -> None:
    run = runs[way]
    # What the killed worker had uploaded is swept, unless the driver dies before it is sure.
    for found in (run.at_kill, run.at_end):
        assert {one[0] for one in found.values()} <= {Verdict.VERIFIED, Verdict.INCOMPLETE}


@pytest.mark.parametrize("way", WAYS)
def test_num_to_keep_holds_and_what_is_kept_verifies(runs: dict[str, Run], way: str) -> None:
    run = runs[way]
    kept = [found[1] for found in run.at_end.values() if found[0] is Verdict.VERIFIED]
    assert sorted(kept) == [5, 6]
    whole = [found[1] for found in run.at_kill.values() if found[0] is Verdict.VERIFIED]
    assert {3, 4} <= set(whole)
    # One that is put out goes when a state without it is on storage.
    assert len(whole) <= 4


@pytest.mark.parametrize("wrap", [lambda fs: fs, lambda fs: refreshing_filesystem(lambda: fs)])
def test_what_other_processes_write_and_delete_is_seen(s3: int, wrap: Any) -> None:
    path, listing = place("s3fs", s3, f"{BUCKET}/seen")
    disk, path = disk_at(path, wrap(listing))
    other = disk_of(filesystem(s3))
    disk.write(f"{path}/one/a", b"1")
    assert disk.list_names(path) == {"one"}
    other.write(f"{path}/two/b", b"2")
    assert disk.list_names(path) == {"one", "two"}
    assert disk.read(f"{path}/two/b") == b"2"
    other.write(f"{path}/two/c", b"3")
    assert disk.read(f"{path}/two/c") == b"3"
    other.delete_tree(f"{path}/one")
    assert disk.list_names(path) == {"two"}
    disk.delete_tree(f"{path}/two")
    assert other.list_names(path) == set()


# --- credentials that expire ---------------------------------------------------------------------


@pytest.fixture
def gated(s3: int, workspace: Path) -> Iterator[tuple[int, Path]]:
    """A port where the only key that counts is the one in a file, and the file."""
    key_file = workspace / "key"
    key_file.write_text("first")
    with gate(s3, key_file) as port:
        yield port, key_file


def rotate_in(step: int, key_file: Path) -> Any:
    """Return a hook that makes another key count from a step on."""

    def hook(now: int) -> None:
        if now == step:
            new = key_file.with_name("key.new")
            new.write_text("second")
            new.replace(key_file)

    return hook


class Recovered(tune.Callback):
    """Sees the ledger of a trial that is tried again."""

    def __init__(self) -> None:
        self.faults: list[Any] = []

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.faults = trial.account.faults


def fit_behind(
    gated: tuple[int, Path], workspace: Path, store: Any, name: str, **run: Any
) -> tuple[Any, str]:
    (result,) = Tuner(
        saving,
        param_space={"log": str(workspace / "log"), "hook": rotate_in(3, gated[1])},
        run_config=tune.RunConfig(
            name=name,
            storage_path=BUCKET,
            storage_filesystem=store,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            **run,
        ),
        retry_policy=RetryPolicy(backoff_initial_s=0, max_infra_failures=1),
    ).fit()
    return result, f"{BUCKET}/{name}"


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("way", ["pyarrow", "s3fs"])
def test_renewed_credentials_are_no_ones_fault(
    s3: int, gated: tuple[int, Path], workspace: Path, way: str
) -> None:
    port, key_file = gated
    url = f"http://127.0.0.1:{port}"

    def make() -> Any:
        key = key_file.read_text()
        if way == "pyarrow":
            return filesystem(port, key)
        return s3fs.S3FileSystem(key=key, secret="testing", endpoint_url=url)

    result, path = fit_behind(gated, workspace, refreshing_filesystem(make), f"renewed-{way}")
    assert (result.error, result.faults) == (None, ())
    assert saved(workspace / "log") == [1, 2, 3, 4, 5]
    assert verified(path, filesystem(s3)) == [4, 5]
    again = Tuner.restore(path, saving, storage_filesystem=filesystem(s3)).get_results()
    assert again[0].metrics["count"] == 5


@pytest.mark.usefixtures("ray_local")
def test_expired_credentials_are_the_storages_fault(
    s3: int, gated: tuple[int, Path], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIALS_STORAGE_RETRY_S", "5")
    port, key_file = gated
    recovered, path = Recovered(), f"{BUCKET}/expired"
    # Nothing more is started without the journal, and no waiting opens it again.
    with pytest.raises(StorageError, match="ExpiredToken") as raised:
        fit_behind(gated, workspace, filesystem(port, "first"), "expired", callbacks=[recovered])
    assert raised.value.kind == "forbidden"
    assert [fault.cause for fault in recovered.faults] == [Cause.STORAGE]
    assert [fault.charge for fault in recovered.faults] == [Charge.INFRASTRUCTURE]
    assert all("Storage forbidden: " in fault.detail for fault in recovered.faults)
    assert verified(path, filesystem(s3)) == [1, 2]
    store = filesystem(port, key_file.read_text())
    (result,) = Tuner.restore(path, saving, True, True, storage_filesystem=store).fit()
    assert result.error is None
    assert starts(workspace / "log")[-1] == 2
    assert verified(path, store) == [4, 5]
