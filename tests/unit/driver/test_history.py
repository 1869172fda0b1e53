"""What becomes of a trial's rows in the files of Ray's own loggers, whatever happened to them."""

from __future__ import annotations

import csv
import io
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.tune import Callback, Checkpoint
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

from raytrials import _ray
from raytrials.core.plain import plain_metrics
from raytrials.core.state import Row
from raytrials.driver import rerun
from raytrials.driver.history import History

JSON, CSV = "result.json", "progress.csv"
FILES = (JSON, CSV)
METRICS = ("loss", "nested/a/b", "note", "trial_id")


class Odd:
    """A metric that Ray's encoder writes as text."""

    def __str__(self) -> str:
        return "odd, and\nin two lines"


def result(iteration: int, attempt: int = 1, **more: Any) -> dict[str, Any]:
    """Return a result as the controller gives it to the callbacks."""
    return {
        "loss": np.float64(iteration + attempt / 10),
        "nan": float("nan"),
        "nested": {"a": {"b": iteration}},
        "array": np.arange(2),
        "odd": Odd(),
        "note": f'says "{iteration}",\n\r\nand more',
        "training_iteration": iteration,
        "timestamp": 1000 * attempt + iteration,
        "trial_id": "007",
        "config": {"lr": 0.5},
        **more,
    }


def rows(*iterations: int, attempt: int = 1) -> list[Row]:
    """Return rows as the journal has them."""
    return [
        Row(iteration, attempt, 0.0, plain_metrics(result(iteration, attempt)))
        for iteration in iterations
    ]


def never() -> list[Row]:
    pytest.fail("the journal is asked")


class Fit:
    """A driver with one trial; another one may follow it, with another disk."""

    def __init__(self, root: Path, *loggers: Callback, driver: int = 1) -> None:
        self.root = root
        storage = _ray.StorageContext(
            storage_path=str(root / "storage"), experiment_dir_name="fit", trial_dir_name="trial"
        )
        storage._get_session_path = lambda: str(root / f"session-{driver}")
        self.trial = _ray.Trial("nothing", stub=True, trial_id="007", storage=storage)
        self.trial.relative_logdir = "trial"
        self.callbacks = _ray.CallbackList(
            list(loggers) or [CSVLoggerCallback(), JsonLoggerCallback()]
        )
        self.history = History(self.callbacks)
        self.here = Path(self.trial.local_path)
        self.uploaded = Path(self.trial.path)

    def start(self, upto: int, rows: Callable[[], list[Row]] = never, **more: Any) -> None:
        """An attempt begins, which continues from a checkpoint of the iteration."""
        self.history.restore(self.trial, upto, rows, **more)
        saved = _ray.TrainingResult(Checkpoint(str(self.uploaded)), {})
        _ray.set_checkpoints(self.trial, [], saved if upto else None)
        self.trial.init_local_path()
        self.callbacks.on_trial_start(iteration=0, trials=[self.trial], trial=self.trial)

    def report(self, *iterations: int, attempt: int = 1, **more: Any) -> None:
        for iteration in iterations:
            self.callbacks.on_trial_result(
                iteration=0,
                trials=[self.trial],
                trial=self.trial,
                result=result(iteration, attempt, **more),
            )

    def upload(self) -> None:
        self.uploaded.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (self.uploaded / name).write_bytes((self.here / name).read_bytes())

    def next(self, driver: int = 2) -> Fit:
        """Return what the next driver has: nothing but what is on storage."""
        return Fit(self.root, driver=driver)

    def table(self, name: str) -> pd.DataFrame:
        """Return a file as Ray's ExperimentAnalysis reads it, which bears no half line."""
        content = (self.here / name).read_bytes().decode().rstrip("\n")
        if name == JSON:
            lines = content.split("\n") if content else []
            return pd.json_normalize([json.loads(line) for line in lines], sep="/")
        return pd.read_csv(io.StringIO(content), dtype={"trial_id": str})

    def assert_rows(self, *expected: tuple[int, int]) -> None:
        """The files hold these rows: iteration and the attempt that reported it."""
        for name in FILES:
            table = self.table(name)
            assert list(table["training_iteration"]) == [iteration for iteration, _ in expected]
            for row, (iteration, attempt) in zip(table.to_dict("records"), expected, strict=True):
                values = [str(row[metric]) for metric in METRICS]
                wanted = result(iteration, attempt)
                assert values == [str(wanted["loss"]), str(iteration), wanted["note"], "007"]
                assert pd.isna(row["nan"])
                assert row["odd"].startswith(("odd, and", "<", repr(wanted["odd"])[:20]))


def first(*iterations: int) -> list[tuple[int, int]]:
    return [(iteration, 1) for iteration in iterations]


@pytest.fixture
def fit(tmp_path: Path) -> Iterator[Fit]:
    """A driver whose trial has reported eight iterations."""
    fit = Fit(tmp_path)
    fit.start(0)
    fit.report(*range(1, 9))
    yield fit
    fit.history.close()


def lines_of(path: Path) -> list[bytes]:
    """Return the physical lines of the rows, each a list of one row's bytes; the header first."""
    data = path.read_bytes()
    if path.name == JSON:
        return data.splitlines(keepends=True)
    found = [io.StringIO(newline="") for _ in csv.reader(io.StringIO(data.decode(), newline=""))]
    for target, fields in zip(
        found, csv.reader(io.StringIO(data.decode(), newline="")), strict=True
    ):
        csv.writer(target).writerow(fields)
    return [one.getvalue().encode() for one in found]


def damages(path: Path, how: str) -> None:
    """Damage a file of rows 1 to 8."""
    lines = lines_of(path)
    at = len(lines) - 4  # of iteration 5
    half = lines[at][: len(lines[at]) // 2]
    data = {
        "torn end": [*lines[:at], half],
        "torn end above": [*lines[: at + 1], half],
        "end without its last byte": [*lines[:at], lines[at][:-1]],
        "half a line among whole ones": [*lines[: at - 1], half, *lines[at:]],
        "lost line": [*lines[: at - 2], *lines[at - 1 :]],
        "line twice": [*lines, lines[at]],
        "rows run again without a cut": [*lines, *lines[at - 1 :]],
        "zeros": [*lines[:at], bytes(200)],
        "zeros within": [*lines[:at], bytes(20), *lines[at:]],
        "empty lines": [*lines[:at], b"\r\n\n", *lines[at:]],
        "not text": [b"\xff\xfe\x00", *lines[at:]],
        "beginning lost": lines[at:],
        "first line torn": [lines[0][:10], *lines[1:]],
        "all but the first line": lines[:1],
        "nothing": [],
    }[how]
    path.write_bytes(b"".join(data))


DAMAGES = [
    "torn end",
    "torn end above",
    "end without its last byte",
    "half a line among whole ones",
    "lost line",
    "line twice",
    "rows run again without a cut",
    "zeros",
    "zeros within",
    "empty lines",
    "not text",
    "beginning lost",
    "first line torn",
    "all but the first line",
    "nothing",
]


@pytest.mark.parametrize("how", [*DAMAGES, "gone"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("source", ["storage", "journal"])
def test_a_damaged_file_has_one_row_for_each_iteration_again(
    fit: Fit, how: str, name: str, source: str
) -> None:
    if source == "storage":
        fit.upload()
    fit.callbacks.on_trial_error(iteration=0, trials=[], trial=fit.trial)
    # As a new driver on the same machine finds it: what is missing is not known.
    fit.history.close()
    after = Fit(fit.root)
    for one in FILES if source == "journal" else [name]:
        (fit.here / one).unlink() if how == "gone" else damages(fit.here / one, how)
    after.start(5, never if source == "storage" else lambda: rows(*range(1, 9)))
    after.assert_rows(*first(1, 2, 3, 4, 5))
    after.report(6, 7)
    after.assert_rows(*first(1, 2, 3, 4, 5, 6, 7))


def test_a_torn_line_takes_no_whole_ones_with_it(fit: Fit) -> None:
    (header, *lines) = lines_of(fit.here / CSV)
    torn = lines[0][: lines[0].index(b'"') + 4]
    (fit.here / CSV).write_bytes(b"".join([header, torn, b"\r\n", *lines[1:]]))
    (fit.here / JSON).write_bytes(b"".join(lines_of(fit.here / JSON)[1:]))
    fit.start(8, list)
    fit.assert_rows(*first(*range(2, 9)))


@pytest.mark.parametrize("upto", range(9))
def test_rows_above_are_cut_while_the_loggers_have_the_files_open(fit: Fit, upto: int) -> None:
    fit.start(upto)
    fit.report(*range(upto + 1, 6), attempt=2)
    again = [(iteration, 2) for iteration in range(upto + 1, 6)]
    fit.assert_rows(*first(*range(1, upto + 1)), *again)


def test_rows_are_cut_after_the_start_too(fit: Fit) -> None:
    fit.start(8)
    fit.history.restore(fit.trial, 6, never)
    fit.report(7, attempt=2)
    fit.assert_rows(*first(1, 2, 3, 4, 5, 6), (7, 2))


@pytest.mark.parametrize("upto", [0, 2])
def test_files_that_vanish_under_the_loggers_are_made_anew(fit: Fit, upto: int) -> None:
    for name in FILES:
        (fit.here / name).unlink()
    fit.start(upto, lambda: rows(1, 2))
    fit.report(upto + 1, attempt=2)
    fit.assert_rows(*first(*range(1, upto + 1)), (upto + 1, 2))


def test_a_right_file_is_left_alone(fit: Fit) -> None:
    before = [(fit.here / name).stat() for name in FILES]
    fit.start(8)
    assert [(fit.here / name).stat() for name in FILES] == before
    fit.report(9)
    fit.assert_rows(*first(*range(1, 10)))


def test_nothing_is_left_beside_a_file_that_was_written(fit: Fit) -> None:
    before = {path.name for path in fit.here.iterdir()}
    fit.start(3)
    assert {path.name for path in fit.here.iterdir()} == before


def test_a_row_is_whole_whenever_somebody_reads(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fails)
        fit.history.restore(fit.trial, 3, never)
    assert caplog.text.count("Could not bring") == 2
    fit.assert_rows(*first(*range(1, 9)))
    assert not list(fit.here.glob(".*"))
    fit.start(3)
    fit.assert_rows(*first(1, 2, 3))


# --- after the driver's disk is gone -------------------------------------------------------------


def test_a_longer_copy_is_cut(fit: Fit) -> None:
    fit.upload()
    after = fit.next()
    after.start(4, report=plain_metrics(result(4)))
    after.report(5, attempt=2)
    after.assert_rows(*first(1, 2, 3, 4), (5, 2))


def test_a_shorter_copy_is_completed_from_the_journal(fit: Fit) -> None:
    fit.upload()
    fit.report(9, 10, 11)
    after = fit.next()
    after.start(11, lambda: rows(*range(1, 12)))
    after.report(12)
    after.assert_rows(*first(*range(1, 13)))


def test_a_copy_never_replaces_what_was_restored(fit: Fit) -> None:
    fit.upload()
    fit.start(8)
    fit.report(9)
    for upto in (9, 5):  # the copy is older, then longer
        fit.start(upto)
        fit.assert_rows(*first(*range(1, upto + 1)))
    fit.report(6, attempt=2)
    fit.assert_rows(*first(1, 2, 3, 4, 5), (6, 2))


def test_another_trial_s_files_are_fetched_as_before(fit: Fit) -> None:
    fit.upload()
    after = fit.next()
    after.trial.trial_id = "other"
    after.start(3)
    after.trial.trial_id = "007"
    (after.here / JSON).unlink()
    _ray.set_checkpoints(after.trial, [], _ray.TrainingResult(Checkpoint(str(after.uploaded)), {}))
    after.callbacks.on_trial_start(iteration=0, trials=[], trial=after.trial)
    assert len(after.table(JSON)) == 8


def test_a_row_that_was_run_again_replaces_the_one_of_before(fit: Fit) -> None:
    fit.upload()  # rows that attempt 2 runs again, and that are never uploaded
    after = fit.next()
    journal = [*rows(1, 2, 3), *rows(4, 5, 6, attempt=2)]
    after.start(6, lambda: journal, report=plain_metrics(result(6, 2)))
    after.assert_rows(*first(1, 2, 3), (4, 2), (5, 2), (6, 2))


def test_a_copy_is_believed_up_to_a_row_that_it_has_as_it_is_known(fit: Fit) -> None:
    fit.upload()
    fit.start(3)
    fit.report(4, 5, 6, attempt=2)
    (fit.here / CSV).unlink()
    path = fit.here / JSON
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))  # 1 to 3
    fit.start(6, lambda: rows(4, 5, attempt=2), report=plain_metrics(result(6, 2)))
    fit.assert_rows(*first(1, 2, 3), (4, 2), (5, 2), (6, 2))


def test_a_copy_that_is_newer_than_the_journal_counts(fit: Fit) -> None:
    fit.start(5)
    fit.report(6, 7, attempt=2)
    fit.upload()
    after = fit.next()
    after.start(8, lambda: rows(*range(1, 9)))
    after.assert_rows(*first(1, 2, 3, 4, 5), (6, 2), (7, 2), (8, 1))


def test_the_report_itself_is_a_row(fit: Fit) -> None:
    fit.upload()
    after = fit.next()
    after.start(9, lambda: rows(*range(1, 9)), report=plain_metrics(result(9)))
    after.assert_rows(*first(*range(1, 10)))


@pytest.mark.parametrize("name", FILES)
def test_one_file_lacks_what_was_lost_of_the_other_only(fit: Fit, name: str) -> None:
    fit.upload()
    (fit.uploaded / name).unlink()
    after = fit.next()
    after.start(8, never if name == CSV else lambda: rows(*range(1, 9)))
    after.assert_rows(*first(*range(1, 9)))


# --- columns -------------------------------------------------------------------------------------


def test_a_continued_table_keeps_its_columns(fit: Fit) -> None:
    fit.start(8)  # by itself the logger takes the columns of the first result from now on
    turned = dict(reversed([*result(9).items(), ("later", 5)]))
    del turned["nan"]
    after = fit.next()
    fit.upload()
    after.start(8)
    after.callbacks.on_trial_result(iteration=0, trials=[], trial=after.trial, result=turned)
    after.report(10)
    after.assert_rows(*first(*range(1, 11)))
    assert "later" not in after.table(CSV)
    assert list(after.table(JSON)["later"])[8] == 5


def test_a_table_that_begins_anew_takes_the_columns_of_its_first_row(fit: Fit) -> None:
    fit.start(0)
    fit.report(1, later=5)
    assert list(fit.table(CSV)["later"]) == [5]


def test_a_table_from_the_journal_has_the_columns_of_its_first_result(fit: Fit) -> None:
    columns = (fit.here / CSV).read_text().splitlines()[0]
    after = fit.next()
    after.start(3, lambda: rows(1, 2, 3))
    assert (after.here / CSV).read_text().splitlines()[0] == columns


# --- iterations of the user's own ----------------------------------------------------------------


def test_an_iteration_that_stands_still_has_its_later_report(fit: Fit) -> None:
    fit.start(4)
    fit.report(5, 5, attempt=2)
    fit.report(5, attempt=3)
    fit.start(5)
    fit.assert_rows(*first(1, 2, 3, 4), (5, 3))


def test_a_gap_that_nobody_can_fill_is_asked_for_once(fit: Fit) -> None:
    asked = []
    fit.start(0)
    fit.report(10, 20, 40)
    fit.start(20, lambda: asked.append(1) or rows(10, 20))
    fit.start(20)
    fit.report(30)
    fit.start(30, lambda: asked.append(2) or rows(10, 20, 30))
    fit.start(30)
    fit.start(20)
    fit.assert_rows(*first(10, 20))
    assert asked == [1, 2]


def test_iterations_are_in_order_when_the_user_s_go_back(fit: Fit) -> None:
    fit.report(3, 4, attempt=2)
    fit.start(6)
    fit.assert_rows(*first(1, 2), (3, 2), (4, 2), *first(5, 6))


# --- nothing to do, and what cannot be done ------------------------------------------------------


def test_without_loggers_there_are_no_files(tmp_path: Path) -> None:
    fit = Fit(tmp_path, Callback())
    fit.history.restore(fit.trial, 5, never)
    assert not fit.here.exists()


def test_a_trial_without_a_directory_gets_none(tmp_path: Path) -> None:
    fit = Fit(tmp_path)
    fit.history.restore(fit.trial, 0, never)
    assert not fit.here.exists()
    fit.start(3, lambda: rows(1, 2, 3))
    fit.assert_rows(*first(1, 2, 3))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_replaced_is_a_warning(
    fit: Fit, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fit.callbacks.on_trial_error(iteration=0, trials=[], trial=fit.trial)
    (fit.here / name).unlink()
    (fit.here / name).mkdir()
    fit.history.restore(fit.trial, 5, lambda: rows(1, 2, 3, 4, 5))
    assert f"Could not bring {name} of" in caplog.text
    assert "007" in caplog.text
    (other,) = set(FILES) - {name}
    assert len(fit.table(other)) == 5


def test_a_journal_that_breaks_off_gives_what_it_gave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Iterator[Row]:
        yield from rows(1, 2)
        raise ValueError("a hole")

    fit = Fit(tmp_path)
    fit.start(3, broken)
    fit.assert_rows(*first(1, 2))
    assert "Could not read the history of" in caplog.text
    assert "lacks the row of iteration 3" in caplog.text


def test_a_storage_that_fails_leaves_the_journal(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise PermissionError("not yours")

    after = fit.next()
    with monkeypatch.context() as patched:
        patched.setattr("raytrials.driver.history.pump", fails)
        fit.upload()
        after.start(2, lambda: rows(1, 2))
    after.assert_rows(*first(1, 2))
    assert "Could not read result.json" in caplog.text


def test_many_rows_are_cut_at_once(fit: Fit) -> None:
    fit.start(0)
    fit.report(*range(1, 10_001))
    began_s = time.process_time()
    fit.history.restore(fit.trial, 9_000, never)
    assert time.process_time() - began_s < 1
    assert len(fit.table(JSON)) == len(fit.table(CSV)) == 9_000


# --- the loggers ---------------------------------------------------------------------------------


def test_the_loggers_are_left_as_they_were(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorboard = TBXLoggerCallback()
    callbacks = [CSVLoggerCallback(), JsonLoggerCallback(), tensorboard]
    before = [dict(vars(one)) for one in callbacks]
    history = History(_ray.CallbackList(callbacks))
    assert [vars(one) for one in callbacks] != before
    history.close()
    assert [vars(one) for one in callbacks] == before


def test_tensorboard_forgets_the_steps_that_are_run_again(tmp_path: Path) -> None:
    opened = []

    class Writer:
        def __init__(self, log_dir: str, **options: Any) -> None:
            opened.append(options.get("purge_step"))

        def close(self) -> None:
            pass

    tensorboard = TBXLoggerCallback()
    tensorboard._summary_writer_cls = Writer
    fit = Fit(tmp_path, tensorboard, JsonLoggerCallback())
    fit.start(0)
    fit.callbacks[1].log_trial_result(0, fit.trial, result(1, timesteps_total=50))
    fit.start(1)
    fit.history.restore(fit.trial, 0)
    fit.callbacks.on_trial_start(iteration=0, trials=[], trial=fit.trial)
    assert opened == [1, 51, 1]


class Own(Callback):
    """A user's callback."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_trial_result(self, **info: Any) -> None:
        self.told.append("result")

    def on_trial_start(self, **info: Any) -> None:
        self.told.append("start")


class OwnTable(CSVLoggerCallback):
    """A user's table."""


def test_only_loggers_of_files_and_reporters_are_told_again() -> None:
    told = [
        _ray.TrialProgressCallback(),
        OwnTable(),
        JsonLoggerCallback(),
        TBXLoggerCallback(),
        _ray.ProgressReporter(0),
    ]
    found = rerun.file_loggers(_ray.CallbackList([Own(), *told[:2], Own(), *told[2:]]))
    assert list(found) == told


def test_the_stand_in_keeps_results_from_the_user_s_callbacks_alone(fit: Fit) -> None:
    own = Own()
    real = _ray.CallbackList([own, *fit.callbacks])
    tables = rerun.Tables(real)
    about = {"iteration": 0, "trials": [], "trial": fit.trial}
    tables.on_trial_start(**about)
    tables.on_trial_result(**about, result=result(9))
    assert own.told == ["start"]
    fit.assert_rows(*first(*range(1, 10)))


# --- anything at all -----------------------------------------------------------------------------


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_happens_no_row_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The last driver's files have exactly the rows that were last reported, up to its attempt."""
    logging.getLogger("raytrials.driver.history").setLevel(logging.ERROR)
    fit = Fit(tmp_path_factory.mktemp("any"))
    fit.start(0)
    history: dict[int, int] = {}
    is_uploaded = False
    for attempt in range(2, 2 + data.draw(st.integers(1, 4))):
        count = data.draw(st.integers(0, 6))
        last = max(history, default=0)
        for iteration in range(last + 1, last + 1 + count):
            fit.report(iteration, attempt=attempt)
            history[iteration] = attempt
        if history and data.draw(st.booleans()):
            fit.upload()
            is_uploaded = True
        upto = data.draw(st.integers(0, max(history, default=0)))
        what = data.draw(st.sampled_from(["goes on", "disk", "bytes", "copy"]))
        if what == "disk":
            fit = fit.next(driver=attempt)
        elif what == "bytes" and history:
            _scramble(fit.here / data.draw(st.sampled_from(FILES)), data.draw(st.randoms()))
        elif what == "copy" and is_uploaded:
            _scramble(fit.uploaded / data.draw(st.sampled_from(FILES)), data.draw(st.randoms()))
            fit = fit.next(driver=attempt)
        journal = [row for one in sorted(history) for row in rows(one, attempt=history[one])]
        history = {one: history[one] for one in history if one <= upto}
        report = plain_metrics(result(upto, history[upto])) if upto else None
        fit.start(upto, lambda rows=journal: rows, report=report)
    last = max(history, default=0) + 1
    fit.report(last, attempt=9)
    fit.assert_rows(*sorted(history.items()), (last, 9))


def _scramble(path: Path, luck: random.Random) -> None:
    """Tear a file, make part of it zeros, or lose whole rows."""
    content = path.read_bytes()
    at, end = sorted(luck.randrange(len(content) + 1) for _ in range(2))
    begin = path.suffix == ".csv"
    lines = lines_of(path)
    kept = [line for place, line in enumerate(lines) if place < begin or luck.randrange(2)]
    zeros = bytes(end - at)
    path.write_bytes(
        luck.choice([content[:at], content[:at] + zeros + content[end:], b"".join(kept)])
    )
