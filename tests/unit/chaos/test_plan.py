"""Faults on plan strike where the plan says, and the same plan strikes the same way again."""

from __future__ import annotations

from raytrials.chaos import FakeClock, FakeCluster
from raytrials.chaos.happening import CallFailed, Died, Exit, Unavailable
from raytrials.chaos.plan import Action, After, At, Fault, plan_random
from raytrials.chaos.worker import Work

NODES = {"a": 2, "b": 2}


def test_a_fault_strikes_at_its_time() -> None:
    cluster = FakeCluster(FakeClock(), plan=[At(7.0, Fault(Action.KILL_NODE, "a"))])
    cluster.add_node("a", 1)
    actor = cluster.request()
    call = cluster.call(actor, "train", Work(60.0))
    cluster.next()
    assert cluster.next() == CallFailed(8.5, actor, call, "train", Unavailable())
    assert cluster.struck == [(7.0, Fault(Action.KILL_NODE, "a"))]


def test_a_fault_strikes_after_a_happening_before_the_driver_can_answer_it() -> None:
    cluster = FakeCluster(FakeClock(), plan=[After(1, Fault(Action.KILL_ACTOR, "a"))])
    cluster.add_node("a", 1)
    actor = cluster.request()
    cluster.next()
    call = cluster.call(actor, "train", Work(60.0))
    assert cluster.next() == CallFailed(1.0, actor, call, "train", Died(Exit.CRASHED))


def test_what_can_no_longer_be_done_is_skipped() -> None:
    plan = [
        At(1.0, Fault(Action.KILL_ACTOR, "a")),
        At(2.0, Fault(Action.KILL_NODE, "a")),
        At(3.0, Fault(Action.FREEZE_NODE, "a")),
        At(4.0, Fault(Action.KILL_NODE, "nowhere")),
        At(5.0, Fault(Action.ADD_NODE, "a", 1)),
    ]
    cluster = FakeCluster(FakeClock(), plan=plan)
    cluster.add_node("a", 1)
    assert cluster.next() is None
    assert cluster.struck == [(2.0, plan[1].fault)]


def test_every_action_can_strike() -> None:
    plan = [
        At(2.0, Fault(Action.KILL_ACTOR, "a")),
        At(3.0, Fault(Action.FREEZE_NODE, "a")),
        At(4.0, Fault(Action.THAW_NODE, "a")),
        At(5.0, Fault(Action.KILL_RAYLET, "a")),
        At(6.0, Fault(Action.KILL_NODE, "a")),
        At(7.0, Fault(Action.ADD_NODE, "b", 1)),
        At(8.0, Fault(Action.DRAIN_NODE, "b", 5.0)),
    ]
    cluster = FakeCluster(FakeClock(), plan=plan)
    cluster.add_node("a", 1)
    cluster.request()
    while cluster.next():
        pass
    assert cluster.struck == [(step.seconds, step.fault) for step in plan]
    assert {step.fault.action for step in plan} == set(Action)


def test_a_random_plan_is_the_same_for_the_same_seed() -> None:
    plans = [plan_random(seed, NODES, rate_per_s=0.1, until_s=600.0) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert 40 < len(plans[0]) < 200
    assert {step.fault.action for step in plans[0]} == set(Action)
    assert [step.seconds for step in plans[0]] == sorted(step.seconds for step in plans[0])


def test_a_lost_node_is_replaced_and_its_replacement_may_be_lost() -> None:
    plan = plan_random(3, {"a": 2}, rate_per_s=0.1, until_s=600.0, replace_s=10.0)
    added = [step.fault for step in plan if step.fault.action is Action.ADD_NODE]
    assert [fault.node for fault in added[:2]] == ["a'", "a''"]
    assert {fault.amount for fault in added} == {2}


def test_a_random_plan_ends_when_no_node_is_left() -> None:
    plan = plan_random(3, NODES, rate_per_s=1.0, until_s=1e3, replace_s=None)
    assert not [step for step in plan if step.fault.action is Action.ADD_NODE]
    assert {step.fault.node for step in plan} == set(NODES)
