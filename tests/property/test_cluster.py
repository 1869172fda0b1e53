"""Whatever befalls a fake cluster, all that is asked is answered once, and no slot given twice."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from raytrials.chaos import FakeClock, FakeCluster
from raytrials.chaos.actor import State
from raytrials.chaos.control import Delays
from raytrials.chaos.happening import (
    ActorStarted,
    ActorStartFailed,
    ActorStopped,
    CallFailed,
    CallReturned,
)
from raytrials.chaos.plan import Action as Strike
from raytrials.chaos.plan import After, Fault, plan_random
from raytrials.chaos.worker import Work

NODES = {"a": 2, "b": 3}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["request", "call", "call", "stop", "kill", "next", "next", "sleep"]),
        st.integers(0, 5),
    ),
    min_size=5,
    max_size=100,
)


class Script:
    """A driver that follows a script, and counts."""

    def __init__(self, seed: int, steps: list[tuple[str, int]], late: int) -> None:
        plan = [
            *plan_random(seed, NODES, rate_per_s=0.1, until_s=120.0, replace_s=20.0),
            After(late, Fault(Strike.KILL_ACTOR, "b")),
        ]
        self.clock = FakeClock()
        self.cluster = FakeCluster(
            self.clock, delays=Delays(spread=0.2), luck=random.Random(seed), plan=plan
        )
        for name, slots in NODES.items():
            self.cluster.add_node(name, slots)
        self.slots: dict[int, int] = {}
        self.calls: dict[int, int] = {}
        self.stops = Counter[int]()
        self.ran = Counter[int]()
        for name, amount in steps:
            self.step(name, amount)
            self.check()
        while self.cluster.next():
            self.check()

    def step(self, name: str, amount: int) -> None:
        cluster, actors = self.cluster, list(self.slots)
        if name == "request":
            self.slots[cluster.request(1 + amount % 3, avoid="ab"[: amount % 2])] = 1 + amount % 3
        elif name == "next":
            cluster.next(amount * 3.0)
        elif name == "sleep":
            self.clock.sleep(amount * 4.0)
        elif actors:
            actor = actors[amount % len(actors)]
            if name == "call":
                count = len(self.calls)
                call = cluster.call(
                    actor, "w", Work(amount * 2.0, lambda: self.ran.update([count]))
                )
                self.calls[call] = actor
            elif name == "stop":
                cluster.state_of(actor)  # lets happen what is due
                self.stops[actor] += not cluster._control.actors[actor].is_asked_to_stop()
                cluster.stop(actor)
            else:
                cluster.kill(actor)

    def check(self) -> None:
        used = Counter[str]()
        for actor, slots in self.slots.items():
            if self.cluster.state_of(actor) in {State.STARTING, State.RUNNING}:
                used[str(self.cluster.node_of(actor))] += slots
        nodes = self.cluster.nodes()
        for node, slots in used.items():
            assert slots <= nodes[node].slots
            assert nodes[node].alive


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1000), STEPS, st.integers(1, 20))
def test_everything_asked_is_answered_once(
    seed: int, steps: list[tuple[str, int]], late: int
) -> None:
    script = Script(seed, steps, late)
    told = script.cluster.told
    starts = Counter(one.actor for one in told if isinstance(one, ActorStarted | ActorStartFailed))
    waiting = [a for a in script.slots if script.cluster.state_of(a) is State.WAITING]
    calls = Counter(one.call for one in told if isinstance(one, CallReturned | CallFailed))
    assert starts == Counter(set(script.slots).difference(waiting))
    assert calls == Counter(call for call, actor in script.calls.items() if actor not in waiting)
    assert max(script.ran.values(), default=1) == 1
    returned = sum(isinstance(one, CallReturned) for one in told)
    assert returned <= len(script.ran) <= len(script.calls)
    stopped = Counter(one.actor for one in told if isinstance(one, ActorStopped))
    assert stopped == script.stops


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1000), STEPS, st.integers(1, 20))
def test_the_same_seed_and_script_give_the_same_happenings(
    seed: int, steps: list[tuple[str, int]], late: int
) -> None:
    first, second = (Script(seed, steps, late) for _ in range(2))
    assert first.cluster.told == second.cluster.told
    assert first.cluster.struck == second.cluster.struck
    times = [one.at_s for one in first.cluster.told]
    assert times == sorted(times)
