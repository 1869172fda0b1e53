"""Nodes of a fake cluster: what is true of them, and what the cluster knows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from raytrials.chaos.actor import Actor
from raytrials.chaos.happening import DeathReason, NodeView
from raytrials.chaos.timeline import Timer
from raytrials.chaos.worker import Worker


class Truth(Enum):
    """What a node is, whoever knows."""

    UP = "up"
    FROZEN = "frozen"
    HEADLESS = "headless"  # its raylet is dead, its workers are not
    DOWN = "down"


NODE_STEPS: Mapping[tuple[Truth, str], Truth] = {
    (Truth.UP, "drain"): Truth.UP,
    (Truth.UP, "freeze"): Truth.FROZEN,
    (Truth.UP, "kill"): Truth.DOWN,
    (Truth.UP, "kill_raylet"): Truth.HEADLESS,
    (Truth.UP, "preempt"): Truth.DOWN,
    (Truth.FROZEN, "kill"): Truth.DOWN,
    (Truth.FROZEN, "preempt"): Truth.DOWN,
    (Truth.FROZEN, "thaw"): Truth.UP,
    (Truth.HEADLESS, "kill"): Truth.DOWN,
    (Truth.HEADLESS, "preempt"): Truth.DOWN,
}


@dataclass
class Node:
    """A machine.

    Attributes:
        name: never used again.
        slots: what it has in all.
        labels: as given.
        truth: what it is.
        deadline_s: when it is preempted, None if it is not drained.
        death_reason: None until the cluster knows that it is dead.
        death: when the cluster will know, None if there is nothing to know.
        workers: those that live here, whoever knows; some of them may be dead by now.
        actors: those that the cluster has placed here and not known to be dead, by number.
        held: those that the cluster tried to place here, without an answer so far.
        story: the steps that it took, and when.
    """

    name: str
    slots: int
    labels: Mapping[str, str]
    truth: Truth = Truth.UP
    deadline_s: float | None = None
    death_reason: DeathReason | None = None
    death: Timer | None = None
    workers: list[Worker] = field(default_factory=list)
    actors: dict[int, Actor] = field(default_factory=dict)
    held: dict[int, Actor] = field(default_factory=dict)
    story: list[tuple[float, str]] = field(default_factory=list)

    def can(self, step: str) -> bool:
        """Whether a step is open to it now."""
        if step == "drain" and self.deadline_s is not None:
            return False
        return (self.truth, step) in NODE_STEPS

    def step(self, step: str, now_s: float) -> None:
        """Change the truth.

        Raises:
            ValueError: what it is has no such step.
        """
        if not self.can(step):
            raise ValueError(
                f"Node {self.name} cannot {step}: it is {self.truth.value}, after {self.story}."
            )
        self.truth = NODE_STEPS[self.truth, step]
        if step == "thaw" and self.death_reason is not None:
            # A raylet that wakes up to read that it is dead ends itself.
            self.truth = Truth.HEADLESS
        self.story.append((now_s, step))

    @property
    def free(self) -> int:
        """The slots that the cluster believes free."""
        taken = itertools.chain(self.actors.values(), self.held.values())
        return self.slots - sum(actor.slots for actor in taken)

    def suits(self, actor: Actor) -> bool:
        """Whether the cluster would try to place a waiting actor here now.

        A node without raylet refuses at once; one that is frozen does not answer.
        """
        return (
            self.death_reason is None
            and self.deadline_s is None
            and self.truth in {Truth.UP, Truth.FROZEN}
            and actor.slots <= self.free
            and self.name not in actor.avoid
            and (actor.pin is None or self.name in actor.pin)
            and actor.labels.items() <= self.labels.items()
        )

    def reason(self, now_s: float) -> DeathReason:
        """Return the reason that the cluster gives when it learns of the death now."""
        preempted = self.deadline_s is not None and now_s >= self.deadline_s
        return DeathReason.PREEMPTED if preempted else DeathReason.UNEXPECTED

    def victims(self) -> list[Actor]:
        """Return the actors with a worker that a signal can reach, the longest here first."""
        return [
            actor
            for actor in self.actors.values()
            if actor.worker is not None and actor.worker.is_alive
        ]

    def view(self) -> NodeView:
        """Return what the cluster answers."""
        alive = self.death_reason is None
        return NodeView(
            name=self.name,
            slots=self.slots,
            labels=self.labels,
            alive=alive,
            draining=alive and self.deadline_s is not None,
            death_reason=self.death_reason,
        )
