"""Whatever is damaged when a driver has died: the next one ends the same, or says what is wrong.

Each file that a restore may read is torn, emptied, changed or gone, one at a time and two at once.
There is no third way out: no bare error, no beginning that looks normal, nothing written by a
restore that fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from ray import tune
from support.script import Raise, Script
from support.scripted import PATH, Experiment, Outcome

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.core.event import DriverAttached
from raytrials.errors import RaytrialsError
from raytrials.store import snapshot

JOURNALS, SNAPSHOTS = ".raytrials/journal", ".raytrials/snapshots"


class Remembers(tune.Callback):  # type: ignore[misc]
    """A callback with a state that Ray saves."""

    def __init__(self) -> None:
        self.results = 0

    def on_trial_result(self, *_: object, **__: object) -> None:
        self.results += 1

    def get_state(self) -> dict[str, int]:
        return {"results": self.results}

    def set_state(self, state: dict[str, int]) -> None:
        self.results = state["results"]


SCRIPT = Script(
    trials=3,
    steps=4,
    nodes={"a": 1},
    max_failures=2,
    raises=[Raise(0, "step", 2)],
    callbacks=[Remembers],
)
KINDS = {"local": FakeLocal, "object store": FakeObjectStore}
DEATHS = ((20.0,), (20.0, 35.0))
PAIRS = 25
"""How many pairs of damages are drawn for each of those."""


def torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


def empty(_: bytes) -> bytes:
    return b""


def flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] if data else b"\x10"


def missing(_: bytes) -> None:
    return None


DAMAGES: Sequence[Callable[[bytes], bytes | None]] = (torn, empty, flipped, missing)


@dataclasses.dataclass(frozen=True)
class Damaged:
    """A file, and what became of it."""

    name: str
    damage: Callable[[bytes], bytes | None]

    def do(self, experiment: Experiment) -> None:
        path = f"{PATH}/{self.name}"
        data = self.damage(experiment.disk.read(path))
        experiment.disk.delete_file(path)
        if data is not None:
            experiment.disk.write(path, data)

    def __str__(self) -> str:
        return f"{self.name} {self.damage.__name__}"


@dataclasses.dataclass(frozen=True)
class Case:
    """How an experiment came to its death.

    Attributes:
        kind: of the disk.
        deaths: when drivers died.
        often: whether there were snapshots, and states of Ray's, in the middle.
    """

    kind: str
    deaths: tuple[float, ...]
    often: bool

    def __str__(self) -> str:
        often = "often" if self.often else "rarely"
        return f"{self.kind}-{len(self.deaths)}-{often}"


CASES = pytest.mark.parametrize(
    "case", [Case(*one) for one in itertools.product(KINDS, DEATHS, (False, True))], ids=str
)


@contextlib.contextmanager
def saved_often(often: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if often:
            patch.setattr(snapshot, "EVENTS", 10)
            patch.setattr(snapshot, "SECONDS", 2.0)
            patch.setattr(snapshot, "SHARE", 1e9)
            patch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "5")
        yield


@functools.cache
def whole(kind: str) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        return Experiment(SCRIPT, KINDS[kind](), Path(directory)).run()


@functools.cache
def dead(case: Case) -> Experiment:
    """Return an experiment whose drivers died."""
    kind, deaths = case.kind, case.deaths
    with tempfile.TemporaryDirectory() as directory, saved_often(case.often):
        experiment = Experiment(SCRIPT, KINDS[kind](), Path(directory))
        for number, stop_s in enumerate(deaths):
            drive = experiment.restore if number else experiment.run
            assert drive(stop_s=stop_s).stopped
            experiment.die(machine=False)
        return experiment


def files_of(experiment: Experiment) -> list[str]:
    """Return the files that a restore may read, in order."""
    return [
        name
        for name in sorted(experiment.files())
        if "checkpoint_" not in name and not name.startswith(".validate")
    ]


class Heard(logging.Handler):
    """What was said aloud."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"{record.getMessage()}\n"


def is_owned_up(experiment: Experiment, damaged: Sequence[Damaged], said: str) -> bool:
    """Whether a log, or the journal, names a damaged file of the journal."""
    noted = [event.damage for event in experiment.events() if isinstance(event, DriverAttached)]
    return any(one.name.rpartition("/")[2] in f"{noted}{said}" for one in damaged)


def problem_of(kind: str, experiment: Experiment, damaged: Sequence[Damaged]) -> str:
    """Damage an experiment and restore it; return what is wrong with what comes of it."""
    for one in damaged:
        one.do(experiment)
    before = experiment.files()
    promised = experiment.can_restore()
    heard = Heard()
    logging.getLogger("raytrials").addHandler(heard)
    try:
        outcome = experiment.restore()
    except RaytrialsError as error:
        if promised:
            return f"can_restore was wrong: {type(error).__name__}: {error}"
        if experiment.files() != before:
            return f"{type(error).__name__}, and something was written"
        return ""
    except Exception as error:  # noqa: BLE001 - all that are wrong are told together
        return f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("raytrials").removeHandler(heard)
    if outcome.table != whole(kind).table:
        rows = [(row.trial_id, row.status, row.iteration) for row in outcome.table]
        return f"another table: {rows}"
    if not promised:
        return "can_restore said that it cannot be"
    failures = [trial.num_failures for trial in outcome.trials]
    if failures != [trial.num_failures for trial in whole(kind).trials] and not is_owned_up(
        experiment, damaged, heard.text
    ):
        return f"failures: {failures}"
    return ""


def problems(case: Case, damages: Iterable[Sequence[Damaged]], directory: Path) -> list[str]:
    found = []
    for number, damaged in enumerate(damages):
        experiment = dead(case).copy(directory / str(number))
        with saved_often(case.often):
            problem = problem_of(case.kind, experiment, damaged)
        if problem:
            found.append(f"{' and '.join(map(str, damaged))}: {problem}")
    return found


def each(case: Case) -> list[Damaged]:
    return [Damaged(*one) for one in itertools.product(files_of(dead(case)), DAMAGES)]


def pairs(case: Case) -> list[tuple[Damaged, Damaged]]:
    every = itertools.combinations(each(case), 2)
    possible = [(one, other) for one, other in every if one.name != other.name]
    return random.Random(7).sample(possible, PAIRS)


@CASES
def test_a_damaged_file_is_made_up_for_or_a_typed_error(case: Case, tmp_path: Path) -> None:
    assert problems(case, [(one,) for one in each(case)], tmp_path) == []


@CASES
def test_two_damaged_files_are_made_up_for_or_a_typed_error(case: Case, tmp_path: Path) -> None:
    assert problems(case, pairs(case), tmp_path) == []


@CASES
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_journal_that_is_lost_as_a_whole_is_no_beginning(
    damage: Callable[[bytes], bytes | None], case: Case, tmp_path: Path
) -> None:
    ours = [name for name in files_of(dead(case)) if name.startswith((JOURNALS, SNAPSHOTS))]
    damaged = [Damaged(name, damage) for name in ours]
    for some in (damaged, [one for one in damaged if one.name.startswith(JOURNALS)]):
        assert problems(case, [some], tmp_path / str(len(some))) == []
