"""The control plane of a fake cluster (Ray's GCS): places actors, declares deaths, passes answers.

What it knows is in :class:`Node` and :class:`Actor`; what is true, in their workers. It causes no
fault: that is `raytrials.chaos.cluster`.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass

from raytrials.chaos.actor import Actor, State
from raytrials.chaos.clock import FakeClock
from raytrials.chaos.happening import DeathReason, Died, Exit, Happening, Raised, Unavailable
from raytrials.chaos.node import Node, Truth
from raytrials.chaos.timeline import Timeline
from raytrials.chaos.worker import Job, Outcome, Question, Work, Worker


@dataclass(frozen=True)
class Delays:
    """How long things take, in seconds, as measured on Ray 2.60 with its defaults.

    `start_s` and `stop_s` depend on the machine, and are no measured figures.

    Attributes:
        start_s: from an actor's place to its first breath, before what its setup takes.
        stop_s: from an orderly stop to the end of the worker.
        worker_dead_s: from the end of a worker to the news of it, its node being well.
        unavailable_s: from the end of a node until calls to its actors fail.
        node_dead_s: from the end of a node until the cluster knows.
        raylet_dead_s: likewise, if its raylet alone was killed.
        frozen_dead_s: likewise, if it froze.
        preempted_dead_s: likewise, if it was announced and the deadline passed.
        spread: the share by which chance may lengthen any of these.
    """

    start_s: float = 1.0
    stop_s: float = 0.1
    worker_dead_s: float = 0.0
    unavailable_s: float = 1.5
    node_dead_s: float = 14.0
    raylet_dead_s: float = 15.0
    frozen_dead_s: float = 62.0
    preempted_dead_s: float = 0.0
    spread: float = 0.0


class Control:
    """What the cluster knows and does by itself.

    Args:
        clock: what work may sleep on.
        delays: how long things take.
        luck: picks nodes and spreads delays.

    Attributes:
        timeline: what will happen.
        nodes: by name, in the order in which they were added.
        actors: by number.
        answers: not yet seen by the driver.
    """

    def __init__(self, clock: FakeClock, delays: Delays, luck: random.Random | None) -> None:
        self.timeline = Timeline(clock)
        self.nodes: dict[str, Node] = {}
        self.actors: dict[int, Actor] = {}
        self.answers: deque[Happening] = deque()
        self._clock = clock
        self._delays = delays
        self._luck = luck
        self._waiting: dict[int, Actor] = {}
        self._numbers = itertools.count(1)

    # --- asked by the driver ---------------------------------------------------------------------

    def number(self) -> int:
        """Return a number that nothing else has."""
        return next(self._numbers)

    def admit(self, actor: Actor, setup: Work) -> None:
        """Put an actor at the end of the line for a place."""
        self.actors[actor.number] = self._waiting[actor.number] = actor
        start_s = self.delay(self._delays.start_s)
        parts = [(start_s + at_s, act) for at_s, act in setup.parts]
        self.ask(actor, Question.START, "start", Work(start_s + setup.takes_s, setup.run, parts))
        self.place()

    def ask(self, actor: Actor, question: Question, name: str, work: Work) -> int:
        """Note a job as owed, and pass it on if its actor has a worker."""
        job = Job(self.number(), question, name, work)
        actor.owed[job.number] = job
        if actor.died is not None:
            self.answers.append(actor.answer(job, actor.died, self.timeline.now_s))
        elif actor.is_cut_off:
            self.cut_off(actor)
        elif actor.worker is not None and actor.worker.is_alive:
            actor.worker.take(job)
        return job.number

    def stop(self, actor: Actor) -> None:
        """Have an actor end after its other jobs; one that waits is withdrawn."""
        if not actor.is_asked_to_stop():
            self.ask(actor, Question.STOP, "stop", Work(self.delay(self._delays.stop_s)))
        if actor.state is State.WAITING:
            self.declare(actor, Died(Exit.INTENDED))

    def kill(self, actor: Actor) -> None:
        """Declare an actor dead, and end its worker if a word from here can reach it."""
        if actor.worker is not None:
            truth = self.nodes[str(actor.node)].truth
            actor.worker.is_doomed = truth is Truth.FROZEN
            if truth is Truth.UP:
                actor.worker.die()
        self.declare(actor, Died(Exit.KILLED))

    # --- places ----------------------------------------------------------------------------------

    def place(self) -> None:
        """Give each actor in line the place that it fits into, if there is one."""
        in_line = sorted(self._waiting.values(), key=lambda one: (not one.ahead, one.number))
        for actor in in_line:
            nodes = [node for node in self.nodes.values() if node.suits(actor)]
            if nodes:
                self._place_on(self._luck.choice(nodes) if self._luck else nodes[0], actor)

    def _place_on(self, node: Node, actor: Actor) -> None:
        del self._waiting[actor.number]
        if node.truth is Truth.FROZEN:
            node.held[actor.number] = actor
            return
        actor.step("place")
        actor.node = node.name
        actor.worker = Worker(
            self.timeline, self._clock, lambda job, outcome: self._done(actor, job, outcome)
        )
        node.actors[actor.number] = actor
        node.workers = [worker for worker in node.workers if worker.is_alive]
        node.workers.append(actor.worker)
        for job in actor.owed.values():
            actor.worker.take(job)

    def release(self, node: Node) -> None:
        """Put those that a node did not answer back to where they stood in line."""
        self._waiting.update(node.held)
        node.held.clear()
        self.place()

    # --- answers ---------------------------------------------------------------------------------

    def _done(self, actor: Actor, job: Job, outcome: Outcome) -> None:
        if isinstance(outcome, Died):
            self.worker_died(actor, outcome)
        elif job.number not in actor.owed:
            return  # answered in its place while it went on unseen
        elif job.question is Question.STOP:
            self._end(actor, Died(Exit.INTENDED))
        elif job.question is Question.START and isinstance(outcome, Raised):
            self._end(actor, Died(Exit.SETUP_RAISED, detail=repr(outcome.exception)))
        else:
            if job.question is Question.START:
                actor.step("start")
            self.answers.append(actor.answer(job, outcome, self.timeline.now_s))

    def _end(self, actor: Actor, died: Died) -> None:
        if actor.worker is not None:
            actor.worker.die()
        self.declare(actor, died)

    # --- deaths ----------------------------------------------------------------------------------

    def delay(self, seconds: float) -> float:
        """Return how long something takes this time."""
        if self._luck is None or not self._delays.spread:
            return seconds
        return seconds * (1 + self._luck.uniform(0, self._delays.spread))

    def worker_died(self, actor: Actor, died: Died) -> None:
        """A worker is dead: its raylet says so, if there is one to say it."""
        if self.nodes[str(actor.node)].truth is Truth.UP:
            after_s = self.delay(self._delays.worker_dead_s)
            self.timeline.after(after_s, lambda: self.declare(actor, died))
        else:
            self.cut_off(actor)

    def cut_off(self, actor: Actor) -> None:
        """Calls to an actor fail before anybody knows of its death."""
        actor.is_cut_off = True
        # Calls to an actor that has not started wait for it with the driver.
        if actor.state is State.RUNNING and actor.owed:
            after_s = self.delay(self._delays.unavailable_s)
            self.timeline.after(after_s, lambda: self._fail_calls(actor))

    def _fail_calls(self, actor: Actor) -> None:
        for job in list(actor.owed.values()):
            self.answers.append(actor.answer(job, Unavailable(), self.timeline.now_s))

    def declare(self, actor: Actor, died: Died) -> None:
        """Let the cluster know that an actor is dead: all that it owes is answered with that."""
        if actor.died is not None:
            return
        actor.step("die")
        actor.died = died
        self._waiting.pop(actor.number, None)
        for node in self.nodes.values():
            node.held.pop(actor.number, None)
        if actor.node is not None:
            del self.nodes[actor.node].actors[actor.number]
        if actor.worker is not None:
            actor.worker.drop_queue()
        for job in list(actor.owed.values()):
            self.answers.append(actor.answer(job, died, self.timeline.now_s))
        self.place()

    def expect_death(self, node: Node, seconds: float) -> None:
        """Let the cluster know of a node's death after so many seconds, or before if it would."""
        after_s = self.delay(seconds)
        if node.death_reason is not None:
            return
        if node.death is not None:
            if node.death.at_s <= self.timeline.now_s + after_s:
                return
            node.death.cancel()
        node.death = self.timeline.after(after_s, lambda: self._declare_node(node))

    def _declare_node(self, node: Node) -> None:
        node.death = None
        node.death_reason = node.reason(self.timeline.now_s)
        died = Died(Exit.NODE_DIED, preempted=node.death_reason is DeathReason.PREEMPTED)
        for actor in list(node.actors.values()):
            self.declare(actor, died)
        self.release(node)
