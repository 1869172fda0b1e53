"""A cluster of several nodes on this machine, whose nodes are killed, frozen and drained."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import support.session  # noqa: F401 - sets the environment before Ray is imported

# A node that is silent for 3 s is dead.
os.environ["RAY_health_check_initial_delay_ms"] = "1000"
os.environ["RAY_health_check_period_ms"] = "1000"
os.environ["RAY_health_check_timeout_ms"] = "1000"
os.environ["RAY_health_check_failure_threshold"] = "3"

import psutil
import ray
from ray import tune
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from raytrials.demo.nodes import ray_directory

MEMORY_BYTES = 120_000_000


class Nodes:
    """A running cluster: a head without processors, and nodes that come and go."""

    def __init__(self, directory: str) -> None:
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": MEMORY_BYTES,
                "include_dashboard": False,
                "temp_dir": directory,
            },
        )
        self.nodes: dict[str, Any] = {}
        self.frozen: list[int] = []

    def add(self, num_cpus: int = 1, **options: Any) -> str:
        """Add a node and return its id."""
        node = self.cluster.add_node(num_cpus=num_cpus, object_store_memory=MEMORY_BYTES, **options)
        self.nodes[node.node_id] = node
        return str(node.node_id)

    def kill(self, node_id: str, *, raylet_only: bool = False) -> None:
        """SIGKILL a node's processes, all at once or the raylet alone."""
        if raylet_only:
            self.cluster.remove_node(self.nodes.pop(node_id), allow_graceful=False)
            return
        for pid in self._pids(self.nodes.pop(node_id)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self, node_id: str) -> None:
        """SIGSTOP a node's processes."""
        frozen = self._pids(self.nodes.pop(node_id))
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.frozen += frozen

    def drain(self, node_id: str, in_s: float) -> None:
        """Announce that a node is preempted in so many seconds."""
        accepted, reason = GcsClient(address=self.cluster.address).drain_node(
            node_id,
            autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
            "preempted",
            int((time.time() + in_s) * 1000),
        )
        assert accepted, reason

    def _pids(self, node: Any) -> set[int]:
        processes = [one.process for many in node.all_processes.values() for one in many]
        found = {process.pid for process in processes}
        for pid in list(found):
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        return found

    def shutdown(self) -> None:
        """End all processes, frozen ones too."""
        ray.shutdown()
        for pid in self.frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.shutdown()


class JoinLater(tune.Callback):
    """Adds a node with a `special` resource, some seconds into a fit.

    A node can be started by the main thread only, which is the one that runs the fit.
    """

    nodes: Nodes
    begun = 0.0
    joined = 0.0

    def on_step_begin(self, **_: Any) -> None:
        """Add it when it is time."""
        kind = type(self)
        kind.begun = kind.begun or time.time()
        if not kind.joined and time.time() > kind.begun + 3:
            kind.joined = time.time()
            kind.nodes.add(resources={"special": 1})


class JoinAfterFreeze(tune.Callback):
    """Adds a node, from the main thread as above, each time that one was frozen."""

    nodes: Nodes
    answered = 0

    def on_step_begin(self, **_: Any) -> None:
        """Add it when it is time."""
        kind = type(self)
        if len(kind.nodes.frozen) > kind.answered:
            kind.answered = len(kind.nodes.frozen)
            kind.nodes.add()


@contextlib.contextmanager
def running_nodes() -> Iterator[Nodes]:
    """Run a cluster, and a driver connected to it."""
    with ray_directory() as directory:
        nodes = Nodes(directory)
        try:
            JoinLater.nodes = JoinAfterFreeze.nodes = nodes
            ray.init(address=nodes.cluster.address, log_to_driver=False, logging_level="ERROR")
            yield nodes
        finally:
            nodes.shutdown()


def slowly(config: dict[str, Any]) -> None:
    """Count to `steps`, a step in `step_s`, with a checkpoint each; log node and start."""
    log = Path(config["log"])
    name = config["name"]
    start, checkpoint = 0, tune.get_checkpoint()
    node_id = ray.get_runtime_context().get_node_id()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            start = json.loads(Path(directory, "step").read_text())
            note(log, name=name, event="load", node=node_id, pid=os.getpid())
            time.sleep(config.get("load_s", 0))
    note(log, name=name, event="start", start=start, node=node_id, pid=os.getpid())
    step_s = config.get("step_s_of", {}).get(name, 0.5)
    for step in range(start + 1, config.get("steps", 6) + 1):
        time.sleep(step_s)
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step").write_text(json.dumps(step))
            tune.report({"count": step}, checkpoint=tune.Checkpoint.from_directory(directory))
        note(log, name=name, event="step", step=step, node=node_id)


def note(log: Path, **event: Any) -> None:
    """Append an event to a log that several processes write."""
    with log.open("a") as file:
        file.write(json.dumps({**event, "time": time.time()}) + "\n")


def events(log: Path) -> list[dict[str, Any]]:
    """Return the events so far."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("the condition did not come true")
        time.sleep(0.05)


def thaw(pid: int) -> None:
    """Let one process of a frozen node go on; its raylet stays frozen."""
    os.kill(pid, signal.SIGCONT)


def outliving(config: dict[str, Any]) -> None:
    """Save six steps. The first attempt is held in its third save, the second before its last step.

    Files in `directory` say where they are (`holding`, `waiting`) and let them go (`go`, `finish`).
    """
    from raytrials.store import commit as store  # noqa: PLC0415 - in the worker

    directory = Path(config["directory"])
    begin, given = 0, tune.get_checkpoint()
    if given:
        with given.as_directory() as path:
            begin = json.loads(Path(path, "step").read_text())
    first = given is None
    write_manifest = store._Copy.write_manifest

    def hold(self: Any, manifest: Any) -> None:
        if first and manifest.header.iteration == 3:
            (directory / "holding").write_text(str(os.getpid()))
            wait_for((directory / "go").exists, 120)
        write_manifest(self, manifest)

    store._Copy.write_manifest = hold
    for step in range(begin + 1, 7):
        if not first and step == 6:
            (directory / "waiting").touch()
            wait_for((directory / "finish").exists, 120)
        with tempfile.TemporaryDirectory() as path:
            Path(path, "step").write_text(json.dumps(step))
            Path(path, f"attempt-{1 if first else 2}").touch()
            tune.report({"count": step}, checkpoint=tune.Checkpoint.from_directory(path))
