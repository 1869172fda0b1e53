"""When and where a failed trial is tried again.

:class:`Recovery` holds what waits: trials whose retry is not due, trials whose end depends on a
charge that is still open, and the charges of trials that run again already. The controller calls
:meth:`Recovery.tick` once a step; nothing here blocks, and nothing here is saved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from raytrials.core.fault import ChargedFault
from raytrials.driver.actors import ActorManager
from raytrials.driver.cluster import Cluster
from raytrials.driver.trial import Trial

logger = logging.getLogger(__name__)

UNPLACED_S = 10.0
"""How long a trial stays off nodes without finding a place, before it takes any node."""

IDLE_S = 0.1


class Recovery:
    """The waiting room of failed trials.

    Args:
        cluster: what is known of the nodes.
        avoid_node_s: how long a trial stays off the node of its failure.
        start: starts a trial's next attempt, ahead of others.
        end: ends a trial for good, after its charge was decided so.
        settled: is told of each trial some of whose open charges were decided.
    """

    def __init__(
        self,
        cluster: Cluster,
        avoid_node_s: float,
        start: Callable[[Trial], None],
        end: Callable[[Trial], None],
        settled: Callable[[Trial], None],
    ) -> None:
        self._cluster = cluster
        self._avoid_node_s = avoid_node_s
        self._start = start
        self._end = end
        self._settled = settled
        self._due_s: dict[Trial, float] = {}
        self._open: dict[Trial, None] = {}
        self._avoiding: dict[Trial, tuple[Any, float]] = {}

    def requeue(self, trial: Trial) -> None:
        """Take a failed trial: start it at once, or hold it until it is due."""
        if trial.open_charges:
            self._open[trial] = None
        if trial.might_end() or trial.retry_delay_s > 0:
            self._due_s[trial] = trial.retry_due_s
        else:
            self._start(trial)

    @property
    def held(self) -> int:
        """How many trials must not start yet."""
        return len(self._due_s)

    def is_held(self, trial: Trial) -> bool:
        """Whether the trial must not start yet."""
        return trial in self._due_s

    def outlook(self, trial: Trial) -> str:
        """Return what becomes of a trial that has failed, in words: "is tried again in 6 s"."""
        if trial.status == Trial.ERROR:
            return "is ended"
        if trial.is_finished():
            return "had ended already"
        if trial.status == Trial.PAUSED:
            return "is paused"
        if trial in self._due_s and trial.might_end():
            return "waits for its charge to be decided"
        left_s = round(self._due_s.get(trial, 0.0) - time.monotonic(), 1)
        return f"is tried again in {left_s:g} s" if left_s > 0 else "is tried again"

    def drop(self, trial: Trial) -> bool:
        """Forget a trial that was stopped; return whether it was held."""
        self._avoiding.pop(trial, None)
        return self._due_s.pop(trial, None) is not None

    def nodes_to_avoid(self, trial: Trial) -> frozenset[str]:
        """Return the nodes that the trial's next attempt stays off: hex ids, empty for any node."""
        suspects = trial.suspects(self._avoid_node_s)
        if trial.has_checkpoint():
            leaving = self._cluster.leaving
            suspects = (*(one for one in suspects if one not in leaving), *leaving)
        if not suspects:
            return frozenset()
        self._cluster.look(at_once=True)
        return self._cluster.avoidable(suspects, trial.placement_group_factory.bundles)

    def avoids(self, trial: Trial, actor: Any) -> None:
        """Note that the trial waits for `actor` on another node than those it avoids."""
        self._avoiding[trial] = (actor, time.monotonic() + UNPLACED_S)

    def tick(self, actors: ActorManager, is_over: Callable[[], bool]) -> None:
        """Start what is due, book what is decided, and let the unplaced take any node.

        Args:
            actors: knows which actors still wait.
            is_over: whether the experiment is; then open charges are decided as things look.
        """
        now_s = time.monotonic()
        if self._open:
            self._decide_charges(at_once=is_over())
        due = [one for one, due_s in self._due_s.items() if due_s <= now_s and not one.might_end()]
        for trial in due:
            del self._due_s[trial]
            self._start(trial)
        for trial, (actor, until_s) in list(self._avoiding.items()):
            waits = actors.is_waiting(actor)
            if waits and until_s > now_s:
                continue
            del self._avoiding[trial]
            if waits:
                trial.forget_suspects()
                actors.give_up_avoidance(actor)

    def _decide_charges(self, *, at_once: bool) -> None:
        if at_once:
            self._cluster.look(at_once=True)
        for trial in list(self._open):
            booked = trial.settle(at_once=at_once)
            if booked:
                self._settled(trial)
            held = trial in self._due_s
            ends = False
            if not trial.open_charges:
                # A trial that does not run ends, or waits as decided; one that runs goes on.
                del self._open[trial]
                ends = not trial.should_recover() and (held or trial.status == Trial.PAUSED)
                if held:
                    self._due_s[trial] = trial.retry_due_s
            if ends:
                tell_decided(trial, booked, "is ended")
                self._due_s.pop(trial, None)
                self._end(trial)
            else:
                runs = not held and not trial.is_finished()
                tell_decided(trial, booked, "goes on" if runs else self.outlook(trial))

    def idle_s(self) -> float:
        """Return how long nothing can happen here, in seconds; 0 if nobody is held."""
        if not self._due_s:
            return 0.0
        return min(IDLE_S, max(0.0, min(self._due_s.values()) - time.monotonic()) or IDLE_S)


def tell_decided(trial: Trial, booked: Iterable[ChargedFault], outlook: str) -> None:
    """Log charges that were open and are decided, a line each, and what becomes of the trial."""
    for charged in booked:
        logger.warning(
            "Trial %s %s. The failure of its attempt %d is decided, charge %s: %s.",
            trial,
            outlook,
            charged.attempt,
            charged.charge,
            charged.reason,
        )
