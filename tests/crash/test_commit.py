"""Committing and deleting stop at every operation, and nothing that was committed is lost.

A trial saves some checkpoints and keeps the newest. It is stopped before each of its operations in
turn: the process alone, or the machine's power, with and without luck for what was not synced.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from support.disks import TRIAL, contents_of, path_of, save

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, Stopped, stop_at
from raytrials.store import copying
from raytrials.store.checkpoint import Verdict, delete, inspect
from raytrials.store.disk import Disk
from raytrials.store.manifest import MANIFEST, Manifest, index_of

Fake = FakeLocal | FakeObjectStore


def files(index: int, attempt: int) -> dict[str, bytes]:
    """Files of one attempt; those of another are as long and differ in each byte."""
    tag = bytes([index, attempt])
    return {"model": tag * 50, "a/optimizer": tag * 20, "a/b/empty": b""}


@dataclass
class Trial:
    """What a trial knows of its checkpoints."""

    attempt: int
    keep: int
    next_index: int = 0
    committed: dict[int, Manifest] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)

    def run(self, disk: Disk, steps: int) -> None:
        for _ in range(steps):
            index = self.next_index
            self.next_index += 1
            contents = files(index, self.attempt)
            self.committed[index] = save(disk, contents, index, attempt=self.attempt)
            for old in sorted(set(self.committed) - self.deleted)[: -self.keep]:
                self.deleted.add(old)
                delete(disk, path_of(old))

    def resume(self, disk: Disk) -> Trial:
        """The next attempt: it numbers on from what it finds, with a gap for its predecessor."""
        found = {index for name in disk.list_names(TRIAL) if (index := index_of(name)) is not None}
        return Trial(self.attempt + 1, self.keep, max(found, default=-1) + 2)


def verified(disk: Disk) -> dict[int, Manifest]:
    """The checkpoints on storage that a look finds whole; all others say that they are not."""
    found = {}
    for name in disk.list_names(TRIAL):
        index = index_of(name)
        if index is None:
            continue
        for full in (False, True):
            finding = inspect(disk, path_of(index), full=full)
            if disk.has_rename:
                # What has the name is whole, whatever happened.
                assert finding.verdict is Verdict.VERIFIED, finding.problem
            else:
                assert finding.verdict in {Verdict.VERIFIED, Verdict.INCOMPLETE}, finding.problem
            if finding.verdict is Verdict.VERIFIED:
                assert finding.manifest is not None
                found[index] = finding.manifest
    return found


def check(disk: Disk, *trials: Trial) -> None:
    attempts = {trial.attempt for trial in trials}
    found = verified(disk)
    for index, manifest in found.items():
        assert manifest.header.attempt in attempts
        expected = files(index, manifest.header.attempt)
        if "a/b/empty" not in disk.list_files(path_of(index)) and not disk.has_rename:
            del expected["a/b/empty"]  # some stores take none
        assert contents_of(disk, path_of(index)) == expected
    committed = {index: m for trial in trials for index, m in trial.committed.items()}
    deleted = {index for trial in trials for index in trial.deleted}
    for index, manifest in committed.items():
        if index not in deleted:
            assert found.get(index) == manifest, f"checkpoint {index} is lost"
            assert disk.read(f"{path_of(index)}/{MANIFEST}") == manifest.encode()
    if committed:
        assert found, "no checkpoint is left"


def keep_running(disk: Fake) -> None:
    """Nothing: the process alone is dead."""


def lose_power(disk: Fake) -> None:
    assert isinstance(disk, FakeLocal)
    disk.crash()


def lose_power_with_luck(seed: int) -> Callable[[Fake], None]:
    def lose(disk: Fake) -> None:
        assert isinstance(disk, FakeLocal)
        disk.crash(random.Random(seed))

    return lose


def store_without_empty_files() -> FakeObjectStore:
    return FakeObjectStore(takes_empty_files=False)


WAYS: dict[str, tuple[Callable[[], Fake], Callable[[Fake], None]]] = {
    "local, process": (FakeLocal, keep_running),
    "local, power": (FakeLocal, lose_power),
    **{f"local, luck {n}": (FakeLocal, lose_power_with_luck(n)) for n in range(2)},
    "store": (FakeObjectStore, keep_running),
    "store without empty files": (store_without_empty_files, keep_running),
}


@pytest.fixture(autouse=True, params=[1, 3], ids=["one thread", "threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread copies in the same order each time; several leave more in between."""
    monkeypatch.setattr(copying, "THREADS", request.param)


def stops(make: Callable[[], Fake], keep: int) -> Iterator[tuple[Fake, Trial]]:
    """Run the same trial again and again, stopped before each operation; the last ends well."""
    number = 0
    stopped = True
    while stopped:
        number += 1
        disk, trial = make(), Trial(1, keep)
        faulty = Faulty(disk, before=[stop_at(number)])
        try:
            trial.run(faulty, keep + 2)
            stopped = False
        except Stopped:
            pass
        yield disk, trial
    assert number > 60


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize(("make", "end"), WAYS.values(), ids=WAYS)
def test_a_stop_anywhere_loses_nothing_and_the_next_attempt_goes_on(
    make: Callable[[], Fake], end: Callable[[Fake], None], keep: int
) -> None:
    for disk, trial in stops(make, keep):
        end(disk)
        check(disk, trial)
        after = trial.resume(disk)
        after.run(disk, 2)
        end(disk)
        check(disk, trial, after)


@pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])
def test_at_every_instant_of_a_running_trial_a_checkpoint_is_verified(
    make: Callable[[], Fake],
) -> None:
    disk, trial = make(), Trial(1, keep=1)
    looks = []

    def look(operation: Operation) -> None:
        check(disk, trial)
        looks.append(operation)

    trial.run(Faulty(disk, before=[look], after=[look]), 3)
    assert len(looks) > 100
    assert set(verified(disk)) == {2}


@pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])
def test_a_committed_byte_is_never_written_again(make: Callable[[], Fake]) -> None:
    disk, trial = make(), Trial(1, keep=2)

    def look(operation: Operation) -> None:
        if operation.name in {"create", "write", "close"}:
            assert not any(operation.path.startswith(path_of(done)) for done in trial.committed)

    trial.run(Faulty(disk, before=[look]), 4)


@pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])
def test_a_dead_attempt_that_commits_once_more_shares_no_directory_with_the_next(
    make: Callable[[], Fake],
) -> None:
    number = 0
    interrupted = True
    while interrupted:
        number += 1
        interrupted = False
        disk, first = make(), Trial(1, keep=1)
        first.run(disk, 1)
        second = first.resume(disk)
        of_second = Faulty(disk)

        def meanwhile(operation: Operation) -> None:
            nonlocal interrupted
            if operation.number == number:  # noqa: B023 - called within this round
                interrupted = True
                second.run(of_second, 1)  # noqa: B023

        of_first = Faulty(disk, before=[meanwhile])
        first.keep = 9
        first.run(of_first, 1)
        check(disk, first, second)
        assert set(verified(disk)) == ({0, 1, 2} if interrupted else {0, 1})
        assert not directories(of_first) & directories(of_second)
    assert number > 15


def directories(disk: Faulty) -> set[str]:
    """The directories in the trial's own where something was changed."""
    names = {
        operation.path.removeprefix(TRIAL).strip("/").split("/")[0]
        for operation in disk.operations
        if not operation.name.startswith("list")
    }
    return names - {""}
