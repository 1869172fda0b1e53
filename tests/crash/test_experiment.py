"""A driver that dies at any operation on its storage is continued to the same table.

Process and machine, local disk and object store: what the next driver makes of the experiment is
what one driver would have made of it, and little of it is run again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.script import Raise, Script
from support.scripted import Experiment, Outcome

from raytrials.chaos.disk import FakeLocal, FakeObjectStore

Fake = FakeLocal | FakeObjectStore

SCRIPT = Script(trials=2, steps=3, paces_s=(5.0, 7.0), max_failures=2)
FAILING = Script(
    trials=2, steps=3, paces_s=(5.0, 7.0), max_failures=2, raises=[Raise(0, "step", 2)]
)
ASKED = 2
"""Of so many moments one is shown to the oracle, which reads the directory and knows no run."""

DEATHS = {"process": False, "machine": True}

EVERY = {"smooth": 3, "failing": 7, "luck": 7, "second": 13}
"""Of how many operations one is a moment of death. All are 1 for the whole sweep: 20 minutes."""

KINDS = pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])
MACHINES = pytest.mark.parametrize("machine", DEATHS.values(), ids=DEATHS)


@dataclass(frozen=True)
class Death:
    """How drivers die.

    Attributes:
        machine: whether their machine dies with them.
        seed: draws what survives of what was not durable; 0 is nothing.
        second: the operation before which the next driver dies, too; 0 lets it live.
    """

    machine: bool
    seed: int = 0
    second: int = 0


FORGOTTEN = "a failure died with the driver that saw it"
"""No problem where the record of it was not durable yet; what raised raises only once here."""

FORGOTTEN_AT_MOST = 12
"""At how many operations that may be so."""


def problem_of(whole: Outcome, outcomes: list[Outcome], deaths: int) -> str:
    """Return what is wrong after the last of several drivers, "" if nothing is."""
    last = outcomes[-1]
    if last.table != whole.table:
        rows = [(row.trial_id, row.status, row.iteration) for row in last.table]
        return f"another table: {rows}"
    ran = sum(sum(one.steps.values()) for one in outcomes)
    again = ran - sum(whole.steps.values())
    # Of each trial the step on its way, and the one before that was not committed yet.
    if again > 2 * len(whole.table) * deaths:
        return f"{again} steps were run again"
    charged = [trial.num_failures for trial in last.trials]
    due = [trial.num_failures for trial in whole.trials]
    if any(now > then for now, then in zip(charged, due, strict=True)):
        return f"failures charged: {charged}"
    return FORGOTTEN if charged != due else ""


def drive(experiment: Experiment, stop: int, death: Death) -> list[Outcome]:
    """Run an experiment whose drivers die, and then to its end."""
    outcomes = []
    for number in filter(None, (stop, death.second)):
        outcomes.append(experiment.resume(stop_at=number))
        luck = random.Random(death.seed) if death.seed else None
        experiment.die(machine=death.machine, luck=luck)
    return [*outcomes, experiment.resume()]


def problems(
    script: Script, make: Callable[[], Fake], directory: Path, death: Death, every: int
) -> list[str]:
    """Return what is wrong, for one of so many operations before which the first driver died."""
    whole = Experiment(script, make(), directory / "whole").resume()
    found = []
    forgotten = 0
    for number, operation in list(enumerate(whole.operations, 1))[death.second % every :: every]:
        experiment = Experiment(script, make(), directory / str(number))
        try:
            outcomes = drive(experiment, number, death)
            problem = problem_of(whole, outcomes, len(outcomes) - 1)
            if not problem and number % ASKED == 0:
                problem = "; ".join(map(str, experiment.violations()))
        except Exception as error:  # noqa: BLE001 - all that fail are told together
            problem = f"{type(error).__name__}: {error}"
        if problem == FORGOTTEN:
            forgotten += 1
        elif problem:
            found.append(f"{number} {operation.name} {operation.path}: {problem}")
    # They are one after the other: of 8, too, two are among every seventh.
    if (forgotten - 1) * every >= FORGOTTEN_AT_MOST:
        found.append(f"{forgotten} times {FORGOTTEN}")
    return found


@KINDS
@MACHINES
@pytest.mark.parametrize("name", ["smooth", "failing"])
def test_wherever_a_driver_dies_the_next_one_ends_with_the_same_table(
    name: str, machine: bool, make: Callable[[], Fake], tmp_path: Path
) -> None:
    script = {"smooth": SCRIPT, "failing": FAILING}[name]
    assert problems(script, make, tmp_path, Death(machine), EVERY[name]) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_dead_machine_left_by_chance_does_no_harm(seed: int, tmp_path: Path) -> None:
    death = Death(machine=True, seed=seed)
    assert problems(SCRIPT, FakeLocal, tmp_path, death, EVERY["luck"]) == []


@KINDS
@MACHINES
@pytest.mark.parametrize("second", [25, 60])
def test_a_next_driver_that_dies_too_does_no_harm(
    second: int, machine: bool, make: Callable[[], Fake], tmp_path: Path
) -> None:
    death = Death(machine, second=second)
    assert problems(SCRIPT, make, tmp_path, death, EVERY["second"]) == []
