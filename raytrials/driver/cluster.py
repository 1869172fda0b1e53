"""What the cluster says of its nodes: alive, dead, being preempted, without raytrials.

A node that is killed first shows as an actor that cannot be reached; the node table knows some
seconds later. :class:`Cluster` looks at the table at intervals and never waits for it. What follows
from its answers is decided elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import exceptions

from raytrials import _ray
from raytrials.core.fault import Cause
from raytrials.errors import PackageMissingError

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
PROBE_TIMEOUT_S = 60.0
_DOUBTFUL = frozenset({Cause.WORKER_DIED, Cause.ACTOR_UNAVAILABLE})


class Cluster:
    """The node table, looked at every `REFRESH_S` at most, and what was learnt from it.

    Attributes:
        without_package: hex ids of nodes whose workers cannot import raytrials.
    """

    def __init__(self) -> None:
        self.without_package: set[str] = set()
        self._nodes: Mapping[str, Mapping[str, Any]] = {}
        self._drained: set[str] = set()
        self._look_again_s = float("-inf")
        self._probes: dict[Any, str] = {}
        self._probed: set[str] = set()

    def look(self, *, at_once: bool = False) -> None:
        """Read the node table again if the last look is old, or `at_once`."""
        now_s = time.monotonic()
        if not at_once and now_s < self._look_again_s:
            return
        self._look_again_s = now_s + REFRESH_S
        try:
            self._nodes = {node["NodeID"]: node for node in ray.nodes()}
            self._drained |= _ray.draining_nodes()
        except exceptions.RayError:
            logger.warning("The cluster's node table does not answer.", exc_info=True)
            return
        self._probe_new_nodes()
        self._read_probes()
        # On a large cluster a look takes its time: at most one part in twenty of the driver's.
        took_s = time.monotonic() - now_s
        self._look_again_s = now_s + max(REFRESH_S, 20 * took_s)

    # --- why an actor went away ------------------------------------------------------------------

    def verdict(self, cause: Cause, node_id: str | None) -> tuple[Cause, bool]:
        """Return why an actor on this node went away, and whether that is certain by now.

        What is no death or silence of an actor is certain as it is.
        """
        if cause not in _DOUBTFUL or node_id is None:
            return cause, True
        node = self._nodes.get(node_id)
        if node_id in self._drained or (node and node["DeathReason"] == _ray.PREEMPTED_DEATH):
            return Cause.PREEMPTED, True
        if node is not None and not node["Alive"]:
            return Cause.NODE_LOST, True
        return cause, False

    # --- which nodes will do ---------------------------------------------------------------------

    @property
    def leaving(self) -> frozenset[str]:
        """Hex ids of live nodes that are being drained."""
        return frozenset(self._drained & self._alive())

    def avoidable(
        self, suspects: Sequence[str], bundles: Sequence[Mapping[str, float]]
    ) -> frozenset[str]:
        """Return the suspect nodes that a request can stay off; none if nothing else fits it.

        Args:
            suspects: hex ids of nodes, the worst last: if not all can be avoided, the first of them
                are not.
            bundles: what is requested; each bundle has to fit into a whole live node.
        """
        alive = self._alive()
        worse = [node_id for node_id in suspects if node_id in alive]
        while worse:
            others = alive.difference(worse, self.without_package)
            totals = [self._nodes[node_id]["Resources"] for node_id in others]
            if all(any(_fits(bundle, total) for total in totals) for bundle in bundles):
                break
            worse = worse[1:]
        return frozenset(worse)

    def _alive(self) -> set[str]:
        return {node_id for node_id, node in self._nodes.items() if node["Alive"]}

    def _with_processors(self) -> set[str]:
        return {one for one in self._alive() if self._nodes[one]["Resources"].get("CPU", 0) > 0}

    # --- is raytrials on every node? -------------------------------------------------------------

    def require_package(self) -> None:
        """Wait until some node is known to have raytrials.

        Raises:
            PackageMissingError: no node has it.
        """
        self.look(at_once=True)
        deadline_s = time.monotonic() + PROBE_TIMEOUT_S
        while self._probes and time.monotonic() < deadline_s:
            if self._with_processors() - set(self._probes.values()) - self.without_package:
                return
            ray.wait(list(self._probes), timeout=REFRESH_S)
            self._read_probes()
        if self.without_package and self._with_processors() <= self.without_package:
            raise PackageMissingError(tuple(sorted(self.without_package)))

    def _probe_new_nodes(self) -> None:
        """Ask each node once, but for the driver's own, which has the driver's packages."""
        new = self._with_processors() - self._probed
        self._probed |= new
        own_environment = bool(new) and _ray.has_runtime_environment()
        for node_id in new:
            if own_environment or node_id != _ray.own_node():
                self._probes[_ray.ask_for_package(node_id)] = node_id

    def _read_probes(self) -> None:
        ready, _ = ray.wait(list(self._probes), num_returns=len(self._probes), timeout=0)
        for probe in ready:
            node_id = self._probes.pop(probe)
            try:
                found = bool(ray.get(probe))
            except exceptions.RayError:
                logger.debug("Node %s did not answer.", node_id, exc_info=True)
                continue
            if not found:
                self.without_package.add(node_id)
                logger.error(
                    "Node %s (%s) has no package raytrials, and is avoided. Install the driver's "
                    "version there, or put it into the runtime environment of ray.init().",
                    node_id,
                    self._nodes[node_id]["NodeManagerHostname"],
                )


def _fits(bundle: Mapping[str, float], total: Mapping[str, float]) -> bool:
    return all(total.get(name, 0) >= amount for name, amount in bundle.items())
