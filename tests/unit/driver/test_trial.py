"""Charges that are decided late are decided as of the time of the failure."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from support.trials import (
    NODE,
    OTHER,
    Table,
    begin,
    dies,
    error,
    raises,
    reports,
    saved_and_restored,
    trial_in,
)

from raytrials import RetryPolicy, Rule
from raytrials.core.fault import Cause, Charge
from raytrials.driver.account import NOT_DECIDED
from raytrials.driver.trial import Trial
from raytrials.errors import ActorError, RestoreError

COUNTED = RetryPolicy(rules=(), backoff_initial_s=0)
FREE_ONCE = RetryPolicy(
    rules=(), count_worker_death=False, max_infra_failures=1, backoff_initial_s=0
)


def charges(trial: Trial) -> list[Charge]:
    return [fault.charge for fault in trial.account.faults]


# --- in a row ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled_before_the_report", [True, False])
def test_a_charge_does_not_depend_on_when_it_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled_before_the_report: bool
) -> None:
    trial = trial_in(tmp_path, monkeypatch, FREE_ONCE, max_failures=9)
    for iteration in (0, 0, 1):
        dies(trial)
        begin(trial)
        if settled_before_the_report:
            trial.settle(at_once=True)
        if iteration:
            reports(trial, iteration)
    dies(trial)
    trial.settle(at_once=True)
    free, counted = Charge.INFRASTRUCTURE, Charge.FAILURE
    assert charges(trial) == [free, counted, free, free]
    assert trial.account.history.infra_failures == 1


def test_a_restore_that_works_gives_back_what_an_older_open_charge_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_in(tmp_path, monkeypatch, RetryPolicy(rules=(), restore_retries=1))
    trial.handle_error(error(trial, RestoreError, "worker_died"))
    trial.on_restoring()
    reports(trial, 1)
    trial.settle(at_once=True)
    assert charges(trial) == [Charge.RESTORE]
    assert trial.account.history.restore_failures == 0


# --- how long it waits ---------------------------------------------------------------------------


def test_a_rule_for_what_an_open_charge_may_turn_out_to_be_holds_the_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryPolicy(rules=[Rule("free", after_s=20, cause="node_lost")])
    table = Table(NODE)
    trial = trial_in(tmp_path, monkeypatch, policy, max_failures=9, cluster=table)
    dies(trial)
    assert trial.retry_delay_s == 20
    trial.settle(at_once=True)
    assert (charges(trial), trial.retry_delay_s) == ([Charge.FAILURE], 0)
    begin(trial)
    dies(trial)
    table.dies(NODE)
    trial.settle()
    assert (charges(trial), trial.retry_delay_s) == ([Charge.FAILURE, Charge.FREE], 20)


def test_without_such_a_rule_the_first_retry_comes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryPolicy(rules=[Rule("retry", after_s=20, cause="out_of_memory")])
    trial = trial_in(tmp_path, monkeypatch, policy, max_failures=9)
    dies(trial)
    assert trial.open_charges
    assert trial.retry_delay_s == 0


def test_what_is_certain_behind_an_open_charge_is_not_held_for_what_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryPolicy(rules=[Rule("free", after_s=20, cause="node_lost")])
    trial = trial_in(tmp_path, monkeypatch, policy, max_failures=9)
    dies(trial)
    begin(trial)
    raises(trial)
    assert len(trial.open_charges) == 2
    assert trial.retry_delay_s == 0
    assert str(trial.open_charges[1]) == "user_code, charged after the failure before it"


def test_a_lost_node_behind_an_open_charge_waits_as_a_lost_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryPolicy(rules=[Rule("free", after_s=20, cause="node_lost")])
    table = Table(NODE, OTHER)
    trial = trial_in(tmp_path, monkeypatch, policy, max_failures=9, cluster=table)
    dies(trial)
    begin(trial)
    table.dies(OTHER)
    dies(trial, OTHER)
    assert trial.retry_delay_s == 20
    assert str(trial.open_charges[1]) == "node_lost, charged after the failure before it"
    trial.settle(at_once=True)
    assert charges(trial) == [Charge.FAILURE, Charge.FREE]


def test_a_wait_is_counted_from_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = RetryPolicy(rules=[Rule("retry", after_s=4, cause="worker_died")])
    trial = trial_in(tmp_path, monkeypatch, policy, max_failures=9)
    before_s = time.monotonic()
    dies(trial)
    failed_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: failed_s + 3)
    trial.settle()
    assert charges(trial) == [Charge.FAILURE]
    assert before_s + 4 <= trial.retry_due_s <= failed_s + 4


# --- the driver dies while a charge is open ------------------------------------------------------


def test_an_open_charge_is_saved_as_not_decided_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_in(tmp_path, monkeypatch, COUNTED)
    trial.get_json_state()
    dies(trial)
    saved = json.loads(trial.get_json_state()[0])["raytrials"]
    assert [(one["charge"], one["reason"]) for one in saved["faults"]] == [("free", NOT_DECIDED)]
    assert trial.account.faults == []


def test_the_next_driver_decides_what_was_open_as_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_in(tmp_path, monkeypatch, COUNTED, max_failures=0)
    dies(trial)
    restored = saved_and_restored(trial, COUNTED, Table())
    assert [fault.reason for fault in restored.account.faults] == [NOT_DECIDED]
    (charged,) = restored.settle_undecided()
    assert restored.account.faults == [charged]
    assert (charged.charge, charged.cause) == (Charge.FAILURE, Cause.WORKER_DIED)
    assert charged.reason == "worker_died, counted; failure 1, max_failures=0"
    assert not restored.should_recover()
    assert restored.run_metadata.num_failures == 1
    assert charged.reason in Path(restored.error_file).read_text()
    assert restored.settle_undecided() == ()
    again = json.loads(restored.get_json_state()[0])["raytrials"]
    assert (len(again["faults"]), again["undecided"]) == (1, [])


def test_a_node_that_is_known_to_be_dead_by_then_is_not_charged_to_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(NODE)
    trial = trial_in(tmp_path, monkeypatch, COUNTED, cluster=table)
    dies(trial)
    table.dies(NODE)
    restored = saved_and_restored(trial, COUNTED, table)
    (charged,) = restored.settle_undecided()
    assert (charged.charge, charged.cause) == (Charge.INFRASTRUCTURE, Cause.NODE_LOST)
    assert restored.should_recover()


def test_what_was_open_is_decided_in_order_and_with_the_progress_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_in(tmp_path, monkeypatch, FREE_ONCE, max_failures=9)
    for iteration in (0, 1, 2):
        dies(trial)
        begin(trial)
        if iteration:
            reports(trial, iteration)
    restored = saved_and_restored(trial, FREE_ONCE, Table())
    restored.settle_undecided()
    free, counted = Charge.INFRASTRUCTURE, Charge.FAILURE
    assert charges(restored) == [free, counted, free]
    assert restored.account.history.infra_failures == 0
    assert [fault.attempt for fault in restored.account.faults] == [1, 2, 3]


# --- what is left for the reader -----------------------------------------------------------------


def test_the_error_file_has_the_time_of_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_in(tmp_path, monkeypatch, COUNTED)
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    dies(trial)
    monkeypatch.setattr(time, "time", lambda: 1_000_000_030.0)
    trial.settle(at_once=True)
    at = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(1_000_000_000))
    assert f"(occurred at {at})" in Path(trial.error_file).read_text()


def test_the_nodes_of_failures_come_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_in(tmp_path, monkeypatch, COUNTED, max_failures=9, cluster=Table(NODE, OTHER))
    for node_id in (NODE, OTHER, NODE):
        trial.handle_error(error(trial, ActorError, "out_of_memory", node_id))
    assert trial.suspects(60) == (OTHER, NODE)
