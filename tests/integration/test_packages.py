"""A worker without raytrials: the node is named and avoided, and no trial is charged for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.fits import finish, last_json, start

# On a node's PYTHONPATH, it makes every worker there believe that raytrials is not installed.
HIDES_RAYTRIALS = """
import sys

class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "raytrials":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hides())
"""

SCRIPT = """
import json, os, sys
from pathlib import Path
from support.nodes import events, note, running_nodes, slowly
import logging
import ray
from ray import tune
from raytrials import Tuner
from raytrials.errors import PackageMissingError

directory = Path(sys.argv[1])
bare = {"env_vars": {"PYTHONPATH": f"{directory}/hide:{os.environ['PYTHONPATH']}"}}


def fit(name):
    log = directory / f"{name}.jsonl"
    grid = Tuner(
        slowly,
        param_space={"log": str(log), "name": tune.grid_search(["t0", "t1"]), "steps": 2},
        run_config=tune.RunConfig(name=name, storage_path=f"{directory}/storage", verbose=0),
    ).fit()
    return {
        "errors": [repr(r.error) for r in grid if r.error],
        "counts": [r.metrics.get("count") for r in grid],
        "faults": [[f.cause, f.charge, f.node_id] for r in grid for f in r.faults],
        "nodes": [e["node"] for e in events(log) if e["event"] == "step"],
    }


said = []


class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


logging.getLogger("raytrials").addHandler(Keep())
found = {}
with running_nodes() as nodes:
    without = nodes.add(**bare)
    try:
        fit("none")
    except PackageMissingError as error:
        found["none"] = [str(error), list(error.node_ids) == [without]]
        found["started"] = events(directory / "none.jsonl")
    nodes.add(num_cpus=2)
    found["some"] = fit("some")
    found["without"] = without
    found["said"] = [line for line in said if without in line]
print(json.dumps(found))
"""


def test_a_node_without_the_package_is_named_and_avoided(workspace: Path) -> None:
    (workspace / "hide").mkdir()
    (workspace / "hide" / "sitecustomize.py").write_text(HIDES_RAYTRIALS)
    found: dict[str, Any] = last_json(finish(start(SCRIPT, str(workspace))))
    message, names_the_node = found["none"]
    assert names_the_node
    assert "runtime environment" in message
    assert found["started"] == []
    some = found["some"]
    assert some["errors"] == []
    assert some["counts"] == [2, 2]
    assert all(charge == "infrastructure" for _, charge, _ in some["faults"])
    assert found["without"] not in some["nodes"]
    assert any("no package raytrials" in line for line in found["said"])
