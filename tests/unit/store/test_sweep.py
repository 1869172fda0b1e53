"""What a sweep deletes, and what it never touches."""

from __future__ import annotations

import datetime as dt
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.experiments import Experiment, saved

import raytrials
from raytrials.store.audit import Audit
from raytrials.store.checkpoint import Verdict
from raytrials.store.filesystem import as_pyarrow
from raytrials.store.sweep import Outcome, sweep

ACCOUNT = {"version": 1, "attempt": 1}
OLD_S = 2 * 3600
LEFTOVERS = (".removed-000002", ".staging-000003-1", "checkpoint_000004")


class Local(Experiment):
    """An experiment on this machine whose files can be made old."""

    def age(self, seconds: float, *names: str) -> None:
        moment = time.time() - seconds
        top = Path(self.at(*names))
        for path in (top, *top.rglob("*")):
            os.utime(path, (moment, moment))


class Memory(Experiment):
    """The same on a store without directories, whose listings tell no times."""

    def age(self, seconds: float, *names: str) -> None:
        moment = dt.datetime.now(tz=dt.timezone.utc) - dt.timedelta(seconds=seconds)
        store = fsspec.filesystem("memory").store
        for path, file in store.items():
            if path.startswith(self.at(*names)):
                file.modified = moment


@pytest.fixture(params=["local", "memory"])
def experiment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Local | Memory]:
    if request.param == "local":
        yield Local(pyarrow.fs.LocalFileSystem(), str(tmp_path / "exp"))
        return
    memory = fsspec.filesystem("memory")
    top = f"/{uuid.uuid4().hex}"
    yield Memory(as_pyarrow(memory), f"{top}/exp")
    memory.rm(top, recursive=True)


def verify(experiment: Experiment, *names: str, **options: Any) -> Audit:
    return raytrials.verify(experiment.at(*names), filesystem=experiment.filesystem, **options)


def swept(audit: Audit) -> dict[str, tuple[str, str]]:
    return {
        checkpoint.name: (str(checkpoint.swept.outcome), checkpoint.swept.reason)
        for trial in audit.trials
        for checkpoint in trial.checkpoints
        if checkpoint.swept is not None
    }


def names(experiment: Experiment) -> set[str]:
    return experiment.disk.list_names(experiment.at("a"))


@pytest.fixture
def trial(experiment: Local | Memory) -> Local | Memory:
    """One of every kind, all of them old."""
    experiment.put("a/checkpoint_000000")
    experiment.commit("a", 1)
    experiment.commit("a", 5)
    experiment.write(b"", "a", "checkpoint_000005", "weights.bin")
    for name in LEFTOVERS:
        experiment.put(f"a/{name}")
    account = {**ACCOUNT, "unverified": ["checkpoint_000000"]}
    experiment.save_state(saved("a", account=account))
    experiment.age(OLD_S)
    return experiment


COMMITTED = {"checkpoint_000000", "checkpoint_000001", "checkpoint_000005"}


def test_old_leftovers_go_and_nothing_else_does(trial: Local | Memory) -> None:
    audit = verify(trial, sweep=True)
    assert swept(audit) == dict.fromkeys(LEFTOVERS, ("removed", ""))
    assert audit.swept == {Outcome.REMOVED: 3, Outcome.KEPT: 0, Outcome.FAILED: 0}
    assert names(trial) == COMMITTED
    assert swept(verify(trial, sweep=True)) == {}


def test_nothing_goes_unasked(trial: Local | Memory) -> None:
    assert swept(verify(trial)) == {}
    assert names(trial) == COMMITTED | set(LEFTOVERS)


def test_what_changed_in_the_last_hour_is_kept_with_its_age(trial: Local | Memory) -> None:
    for name in LEFTOVERS:
        trial.age(12 * 60 + 30, "a", name, "weights.bin")
    audit = verify(trial, sweep=True)
    kept = ("kept", "changed 12 min ago: its attempt may be alive")
    assert swept(audit) == dict.fromkeys(LEFTOVERS, kept)
    assert names(trial) == COMMITTED | set(LEFTOVERS)
    ages = [found.swept.age_s for found in audit.trials[0].checkpoints if found.swept is not None]
    assert all(age == pytest.approx(750, abs=30) for age in ages)


def test_a_time_to_come_is_no_age(trial: Local | Memory) -> None:
    trial.age(-600, "a", ".staging-000003-1")
    assert swept(verify(trial, sweep=True))[".staging-000003-1"][0] == "kept"


def test_what_the_saved_state_names_and_has_no_manifest_is_corrupt_and_kept(
    trial: Local | Memory,
) -> None:
    pickled = b"exp/a/checkpoint_000004".hex()
    trial.save_state(saved("a", account=ACCOUNT, runtime=pickled), time="2026-01-02_00-00-00")
    audit = verify(trial, sweep=True)
    assert "checkpoint_000004" not in swept(audit)
    (named,) = [one for one in audit.trials[0].checkpoints if one.name == "checkpoint_000004"]
    assert (named.verdict, audit.ok) == (Verdict.CORRUPT, False)
    assert "no manifest, though the saved state of its trial names it" in named.problem
    assert "checkpoint_000004" in names(trial)


def test_what_was_committed_or_deleted_since_it_was_listed_is_left_alone(
    trial: Local | Memory,
) -> None:
    for name, outcome in (
        ("checkpoint_000001", (Outcome.KEPT, "it was committed meanwhile")),
        ("checkpoint_000009", (Outcome.REMOVED, "it was gone already")),
    ):
        path = trial.at("a", name)
        result = sweep(trial.disk, trial.filesystem, path, retry_s=0)
        assert (result.outcome, result.reason) == outcome
    assert "checkpoint_000001" in names(trial)


def test_one_leftover_can_be_swept_alone(trial: Local | Memory) -> None:
    audit = verify(trial, "a", ".staging-000003-1", sweep=True)
    assert swept(audit) == {".staging-000003-1": ("removed", "")}
    assert names(trial) == COMMITTED | set(LEFTOVERS) - {".staging-000003-1"}


def test_an_empty_directory_has_the_age_of_the_directory(tmp_path: Path) -> None:
    local = Local(pyarrow.fs.LocalFileSystem(), str(tmp_path))
    local.commit("a", 1)
    for name in (".staging-000002-1", ".staging-000003-1"):
        (tmp_path / "a" / name).mkdir()
    local.age(OLD_S, "a", ".staging-000002-1")
    found = swept(verify(local, sweep=True))
    assert [outcome for outcome, _ in found.values()] == ["removed", "kept"]


class _Ageless(MemoryFileSystem):
    cachable = False

    def modified(self, path: str) -> Any:
        raise NotImplementedError

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        raise PermissionError("not yours")


def test_on_a_storage_that_tells_no_age_all_is_kept(trial: Local | Memory) -> None:
    if isinstance(trial, Memory):
        audit = raytrials.verify(trial.path, filesystem=_Ageless(), sweep=True)
        assert set(swept(audit).values()) == {("kept", "the storage does not tell its age")}


class _Forbidding(_Ageless):
    def modified(self, path: str) -> Any:
        return dt.datetime(2020, 1, 1)  # noqa: DTZ001 - some filesystems name no zone


def test_what_cannot_be_deleted_is_told_and_the_rest_goes_on(trial: Local | Memory) -> None:
    if isinstance(trial, Memory):
        audit = raytrials.verify(trial.path, filesystem=_Forbidding(), sweep=True)
        assert audit.swept[Outcome.FAILED] == 3
        assert all("not yours" in reason for _, reason in swept(audit).values())
