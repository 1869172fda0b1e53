"""The oracle is silent about what was promised, and says each invariant that does not hold."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from support.histories import (
    NAME,
    Script,
    as_csv,
    as_json,
    directory_of,
    metrics,
    save_ray_state,
    saved,
)
from support.stores import ReplacesOnClose

from raytrials.chaos.oracle import BrokenInvariantsError, Oracle
from raytrials.chaos.oracle.course import Course
from raytrials.core.event import (
    AttemptStarted,
    CheckpointCommitted,
    CheckpointMarkedBad,
    DecisionMade,
    DriverAttached,
    DriverDetached,
    ExperimentCreated,
    Record,
    ResultReported,
    RunnerAssigned,
    SearcherTold,
    StateLost,
    TrialAdded,
    TrialConfigChanged,
    TrialFinished,
    TrialImported,
)
from raytrials.core.fault import Cause, Charge, Fault, FaultClass, Phase
from raytrials.core.retry import History, RetryPolicy
from raytrials.core.state import CheckpointRecord, TrialRecord
from raytrials.core.status import Status
from raytrials.errors import NotAnExperimentError
from raytrials.store.filesystem import as_pyarrow
from raytrials.store.manifest import checkpoint_name
from raytrials.store.record import encode
from raytrials.store.segment import Segment

fresh = itertools.count()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """An experiment whose first driver is at work."""
    script = Script(pyarrow.fs.LocalFileSystem(), str(tmp_path / "experiment"))
    script.attach(num_samples=2, max_concurrent=1)
    return script


def red(script: Script, **arguments: Any) -> set[str]:
    """Which invariants do not hold."""
    return {one.invariant for one in Oracle(script.path, **arguments).violations()}


def journal_of(script: Script) -> str:
    return script.at(".raytrials", "journal", Segment(1, 1).name)


def texts(script: Script) -> list[str]:
    """What is said of the invariants that do not hold."""
    return [one.text for one in Oracle(script.path).violations()]


def one_trial(script: Script, trial_id: str = "a", last: int = 3) -> None:
    """A trial from its beginning to its end."""
    script.add(trial_id)
    script.start(trial_id)
    script.run(trial_id, last)
    script.finish(trial_id)


def ended(script: Script) -> Script:
    """Both trials, from beginning to end, by one driver."""
    one_trial(script, "a")
    one_trial(script, "b")
    script.detach()
    return script


def restored(script: Script) -> None:
    """What a driver's death in the second trial and a machine's after it come to."""
    one_trial(script, "a")
    script.add("b")
    script.start("b")
    script.run("b", 2)
    script.put("b", 2, 3)
    script.attach(num_samples=2, max_concurrent=1)
    script.tell(ResultReported("b", 1, 3, metrics(3)))
    script.tell(DecisionMade("b", 3, "CONTINUE"))
    script.tell(SearcherTold("b", "result", 3))
    script.tell(CheckpointCommitted("b", 1, 2, 3))
    script.start("b", first_index=5)
    script.run("b", 4)
    script.fail("b", Cause.NODE_LOST)
    script.delete("b", 0)
    script.start("b")
    script.run("b", 5)
    script.finish("b")
    script.detach()


# --- green ---------------------------------------------------------------------------------------


def test_an_experiment_that_lost_driver_and_machine_is_green_on_a_disk(script: Script) -> None:
    restored(script)
    Oracle(script.path).check()
    Oracle(script.path, num_samples=2).check()


def test_it_is_green_on_an_object_store() -> None:
    store = as_pyarrow(ReplacesOnClose())
    script = Script(store, f"bucket-{next(fresh)}/experiment")
    script.attach(num_samples=2, max_concurrent=1)
    restored(script)
    Oracle(script.path, storage_filesystem=store).check()


def test_it_is_green_while_a_driver_is_at_work(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 2)
    script.save()
    script.write(as_json(metrics(1)) + b'{"loss": 0.', directory_of("a"), "result.json")
    assert Oracle(script.path).violations() == []


def test_a_trial_that_takes_over_another_ones_checkpoint_is_green(script: Script) -> None:
    one_trial(script, "a", last=4)
    script.add("b")
    script.start("b")
    script.run("b", 2)
    taken = f"{directory_of('a')}/{checkpoint_name(3)}"
    script.fail("b", Cause.PREEMPTED)
    script.tell(TrialConfigChanged("b", {"x": 2}, "tag-b", checkpoint=taken))
    script.start("b", checkpoint=taken, from_iteration=4)
    script.run("b", 6)
    script.fail("b", Cause.PREEMPTED)
    script.start("b")
    script.run("b", 7)
    script.finish("b")
    script.detach()
    assert Oracle(script.path).violations() == []


def test_check_names_all_that_does_not_hold(script: Script) -> None:
    ended(script)
    script.write(b"nothing", directory_of("a"), "result.json")
    script.disk.delete_tree(script.at(directory_of("b"), checkpoint_name(2)))
    with pytest.raises(BrokenInvariantsError) as raised:
        Oracle(script.path).check()
    assert "I3 a: the last line of result.json is torn" in str(raised.value)
    assert "I6 b: checkpoint_000002 is recorded, and not on storage" in str(raised.value)


def test_nothing_at_all_is_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(NotAnExperimentError):
        Oracle(tmp_path / "nothing").violations()


# --- I1: trials ----------------------------------------------------------------------------------


def test_a_lost_trial_is_red(script: Script) -> None:
    one_trial(script)
    script.detach()
    assert red(script) == {"I1"}


def test_a_trial_too_many_is_red(script: Script) -> None:
    for trial_id in "abc":
        one_trial(script, trial_id)
    script.detach()
    assert red(script) == {"I1"}


def test_a_trial_that_was_added_twice_is_red(script: Script) -> None:
    ended(script)
    script.attach(num_samples=2)
    script.tell(TrialAdded("a", {"x": 1}, "tag-a"))
    script.detach()
    assert red(script) == {"I1"}


def test_an_unfinished_trial_of_a_complete_experiment_is_red(script: Script) -> None:
    one_trial(script, "a")
    script.add("b")
    script.detach("SIGTERM")
    assert red(script) == set()
    assert red(script, num_samples=2) == {"I1"}


def test_another_config_than_the_first_is_red(script: Script) -> None:
    ended(script)
    script.write(json.dumps({"x": 2}).encode(), directory_of("a"), "params.json")
    assert red(script) == {"I1"}


def test_a_trial_that_is_sampled_before_an_unfinished_one_runs_is_red(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 1)
    script.attach(num_samples=2, max_concurrent=1)
    script.add("b")
    script.start("a")
    script.finish("a")
    script.start("b")
    script.run("b", 1)
    script.finish("b")
    script.detach()
    assert red(script) == {"I1"}


def test_a_trial_may_be_sampled_when_the_actors_of_the_unfinished_are_requested(
    script: Script,
) -> None:
    running(script)
    script.attach(num_samples=2, max_concurrent=2)
    script.tell(RunnerAssigned("a", "any", 2))
    script.add("b")
    script.save()
    assert "I1" not in red(script)


def test_unfinished_trials_that_start_in_another_order_are_red(script: Script) -> None:
    script.attach(num_samples=2, max_concurrent=2)
    for trial_id in "ab":
        script.add(trial_id)
        script.start(trial_id)
        script.run(trial_id, 1)
    script.attach(num_samples=2, max_concurrent=2)
    for trial_id in "ba":
        script.start(trial_id)
        script.finish(trial_id)
    script.detach()
    assert red(script) == {"I1"}


def test_more_running_trials_than_allowed_are_red(script: Script) -> None:
    for trial_id in "ab":
        script.add(trial_id)
        script.start(trial_id)
        script.run(trial_id, 1)
    script.save()
    assert red(script) == {"I1"}


def test_a_trial_with_two_directories_is_red(script: Script) -> None:
    ended(script)
    rows = as_json({**metrics(1), "trial_id": "a"})
    script.write(rows, f"{directory_of('a')}_again", "result.json")
    assert "I1" in red(script)


# --- I2: progress --------------------------------------------------------------------------------

STARTS: dict[str, tuple[dict[str, Any], str]] = {
    "from the beginning": ({"checkpoint": None, "from_iteration": 0}, "I2"),
    "from an older one": ({"checkpoint": checkpoint_name(0), "from_iteration": 1}, "I2"),
    "from one that nobody made": ({"checkpoint": checkpoint_name(9)}, "I2"),
    "from another iteration": ({"from_iteration": 1}, "I2"),
    "from another trial's": ({"checkpoint": f"train_x/{checkpoint_name(1)}"}, "I2"),
    "from nowhere to somewhere": ({"checkpoint": None}, "I2"),
    "from no checkpoint": ({"checkpoint": "weights"}, "I2"),
}


@pytest.mark.parametrize(("planted", "invariant"), STARTS.values(), ids=STARTS)
def test_a_start_is_red(script: Script, planted: dict[str, Any], invariant: str) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 2)
    script.fail("a", Cause.PREEMPTED)
    script.start("a", **planted)
    script.save()
    assert red(script) >= {invariant}


def test_a_checkpoint_on_storage_that_the_next_attempt_passes_over_is_red(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 2)
    script.put("a", 2, 3)
    script.fail("a", Cause.PREEMPTED)
    script.start("a", first_index=5)
    script.save()
    assert red(script) == {"I2"}


def test_one_that_was_committed_after_the_look_is_none_to_continue_from(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 2)
    script.fail("a", Cause.PREEMPTED)
    script.start("a", first_index=5)
    script.put("a", 2, 3, attempt=1)
    script.save()
    assert red(script) == set()


def test_a_bad_checkpoint_is_neither_red_nor_continued_from(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 2)
    script.write(b"", directory_of("a"), checkpoint_name(1), "weights.bin")
    script.fail("a", Cause.CHECKPOINT_CORRUPT, Charge.CHECKPOINT)
    script.tell(CheckpointMarkedBad("a", checkpoint_name(1), "weights.bin: expected 100 bytes"))
    script.start("a")
    script.save()
    assert red(script) == set()
    script.fail("a", Cause.PREEMPTED)
    script.start("a", checkpoint=checkpoint_name(1), from_iteration=2)
    script.save()
    assert red(script) >= {"I2"}


def test_what_was_deleted_is_not_continued_from(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 3)
    script.delete("a", 2)
    script.fail("a", Cause.PREEMPTED)
    script.start("a", checkpoint=checkpoint_name(2), from_iteration=3)
    script.save()
    assert texts(script) == ["attempt 2 continues from checkpoint_000002, which is deleted"]


def test_an_iteration_without_a_checkpoint_is_nothing_to_continue_from(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.report("a", 1)
    script.fail("a", Cause.PREEMPTED)
    script.start("a", from_iteration=1)
    script.save()
    assert texts(script) == ["attempt 2 continues from iteration 1 without a checkpoint"]


TAKEN = f"{directory_of('a')}/{checkpoint_name(2)}"

AFTER_TAKING_OVER: dict[str, tuple[dict[str, Any], str]] = {
    "the beginning": ({"checkpoint": None, "from_iteration": 0}, f"stands on {TAKEN}"),
    "its own before": ({"checkpoint": checkpoint_name(1)}, "stands on something else since"),
    "another": ({"checkpoint": f"train_a/{checkpoint_name(1)}"}, "no change of its config said so"),
}


@pytest.mark.parametrize(("planted", "text"), AFTER_TAKING_OVER.values(), ids=AFTER_TAKING_OVER)
def test_a_trial_continues_from_what_it_took_over(
    script: Script, planted: dict[str, Any], text: str
) -> None:
    one_trial(script, "a")
    script.add("b")
    script.start("b")
    script.run("b", 2)
    script.fail("b", Cause.PREEMPTED)
    script.tell(TrialConfigChanged("b", {"x": 2}, "tag-b", checkpoint=TAKEN))
    script.start("b", **planted)
    script.save()
    assert text in texts(script)[0]


def test_after_that_its_own_come_first_and_a_bad_one_is_not_taken(script: Script) -> None:
    one_trial(script, "a")
    script.add("b")
    script.tell(TrialConfigChanged("b", {"x": 2}, "tag-b", checkpoint=TAKEN))
    script.start("b", checkpoint=TAKEN, from_iteration=3)
    script.run("b", 4)
    script.fail("b", Cause.PREEMPTED)
    script.start("b", checkpoint=TAKEN, from_iteration=3)
    script.save()
    assert "its own checkpoint_000000 is newer" in texts(script)[0]
    script.tell(CheckpointMarkedBad("a", checkpoint_name(2), "gone"))
    script.fail("b", Cause.PREEMPTED)
    script.start("b", checkpoint=TAKEN, from_iteration=3)
    script.save()
    assert "which is bad or deleted" in texts(script)[1]


# --- I3: history ---------------------------------------------------------------------------------


def rows_of(*iterations: int) -> list[dict[str, Any]]:
    return [metrics(iteration) for iteration in iterations]


FILES: dict[str, tuple[str, bytes]] = {
    "a row twice": ("result.json", as_json(*rows_of(1, 2, 2, 3))),
    "going back": ("result.json", as_json(*rows_of(1, 2, 1, 2, 3))),
    "a row less": ("result.json", as_json(*rows_of(1, 2))),
    "a torn line": ("result.json", as_json(*rows_of(1, 2)) + b'{"lo\n' + as_json(*rows_of(3))),
    "a torn end": ("result.json", as_json(*rows_of(1, 2, 3))[:-1]),
    "another value": ("result.json", as_json(*rows_of(1, 2), metrics(3, loss=7))),
    "a row twice in the table": ("progress.csv", as_csv(*rows_of(1, 2, 2, 3))),
    "a row less in the table": ("progress.csv", as_csv(*rows_of(1, 3))),
    "a torn line in the table": ("progress.csv", as_csv(*rows_of(1, 2, 3)).replace(b"0.5,2", b"0")),
    "a torn end of the table": ("progress.csv", as_csv(*rows_of(1, 2, 3))[:-2]),
    "no iteration": ("result.json", as_json({"loss": 1})),
    "another value in the table": ("progress.csv", as_csv(*rows_of(1, 2), metrics(3, loss=7))),
}


@pytest.mark.parametrize(("name", "data"), FILES.values(), ids=FILES)
def test_a_file_of_results_is_red(script: Script, name: str, data: bytes) -> None:
    ended(script)
    script.write(data, directory_of("a"), name)
    assert red(script) == {"I3"}


def test_a_row_that_the_journal_lost_is_red(script: Script) -> None:
    script.add("a")
    script.start("a")
    for iteration in (1, 3):
        script.report("a", iteration)
    script.finish("a")
    script.save()
    assert red(script) == {"I3"}


def test_rows_that_are_lost_below_the_checkpoint_are_red(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.report("a", 1)
    script.tell(ResultReported("a", 1, 3, metrics(3)))
    script.commit("a")
    script.fail("a", Cause.PREEMPTED)
    script.start("a")
    script.save()
    assert red(script) == {"I3"}


def test_a_result_that_is_reported_twice_in_one_attempt_is_red(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 2)
    script.tell(ResultReported("a", 1, 2, metrics(2)))
    script.save()
    assert red(script) == {"I3"}


# --- I4: searcher and scheduler ------------------------------------------------------------------


def running(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 2)


TELLINGS: dict[str, Callable[[Script], None]] = {
    "a result twice": lambda script: script.tell(SearcherTold("a", "result", 2)),
    "a result left out": lambda script: script.tell(SearcherTold("a", "result", 4)),
    "its end before it ended": lambda script: script.tell(SearcherTold("a", "complete", 2)),
}


def script_with_gap(script: Script) -> None:
    script.tell(ResultReported("a", 1, 3, metrics(3)))
    script.tell(ResultReported("a", 1, 4, metrics(4)))


@pytest.mark.parametrize("plant", TELLINGS.values(), ids=TELLINGS)
def test_what_the_searcher_was_told_is_red(script: Script, plant: Callable[[Script], None]) -> None:
    running(script)
    script_with_gap(script)
    plant(script)
    script.save()
    assert red(script) == {"I4"}


def test_an_end_that_the_searcher_never_hears_of_is_red(script: Script) -> None:
    running(script)
    script.tell(TrialFinished("a", Status.SUCCEEDED))
    script.detach("SIGTERM")
    assert red(script) == {"I4"}


def test_an_end_that_the_searcher_hears_of_twice_is_red(script: Script) -> None:
    one_trial(script)
    script.tell(SearcherTold("a", "complete", 3))
    script.save()
    assert red(script) == {"I4"}


def test_a_decision_that_nobody_carries_out_is_red(script: Script) -> None:
    running(script)
    script.tell(DecisionMade("a", 2, "STOP"))
    script.save()
    assert red(script) == set()
    script.tell(ResultReported("a", 1, 3, metrics(3)))
    script.save()
    assert red(script) == {"I4"}


def test_a_decision_that_another_one_passes_over_is_red(script: Script) -> None:
    running(script)
    script.tell(DecisionMade("a", 2, "PAUSE"))
    script.tell(DecisionMade("a", 3, "CONTINUE"))
    script.save()
    assert red(script) == {"I4"}


def test_a_decision_that_is_open_at_the_end_is_red(script: Script) -> None:
    running(script)
    script.tell(DecisionMade("a", 2, "PAUSE"))
    script.detach("SIGTERM")
    assert red(script) == {"I4"}


def test_the_same_outcome_as_an_uninterrupted_run_is_green(script: Script, tmp_path: Path) -> None:
    restored(script)
    other = Script(pyarrow.fs.LocalFileSystem(), str(tmp_path / "other"))
    other.attach(num_samples=2)
    one_trial(other, "a")
    one_trial(other, "b", last=5)
    other.detach()
    assert red(script, against=other.path) == set()


def change_config(script: Script) -> None:
    script.add("a", x=2)
    script.start("a")
    script.run("a", 3)
    script.finish("a")


def change_status(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 3)
    script.finish("a", Status.ABORTED)


def change_value(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 2)
    script.tell(ResultReported("a", 1, 3, metrics(3, loss=9.0)))
    script.finish("a")


OUTCOMES: dict[str, Callable[[Script], None]] = {
    "nothing": lambda script: None,
    "another config": change_config,
    "another status": change_status,
    "another iteration": lambda script: one_trial(script, last=4),
    "another value": change_value,
    "another tag": lambda script: one_trial(script, "z"),
}


@pytest.mark.parametrize("plant", OUTCOMES.values(), ids=OUTCOMES)
def test_another_outcome_than_that_of_an_uninterrupted_run_is_red(
    script: Script, tmp_path: Path, plant: Callable[[Script], None]
) -> None:
    one_trial(script)
    script.detach("SIGTERM")
    other = Script(pyarrow.fs.LocalFileSystem(), str(tmp_path / "other"))
    other.attach()
    plant(other)
    other.detach("SIGTERM")
    assert red(script, against=other.path) == {"I4"}


@pytest.mark.parametrize("of_which", ["script", "other"])
def test_another_outcome_is_no_surprise_where_the_state_of_a_part_was_lost(
    script: Script, tmp_path: Path, of_which: str
) -> None:
    other = Script(pyarrow.fs.LocalFileSystem(), str(tmp_path / "other"))
    other.attach()
    scripts = {"script": script, "other": other}
    scripts[of_which].tell(StateLost("searcher", "a lock cannot be pickled"))
    one_trial(script)
    one_trial(other, "z", last=4)
    for one in scripts.values():
        one.detach("SIGTERM")
    assert red(script, against=other.path) == set()


# --- what was there before the journal -----------------------------------------------------------


def imported(script: Script, trial_id: str, last: int, **fields: Any) -> None:
    """Take over a trial that vanilla Ray ran, with a checkpoint of its last iteration."""
    checkpoint = CheckpointRecord(1, last - 1, last, metrics(last))
    known: dict[str, Any] = {
        "config": {"x": 1},
        "state": json.dumps({"relative_logdir": directory_of(trial_id)}),
        "status": Status.INTERRUPTED,
        "attempt": 1,
        "first_index": last,
        "next_index": last,
        "iteration": last,
        "high_water": last,
        "last_result": metrics(last),
        "checkpoints": {last - 1: checkpoint},
        "unverified": [checkpoint_name(last - 1)],
    }
    script.write(b"weights", directory_of(trial_id), checkpoint_name(last - 1), "weights.bin")
    record = TrialRecord(trial_id, 0, **{**known, **fields})
    script.tell(TrialImported(trial_id, record.to_json()))


def write_results(script: Script, trial_id: str, *iterations: int) -> None:
    rows = [metrics(iteration) for iteration in iterations]
    script.write(as_json(*rows), directory_of(trial_id), "result.json")
    script.write(as_csv(*rows), directory_of(trial_id), "progress.csv")


@pytest.mark.parametrize("from_iteration", [3, 0])
def test_an_imported_trial_that_goes_on_is_green(script: Script, from_iteration: int) -> None:
    imported(script, "a", 3)
    planted = {} if from_iteration else {"checkpoint": None, "from_iteration": 0}
    if not from_iteration:
        script.tell(CheckpointMarkedBad("a", checkpoint_name(2), "it cannot be loaded"))
    script.start("a", **planted)
    script.run("a", 5)
    script.finish("a")
    script.detach("SIGTERM")
    write_results(script, "a", 1, 2, 3, 4, 5)
    assert texts(script) == []
    write_results(script, "a", 1, 2, 3, 5)
    assert red(script) == {"I3"}


def test_an_imported_trial_that_had_ended_is_green(script: Script) -> None:
    ended = {"told_complete": True, "ended_s": 2.0}
    imported(script, "a", 3, status=Status.SUCCEEDED, **ended)
    history = History(max_failures=1, failures=2)
    imported(script, "b", 2, status=Status.FAILED, history=history, **ended)
    script.detach()
    write_results(script, "a", 1, 2, 3)
    write_results(script, "b", 1, 2)
    assert texts(script) == []


def test_a_trial_that_is_imported_over_what_is_further_is_red(script: Script) -> None:
    imported(script, "a", 3)
    imported(script, "a", 2)
    script.save()
    write_results(script, "a", 1, 2, 3)
    assert "I1" in red(script)


# --- I5: budgets ---------------------------------------------------------------------------------


def test_a_trial_that_fails_for_nothing_is_red(script: Script) -> None:
    running(script)
    script.fail("a", Cause.NODE_LOST)
    script.finish("a", Status.FAILED)
    script.save()
    assert red(script) == {"I5"}


def test_a_trial_that_fails_within_its_budget_is_red(script: Script) -> None:
    running(script)
    history = History(max_failures=3, failures=1)
    script.fail("a", Cause.USER_CODE, Charge.FAILURE, "user_code, counted", history=history)
    script.finish("a", Status.FAILED)
    script.save()
    assert red(script) == {"I5"}


REASONS: dict[str, tuple[Cause, str, set[str]]] = {
    "a preemption": (Cause.PREEMPTED, "preempted, counted; failure 1", {"I5"}),
    "a lost node": (Cause.NODE_LOST, "node_lost, counted; failure 1", {"I5"}),
    "a storage": (Cause.STORAGE, "storage, counted; failure 1", {"I5"}),
    "a budget that is not used up": (
        Cause.NODE_LOST,
        "node_lost, counted: used up (max_infra_failures=2)",
        {"I5"},
    ),
    "a budget that is": (
        Cause.NODE_LOST,
        "node_lost, counted: used up (max_infra_failures=1)",
        set(),
    ),
    "a rule": (Cause.PREEMPTED, "preempted, by rule 1, never retried", set()),
    "the user's code": (Cause.USER_CODE, "user_code, counted; failure 1", set()),
}


@pytest.mark.parametrize(("cause", "reason", "expected"), REASONS.values(), ids=REASONS)
def test_what_may_be_charged_as_a_failure(
    script: Script, cause: Cause, reason: str, expected: set[str]
) -> None:
    running(script)
    script.fail("a", Cause.NODE_LOST)
    script.start("a")
    script.fail("a", cause, Charge.FAILURE, reason)
    script.finish("a", Status.FAILED)
    script.save()
    assert red(script) == expected


@pytest.mark.parametrize("fault_class", FaultClass)
@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.NODE_LOST])
def test_what_the_policy_was_asked_to_charge_may_be_charged(
    script: Script, cause: Cause, fault_class: FaultClass, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(script)
    fault = Fault("a", 1, fault_class, Phase.RUNNING, cause, None, "", 1.0)
    policy = RetryPolicy(count_preemption=True, count_node_loss=True, restore_retries=0)
    reason = policy.decide(fault, History()).reason
    script.fail("a", cause, Charge.FAILURE, reason)
    script.save()
    assert red(script) == set()
    monkeypatch.setenv("RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE", "1")
    monkeypatch.setenv("RAYTRIALS_COUNT_NODE_LOSS_AS_FAILURE", "1")
    script.fail("a", cause, Charge.FAILURE, f"{cause}, counted; failure 2")
    script.save()
    assert red(script) == {"I5"}


def test_a_gap_in_the_ledger_is_red(script: Script) -> None:
    running(script)
    script.fail("a", Cause.PREEMPTED, number=2)
    script.save()
    assert red(script) == {"I5"}


def test_a_charge_that_nobody_decides_is_red(script: Script) -> None:
    running(script)
    script.fail("a", Cause.ACTOR_UNAVAILABLE, Charge.FREE, decided=False)
    script.save()
    assert red(script) == set()
    script.detach("SIGTERM")
    assert red(script) == {"I5"}


def test_a_counter_that_was_lost_is_red(script: Script) -> None:
    running(script)
    script.fail("a", Cause.USER_CODE, Charge.FAILURE, "counted")
    script.start("a")
    script.fail("a", Cause.PREEMPTED, history=History())
    script.save()
    assert red(script) == {"I5"}


# --- I6: checkpoints -----------------------------------------------------------------------------


def break_file(script: Script) -> None:
    script.write(b"x" * 100, directory_of("a"), checkpoint_name(1), "weights.bin")


def lose(script: Script) -> None:
    script.disk.delete_tree(script.at(directory_of("a"), checkpoint_name(1)))


def swap(script: Script) -> None:
    lose(script)
    script.put("a", 1, 1)


def put_foreign(script: Script) -> None:
    script.put("a", 7, 3, trial="b")


CHECKPOINTS: dict[str, Callable[[Script], None]] = {
    "another byte": break_file,
    "nothing": lose,
    "another iteration": swap,
    "another trial's": put_foreign,
    "another experiment's": lambda script: script.put("a", 7, 3, experiment="other"),
    "no attempt's": lambda script: script.put("a", 7, 3, attempt=2),
    "no commit": lambda script: script.write(b"x", directory_of("a"), checkpoint_name(7), "file"),
}


@pytest.mark.parametrize("plant", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_is_red(script: Script, plant: Callable[[Script], None]) -> None:
    ended(script)
    plant(script)
    assert red(script) == {"I6"}


def test_an_index_of_another_attempt_is_red(script: Script) -> None:
    running(script)
    script.fail("a", Cause.PREEMPTED)
    script.start("a", first_index=5)
    script.put("a", 6, 3, attempt=1)
    script.save()
    assert red(script) == {"I6"}


def test_a_last_checkpoint_that_is_deleted_is_red(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 1)
    script.delete("a", 0)
    script.save()
    assert red(script) == {"I6"}


def test_deleting_what_another_trial_stands_on_is_red(script: Script) -> None:
    one_trial(script, "a")
    taken = f"{directory_of('a')}/{checkpoint_name(1)}"
    script.add("b")
    script.tell(TrialConfigChanged("b", {"x": 2}, "tag-b", checkpoint=taken))
    script.start("b", checkpoint=taken, from_iteration=2)
    script.delete("a", 1)
    script.save()
    assert red(script) == {"I6"}


def test_a_cut_off_upload_to_an_object_store_is_a_leftover() -> None:
    store = as_pyarrow(ReplacesOnClose())
    script = Script(store, f"bucket-{next(fresh)}/experiment")
    script.attach(num_samples=2)
    ended(script)
    script.write(b"x", directory_of("a"), checkpoint_name(7), "file")
    assert red(script, storage_filesystem=store) == set()


def reserve(script: Script, **planted: Any) -> None:
    """Let an attempt save whose start was never recorded."""
    running(script)
    script.fail("a", Cause.NODE_LOST)
    script.tell(RunnerAssigned("a", "node", 2))
    index = script.state.trials["a"].next_index
    script.put("a", index, 3, attempt=2, **planted)
    script.tell(CheckpointCommitted("a", 2, index, 3, metrics(3)))


def test_a_checkpoint_of_an_attempt_whose_start_is_not_recorded_is_green(script: Script) -> None:
    reserve(script)
    script.save()
    assert texts(script) == []


def test_such_a_checkpoint_of_another_driver_is_red(script: Script) -> None:
    reserve(script, epoch=7)
    script.save()
    assert red(script) == {"I7"}


# --- I7: one writer ------------------------------------------------------------------------------


def test_an_event_of_a_replaced_driver_is_red(script: Script) -> None:
    running(script)
    script.save()
    before = script.disk.read(journal_of(script))
    script.attach(num_samples=2)
    script.save()
    late = Record(before.count(b"\n") + 1, 1, script.clock.now_s, SearcherTold("a", "result", 3))
    script.disk.write(journal_of(script), before + encode(late))
    assert red(script) == {"I7"}


def test_one_that_is_given_in_its_place_is_red_too() -> None:
    course = Course({}, {})
    events = [
        (1, ExperimentCreated("exp", "name", 1)),
        (2, DriverAttached("host", 1)),
        (1, TrialAdded("a")),
        (2, TrialAdded("b")),
    ]
    for seq, (epoch, event) in enumerate(events, 1):
        course.take(Record(seq, epoch, 0.0, event))
    assert [one.invariant for one in course.violations] == ["I7"]
    assert list(course.state.trials) == ["b"]


def test_an_event_without_a_driver_is_red(script: Script) -> None:
    running(script)
    script.detach("SIGTERM")
    script.tell(RunnerAssigned("a", "node"))
    script.save()
    assert red(script) == {"I7"}


def test_a_checkpoint_of_another_epoch_than_its_attempt_is_red(script: Script) -> None:
    running(script)
    script.put("a", 2, 3, epoch=2)
    script.save()
    assert red(script) == {"I7"}


def test_a_checkpoint_of_a_driver_without_a_lease_is_of_no_epoch(script: Script) -> None:
    running(script)
    script.put("a", 2, 3, epoch=0)
    script.save()
    assert red(script) == set()


def test_a_checkpoint_that_is_committed_long_after_a_takeover_is_red(script: Script) -> None:
    running(script)
    script.attach(num_samples=2)
    script.start("a", first_index=5)
    script.clock.sleep(60)
    script.put("a", 2, 3, attempt=1, epoch=1)
    script.save()
    assert red(script) == {"I7"}


# --- I8: no silent loss --------------------------------------------------------------------------


def tear_state(script: Script) -> None:
    script.write(b'{"trial_data": [["', NAME.replace("00-00-00", "00-00-01"))


def leave_unknown(script: Script) -> None:
    script.write(as_json(*rows_of(1)), "train_unknown", "result.json")


def drop_journal(script: Script) -> None:
    script.disk.delete_tree(script.at(".raytrials"))


def empty_journal(script: Script) -> None:
    script.disk.write(journal_of(script), b"")


def break_journal(script: Script) -> None:
    lines = script.disk.read(journal_of(script)).splitlines(keepends=True)
    lines[3] = lines[3].replace(b"a", b"b", 1)
    script.disk.write(journal_of(script), b"".join(lines))


def tear_journal(script: Script) -> None:
    script.disk.write(journal_of(script), script.disk.read(journal_of(script)) + b'{"v":1,')


def forget_in_state(script: Script) -> None:
    script.save_state("a")


def add_to_state(script: Script) -> None:
    trials = [saved(one, {"x": 1}) for one in ("a", "b", "c")]
    save_ray_state(script, trials)


LOSSES: dict[str, Callable[[Script], None]] = {
    "a torn state": tear_state,
    "an unknown directory": leave_unknown,
    "no journal": drop_journal,
    "an empty journal": empty_journal,
    "a broken journal": break_journal,
    "a torn journal": tear_journal,
    "a trial that Ray's state lacks": forget_in_state,
    "a trial that the journal lacks": add_to_state,
}


@pytest.mark.parametrize("plant", LOSSES.values(), ids=LOSSES)
def test_a_loss_is_red(script: Script, plant: Callable[[Script], None]) -> None:
    ended(script)
    plant(script)
    assert "I8" in red(script)


def test_what_stands_before_a_broken_place_is_looked_at(script: Script) -> None:
    ended(script)
    break_journal(script)
    assert "The journal is damaged" in next(text for text in texts(script) if "journal" in text)


def test_damage_that_a_driver_recorded_is_green(script: Script) -> None:
    running(script)
    script.save()
    size = len(script.disk.read(journal_of(script)))
    tear_journal(script)
    script.write(b"", ".raytrials", "journal", ".keep")
    damage = {"file": Segment(1, 1).name, "offset": size, "size": 7, "problem": "part of a record"}
    script.attach(num_samples=2, damage=[damage])
    script.save()
    assert red(script) == set()


def test_damage_that_no_driver_recorded_is_red(script: Script) -> None:
    running(script)
    script.save()
    tear_journal(script)
    script.attach(num_samples=2)
    script.save()
    assert red(script) == {"I8"}


def test_a_beginning_that_no_fault_explains_is_red(script: Script) -> None:
    script.add("a")
    script.start("a")
    script.run("a", 1)
    script.tell(CheckpointMarkedBad("a", checkpoint_name(0), "gone"))
    script.fail("a", Cause.PREEMPTED)
    script.tell(RunnerAssigned("a", "node"))
    script.tell(AttemptStarted("a", 2, first_index=3))
    script.save()
    assert red(script) == {"I8"}


def test_a_driver_that_never_detached_leaves_things_open(script: Script) -> None:
    one_trial(script)
    script.save()
    save_ray_state(script, [])
    assert red(script) == set()
    script.tell(DriverDetached("SIGTERM"))
    script.save()
    save_ray_state(script, [])
    assert red(script) == {"I8"}


# --- vanilla -------------------------------------------------------------------------------------


@pytest.fixture
def vanilla(tmp_path: Path) -> Script:
    """An experiment of two trials that Ray ran alone."""
    script = Script(pyarrow.fs.LocalFileSystem(), str(tmp_path / "vanilla"))
    for trial_id in "ab":
        write_trial(script, trial_id)
    save_ray_state(script, [named("a"), named("b")])
    return script


def write_trial(script: Script, trial_id: str, rows: bytes = as_json(*rows_of(1, 2))) -> None:
    directory = directory_of(trial_id)
    script.write(json.dumps({"x": 1}).encode(), directory, "params.json")
    script.write(rows, directory, "result.json")
    script.write(b"weights", directory, checkpoint_name(0), "weights.bin")


def named(trial_id: str, **fields: Any) -> list[str]:
    known = {"config": {"x": 1}, "checkpoints": (checkpoint_name(0),), "last_result": metrics(2)}
    return saved(trial_id, **{**known, **fields})


def test_vanilla_is_green(vanilla: Script) -> None:
    Oracle(vanilla.path, num_samples=2).check()


def write_rows(*iterations: int) -> Callable[[Script], None]:
    return lambda script: write_trial(script, "a", as_json(*rows_of(*iterations)))


def write_state(*trials: list[str]) -> Callable[[Script], None]:
    return lambda script: save_ray_state(script, list(trials))


def tear_rows(script: Script) -> None:
    write_trial(script, "a", as_json(*rows_of(1)) + b'{"loss": \n' + as_json(*rows_of(2)))


def empty_checkpoint(script: Script) -> None:
    place = script.at(directory_of("a"), checkpoint_name(0))
    script.disk.delete_tree(place)
    script.disk.make_directory(place)


def drop_states(script: Script) -> None:
    script.disk.delete_file(script.at(NAME))


def drop_directory(script: Script) -> None:
    script.disk.delete_tree(script.at(directory_of("a")))


def drop_checkpoint(script: Script) -> None:
    script.disk.delete_tree(script.at(directory_of("a"), checkpoint_name(0)))


VANILLA: dict[str, tuple[Callable[[Script], None], set[str]]] = {
    "a trial less": (write_state(named("a")), {"I1", "I8"}),
    "a trial twice": (write_state(named("a"), named("a")), {"I1", "I8"}),
    "an empty config": (write_state(named("a"), named("b", config={})), {"I1"}),
    "another config": (write_state(named("a"), named("b", config={"x": 2})), {"I1"}),
    "a trial that has not ended": (write_state(named("a"), named("b", status="RUNNING")), {"I1"}),
    "a fresh start": (write_rows(1, 2, 1, 2), {"I2", "I3"}),
    "a row twice": (write_rows(1, 2, 2), {"I3"}),
    "a row lost": (write_rows(1, 3), {"I3"}),
    "a torn line": (tear_rows, {"I3"}),
    "a lost checkpoint": (drop_checkpoint, {"I6"}),
    "a lost directory": (drop_directory, {"I6"}),
    "no state": (drop_states, {"I8"}),
    "an empty checkpoint": (empty_checkpoint, {"I6"}),
    "a torn state": (tear_state, {"I8"}),
    "an unknown directory": (leave_unknown, {"I8"}),
}


@pytest.mark.parametrize(("plant", "expected"), VANILLA.values(), ids=VANILLA)
def test_vanilla_is_red(
    vanilla: Script, plant: Callable[[Script], None], expected: set[str]
) -> None:
    plant(vanilla)
    assert red(vanilla, num_samples=2) == expected


@pytest.mark.parametrize("seed", range(3))
def test_trials_are_compared_in_their_order_though_ray_saves_them_in_that_of_a_set(
    tmp_path: Path, seed: int
) -> None:
    paths = []
    for name in ("one", "other"):
        script = Script(pyarrow.fs.LocalFileSystem(), str(tmp_path / name))
        luck = random.Random(f"{name} {seed}")
        trials = [
            saved(f"{luck.getrandbits(32):08x}", {"x": n}, experiment_tag=f"{n}_x={n}")
            for n in range(12)
        ]
        luck.shuffle(trials)
        save_ray_state(script, trials)
        paths.append(script.path)
    assert Oracle(paths[0], against=paths[1]).violations() == []


def test_trials_whose_tags_say_nothing_are_compared_in_the_order_of_their_ids(
    tmp_path: Path,
) -> None:
    for name, ids in (("one", "abc"), ("other", "cab")):
        script = Script(pyarrow.fs.LocalFileSystem(), str(tmp_path / name))
        save_ray_state(script, [saved(one, {"x": one}, experiment_tag="") for one in ids])
    assert Oracle(tmp_path / "one", against=tmp_path / "other").violations() == []


def test_vanilla_is_compared_with_a_run_of_ours(vanilla: Script, script: Script) -> None:
    for trial_id in "ab":
        one_trial(script, trial_id, last=2)
    script.detach()
    assert red(vanilla, against=script.path) == set()
    save_ray_state(vanilla, [named("a"), named("b", last_result=metrics(1))])
    assert red(vanilla, against=script.path) == {"I4"}
