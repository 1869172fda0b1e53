"""What a driver asks of Ray, answered by a fake cluster: no process of Ray's runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray

from raytrials import _ray
from raytrials.chaos import FakeCluster
from raytrials.driver import controller
from support.fake_actors import FakeActorManager, Takes

ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_INIT": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_MAX_PENDING_TRIALS_PG": "100",
    "TUNE_WARN_THRESHOLD_S": "1e9",
    "_TEST_TUNE_TRIAL_UUID": "fake",
}


@contextlib.contextmanager
def fake_ray(cluster: FakeCluster, takes_s: Takes, session: Path) -> Iterator[None]:
    """Within this block drivers run on a fake cluster.

    Args:
        cluster: where their actors are.
        takes_s: how long what these do takes.
        session: a directory for what Ray keeps on the machine.
    """
    asked = _Asked(cluster)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr(_ray.StorageContext, "_get_session_path", lambda _: str(session))
        patch.setattr(
            controller,
            "ActorManager",
            lambda resource_manager: FakeActorManager(cluster, takes_s),
        )
        for name in ("nodes", "cluster_resources", "wait", "get"):
            patch.setattr(ray, name, getattr(asked, name))
        for name in ("draining_nodes", "node_of_actor", "own_node", "ask_for_package"):
            patch.setattr(_ray, name, getattr(asked, name))
        patch.setattr(_ray, "has_runtime_environment", lambda: False)
        yield


class _Asked:
    """The answers that are asked for without an actor manager."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": node.name,
                "NodeManagerHostname": node.name,
                "Alive": node.alive,
                "DeathReason": node.death_reason or 0,
                "Resources": {"CPU": float(node.slots)} if node.alive else {},
            }
            for node in self._cluster.nodes().values()
        ]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": sum(node["Resources"].get("CPU", 0.0) for node in self.nodes())}

    def draining_nodes(self) -> frozenset[str]:
        return frozenset(node.name for node in self._cluster.nodes().values() if node.draining)

    def node_of_actor(self, actor_id: str | None) -> str | None:
        return None if actor_id is None else self._cluster.node_of(int(actor_id, 16))

    def own_node(self) -> str:
        return "head"

    # The one question that is asked as a task; each node answers it at once.

    def ask_for_package(self, node_id: str) -> str:
        return node_id

    def wait(self, asked: Sequence[str], **_: Any) -> tuple[list[str], list[str]]:
        return list(asked), []

    def get(self, asked: str) -> bool:
        return True
