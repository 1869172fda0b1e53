"""`raytrials demo --quick`, once and for real: all trials survive and the tables tell the truth."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

import raytrials
import raytrials.demo

TRIALS = 12
TIMEOUT_S = 240


@dataclass(frozen=True)
class Run:
    """A finished run of the demo.

    Attributes:
        exit_code: of the command.
        out: its standard output.
        err: its standard error.
        left: processes of its session that were still there when it had ended.
        temporary: its directory for temporary files.
    """

    exit_code: int
    out: str
    err: str
    left: Sequence[psutil.Process]
    temporary: Path

    def table(self, title: str) -> list[dict[str, str]]:
        """Return the rows of a printed table by the names in its header."""
        _, _, rest = self.out.partition(f"{title}\n")
        header, rule, *lines = rest.splitlines()
        starts = [match.start() for match in re.finditer(r"-+", rule)]
        columns = [slice(*span) for span in zip(starts, [*starts[1:], None], strict=True)]
        rows = []
        for line in lines:
            if "  " not in line:
                break
            rows.append({header[column].strip(): line[column].strip() for column in columns})
        return rows

    def find(self, pattern: str) -> re.Match[str]:
        match = re.search(pattern, self.out, re.MULTILINE)
        assert match is not None, self.out
        return match


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with tempfile.TemporaryDirectory(prefix="rd") as directory:
        workspace = Path(directory)
        temporary = workspace / "t"
        temporary.mkdir()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY", "TUNE_", "PYTHONWARNINGS"))
        }
        environment |= {"RAY_TMPDIR": str(workspace / "r"), "TMPDIR": str(temporary)}
        command = [sys.executable, "-m", "raytrials.cli", "demo", "--quick", "--storage", "s"]
        process = subprocess.Popen(
            command,
            cwd=workspace,
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            _, left = psutil.wait_procs(_session(process.pid), timeout=10)
            for leftover in left:
                leftover.send_signal(signal.SIGKILL)
        yield Run(process.returncode, out, err, left, temporary)


def _session(session_id: int) -> list[psutil.Process]:
    """Return the processes of a session, which is what the demo and all its children are in."""
    return [process for process in psutil.process_iter() if _session_id(process.pid) == session_id]


def _session_id(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def test_all_trials_finish_although_workers_are_killed(run: Run) -> None:
    assert run.exit_code == 0, run.out + run.err
    assert f"{TRIALS} of {TRIALS} trials finished." in run.out
    trials = run.table("TRIALS")
    assert len({trial["trial"] for trial in trials}) == TRIALS
    assert {trial["status"] for trial in trials} == {"finished", "stopped by ASHA"}


def test_the_faults_are_listed_with_class_phase_cause_and_charge(run: Run) -> None:
    faults = run.table("FAULTS")
    killed = ("actor", "running", "worker_died", "failure")
    restoring = ("restore", "restoring", "worker_died", "restore")
    # One for each trial that ran on the node: as many as it has processors.
    lost = ("actor", "running", "node_lost", "infrastructure")
    listed = [(one["class"], one["phase"], one["cause"], one["charge"]) for one in faults]
    assert sorted(fault for fault in listed if fault != lost) == [killed, killed, restoring]
    assert lost in listed
    assert all(fault["reason"] for fault in faults)
    by_trial = {trial["trial"]: int(trial["faults"]) for trial in run.table("TRIALS")}
    assert sum(by_trial.values()) == len(faults)
    assert sorted({fault["trial"] for fault in faults}) == sorted(
        trial for trial, count in by_trial.items() if count
    )


def test_each_kill_is_told_while_it_happens(run: Run) -> None:
    assert len(re.findall(r"worker \d+ KILLED", run.out)) == 2
    assert len(re.findall(r"node \w+ KILLED", run.out)) == 1
    failed = [trial for trial in run.table("TRIALS") if trial["faults"] != "0"]
    assert run.out.count("is back with epoch") == len(failed)


def test_a_kill_costs_at_most_one_repeated_epoch(run: Run) -> None:
    counted = run.find(r"^(\d+) training steps \(epochs\) were run, (\d+) of them repeated")
    begun, repeated = map(int, counted.groups())
    assert begun - repeated == sum(int(trial["epochs"]) for trial in run.table("TRIALS"))
    failed = [trial for trial in run.table("TRIALS") if trial["faults"] != "0"]
    assert repeated <= len(failed)


def test_the_best_config_is_scored_on_images_that_were_held_out(run: Run) -> None:
    best = run.find(r"BEST CONFIG\ntrial (\w+): .*\nvalidation accuracy (\S+)")
    scores = {trial["trial"]: trial["best validation accuracy"] for trial in run.table("TRIALS")}
    assert scores[best[1]] == best[2] == max(scores.values())
    assert float(run.find(r"^test accuracy ([\d.]+)")[1]) > 0.9


def test_the_printed_lines_open_the_results_again(run: Run) -> None:
    hint = run.find(r"The results are in .*\n((?:    .*\n)+)")[1]
    assert "Tuner.restore(" in hint
    assert "trainable=raytrials.demo.train)" in hint
    names: dict[str, Any] = {}
    exec(textwrap.dedent(hint), names)
    assert isinstance(names["tuner"], raytrials.Tuner)
    results = names["results"]
    assert len(results) == TRIALS
    assert not results.errors
    assert sum(len(result.faults) for result in results) == len(run.table("FAULTS"))


def test_nothing_is_left_behind(run: Run) -> None:
    assert not run.left
    assert not list(run.temporary.iterdir())
    assert run.err == ""
