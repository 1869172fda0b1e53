"""The scripts of the how-to pages go on after a requeue and a kill, as if nothing had happened."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fits import finish, kill_driver, wait_until

from raytrials.chaos.oracle import Oracle
from raytrials.core.event import ResultReported, TrialAdded
from raytrials.store.local import LocalDisk
from raytrials.store.segment import Reading

pytestmark = pytest.mark.timeout(600)

HOWTO = Path(__file__).parents[2] / "docs" / "howto"

TRIALS, STEPS = 4, 6

PAGES = sorted(HOWTO.glob("*.md"))
SCRIPTS = sorted(file for file in HOWTO.iterdir() if file not in PAGES)

PYTHON = f"""#!/bin/sh
exec {sys.executable} -c '
import runpy, sys
from support.session import local_ray
with local_ray():
    runpy.run_path(sys.argv[1], run_name="__main__")
' "$@"
"""
"""What the scripts find as `python`: it runs one in a small Ray of its own."""

SCONTROL = """#!/bin/sh
echo "$@" >>scontrol.log
"""

CURL = """#!/bin/sh
# A metadata service: it hands out tokens, and knows of a notice when there is one.
case "$*" in
    *api/token*) echo token ;;
    *instance-action*) cat notice ;;
    *) exit 22 ;;
esac
"""


@dataclass
class Machine:
    """Where a script of the how-to pages runs: a directory of its own, with what it calls."""

    directory: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for file in SCRIPTS:
            text = file.read_text().replace("/tmp/driver.pid", f"{self.directory}/driver.pid")
            (self.directory / file.name).write_text(text)
        tools = {"python": PYTHON, "scontrol": SCONTROL, "curl": CURL}
        for name, text in tools.items():
            tool = self.directory / "bin" / name
            tool.parent.mkdir(exist_ok=True)
            tool.write_text(text)
            tool.chmod(0o755)
        (self.directory / "t").mkdir()

    @property
    def experiment(self) -> Path:
        return self.directory / "results" / "search"

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{self.directory}/bin:{os.environ['PATH']}",
                "RESULTS": f"{self.directory}/results",
                "SLURM_JOB_ID": "42",
                "TMPDIR": f"{self.directory}/t",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def wait_for_results(self, process: subprocess.Popen[str], count: int) -> None:
        """Wait until the journal shows so many results more than now."""
        count += self.results()
        wait_until(lambda: self.results() >= count, alive=lambda: process.poll() is None)

    def results(self) -> int:
        journal = self.experiment / ".raytrials" / "journal"
        return sum(
            file.read_bytes().count(f'"type":"{ResultReported.__name__}"'.encode())
            for file in journal.glob("*.jsonl")
        )

    def trial_ids(self) -> list[str]:
        """Return the ids of all trials that were ever added."""
        records = Reading(LocalDisk(), f"{self.experiment}/.raytrials/journal")
        added = [one.event for one in records if isinstance(one.event, TrialAdded)]
        return [event.trial_id for event in added]

    def table(self) -> list[dict[str, Any]]:
        """Return what Ray's files say of each trial, in the order of their ids."""
        found = {}
        for trial in self.experiment.glob("train_*"):
            rows = list(csv.DictReader((trial / "progress.csv").open()))
            last = json.loads((trial / "result.json").read_text().splitlines()[-1])
            found[last["trial_id"]] = {
                "config": json.loads((trial / "params.json").read_text()),
                "iterations": [int(row["training_iteration"]) for row in rows],
                "scores": [float(row["score"]) for row in rows],
                "last": (last["training_iteration"], last["score"]),
            }
        assert sorted(found) == sorted(self.trial_ids())
        return [found[name] for name in sorted(found)]


@pytest.fixture(scope="module")
def make_machine() -> Iterator[Callable[[], Machine]]:
    with tempfile.TemporaryDirectory(prefix="rw") as directory:
        made: list[Machine] = []

        def make() -> Machine:
            home = Path(directory, str(len(made)))
            home.mkdir()
            made.append(Machine(home))
            return made[-1]

        yield make
        for process in (one for machine in made for one in machine.started):
            if process.poll() is None:
                kill_driver(process)


@pytest.fixture(scope="module")
def undisturbed(make_machine: Callable[[], Machine]) -> Machine:
    machine = make_machine()
    finish(machine.start("python", "tune_job.py"))
    assert [row["iterations"] for row in machine.table()] == [list(range(1, STEPS + 1))] * TRIALS
    return machine


@dataclass(frozen=True)
class System:
    """How a system starts the script, and how it asks for its end.

    Attributes:
        command: of one start.
        ask: asks a run to end.
        asked: whether the system was told once to start it again.
    """

    command: tuple[str, ...]
    ask: Callable[[Machine, subprocess.Popen[str]], object]
    asked: Callable[[Machine], bool] = lambda _: True


def _run_hook(machine: Machine, driver: subprocess.Popen[str]) -> None:
    manifest = yaml.safe_load((HOWTO / "rayjob.yaml").read_text())
    pod = manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    machine.start(*(word.replace("/job/", f"{machine.directory}/") for word in command))


def _entrypoint() -> tuple[str, ...]:
    spec = yaml.safe_load((HOWTO / "rayjob.yaml").read_text())["spec"]
    return tuple(spec["entrypoint"].replace("/job/", "./").split())


SYSTEMS = {
    "slurm": System(
        ("bash", "tune_job.sbatch"),
        # To the shell alone, as --signal=B:USR1 does.
        lambda machine, batch: batch.send_signal(signal.SIGUSR1),
        lambda machine: (machine.directory / "scontrol.log").read_text() == "requeue 42\n",
    ),
    "kuberay": System(_entrypoint(), _run_hook),
    "spot": System(
        ("bash", "spot.sh", "aws"),
        lambda machine, wrapper: (machine.directory / "notice").write_text("{}"),
    ),
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_page_shows_the_script_as_it_is(script: Path) -> None:
    link = f"[{script.name}]({script.name})\n\n```"
    shown = [page for page in PAGES if link in page.read_text()]
    assert len(shown) == 1
    assert f"\n{script.read_text()}```" in shown[0].read_text()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_script_goes_on_after_a_requeue_and_a_kill(
    name: str, make_machine: Callable[[], Machine], undisturbed: Machine
) -> None:
    system, machine = SYSTEMS[name], make_machine()

    first = machine.start(*system.command)
    machine.wait_for_results(first, 3)
    system.ask(machine, first)
    output, _ = first.communicate(timeout=200)
    assert first.returncode == 75, output
    begun = machine.trial_ids()
    assert system.asked(machine)
    (machine.directory / "notice").unlink(missing_ok=True)

    second = machine.start(*system.command)
    machine.wait_for_results(second, 3)
    kill_driver(second)

    finish(machine.start(*system.command))
    assert system.asked(machine)  # and not again
    assert machine.trial_ids()[: len(begun)] == begun
    assert machine.table() == undisturbed.table()
    oracle = Oracle(machine.experiment, against=undisturbed.experiment, num_samples=TRIALS)
    assert [str(one) for one in oracle.violations()] == []
