"""A cluster in virtual time: nodes, actors, and what a driver sees when they break.

:class:`FakeCluster` tells late and incompletely what happens, as Ray does: an actor is out of reach
before its node is known to be dead, and a worker whose raylet was killed goes on unseen. Delays are
those measured on Ray 2.60. No threads, no real time, no chance but that of a given
`random.Random`: the same script gives the same happenings. No Ray here.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection, Mapping

from raytrials.chaos.actor import Actor, State
from raytrials.chaos.clock import FakeClock
from raytrials.chaos.control import Control, Delays
from raytrials.chaos.happening import Died, Exit, Happening, NodeView
from raytrials.chaos.node import Node, Truth
from raytrials.chaos.plan import Action, After, At, Fault, Plan
from raytrials.chaos.worker import Question, Work

NO_WORK = Work(0.0)


class FakeCluster:
    """A cluster for one driver, who asks and then looks with :meth:`next` what happened.

    Nodes have names, actors and calls have numbers. Actors are placed in the order of asking; one
    that finds no place does not keep those behind it from theirs. A node that is dead but not known
    to be refuses actors, and one that is frozen keeps them waiting, as the placement groups do that
    Ray Tune uses.

    Args:
        clock: turned by :meth:`next`. Others may turn it too.
        delays: how long things take.
        luck: picks the node among those that suit, and spreads the delays. Without it the node
            added first is taken, and no delay varies.
        plan: faults to come.

    Attributes:
        told: all that :meth:`next` returned, in order.
        struck: the faults of the plan that befell it, and when. Those that no longer could are not
            among them.
    """

    def __init__(
        self,
        clock: FakeClock,
        *,
        delays: Delays = Delays(),  # noqa: B008 - frozen
        luck: random.Random | None = None,
        plan: Plan = (),
    ) -> None:
        self.told: list[Happening] = []
        self.struck: list[tuple[float, Fault]] = []
        self._clock = clock
        self._delays = delays
        self._control = Control(clock, delays, luck)
        self._timeline = self._control.timeline
        self._nodes = self._control.nodes
        self._after = [step for step in plan if isinstance(step, After)]
        for step in plan:
            if isinstance(step, At):
                self._timeline.after(step.seconds, functools.partial(self.strike, step.fault))

    # --- what the driver sees --------------------------------------------------------------------

    def next(self, timeout_s: float | None = None) -> Happening | None:
        """Let time go by until something happens that the driver is told.

        Returns:
            What happened, or None: nothing within the timeout, or, without one, nothing ever.
        """
        self._timeline.catch_up()
        until_s = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while not self._control.answers:
            if not self._timeline.step(until_s):
                if until_s is not None:
                    self._clock.advance_to(until_s)
                return None
        happening = self._control.answers.popleft()
        self.told.append(happening)
        for step in self._after:
            if step.happenings == len(self.told):
                self.strike(step.fault)
        return happening

    def nodes(self) -> dict[str, NodeView]:
        """Return the node table as the cluster would answer now, by name."""
        self._timeline.catch_up()
        return {name: node.view() for name, node in self._nodes.items()}

    def state_of(self, actor: int) -> State:
        """Return what the cluster takes an actor for."""
        return self._actor(actor).state

    def node_of(self, actor: int) -> str | None:
        """Return the node that an actor was placed on, None if it was not."""
        return self._actor(actor).node

    # --- what the driver asks --------------------------------------------------------------------

    def request(  # noqa: PLR0913 - all but the first by name
        self,
        slots: int = 1,
        *,
        avoid: Collection[str] = (),
        pin: Collection[str] | None = None,
        labels: Mapping[str, str] | None = None,
        ahead: bool = False,
        setup: Work = NO_WORK,
    ) -> int:
        """Ask for an actor, and return its number.

        Args:
            slots: what it takes of a node.
            avoid: nodes that it must not be on.
            pin: the only nodes that it may be on.
            labels: that its node must have.
            ahead: whether it is placed before those that are not, whenever they asked.
            setup: its constructor. What this raises fails the start.

        Raises:
            ValueError: it takes less than nothing.
        """
        _require_slots(slots)
        self._timeline.catch_up()
        actor = Actor(
            number=self._control.number(),
            slots=slots,
            avoid=frozenset(avoid),
            pin=None if pin is None else frozenset(pin),
            labels=dict(labels or {}),
            ahead=ahead,
        )
        self._control.admit(actor, setup)
        return actor.number

    def avoid_none(self, actor: int) -> None:
        """Let an actor that waits be placed on the nodes too that it was to avoid."""
        self._actor(actor).avoid = frozenset()
        self._control.place()

    def call(self, actor: int, name: str, work: Work) -> int:
        """Have an actor do some work after all that it was asked before; return the call's number.

        An actor that has no place yet does it when it has started.
        """
        return self._control.ask(self._actor(actor), Question.CALL, name, work)

    def stop(self, actor: int) -> None:
        """Have an actor stop after all that it was asked before. Twice is as good as once."""
        self._control.stop(self._actor(actor))

    def kill(self, actor: int) -> None:
        """Do as `ray.kill`: the actor is dead at once, says the cluster.

        Its worker ends with it on a node that is well, when the node thaws if it is frozen, and not
        at all if its raylet is gone. Nothing is told but what was still to be answered.
        """
        self._control.kill(self._actor(actor))

    def _actor(self, number: int) -> Actor:
        self._timeline.catch_up()
        try:
            return self._control.actors[number]
        except KeyError:
            raise KeyError(f"There is no actor {number!r}.") from None

    # --- faults ----------------------------------------------------------------------------------

    def add_node(self, name: str, slots: int, labels: Mapping[str, str] | None = None) -> None:
        """Add a node.

        Raises:
            ValueError: there was one of this name, as Ray's ids are never used again; or it has
                less than nothing.
        """
        _require_slots(slots)
        self._timeline.catch_up()
        if name in self._nodes:
            raise ValueError(f"There was a node {name} already.")
        self._nodes[name] = Node(name, slots, dict(labels or {}))
        self._control.place()

    def kill_node(self, name: str) -> None:
        """Cut the power: its actors are soon out of reach, and much later it is known why."""
        node = self._step(name, "kill")
        self._end_workers(node)
        self._control.expect_death(node, self._delays.node_dead_s)

    def kill_raylet(self, name: str) -> None:
        """Kill the raylet alone: workers go on, also with what nobody waits for any more."""
        node = self._step(name, "kill_raylet")
        self._control.expect_death(node, self._delays.raylet_dead_s)

    def freeze_node(self, name: str) -> None:
        """Stop everything on a node, unnoticed for a minute."""
        node = self._step(name, "freeze")
        for worker in node.workers:
            worker.freeze()
        self._control.expect_death(node, self._delays.frozen_dead_s)

    def thaw_node(self, name: str) -> None:
        """Let a frozen node go on; if it is known to be dead by now, its workers alone."""
        node = self._step(name, "thaw")
        for worker in node.workers:
            worker.thaw()
        if node.truth is not Truth.UP:
            return
        if node.death is not None:
            node.death.cancel()
            node.death = None
        self._control.release(node)
        for actor in list(node.actors.values()):
            if actor.worker is not None and not actor.worker.is_alive:
                self._control.worker_died(actor, Died(Exit.CRASHED))

    def drain_node(self, name: str, deadline_s: float) -> None:
        """Announce that a node will be preempted, so many seconds from now.

        Raises:
            ValueError: that is in the past.
        """
        if not deadline_s >= 0:
            raise ValueError(f"A node cannot be preempted in {deadline_s} s.")
        node = self._step(name, "drain")
        node.deadline_s = self._timeline.now_s + deadline_s
        self._timeline.after(deadline_s, lambda: self._preempt(node))

    def kill_actor(self, actor: int) -> None:
        """Kill the worker of an actor, as a SIGKILL does.

        Raises:
            ValueError: it has none.
        """
        killed = self._actor(actor)
        if killed.worker is None or not killed.worker.is_alive:
            raise ValueError(f"Actor {actor} has no worker: it is {killed.state.value}.")
        killed.worker.die()
        self._control.worker_died(killed, Died(Exit.CRASHED))

    def strike(self, fault: Fault) -> bool:
        """Do what a plan says, if it can be done; return whether it could."""
        self._timeline.catch_up()
        node = self._nodes.get(fault.node)
        if fault.action is Action.ADD_NODE:
            could = node is None
        elif fault.action is Action.KILL_ACTOR:
            could = node is not None and bool(node.victims())
        else:
            could = node is not None and node.can(fault.action.value)
        if could:
            self.struck.append((self._timeline.now_s, fault))
            self._faults()[fault.action](fault)
        return could

    def _faults(self) -> Mapping[Action, Callable[[Fault], None]]:
        return {
            Action.ADD_NODE: lambda fault: self.add_node(fault.node, int(fault.amount)),
            Action.KILL_NODE: lambda fault: self.kill_node(fault.node),
            Action.KILL_RAYLET: lambda fault: self.kill_raylet(fault.node),
            Action.FREEZE_NODE: lambda fault: self.freeze_node(fault.node),
            Action.THAW_NODE: lambda fault: self.thaw_node(fault.node),
            Action.DRAIN_NODE: lambda fault: self.drain_node(fault.node, fault.amount),
            Action.KILL_ACTOR: lambda fault: self.kill_actor(
                self._nodes[fault.node].victims()[0].number
            ),
        }

    def _step(self, name: str, step: str) -> Node:
        self._timeline.catch_up()
        if name not in self._nodes:
            raise KeyError(f"There is no node {name!r}.")
        node = self._nodes[name]
        node.step(step, self._timeline.now_s)
        return node

    def _preempt(self, node: Node) -> None:
        if not node.can("preempt"):
            return
        was_well = node.truth is Truth.UP
        node.step("preempt", self._timeline.now_s)
        for worker in node.workers:
            worker.die()
        # Only a raylet that is well says why it goes.
        if was_well:
            self._control.expect_death(node, self._delays.preempted_dead_s)
        else:
            self._end_workers(node)

    def _end_workers(self, node: Node) -> None:
        for worker in node.workers:
            worker.die()
        for actor in node.actors.values():
            self._control.cut_off(actor)
        self._control.release(node)


def _require_slots(slots: int) -> None:
    if slots < 0:
        raise ValueError(f"There are no {slots} slots.")
