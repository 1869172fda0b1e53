"""A worker that was given up for dead goes on saving, and disturbs nobody."""

from __future__ import annotations

import tempfile

import pytest
from support.fits import finish, last_json, start

SCRIPT = """
import json, sys, threading
from pathlib import Path
import pyarrow.fs
from ray import tune
from support.nodes import JoinAfterFreeze, outliving, running_nodes, thaw, wait_for
import raytrials
from raytrials.store.checkpoint import inspect
from raytrials.store.location import disk_of

found = {}
with running_nodes() as nodes:
    for kind, filesystem in {
        "local": None,
        "object store": raytrials.refreshing_filesystem(pyarrow.fs.LocalFileSystem),
    }.items():
        directory = Path(sys.argv[1], kind.replace(" ", "-"))
        directory.mkdir()
        node = nodes.add()
        seen = {}

        def strike():
            holding = directory / "holding"
            wait_for(lambda: holding.exists() and holding.read_text())
            nodes.freeze(node)
            worker = int(holding.read_text())
            wait_for((directory / "waiting").exists, 120)
            thaw(worker)
            (directory / "go").touch()
            wait_for(lambda: late(directory), 60)
            (directory / "finish").touch()

        def late(directory):
            manifests = directory.glob("storage/fit/*/checkpoint_*/.raytrials-manifest.json")
            headers = [json.loads(path.read_text()) for path in manifests]
            return [one for one in headers if one["attempt"] == 1 and one["iteration"] == 3]

        striker = threading.Thread(target=strike, daemon=True)
        striker.start()

        result = raytrials.Tuner(
            outliving,
            param_space={"directory": str(directory)},
            run_config=tune.RunConfig(
                name="fit", storage_path=str(directory / "storage"), verbose=0,
                storage_filesystem=filesystem, callbacks=[JoinAfterFreeze()],
            ),
        ).fit()[0]
        striker.join()
        disk = disk_of(filesystem or pyarrow.fs.LocalFileSystem())
        checkpoints = {}
        for path in sorted(Path(result.path).glob("checkpoint_*")):
            finding = inspect(disk, str(path), full=True)
            header = finding.manifest.header
            owners = sorted(name for name in finding.manifest.files if name.startswith("attempt"))
            checkpoints[path.name] = [
                finding.verdict, header.attempt, header.iteration, owners
            ]
        found[kind] = {
            "error": repr(result.error), "count": result.metrics["count"],
            "charges": [fault.charge for fault in result.faults],
            "checkpoints": checkpoints, "latest": Path(result.checkpoint.path).name,
        }
        for one in list(nodes.nodes):
            nodes.kill(one)
print(json.dumps(found))
"""


@pytest.mark.timeout(280)
def test_a_worker_that_is_cut_off_shares_no_directory_with_its_replacement() -> None:
    with tempfile.TemporaryDirectory(prefix="rw") as directory:
        found = last_json(finish(start(SCRIPT, directory)))
    for kind in ("local", "object store"):
        one = found[kind]
        assert one["error"] == "None", kind
        assert one["count"] == 6
        assert one["charges"] == ["infrastructure"]
        by_attempt: dict[int, list[int]] = {1: [], 2: []}
        for verdict, attempt, iteration, owners in one["checkpoints"].values():
            assert verdict == "verified"
            assert owners == [f"attempt-{attempt}"]
            by_attempt[attempt].append(iteration)
        # Both attempts saved step 3, each under a name of its own.
        assert by_attempt == {1: [1, 2, 3], 2: [3, 4, 5, 6]}
        assert one["latest"] == max(one["checkpoints"])
