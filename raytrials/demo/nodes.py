"""The machines of the demo: a Ray head and two nodes, all of them processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

NODES = 2
MEMORY_BYTES = 100 * 1024 * 1024


class Nodes:
    """The nodes that run. There is one set at a time, so that a saved callback can find it."""

    current: Nodes | None = None

    def __init__(self) -> None:
        # The head runs no trial; it is what the driver is connected to.
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY_BYTES}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}
        for _ in range(NODES):
            self.add()

    def add(self) -> None:
        """Add a node."""
        num_cpus = max(1, min(4, os.cpu_count() or 1) // NODES)
        node = self.cluster.add_node(num_cpus=num_cpus, object_store_memory=MEMORY_BYTES)
        self._nodes[node.node_id] = node

    def lose(self, node_id: str, workers: Iterable[int]) -> bool:
        """End a node's processes at once, as a reclaimed machine does, and add another.

        Args:
            node_id: hex id of the node.
            workers: process ids of the workers on it.

        Returns:
            Whether there was such a node.
        """
        node = self._nodes.pop(node_id, None)
        if node is None:
            return False
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)
        self.add()
        return True


@contextlib.contextmanager
def ray_directory() -> Iterator[str]:
    """Give a directory that is Ray's temporary one for this process and its clusters, and goes.

    It also keeps the note of the current cluster's address, for which Ray makes no directory, out
    of the way of other clusters.
    """
    with tempfile.TemporaryDirectory(prefix="rt", ignore_cleanup_errors=True) as directory:
        before = os.environ.get("RAY_TMPDIR")
        os.environ["RAY_TMPDIR"] = directory
        try:
            Path(directory, "ray").mkdir()
            yield directory
        finally:
            if before is None:
                del os.environ["RAY_TMPDIR"]
            else:
                os.environ["RAY_TMPDIR"] = before


@contextlib.contextmanager
def running_nodes() -> Iterator[None]:
    """Run the nodes and connect to them; use the Ray that this process is connected to, if any."""
    if ray.is_initialized():
        yield
        return
    with ray_directory():
        nodes = Nodes.current = Nodes()
        try:
            ray.init(
                address=nodes.cluster.address, log_to_driver=False, logging_level=logging.ERROR
            )
            yield
        finally:
            Nodes.current = None
            ray.shutdown()
            nodes.cluster.shutdown()
