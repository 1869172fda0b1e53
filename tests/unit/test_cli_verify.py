"""`raytrials verify`: what it prints and how it exits."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pyarrow.fs
import pytest
from support.experiments import Experiment, saved

from raytrials.cli import main
from raytrials.store import sweep

ACCOUNT = {"version": 1, "attempt": 1}


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Two trials: one whole, one with a leftover."""
    made = Experiment(pyarrow.fs.LocalFileSystem(), str(tmp_path / "exp"))
    made.commit("trial_a", 0)
    made.commit("trial_a", 1)
    made.commit("trial_long_b", 0)
    made.put("trial_long_b/.staging-000001-1")
    made.save_state(saved("trial_a", account=ACCOUNT), saved("trial_long_b", account=ACCOUNT))
    return made


def test_a_good_experiment_is_a_table_and_code_0(
    experiment: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", experiment.path]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out == (
        "trial         verified  unverified  corrupt  missing  incomplete\n"
        "trial_a              2           0        0        0           0\n"
        "trial_long_b         1           0        0        0           1\n"
        "\n"
        "incomplete: trial_long_b/.staging-000001-1: an attempt ended while it saved\n"
        "\n"
        "3 verified, 0 unverified, 0 corrupt, 0 missing, 1 incomplete in 2 trials, by names and "
        "sizes. "
        "--sweep removes incomplete ones that are older than one hour.\n"
    )


def test_a_corrupt_checkpoint_is_code_4(
    experiment: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.write(b"x" * 100, "trial_a", "checkpoint_000001", "weights.bin")
    assert main(["verify", experiment.path]) == 0
    assert main(["verify", "--full", experiment.path]) == 4
    shown = capsys.readouterr().out
    line = r"corrupt: trial_a/checkpoint_000001: weights.bin: expected digest \w{32}, found \w{32}"
    assert re.search(line, shown)
    assert shown.endswith(
        "by digests. --sweep removes incomplete ones that are older than one hour.\n"
    )


def test_json_is_one_object(experiment: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    experiment.write(b"", "trial_a", "checkpoint_000001", "weights.bin")
    assert main(["verify", experiment.path, "--json"]) == 4
    shown = json.loads(capsys.readouterr().out)
    assert (shown["ok"], shown["counts"]["corrupt"], len(shown["trials"])) == (False, 1, 2)


def test_a_sweep_prints_what_it_removed_and_what_it_kept(
    experiment: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Path(experiment.at("trial_long_b", ".staging-000001-1"))
    experiment.put("trial_a/checkpoint_000007")
    for path in (old, *old.rglob("*")):
        os.utime(path, (1e9, 1e9))
    assert main(["verify", experiment.path, "--sweep"]) == 0
    shown = capsys.readouterr().out
    assert "trial_long_b/.staging-000001-1: an attempt ended while it saved; removed\n" in shown
    kept = "it has no manifest; kept (changed 0 min ago: its attempt may be alive)\n"
    assert f"trial_a/checkpoint_000007: {kept}" in shown
    assert shown.endswith("Leftovers: 1 removed, 1 kept.\n")
    assert not old.exists()


def test_a_leftover_that_could_not_be_removed_is_code_3(
    experiment: Experiment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(disk: object, path: str) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(sweep, "_delete", forbidden)
    monkeypatch.setattr(sweep.sweep, "__kwdefaults__", {"least_age_s": 0})
    assert main(["verify", experiment.path, "--sweep"]) == 3
    assert "could not be removed (Storage forbidden" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "kind", "code"),
    [
        ("", "ConfigurationError", 2),
        ("no-such-directory", "NotAnExperimentError", 2),
        ("foo://bucket/exp", "ConfigurationError", 2),
    ],
)
def test_an_error_is_one_message_or_one_json_object(
    path: str, kind: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", path]) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert main(["verify", path, "--json"]) == code
    told = capsys.readouterr()
    assert told.err == ""
    error = json.loads(told.out)["error"]
    assert (error["type"], error["exit_code"]) == (kind, code)
    assert shown.err == f"error: {error['message']}\n"


def test_a_name_that_the_terminal_cannot_show_is_no_error(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment.write(b"", "trial_a", "checkpoint_000001", "größe\udcff")
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["verify", experiment.path]) == 4
    terminal.seek(0)
    assert r"gr\xf6\xdfe\udcff: does not belong to it" in terminal.read()
