"""A trial survives the machines it runs on, and is not charged for them."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from support.fits import finish, last_json, start

# One cluster and one driver for all scenarios; each adds the nodes that it breaks.
SCRIPT = """
import json, os, signal, sys, threading, time
from pathlib import Path
from support.nodes import JoinLater, events, running_nodes, slowly, wait_for
import ray
from ray import tune
from raytrials import Tuner

directory = Path(sys.argv[1])


def fit(name, strike, *, trials=1, config=None, max_failures=0, resources=None, callbacks=None):
    log = directory / f"{name}.jsonl"
    seen = {}

    def run():
        try:
            seen.update(strike(log) or {})
        except BaseException as error:
            seen["strike_failed"] = repr(error)

    striker = threading.Thread(target=run, daemon=True)
    striker.start()
    begun = time.time()
    grid = Tuner(
        slowly if resources is None else tune.with_resources(slowly, resources),
        param_space={
            "log": str(log), "name": tune.grid_search([f"t{i}" for i in range(trials)]),
            **(config or {}),
        },
        run_config=tune.RunConfig(
            name=name, storage_path=str(directory / "storage"), verbose=0,
            failure_config=tune.FailureConfig(max_failures=max_failures),
            callbacks=callbacks,
        ),
    ).fit()
    striker.join()
    return {
        "order": [r.config["name"] for r in grid],
        "counts": [r.metrics.get("count") for r in grid],
        "errors": [repr(r.error) for r in grid if r.error],
        "faults": [
            [f.fault_class, f.phase, f.cause, f.charge, f.node_id] for r in grid for f in r.faults
        ],
        "starts": [
            [e["name"], e["start"], e["node"]] for e in events(log) if e["event"] == "start"
        ],
        "seconds": time.time() - begun,
        **seen,
    }


def step_of(log, step):
    return [e for e in events(log) if e["event"] == "step" and e["step"] >= step]


found = {}
with running_nodes() as nodes:
    stable = nodes.add()

    def kill(log, **how):
        wait_for(lambda: step_of(log, 2))
        node = step_of(log, 2)[0]["node"]
        nodes.kill(node, **how)
        return {"lost": node}

    # The trial fills the first node that it gets; two nodes, so that another fits.
    nodes.add()
    found["killed"] = fit("killed", kill, trials=2)
    nodes.add()
    found["raylet_killed"] = fit("raylet_killed", lambda log: kill(log, raylet_only=True), trials=2)
    nodes.add()

    def freeze(log):
        wait_for(lambda: step_of(log, 2))
        node = step_of(log, 2)[0]["node"]
        nodes.freeze(node)
        return {"lost": node}

    found["frozen"] = fit("frozen", freeze, trials=2)
    nodes.add()

    def preempt(log):
        wait_for(lambda: step_of(log, 2))
        node = step_of(log, 2)[0]["node"]
        nodes.drain(node, 60)
        time.sleep(1.5)
        nodes.kill(node)
        return {"lost": node}

    found["preempted"] = fit("preempted", preempt, trials=2)
    nodes.add()

    def kill_worker(log):
        wait_for(lambda: step_of(log, 2))
        first = [e for e in events(log) if e["event"] == "start" and e["name"] == "t0"][0]
        os.kill(first["pid"], signal.SIGKILL)
        return {"failed_on": first["node"]}

    # The only other node is busy for longer than avoidance lasts.
    found["avoidance_dropped"] = fit(
        "avoidance_dropped", kill_worker, trials=2, max_failures=1,
        config={"step_s_of": {"t1": 5}},
    )

    def die_while_restoring(log):
        wait_for(lambda: step_of(log, 2))
        first = [e for e in events(log) if e["event"] == "start"][0]
        os.kill(first["pid"], signal.SIGKILL)
        wait_for(lambda: [e for e in events(log) if e["event"] == "load"])
        load = [e for e in events(log) if e["event"] == "load"][0]
        nodes.kill(load["node"])
        return {"first": first["node"], "lost": load["node"]}

    found["killed_while_restoring"] = fit(
        "killed_while_restoring", die_while_restoring, config={"load_s": 3}, max_failures=1
    )

    # What no node has now, and one has later.
    found["unplaceable"] = fit(
        "unplaceable", lambda log: None, callbacks=[JoinLater()], config={"steps": 1},
        resources=tune.PlacementGroupFactory([{"CPU": 1, "special": 1}]),
    )
    starts = [e for e in events(directory / "unplaceable.jsonl") if e["event"] == "start"]
    found["unplaceable"]["waited_s"] = starts[0]["time"] - JoinLater.joined

    # GPUs and several bundles, on two nodes that both fit.
    for _ in range(2):
        nodes.add(num_cpus=2, num_gpus=1)
    found["bundles"] = fit(
        "bundles", kill_worker, max_failures=1,
        resources=tune.PlacementGroupFactory([{"CPU": 1, "GPU": 1}, {"CPU": 1}], strategy="PACK"),
    )
    states = list((directory / "storage" / "bundles").glob("experiment_state-*.json"))
    found["saved_node_names"] = sum("ray.io/node-id" in s.read_text() for s in states)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rw") as directory:
        seen: dict[str, Any] = last_json(finish(start(SCRIPT, directory), timeout_s=280))
    return seen


LOST = {
    "killed": "node_lost",
    "raylet_killed": "node_lost",
    "frozen": "node_lost",
    "preempted": "preempted",
}


@pytest.mark.parametrize("how", LOST)
def test_a_lost_node_is_named_and_not_charged(found: dict[str, Any], how: str) -> None:
    seen = found[how]
    assert seen["errors"] == []
    assert seen["counts"] == [6, 6]
    assert seen["order"] == ["t0", "t1"]
    assert seen["faults"] == [["actor", "running", LOST[how], "infrastructure", seen["lost"]]]


@pytest.mark.parametrize("how", LOST)
def test_a_trial_goes_on_elsewhere_from_its_checkpoint(found: dict[str, Any], how: str) -> None:
    seen = found[how]
    _, step, node = seen["starts"][-1]
    assert step >= 2
    assert node != seen["lost"]


def test_a_node_lost_while_restoring_costs_no_restore_retry(found: dict[str, Any]) -> None:
    seen = found["killed_while_restoring"]
    assert seen["errors"] == []
    died, lost = seen["faults"]
    assert died == ["actor", "running", "worker_died", "failure", seen["first"]]
    assert lost == ["restore", "restoring", "node_lost", "infrastructure", seen["lost"]]
    assert seen["lost"] != seen["first"], "the node of the failure was not avoided"


def test_a_trial_leaves_the_node_of_its_failure_with_all_its_bundles(
    found: dict[str, Any],
) -> None:
    seen = found["bundles"]
    assert seen["errors"] == []
    assert [fault[2] for fault in seen["faults"]] == ["worker_died"]
    assert seen["starts"][0][2] == seen["failed_on"]
    assert seen["starts"][1][2] != seen["failed_on"]
    assert seen["starts"][1][1] >= 2
    assert found["saved_node_names"] == 0


def test_a_trial_that_finds_no_other_place_goes_back(found: dict[str, Any]) -> None:
    seen = found["avoidance_dropped"]
    assert seen["errors"] == []
    assert seen["counts"] == [6, 6]
    again = [start for start in seen["starts"] if start[0] == "t0"][1]
    assert again[2] == seen["failed_on"]


def test_a_trial_that_no_node_can_take_waits_and_is_not_charged(found: dict[str, Any]) -> None:
    seen = found["unplaceable"]
    assert (seen["errors"], seen["faults"], seen["counts"]) == ([], [], [1])
    assert 0 < seen["waited_s"] < 10
