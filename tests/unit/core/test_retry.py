"""The table of costs, row by row."""

from __future__ import annotations

import dataclasses

import pytest

from raytrials import RetryPolicy
from raytrials.core.fault import Cause, Charge, Fault, FaultClass, Phase
from raytrials.core.retry import History
from raytrials.errors import ConfigurationError

PLAIN = RetryPolicy(
    restore_retries=2,
    max_infra_failures=3,
    count_preemption=False,
    count_node_loss=False,
    count_worker_death=True,
)
FRESH = History(max_failures=1)


def fault(fault_class: FaultClass, cause: Cause) -> Fault:
    return Fault("trial", 1, fault_class, Phase.RUNNING, cause, None, "", 0.0)


ALL = tuple(FaultClass)
ROWS = [
    *[(kind, Cause.PREEMPTED, Charge.INFRASTRUCTURE) for kind in ALL],
    *[(kind, Cause.NODE_LOST, Charge.INFRASTRUCTURE) for kind in ALL],
    *[(kind, Cause.STORAGE, Charge.INFRASTRUCTURE) for kind in ALL],
    *[(kind, Cause.UNSCHEDULABLE, Charge.FREE) for kind in ALL],
    (FaultClass.RESTORE, Cause.USER_CODE, Charge.RESTORE),
    (FaultClass.RESTORE, Cause.WORKER_DIED, Charge.RESTORE),
    (FaultClass.RESTORE, Cause.ACTOR_UNAVAILABLE, Charge.RESTORE),
    (FaultClass.RESTORE, Cause.CHECKPOINT_MISSING, Charge.CHECKPOINT),
    (FaultClass.RESTORE, Cause.CHECKPOINT_CORRUPT, Charge.CHECKPOINT),
    (FaultClass.TRAINING, Cause.USER_CODE, Charge.FAILURE),
    (FaultClass.TRAINING, Cause.OUT_OF_MEMORY, Charge.FAILURE),
    (FaultClass.ACTOR, Cause.OUT_OF_MEMORY, Charge.FAILURE),
    (FaultClass.ACTOR, Cause.ENVIRONMENT, Charge.FAILURE),
    (FaultClass.ACTOR, Cause.WORKER_DIED, Charge.FAILURE),
    (FaultClass.ACTOR, Cause.HUNG, Charge.FAILURE),
    (FaultClass.ACTOR, Cause.ACTOR_UNAVAILABLE, Charge.FREE),
]


@pytest.mark.parametrize(("fault_class", "cause", "charge"), ROWS)
def test_a_first_fault_is_charged_as_its_row_says(
    fault_class: FaultClass, cause: Cause, charge: Charge
) -> None:
    decision = PLAIN.decide(fault(fault_class, cause), FRESH)
    assert decision.charge is charge
    assert decision.retry
    assert decision.history.failures == (1 if charge is Charge.FAILURE else 0)
    assert decision.reason


@pytest.mark.parametrize(
    ("flag", "value", "cause", "charge"),
    [
        ("count_preemption", True, Cause.PREEMPTED, Charge.FAILURE),
        ("count_node_loss", True, Cause.NODE_LOST, Charge.FAILURE),
        ("count_worker_death", False, Cause.WORKER_DIED, Charge.INFRASTRUCTURE),
        ("count_worker_death", False, Cause.HUNG, Charge.INFRASTRUCTURE),
    ],
)
def test_a_flag_moves_a_cause_to_another_account(
    flag: str,
    value: bool,
    cause: Cause,
    charge: Charge,
) -> None:
    policy = dataclasses.replace(PLAIN, **{flag: value})
    decision = policy.decide(fault(FaultClass.ACTOR, cause), FRESH)
    assert decision.charge is charge
    if value:
        assert decision.reason.startswith(f"{cause}, counted ({flag}); failure 1, ")
    for other in (Cause.USER_CODE, Cause.OUT_OF_MEMORY):
        assert "(" not in policy.decide(fault(FaultClass.ACTOR, other), FRESH).reason


def test_a_counted_preemption_while_restoring_is_a_failed_restore_as_in_ray() -> None:
    policy = dataclasses.replace(PLAIN, count_preemption=True)
    decision = policy.decide(fault(FaultClass.RESTORE, Cause.PREEMPTED), FRESH)
    assert decision.charge is Charge.RESTORE


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("max_failures", [0, 3])
def test_a_restore_that_always_fails_is_tried_by_the_formula(
    retries: int, max_failures: int
) -> None:
    policy = dataclasses.replace(PLAIN, restore_retries=retries)
    history = History(max_failures=max_failures)
    attempts = 0
    retry = True
    while retry:
        attempts += 1
        decision = policy.decide(fault(FaultClass.RESTORE, Cause.USER_CODE), history)
        retry, history = decision.retry, decision.history
    assert attempts == (retries + 1) * (max_failures + 1)


def test_the_count_of_failed_restores_starts_afresh_after_a_counted_one() -> None:
    history, charges = History(max_failures=9), []
    for _ in range(7):
        decision = PLAIN.decide(fault(FaultClass.RESTORE, Cause.USER_CODE), history)
        history = decision.history
        charges.append((decision.charge, history.restore_failures))
    free, counted = Charge.RESTORE, Charge.FAILURE
    assert charges == [
        (free, 1),
        (free, 2),
        (counted, 0),
        (free, 1),
        (free, 2),
        (counted, 0),
        (free, 1),
    ]


def test_a_good_restore_gives_all_free_retries_back() -> None:
    spent = History(restore_failures=2, infra_failures=2, failures=1)
    assert spent.restored() == History(restore_failures=0, infra_failures=2, failures=1)


def test_infrastructure_failures_without_progress_are_counted_once_their_budget_is_spent() -> None:
    history, charges = History(max_failures=5), []
    for _ in range(8):
        decision = PLAIN.decide(fault(FaultClass.ACTOR, Cause.NODE_LOST), history)
        history = decision.history
        charges.append(decision.charge)
    free, counted = Charge.INFRASTRUCTURE, Charge.FAILURE
    assert charges == [free, free, free, counted, free, free, free, counted]
    assert history.progressed().infra_failures == 0


def test_an_unavailable_actor_is_free_once_in_a_row_only() -> None:
    unavailable = fault(FaultClass.ACTOR, Cause.ACTOR_UNAVAILABLE)
    first = PLAIN.decide(unavailable, FRESH)
    second = PLAIN.decide(unavailable, first.history)
    assert (first.charge, second.charge) == (Charge.FREE, Charge.FAILURE)
    assert PLAIN.decide(unavailable, second.history.progressed()).charge is Charge.FREE


def test_no_limit_is_no_limit() -> None:
    policy = dataclasses.replace(PLAIN, restore_retries=None, max_infra_failures=None)
    spent = History(max_failures=0, restore_failures=1000, infra_failures=1000)
    assert policy.decide(fault(FaultClass.RESTORE, Cause.USER_CODE), spent).retry
    assert policy.decide(fault(FaultClass.ACTOR, Cause.PREEMPTED), spent).retry
    endless = History(max_failures=-1, failures=1000)
    assert policy.decide(fault(FaultClass.TRAINING, Cause.USER_CODE), endless).retry


def test_a_free_failure_does_not_end_a_trial_whose_budget_is_overspent() -> None:
    overspent = History(max_failures=1, failures=2)
    assert PLAIN.decide(fault(FaultClass.ACTOR, Cause.PREEMPTED), overspent).retry
    assert not PLAIN.decide(fault(FaultClass.TRAINING, Cause.USER_CODE), overspent).retry


def test_what_is_left_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_RESTORE_RETRY_NUM", "7")
    monkeypatch.setenv("RAYTRIALS_COUNT_NODE_LOSS_AS_FAILURE", "1")
    assert RetryPolicy().restore_retries == 7
    assert RetryPolicy().count_node_loss
    assert RetryPolicy(restore_retries=1).restore_retries == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("restore_retries", -1),
        ("restore_retries", True),
        ("restore_retries", "3"),
        ("max_infra_failures", 1.5),
        ("count_preemption", 1),
        ("count_node_loss", None),
        ("count_worker_death", "no"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy(**{name: value})  # type: ignore[arg-type]
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_trial_without_a_whole_checkpoint_ends_whatever_its_budget() -> None:
    gone = dataclasses.replace(
        fault(FaultClass.RESTORE, Cause.CHECKPOINT_MISSING),
        exceptions=("raytrials.errors.NoCheckpointError",),
    )
    decision = PLAIN.decide(gone, History(max_failures=-1))
    assert not decision.retry
    assert "no checkpoint can be restored" in decision.reason
