"""Where actors go: placement groups that recovered trials get first, away from suspect nodes.

Ray's manager hands a group that became ready to the first actor that waits for its resources. Here
the group is matched: it goes to the first actor in line that does not avoid the group's nodes, so a
recovered trial at the head of the line takes the next slot whichever group the cluster placed
first. While it waits, groups of other sizes are withdrawn, so that they cannot take its slot.

Nothing here decides which nodes are avoided; that is `raytrials.driver.recovery`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from raytrials import _ray

GIVE_WAY_S = 10.0
"""How long groups of other sizes are held back for a recovered trial that finds no place."""


class Placement(_ray.PlacementGroupResourceManager):  # type: ignore[misc]
    """Ray's placement-group manager, with an order and with nodes to avoid.

    Attributes:
        line: gives the actors that wait for a request, in order; set by the actor manager.
        avoided: nodes that a waiting actor must not get, by actor.
        avoid_next: nodes that the group requested next must not be on.
        shunned: nodes that no group may be on.
    """

    def __init__(self, update_interval_s: float = 0.1) -> None:
        super().__init__(update_interval_s=update_interval_s)
        self.line: Callable[[Any], list[Any]] = lambda _: []
        self.avoided: dict[Any, frozenset[str]] = {}
        self.avoid_next: frozenset[str] = frozenset()
        self.shunned: set[str] = set()
        self._selective: set[PlacementGroup] = set()
        self._matched: dict[Any, PlacementGroup] = {}
        self._favoured: set[Any] = set()
        self._give_way_until = 0.0
        self._withdrawn: Counter[Any] = Counter()

    # --- one request goes first ------------------------------------------------------------------

    def give_way_to(self, request: Any) -> None:
        """Withdraw the waiting groups of all other requests, for `GIVE_WAY_S` at most."""
        self._favoured.add(request)
        self._give_way_until = time.monotonic() + GIVE_WAY_S
        known = {*self._request_to_staged_pgs, *self._request_to_ready_pgs}
        for other in known - self._favoured:
            waiting = len(self._request_to_staged_pgs[other]) + len(
                self._request_to_ready_pgs[other]
            )
            for _ in range(waiting):
                super().cancel_resource_request(other)
            self._withdrawn[other] += waiting
        self._ask_for_withdrawn(request)

    def stop_giving_way(self) -> None:
        """Ask again for the groups that were withdrawn."""
        self._favoured.clear()
        for request in list(self._withdrawn):
            self._ask_for_withdrawn(request)

    def _ask_for_withdrawn(self, request: Any) -> None:
        for _ in range(self._withdrawn.pop(request, 0)):
            self.request_resources(request)

    def _is_held_back(self, request: Any) -> bool:
        if self._favoured and time.monotonic() > self._give_way_until:
            self.stop_giving_way()
        return bool(self._favoured) and request not in self._favoured

    # --- Ray's interface -------------------------------------------------------------------------

    def request_resources(self, resource_request: Any) -> None:
        """Ask the cluster for a group, off the nodes in `avoid_next`."""
        if self._is_held_back(resource_request):
            self._withdrawn[resource_request] += 1
            return
        avoided = self.avoid_next | self.shunned
        if not avoided:
            super().request_resources(resource_request)
            return
        group = placement_group(**_ray.group_arguments(resource_request, avoided))
        if self.avoid_next:
            self._selective.add(group)
        self._pg_to_request[group] = resource_request
        self._request_to_staged_pgs[resource_request].add(group)
        future = group.ready()
        self._staging_future_to_pg[future] = group
        self._pg_to_staging_future[group] = future

    def cancel_resource_request(self, resource_request: Any) -> None:
        """Withdraw one waiting group of this request."""
        if self._withdrawn[resource_request]:
            self._withdrawn[resource_request] -= 1
            return
        super().cancel_resource_request(resource_request)

    def has_resources_ready(self, resource_request: Any) -> bool:
        """Whether a group is ready that some actor in line may have; that one is put first."""
        if self._is_held_back(resource_request):
            return False
        ready = bool(super().has_resources_ready(resource_request))
        line = self.line(resource_request) if self.avoided else []
        if not any(actor in self.avoided for actor in line):
            self._make_plain(resource_request)
            return ready
        return ready and self._match(resource_request, line)

    def acquire_resources(self, resource_request: Any) -> Any:
        """Take the group that was matched, or any that is ready."""
        group = self._matched.pop(resource_request, None)
        if group is None:
            acquired = super().acquire_resources(resource_request)
        else:
            self._request_to_ready_pgs[resource_request].remove(group)
            self._acquired_pgs.add(group)
            acquired = self._resource_cls(placement_group=group, resource_request=resource_request)
        if acquired is not None:
            self._selective.discard(acquired.placement_group)
        return acquired

    # --- matching --------------------------------------------------------------------------------

    def _match(self, request: Any, line: list[Any]) -> bool:
        for group in list(self._request_to_ready_pgs[request]):
            nodes = _nodes_of(group)
            for actor in line:
                if nodes.isdisjoint(self.avoided.get(actor, ())):
                    line.remove(actor)
                    line.insert(0, actor)
                    self._matched[request] = group
                    return True
            # Every actor in line avoids a node of this group: let the cluster find another.
            self._replace(group, self.avoided[line[0]])
        return False

    def _make_plain(self, request: Any) -> None:
        """Lift the conditions of waiting groups when nobody in line needs them any more."""
        if self._selective:
            for group in self._selective & self._request_to_staged_pgs[request]:
                self._replace(group, frozenset())

    def _replace(self, group: PlacementGroup, avoided: frozenset[str]) -> None:
        request = self._pg_to_request.pop(group)
        self._request_to_ready_pgs[request].discard(group)
        self._request_to_staged_pgs[request].discard(group)
        self._selective.discard(group)
        future = self._pg_to_staging_future.pop(group, None)
        if future is not None:
            self._staging_future_to_pg.pop(future)
            ray.cancel(future)
        remove_placement_group(group)
        self.avoid_next, before = avoided, self.avoid_next
        self.request_resources(request)
        self.avoid_next = before


def _nodes_of(group: PlacementGroup) -> set[str]:
    return set(placement_group_table(group)["bundles_to_node_id"].values())
