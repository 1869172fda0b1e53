"""Whatever happens in whatever order, the budgets hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raytrials import RetryPolicy
from raytrials.core.fault import Cause, Charge, Fault, FaultClass, Phase
from raytrials.core.retry import Decision, History

limits = st.none() | st.integers(0, 4)
policies = st.builds(
    RetryPolicy,
    restore_retries=limits,
    max_infra_failures=limits,
    count_preemption=st.booleans(),
    count_node_loss=st.booleans(),
    count_worker_death=st.booleans(),
)
faults = st.builds(
    Fault,
    trial_id=st.just("trial"),
    attempt=st.integers(1, 99),
    fault_class=st.sampled_from(FaultClass),
    phase=st.sampled_from(Phase),
    cause=st.sampled_from(Cause),
    node_id=st.none() | st.just("node"),
    detail=st.just(""),
    time=st.floats(0, 1e10),
)
RESTORED = "restored"
PROGRESSED = "progressed"
events = st.lists(faults | st.sampled_from([RESTORED, PROGRESSED]), max_size=60)


def live(
    policy: RetryPolicy, history: History, happened: list[Fault | str]
) -> list[tuple[History, Decision]]:
    """Let a trial live through what happened, until it ends."""
    decisions = []
    for event in happened:
        if event == RESTORED:
            history = history.restored()
        elif event == PROGRESSED:
            history = history.progressed()
        else:
            assert isinstance(event, Fault)
            before, decision = history, policy.decide(event, history)
            decisions.append((before, decision))
            history = decision.history
            if not decision.retry:
                break
    return decisions


@given(policies, st.integers(-1, 4), events)
def test_budgets_are_never_negative_and_never_exceeded(
    policy: RetryPolicy, max_failures: int, happened: list[Fault | str]
) -> None:
    for _, decision in live(policy, History(max_failures=max_failures), happened):
        after = decision.history
        assert after.max_failures == max_failures
        counts = (after.failures, after.restore_failures, after.infra_failures, after.unavailable)
        assert min(counts) >= 0
        assert after.unavailable <= 1
        if policy.restore_retries is not None:
            assert after.restore_failures <= policy.restore_retries
        if policy.max_infra_failures is not None:
            assert after.infra_failures <= policy.max_infra_failures
        if decision.retry and max_failures >= 0:
            assert after.failures <= max_failures


@given(policies, st.integers(-1, 4), events)
def test_only_a_counted_failure_beyond_the_limit_ends_a_trial(
    policy: RetryPolicy, max_failures: int, happened: list[Fault | str]
) -> None:
    for before, decision in live(policy, History(max_failures=max_failures), happened):
        counted = decision.history.failures - before.failures
        assert counted == (1 if decision.charge is Charge.FAILURE else 0)
        spent = max_failures >= 0 and before.failures + counted > max_failures
        assert decision.retry is not (counted == 1 and spent)


@given(policies, st.integers(-1, 4), events)
def test_each_fault_moves_one_account_only(
    policy: RetryPolicy, max_failures: int, happened: list[Fault | str]
) -> None:
    for before, decision in live(policy, History(max_failures=max_failures), happened):
        after = decision.history
        grown = [
            name
            for name in ("failures", "restore_failures", "infra_failures", "unavailable")
            if getattr(after, name) > getattr(before, name)
        ]
        assert len(grown) <= 1
        assert decision.reason


@given(policies, faults, st.integers(1, 200))
def test_a_machines_death_never_ends_a_trial_that_makes_progress(
    policy: RetryPolicy, fault: Fault, times: int
) -> None:
    free = RetryPolicy(
        restore_retries=policy.restore_retries,
        max_infra_failures=policy.max_infra_failures or 1,
        count_preemption=False,
        count_node_loss=False,
    )
    history = History(max_failures=0)
    for cause in (Cause.PREEMPTED, Cause.NODE_LOST, Cause.STORAGE):
        one = Fault(**{**vars(fault), "cause": cause})
        for _ in range(times):
            decision = free.decide(one, history)
            assert decision.retry
            assert decision.charge is not Charge.FAILURE
            history = decision.history.progressed()


@given(policies, st.integers(-1, 4), events)
def test_the_same_faults_give_the_same_decisions(
    policy: RetryPolicy, max_failures: int, happened: list[Fault | str]
) -> None:
    first = live(policy, History(max_failures=max_failures), happened)
    assert first == live(policy, History(max_failures=max_failures), happened)
