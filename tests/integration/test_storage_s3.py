"""An experiment on S3: workers and drivers are killed, and the newest whole checkpoint counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pyarrow.fs import FileSelector
from support.fits import finish, kill_driver, last_json, start, wait_until
from support.looking import verdicts
from support.s3 import BUCKET, CREDENTIALS, WAYS, filesystem, place, s3_server
from support.saving import lines, saved, starts

from raytrials import refreshing_filesystem
from raytrials.store.checkpoint import Verdict
from raytrials.store.disk import disk_at, disk_of

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
    (partial,) = [name for name, found in run.at_kill.items() if found[0] is not Verdict.VERIFIED]
    assert run.at_kill[partial][0] is Verdict.INCOMPLETE
    assert run.at_end.get(partial, (Verdict.INCOMPLETE, 0))[0] is Verdict.INCOMPLETE


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
