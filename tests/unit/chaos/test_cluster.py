"""A fake cluster tells what Ray tells, as late as Ray."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from raytrials.chaos import FakeClock, FakeCluster
from raytrials.chaos.actor import State
from raytrials.chaos.control import Delays
from raytrials.chaos.fault import Stopped
from raytrials.chaos.happening import (
    ActorStarted,
    ActorStartFailed,
    ActorStopped,
    CallFailed,
    CallReturned,
    DeathReason,
    Died,
    Exit,
    Happening,
    Raised,
    Unavailable,
)
from raytrials.chaos.worker import Work

KILLED = Died(Exit.KILLED)
CRASHED = Died(Exit.CRASHED)
NODE_DIED = Died(Exit.NODE_DIED)
PREEMPTED = Died(Exit.NODE_DIED, preempted=True)


def cluster_of(**nodes: int) -> FakeCluster:
    cluster = FakeCluster(FakeClock())
    for name, slots in nodes.items():
        cluster.add_node(name, slots)
    return cluster


def running(cluster: FakeCluster, slots: int = 1) -> int:
    """An actor on the first node, started at 1 s."""
    actor = cluster.request(slots)
    assert cluster.next() == ActorStarted(1.0, actor, "a")
    return actor


def rest(cluster: FakeCluster) -> list[Happening]:
    return list(iter(cluster.next, None))


def note(seen: list[str], what: str) -> Callable[[], None]:
    return lambda: seen.append(what)


def die(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


# --- actors and calls ----------------------------------------------------------------------------


def test_an_actor_starts_does_its_calls_in_turn_and_stops() -> None:
    cluster = cluster_of(a=1)
    actor = cluster.request()
    first = cluster.call(actor, "train", Work(10.0, lambda: "one"))
    second = cluster.call(actor, "save", Work(2.0, lambda: "two"))
    cluster.stop(actor)
    assert rest(cluster) == [
        ActorStarted(1.0, actor, "a"),
        CallReturned(11.0, actor, first, "train", "one"),
        CallReturned(13.0, actor, second, "save", "two"),
        ActorStopped(13.1, actor),
    ]


def test_next_lets_time_go_by_to_its_timeout_and_no_further() -> None:
    clock = FakeClock()
    cluster = FakeCluster(clock)
    cluster.add_node("a", 1)
    cluster.request()
    assert cluster.next(0.25) is None
    assert clock.monotonic() == 0.25
    assert isinstance(cluster.next(10.0), ActorStarted)
    assert clock.monotonic() == 1.0


def test_what_became_due_while_others_turned_the_clock_is_told_in_order() -> None:
    clock = FakeClock()
    cluster = FakeCluster(clock)
    cluster.add_node("a", 1)
    actor = cluster.request()
    call = cluster.call(actor, "train", Work(5.0))
    clock.sleep(100.0)
    assert cluster.state_of(actor) is State.RUNNING
    assert cluster.next(0) == ActorStarted(1.0, actor, "a")
    assert cluster.next(0) == CallReturned(6.0, actor, call, "train", None)


def test_an_exception_is_the_result_of_its_call_and_the_actor_goes_on() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    error = ValueError("bad")
    first = cluster.call(actor, "train", Work(1.0, die(error)))
    second = cluster.call(actor, "train", Work(1.0))
    assert rest(cluster) == [
        CallFailed(2.0, actor, first, "train", Raised(error)),
        CallReturned(3.0, actor, second, "train", None),
    ]


def test_work_that_sleeps_takes_so_much_longer() -> None:
    clock = FakeClock()
    cluster = FakeCluster(clock)
    cluster.add_node("a", 1)
    actor = running(cluster)
    call = cluster.call(actor, "save", Work(1.0, lambda: clock.sleep(5.0)))
    assert rest(cluster) == [CallReturned(7.0, actor, call, "save", None)]


def test_work_cannot_wait_for_the_cluster() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    cluster.call(actor, "train", Work(1.0, cluster.next))
    failed = cluster.next()
    assert isinstance(failed, CallFailed)
    assert "cannot wait" in str(failed.error)


def test_work_has_no_part_outside_of_itself() -> None:
    with pytest.raises(ValueError, match="outside"):
        Work(1.0, parts=[(2.0, lambda: None)])


def test_a_constructor_that_raises_fails_the_start_and_all_calls_and_frees_the_place() -> None:
    cluster = cluster_of(a=1)
    actor = cluster.request(setup=Work(2.0, die(ValueError("bad"))))
    call = cluster.call(actor, "train", Work(1.0))
    died = Died(Exit.SETUP_RAISED, detail="ValueError('bad')")
    other = cluster.request()
    assert rest(cluster) == [
        ActorStartFailed(3.0, actor, died),
        CallFailed(3.0, actor, call, "train", died),
        ActorStarted(4.0, other, "a"),
    ]


def test_a_call_to_a_dead_actor_fails_at_once() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    cluster.kill(actor)
    call = cluster.call(actor, "train", Work(1.0))
    cluster.stop(actor)
    assert rest(cluster) == [
        CallFailed(1.0, actor, call, "train", KILLED),
        ActorStopped(1.0, actor, KILLED),
    ]


def test_a_call_behind_a_stop_fails() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    cluster.stop(actor)
    cluster.stop(actor)
    call = cluster.call(actor, "train", Work(1.0))
    assert rest(cluster) == [
        ActorStopped(1.1, actor),
        CallFailed(1.1, actor, call, "train", Died(Exit.INTENDED)),
    ]


def test_ray_kill_answers_what_is_owed_and_ends_the_work() -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    call = cluster.call(actor, "train", Work(5.0, note(seen, "end")))
    assert cluster.next(1.0) is None
    cluster.kill(actor)
    cluster.kill(actor)
    assert rest(cluster) == [CallFailed(2.0, actor, call, "train", KILLED)]
    assert seen == []


@pytest.mark.parametrize("how", [FakeCluster.stop, FakeCluster.kill])
def test_an_actor_without_a_place_is_withdrawn(how: Callable[[FakeCluster, int], None]) -> None:
    cluster = cluster_of()
    actor = cluster.request()
    how(cluster, actor)
    cluster.add_node("a", 1)
    [failed, *more] = rest(cluster)
    assert isinstance(failed, ActorStartFailed)
    assert more == ([ActorStopped(0.0, actor)] if how is FakeCluster.stop else [])


# --- places --------------------------------------------------------------------------------------


def test_places_are_given_in_the_order_of_asking() -> None:
    cluster = cluster_of(a=2)
    first, second, third = (cluster.request() for _ in range(3))
    assert [cluster.node_of(actor) for actor in (first, second, third)] == ["a", "a", None]
    cluster.kill(second)
    assert cluster.state_of(third) is State.STARTING


def test_one_that_finds_no_place_does_not_hold_up_those_behind_it() -> None:
    cluster = cluster_of(a=1)
    large, small = cluster.request(2), cluster.request(1)
    assert cluster.state_of(large) is State.WAITING
    assert cluster.node_of(small) == "a"
    cluster.add_node("b", 2)
    assert cluster.node_of(large) == "b"


def test_one_that_is_ahead_gets_the_next_place_before_those_that_asked_earlier() -> None:
    cluster = cluster_of(a=1)
    running, early = cluster.request(), cluster.request()
    ahead, second = cluster.request(ahead=True), cluster.request(ahead=True)
    cluster.kill(running)
    assert cluster.node_of(ahead) == "a"
    cluster.kill(ahead)
    assert cluster.node_of(second) == "a"
    assert cluster.node_of(early) is None


def test_one_that_waits_may_stop_avoiding_nodes() -> None:
    cluster = cluster_of(a=1)
    actor = cluster.request(avoid=["a"])
    assert cluster.node_of(actor) is None
    cluster.avoid_none(actor)
    assert cluster.node_of(actor) == "a"


def test_nodes_can_be_avoided_pinned_and_chosen_by_label() -> None:
    cluster = cluster_of(a=9, b=9)
    cluster.add_node("c", 9, {"kind": "gpu"})
    assert cluster.node_of(cluster.request(avoid=["a"])) == "b"
    assert cluster.node_of(cluster.request(pin=["b"])) == "b"
    assert cluster.node_of(cluster.request(labels={"kind": "gpu"})) == "c"
    assert cluster.node_of(cluster.request(pin=["a"], avoid=["a"])) is None


def test_luck_picks_among_the_nodes_that_suit() -> None:
    cluster = FakeCluster(FakeClock(), luck=random.Random(1))
    for name in "abc":
        cluster.add_node(name, 20)
    assert {cluster.node_of(cluster.request()) for _ in range(20)} == set("abc")


def test_luck_spreads_the_delays() -> None:
    delays = Delays(spread=0.5)
    cluster = FakeCluster(FakeClock(), delays=delays, luck=random.Random(1))
    cluster.add_node("a", 20)
    for _ in range(20):
        cluster.request()
    starts_s = [started.at_s for started in rest(cluster)]
    assert len(set(starts_s)) == 20
    assert 1.0 <= min(starts_s) <= max(starts_s) <= 1.5


def test_a_node_that_drains_gets_no_actor_though_it_is_alive() -> None:
    cluster = cluster_of(a=1, b=1)
    cluster.drain_node("a", 60.0)
    assert cluster.node_of(cluster.request()) == "b"
    assert cluster.node_of(cluster.request()) is None


@pytest.mark.parametrize("fault", [FakeCluster.kill_node, FakeCluster.kill_raylet])
def test_a_node_that_is_dead_unknown_to_the_cluster_refuses_actors(
    fault: Callable[[FakeCluster, str], None],
) -> None:
    cluster = cluster_of(a=1)
    fault(cluster, "a")
    actor = cluster.request()
    assert cluster.next() is None
    assert cluster.state_of(actor) is State.WAITING
    cluster.add_node("b", 1)
    assert cluster.node_of(actor) == "b"


def test_a_frozen_node_keeps_an_actor_waiting_until_it_is_known_to_be_dead() -> None:
    cluster = cluster_of(a=1)
    cluster.freeze_node("a")
    held, behind = cluster.request(), cluster.request()
    cluster.add_node("b", 1)
    assert (cluster.node_of(held), cluster.node_of(behind)) == (None, "b")
    cluster.stop(behind)
    assert rest(cluster) == [
        ActorStarted(1.0, behind, "b"),
        ActorStopped(1.1, behind),
        ActorStarted(63.0, held, "b"),
    ]


def test_what_a_frozen_node_kept_waiting_starts_there_when_it_thaws() -> None:
    cluster = cluster_of(a=1)
    cluster.freeze_node("a")
    actor = cluster.request()
    cluster.next(5.0)
    cluster.thaw_node("a")
    assert rest(cluster) == [ActorStarted(6.0, actor, "a")]


def test_what_a_frozen_node_keeps_waiting_can_be_withdrawn() -> None:
    cluster = cluster_of(a=1)
    cluster.freeze_node("a")
    actor = cluster.request()
    cluster.kill(actor)
    cluster.thaw_node("a")
    assert rest(cluster) == [ActorStartFailed(0.0, actor, KILLED)]


def test_an_actor_that_was_starting_on_a_lost_node_fails_when_the_loss_is_known() -> None:
    cluster = cluster_of(a=1)
    actor = cluster.request()
    call = cluster.call(actor, "train", Work(1.0))
    cluster.kill_node("a")
    assert rest(cluster) == [
        ActorStartFailed(14.0, actor, NODE_DIED),
        CallFailed(14.0, actor, call, "train", NODE_DIED),
    ]


# --- a worker dies -------------------------------------------------------------------------------


def test_a_killed_worker_is_known_at_once_and_its_node_lives() -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    work = Work(5.0, note(seen, "end"), [(1.0, note(seen, "half")), (4.0, note(seen, "more"))])
    call = cluster.call(actor, "save", work)
    assert cluster.next(2.0) is None
    cluster.kill_actor(actor)
    assert rest(cluster) == [CallFailed(3.0, actor, call, "save", CRASHED)]
    assert seen == ["half"]
    assert cluster.nodes()["a"].alive
    assert cluster.node_of(cluster.request()) == "a"


def test_a_worker_killed_in_its_constructor_fails_the_start() -> None:
    cluster = cluster_of(a=1)
    actor = cluster.request()
    cluster.kill_actor(actor)
    assert rest(cluster) == [ActorStartFailed(0.0, actor, CRASHED)]


def test_only_an_actor_with_a_worker_can_be_killed() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    cluster.kill_actor(actor)
    with pytest.raises(ValueError, match="no worker"):
        cluster.kill_actor(actor)


@pytest.mark.parametrize(
    ("error", "died"),
    [
        (Stopped(), CRASHED),
        (SystemExit(3), Died(Exit.EXITED, exit_code=3)),
        (SystemExit("why"), Died(Exit.EXITED, exit_code=1)),
    ],
)
def test_work_may_end_its_own_worker(error: BaseException, died: Died) -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    call = cluster.call(actor, "save", Work(5.0, note(seen, "end"), [(2.0, die(error))]))
    assert rest(cluster) == [CallFailed(3.0, actor, call, "save", died)]
    assert seen == []


def test_the_death_of_an_actor_that_owes_nothing_is_not_told() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    cluster.kill_actor(actor)
    assert rest(cluster) == []
    assert cluster.state_of(actor) is State.DEAD


# --- a node dies ---------------------------------------------------------------------------------


def test_a_killed_node_is_first_seen_as_actors_out_of_reach_and_much_later_as_dead() -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    call = cluster.call(actor, "train", Work(5.0, note(seen, "end")))
    cluster.kill_node("a")
    assert cluster.next() == CallFailed(2.5, actor, call, "train", Unavailable())
    assert cluster.nodes()["a"].alive
    assert cluster.next(12.4) is None
    assert cluster.nodes()["a"].alive
    assert cluster.next(0.2) is None
    assert not cluster.nodes()["a"].alive
    assert cluster.nodes()["a"].death_reason is DeathReason.UNEXPECTED
    late = cluster.call(actor, "train", Work(1.0))
    assert cluster.next() == CallFailed(15.1, actor, late, "train", NODE_DIED)
    assert seen == []


def test_calls_made_to_an_actor_out_of_reach_fail_a_little_later() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    cluster.kill_node("a")
    cluster.next(5.0)
    call = cluster.call(actor, "train", Work(1.0))
    cluster.stop(actor)
    assert rest(cluster) == [
        CallFailed(7.5, actor, call, "train", Unavailable()),
        ActorStopped(7.5, actor, Unavailable()),
    ]


def test_when_the_raylet_is_killed_results_arrive_until_the_cluster_knows_and_then_none() -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    first = cluster.call(actor, "train", Work(10.0, note(seen, "first")))
    second = cluster.call(actor, "save", Work(10.0, note(seen, "second")))
    third = cluster.call(actor, "train", Work(10.0, note(seen, "third")))
    cluster.kill_raylet("a")
    assert rest(cluster) == [
        CallReturned(11.0, actor, first, "train", None),
        CallFailed(16.0, actor, second, "save", NODE_DIED),
        CallFailed(16.0, actor, third, "train", NODE_DIED),
    ]
    assert not cluster.nodes()["a"].alive
    # Unseen, what was begun came to its end; what was not begun never did.
    assert seen == ["first", "second"]


def test_ray_kill_does_not_end_a_worker_without_raylet_but_a_power_cut_does() -> None:
    for cut, seen_in_the_end in ((False, ["end"]), (True, [])):
        cluster, seen = cluster_of(a=1), list[str]()
        actor = running(cluster)
        cluster.call(actor, "save", Work(10.0, note(seen, "end")))
        cluster.kill_raylet("a")
        cluster.kill(actor)
        if cut:
            cluster.kill_node("a")
        rest(cluster)
        assert seen == seen_in_the_end


def test_a_worker_killed_without_raylet_is_out_of_reach_until_its_node_is_known_dead() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    call = cluster.call(actor, "train", Work(30.0))
    cluster.kill_raylet("a")
    cluster.kill_actor(actor)
    assert rest(cluster) == [CallFailed(2.5, actor, call, "train", Unavailable())]
    assert cluster.state_of(actor) is State.DEAD


def test_a_frozen_node_tells_nothing_for_a_minute_and_is_then_dead() -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    call = cluster.call(actor, "train", Work(5.0, note(seen, "end")))
    cluster.freeze_node("a")
    assert cluster.next(61.9) is None
    assert cluster.nodes()["a"].alive
    assert cluster.next() == CallFailed(63.0, actor, call, "train", NODE_DIED)
    assert not cluster.nodes()["a"].alive
    assert seen == []


def test_a_node_that_thaws_in_time_goes_on_as_if_nothing_were() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    call = cluster.call(actor, "train", Work(5.0))
    assert cluster.next(2.0) is None
    cluster.freeze_node("a")
    assert cluster.next(30.0) is None
    cluster.thaw_node("a")
    assert rest(cluster) == [CallReturned(36.0, actor, call, "train", None)]
    assert cluster.nodes()["a"].alive


def test_a_node_that_thaws_too_late_does_what_nobody_waits_for_any_more() -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    cluster.call(actor, "save", Work(5.0, note(seen, "end")))
    cluster.freeze_node("a")
    assert isinstance(cluster.next(), CallFailed)
    cluster.thaw_node("a")
    assert rest(cluster) == []
    assert seen == ["end"]
    assert not cluster.nodes()["a"].alive


def test_what_was_killed_on_a_frozen_node_is_dead_when_it_thaws() -> None:
    cluster, seen = cluster_of(a=2), list[str]()
    actors = [cluster.request(), cluster.request()]
    calls = [cluster.call(actor, "save", Work(5.0, note(seen, "end"))) for actor in actors]
    cluster.next(), cluster.next()
    cluster.freeze_node("a")
    cluster.kill(actors[0])
    cluster.kill_actor(actors[1])
    assert cluster.next() == CallFailed(1.0, actors[0], calls[0], "save", KILLED)
    assert cluster.next(0.5) is None
    cluster.thaw_node("a")
    assert rest(cluster) == [CallFailed(1.5, actors[1], calls[1], "save", CRASHED)]
    assert seen == []


def test_a_drain_is_listed_at_once_and_at_its_deadline_the_actors_die_preempted() -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    call = cluster.call(actor, "train", Work(50.0, note(seen, "end")))
    cluster.drain_node("a", 30.0)
    view = cluster.nodes()["a"]
    assert (view.alive, view.draining, view.death_reason) == (True, True, None)
    assert cluster.next() == CallFailed(31.0, actor, call, "train", PREEMPTED)
    view = cluster.nodes()["a"]
    assert (view.alive, view.draining, view.death_reason) == (False, False, DeathReason.PREEMPTED)
    assert seen == []


def test_an_announced_node_that_dies_before_its_deadline_was_not_preempted() -> None:
    reasons = {}
    for deadline_s in (60.0, 5.0):
        cluster = cluster_of(a=1)
        cluster.drain_node("a", deadline_s)
        cluster.kill_node("a")
        rest(cluster)
        reasons[deadline_s] = cluster.nodes()["a"].death_reason
    # The cluster compares the deadline with the moment in which it learns of the death.
    assert reasons == {60.0: DeathReason.UNEXPECTED, 5.0: DeathReason.PREEMPTED}


def test_the_deadline_also_ends_a_node_that_is_frozen_or_has_no_raylet() -> None:
    for fault in (FakeCluster.freeze_node, FakeCluster.kill_raylet):
        cluster, seen = cluster_of(a=1), list[str]()
        actor = running(cluster)
        call = cluster.call(actor, "train", Work(50.0, note(seen, "end")))
        cluster.drain_node("a", 5.0)
        fault(cluster, "a")
        assert cluster.next() == CallFailed(7.5, actor, call, "train", Unavailable())
        rest(cluster)
        assert cluster.nodes()["a"].death_reason is DeathReason.PREEMPTED
        assert seen == []


def test_the_earlier_of_two_reasons_to_learn_of_a_death_counts() -> None:
    cluster = cluster_of(a=1)
    cluster.freeze_node("a")
    cluster.next(10.0)
    cluster.kill_node("a")
    cluster.next(13.9)
    assert cluster.nodes()["a"].alive
    cluster.next(0.2)
    assert not cluster.nodes()["a"].alive


@pytest.mark.parametrize(
    ("before", "step"),
    [
        (FakeCluster.kill_node, FakeCluster.kill_node),
        (FakeCluster.kill_node, FakeCluster.freeze_node),
        (FakeCluster.kill_raylet, FakeCluster.thaw_node),
        (FakeCluster.freeze_node, FakeCluster.kill_raylet),
        (FakeCluster.freeze_node, lambda cluster, name: cluster.drain_node(name, 1.0)),
        (
            lambda cluster, name: cluster.drain_node(name, 9.0),
            lambda cluster, name: cluster.drain_node(name, 1.0),
        ),
    ],
)
def test_an_impossible_step_says_what_came_before(
    before: Callable[[FakeCluster, str], None], step: Callable[[FakeCluster, str], None]
) -> None:
    cluster = cluster_of(a=1)
    before(cluster, "a")
    with pytest.raises(ValueError, match=r"Node a cannot .* it is .* after \[\(0\.0, "):
        step(cluster, "a")


def test_a_name_is_never_used_again() -> None:
    cluster = cluster_of(a=1)
    with pytest.raises(ValueError, match="already"):
        cluster.add_node("a", 1)


def test_what_is_not_there_is_refused_by_its_name() -> None:
    cluster = cluster_of(a=1)
    for step in (cluster.kill_node, cluster.kill_raylet, cluster.freeze_node, cluster.thaw_node):
        with pytest.raises(KeyError, match="no node 'b'"):
            step("b")
    with pytest.raises(KeyError, match="no node 'b'"):
        cluster.drain_node("b", 1.0)
    for ask in (cluster.state_of, cluster.node_of, cluster.stop, cluster.kill, cluster.kill_actor):
        with pytest.raises(KeyError, match="no actor 99"):
            ask(99)


def test_less_than_nothing_is_refused() -> None:
    cluster = cluster_of(a=1)
    with pytest.raises(ValueError, match="no -1 slots"):
        cluster.add_node("b", -1)
    with pytest.raises(ValueError, match="no -5 slots"):
        cluster.request(-5)
    for deadline_s in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="cannot be preempted in"):
            cluster.drain_node("a", deadline_s)
    assert set(cluster.nodes()) == {"a"}


def test_work_may_break_its_own_node() -> None:
    cluster, seen = cluster_of(a=1), list[str]()
    actor = running(cluster)
    call = cluster.call(actor, "save", Work(2.0, lambda: cluster.kill_node("a")))
    behind = cluster.call(actor, "save", Work(2.0, note(seen, "behind")))
    assert rest(cluster) == [
        CallFailed(4.5, actor, call, "save", Unavailable()),
        CallFailed(4.5, actor, behind, "save", Unavailable()),
    ]
    assert seen == []


def test_work_that_freezes_its_own_node_returns_when_that_thaws() -> None:
    cluster = cluster_of(a=1)
    actor = running(cluster)
    call = cluster.call(actor, "save", Work(2.0, lambda: cluster.freeze_node("a")))
    cluster.next(10.0)
    cluster.thaw_node("a")
    assert rest(cluster) == [CallReturned(11.0, actor, call, "save", None)]
