"""Faults of a cluster on plan: at a time, after a happening, or by chance.

A plan is plain data, so that a run that found something can be printed, and repeated from its seed
and script.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    """What a fault does: a step of its node, but for the first and the last."""

    ADD_NODE = "add"
    KILL_NODE = "kill"
    KILL_RAYLET = "kill_raylet"
    FREEZE_NODE = "freeze"
    THAW_NODE = "thaw"
    DRAIN_NODE = "drain"
    KILL_ACTOR = "kill_actor"


@dataclass(frozen=True)
class Fault:
    """One thing that befalls a cluster.

    Attributes:
        action: what.
        node: whose. For `KILL_ACTOR` the worker that has been longest on this node is killed.
        amount: the deadline in seconds of `DRAIN_NODE`, the slots of `ADD_NODE`.
    """

    action: Action
    node: str
    amount: float = 0


@dataclass(frozen=True)
class At:
    """A fault so many seconds after the cluster was made."""

    seconds: float
    fault: Fault


@dataclass(frozen=True)
class After:
    """A fault as soon as so many happenings were told, before the driver sees the last of them."""

    happenings: int
    fault: Fault


Plan = Sequence[At | After]

WEIGHTS: Mapping[Action, float] = {
    Action.KILL_ACTOR: 4,
    Action.KILL_NODE: 2,
    Action.DRAIN_NODE: 2,
    Action.KILL_RAYLET: 1,
    Action.FREEZE_NODE: 1,
}
"""How often each fault is drawn, compared with the others."""


def plan_random(  # noqa: PLR0913 - all but the first two by name
    seed: int,
    nodes: Mapping[str, int],
    *,
    rate_per_s: float,
    until_s: float,
    replace_s: float | None = 60.0,
    weights: Mapping[Action, float] = WEIGHTS,
) -> tuple[At, ...]:
    """Draw faults by chance, in order of time.

    Those whose node is gone when their time comes will be skipped.

    Args:
        seed: the same seed gives the same faults.
        nodes: slots of each node by name.
        rate_per_s: faults per second over all nodes; the gaps between them are exponential.
        until_s: no fault is later than this. What follows from one may be.
        replace_s: a node that is lost is followed so much later by one of the same size, named
            after it (`a`, `a'`, `a''`), which faults may hit too. None means never. A frozen node
            thaws after as long, and is not replaced: to the cluster this may be too late.
        weights: how often each kind of fault is drawn; `ADD_NODE` and `THAW_NODE` are for
            `replace_s`.
    """
    luck = random.Random(seed)  # noqa: S311 - not for secrets
    slots = dict(nodes)
    joined_s = dict.fromkeys(nodes, 0.0)
    plan: list[At] = []
    at_s = luck.expovariate(rate_per_s)
    while at_s <= until_s:
        [action] = luck.choices(list(weights), list(weights.values()))
        there = [node for node, since_s in joined_s.items() if since_s <= at_s]
        if there:
            node = luck.choice(there)
            deadline_s = luck.uniform(1.0, 30.0)
            plan.append(
                At(at_s, Fault(action, node, deadline_s if action is Action.DRAIN_NODE else 0))
            )
            if replace_s is not None and action is Action.FREEZE_NODE:
                plan.append(At(at_s + replace_s, Fault(Action.THAW_NODE, node)))
            elif action is not Action.KILL_ACTOR:
                del joined_s[node]
                if replace_s is not None:
                    new, back_s = f"{node}'", at_s + replace_s
                    slots[new], joined_s[new] = slots[node], back_s
                    plan.append(At(back_s, Fault(Action.ADD_NODE, new, slots[node])))
        at_s += luck.expovariate(rate_per_s)
    return tuple(sorted(plan, key=lambda one: one.seconds))
