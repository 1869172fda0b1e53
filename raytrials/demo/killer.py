"""The faults of the demo: when workers and a node are killed, and the callback that kills them."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from typing import Any

from ray import tune

from raytrials.demo.job import Scratch
from raytrials.demo.nodes import Nodes
from raytrials.demo.table import tell

GRACE_EPOCHS = 2


@dataclass(frozen=True)
class Plan:
    """How large a run is, and what strikes it.

    Attributes:
        trials: configs that are tried.
        epochs: epochs of a trial that ASHA never stops.
        kills_after: results that have come before each kill of a worker, ascending.
        node_lost_after: results that have come before a node is killed; None for no such kill.
    """

    trials: int
    epochs: int
    kills_after: tuple[int, ...]
    node_lost_after: int | None


QUICK = Plan(trials=12, epochs=8, kills_after=(6, 18), node_lost_after=28)
FULL = Plan(trials=16, epochs=32, kills_after=(20, 60, 100), node_lost_after=80)


class Killer(tune.Callback):  # type: ignore[misc]
    """Kills workers and a node at planned results, and says how the search goes.

    A kill strikes the worker that has just reported, before the driver knows the checkpoint of that
    epoch: what a real death costs. Each strikes another trial, once it has an older checkpoint. The
    first victim's next worker kills itself while it restores.

    Args:
        plan: when to kill.
        scratch: directory of :class:`Scratch`. Once it is gone nothing is killed, so that an
            experiment that is restored later runs undisturbed.
    """

    def __init__(self, plan: Plan, scratch: str) -> None:
        self._plan = plan
        self._scratch = Scratch(scratch)
        self._results = 0
        self._finished = 0
        self._victims: list[str] = []
        self._pids: dict[str, int] = {}
        self._nodes: dict[str, str] = {}
        self._has_lost_node = False

    def on_trial_result(self, *, trial: Any, result: dict[str, Any], **_: Any) -> None:
        """Kill the worker that reported, if a kill is due and this worker is fit for it."""
        self._results += 1
        pid, epoch = result["pid"], result["epoch"]
        if self._pids.setdefault(trial.trial_id, pid) != pid:
            self._pids[trial.trial_id] = pid
            tell(f"trial {trial.trial_id} is back with epoch {epoch}, in worker {pid}")
        self._nodes[trial.trial_id] = result["node"]
        if not self._is_fit(trial.trial_id, result):
            return
        if self._is_node_due():
            self._lose_node(result["node"])
        # A report that is taken over comes from a worker that is dead, or was on the lost node.
        if not self._is_due() or not _kill(pid):
            return
        plot = ""
        if not self._victims:
            self._scratch.plan_restore_kill(trial.trial_id)
            plot = "; its next one is to die while it loads the checkpoint"
        self._victims.append(trial.trial_id)
        tell(f"trial {trial.trial_id}: worker {pid} KILLED after epoch {epoch}{plot}")

    def _is_node_due(self) -> bool:
        after = self._plan.node_lost_after
        return after is not None and not self._has_lost_node and self._results >= after

    def _lose_node(self, node_id: str) -> None:
        there = [trial_id for trial_id, node in self._nodes.items() if node == node_id]
        workers = {self._pids[trial_id] for trial_id in there}
        if Nodes.current is not None and Nodes.current.lose(node_id, workers):
            self._has_lost_node = True
            tell(f"node {node_id[:8]} KILLED with all that ran on it; another one joined")

    def _is_due(self) -> bool:
        to_come = self._plan.kills_after[len(self._victims) :]
        return bool(to_come) and self._results >= to_come[0]

    def _is_fit(self, trial_id: str, result: dict[str, Any]) -> bool:
        return (
            trial_id not in self._victims
            and result["epoch"] > GRACE_EPOCHS
            and not result.get("done")
            and result["hostname"] == socket.gethostname()
            and self._scratch.staging is not None
        )

    def on_trial_recover(self, *, trial: Any, **_: Any) -> None:
        """Say that a trial goes on."""
        tell(f"trial {trial.trial_id} lost its worker and is tried again")

    def on_trial_complete(self, **_: Any) -> None:
        """Say how far the search is, every fourth trial."""
        self._finished += 1
        if self._finished % 4 == 0:
            tell(f"{self._finished} of {self._plan.trials} trials finished")


def _kill(pid: int) -> bool:
    """Kill a process; return whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
