"""The command line: what it answers without Ray, and what errors become."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import raytrials
from raytrials import cli
from raytrials.errors import (
    ConfigurationError,
    RaytrialsError,
    RestoreError,
    StorageUnwritableError,
)

HEAVY = ("ray", "sklearn", "optuna", "numpy", "raytrials.demo")


class FakeDemo(SimpleNamespace):
    """Stands for `raytrials.demo`, without Ray: remembers how it was run and ends as told."""

    def __init__(self, outcome: int | RaytrialsError = 0) -> None:
        super().__init__()
        self.outcome = outcome
        self.calls: list[dict[str, Any]] = []

    def run(self, **arguments: Any) -> int:
        self.calls.append(arguments)
        if isinstance(self.outcome, RaytrialsError):
            raise self.outcome
        return self.outcome


@pytest.fixture(autouse=True)
def _no_ray_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without the variables that the command sets, and leave them as they were."""
    for name in cli._RAY_ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def fake_demo(monkeypatch: pytest.MonkeyPatch) -> FakeDemo:
    fake = FakeDemo()
    monkeypatch.setattr(raytrials, "demo", fake, raising=False)
    return fake


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["demo", "--help"], ["verify", "--help"]],
    ids=" ".join,
)
def test_help_and_version_load_neither_ray_nor_scikit_learn(arguments: Sequence[str]) -> None:
    script = (
        "import sys\n"
        "from raytrials.cli import main\n"
        "try:\n"
        f"    main({list(arguments)!r})\n"
        "except SystemExit as end:\n"
        f"    heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    sys.exit(f'loaded {heavy}' if heavy else end.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "raytrials" in done.stdout


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"raytrials {raytrials.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["dmeo"], "dmeo"),
        (["demo", "--fast"], "--fast"),
        (["demo", "--storage"], "--storage"),
    ],
)
def test_wrong_arguments_end_with_usage_and_code_2(
    arguments: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    shown = capsys.readouterr()
    assert end.value.code == 2
    assert shown.out == ""
    assert shown.err.startswith("usage: raytrials")
    assert says in shown.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"faults": True, "quick": False, "storage": None}),
        (["--no-faults"], {"faults": False, "quick": False, "storage": None}),
        (
            ["--quick", "--storage", "results"],
            {"faults": True, "quick": True, "storage": "results"},
        ),
    ],
)
def test_demo_is_run_as_its_options_say(
    options: Sequence[str], expected: dict[str, Any], fake_demo: FakeDemo
) -> None:
    assert cli.main(["demo", *options]) == 0
    assert fake_demo.calls == [expected]


def test_the_demos_exit_code_is_the_commands(fake_demo: FakeDemo) -> None:
    fake_demo.outcome = 1
    assert cli.main(["demo"]) == 1


def test_the_users_ray_variables_win(fake_demo: FakeDemo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    cli.main(["demo"])
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize(
    "error",
    [
        RaytrialsError("something"),
        ConfigurationError("RAYTRIALS_X", "many", "a whole number"),
        StorageUnwritableError("/nowhere", "no such directory"),
        RestoreError("t1", 2, "restoring", "worker_died", None, "gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_one_message_and_its_own_exit_code(
    error: RaytrialsError, fake_demo: FakeDemo, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_demo.outcome = error
    assert cli.main(["demo"]) == error.exit_code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"error: {error}\n"


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        (["sklearn"], "scikit-learn, not installed"),
        (["optuna"], "optuna, not installed"),
        (["sklearn", "optuna"], "scikit-learn and optuna, not installed"),
    ],
    ids=str,
)
def test_a_missing_extra_is_named_with_the_way_to_install_it(
    modules: Sequence[str],
    named: str,
    fake_demo: FakeDemo,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in modules:
        # How Python marks a module that must not be found.
        monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["demo"]) == 2
    assert fake_demo.calls == []
    shown = capsys.readouterr().err
    assert named in shown
    assert "pip install 'raytrials[demo]'" in shown


def test_a_missing_extra_survives_pickling() -> None:
    error = cli.MissingExtraError("raytrials demo", ["optuna"], "demo")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))
