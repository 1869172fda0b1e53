"""The crash tests find planted bugs, one of each kind.

Each row plants one bug and names the scenario that has to fail with it; without it the scenarios
pass, which is what `test_journal.py`, `test_commit.py`, `test_lease.py` and
`tests/property/test_recovery_bytes.py` assert.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from crash import test_commit, test_lease
from support.damaging import WAYS, History
from support.driving import FAILURES, REPLACEMENTS, STOPS, Driver

from raytrials.chaos.disk import FakeLocal, FakeObjectStore, _FileWriter
from raytrials.chaos.fault import Faulty, Operation
from raytrials.errors import ExperimentLockedError, RaytrialsError
from raytrials.store import commit, lease, merging, record, segment, snapshot
from raytrials.store.disk import Disk, Hold, Writer
from raytrials.store.journal import _Appended, _Uploaded
from raytrials.store.retrying import retry
from raytrials.store.segment import Damage, Reading, Segment
from raytrials.store.snapshot import SnapshotName

Patch = pytest.MonkeyPatch


# --- scenarios -----------------------------------------------------------------------------------


def flipped_bytes() -> None:
    """Every state that is recovered is one that was."""
    history = History.write(3, 4)
    for name in history.read_segments:
        for damaged in WAYS["flips"](name, history.files[name], 5):
            history.outcome(damaged)


def commits(way: str) -> Callable[[], None]:
    def scenario() -> None:
        make, end = test_commit.WAYS[way]
        test_commit.test_a_stop_anywhere_loses_nothing_and_the_next_attempt_goes_on(make, end, 1)

    return scenario


def leases(way: str) -> Callable[[], None]:
    def scenario() -> None:
        make, end = test_lease.WAYS[way]
        test_lease.test_a_stop_anywhere_keeps_the_next_driver_out_for_no_longer_than_the_expiry(
            make, end
        )

    return scenario


def taken_over(make: Callable[[], FakeLocal | FakeObjectStore]) -> Callable[[], None]:
    return lambda: (
        test_lease.test_a_holder_that_comes_back_while_another_takes_over_leaves_one_at_most(
            make, 2
        )
    )


def both_start(make: Callable[[], FakeLocal | FakeObjectStore]) -> Callable[[], None]:
    """One driver halts before each operation of its start; another starts meanwhile."""

    def scenario() -> None:
        number, met = 0, True
        while met:
            number, met = number + 1, False
            machine = test_lease.Machine(make())
            started: list[lease.Lease] = []

            def start(disk: Disk, process: Any) -> None:
                with contextlib.suppress(ExperimentLockedError):
                    started.append(machine.start(process, disk=disk, wait_s=0))  # noqa: B023

            def meet(operation: Operation) -> None:
                nonlocal met
                if operation.number == number:  # noqa: B023
                    met = True
                    start(machine.disk, test_lease.ELSEWHERE)  # noqa: B023

            start(Faulty(machine.disk, before=[meet]), test_lease.HERE)
            assert len([one for one in started if one.is_valid()]) <= 1, number
            assert len({one.epoch for one in started}) == len(started)
        assert number > 5

    return scenario


class WithoutLocks(FakeLocal):
    """NFS without a lock daemon."""

    def hold(self, path: str) -> Hold | None:
        return None

    def is_held(self, path: str, place: str | None = None) -> bool | None:
        return None


@pytest.mark.parametrize("make", [FakeLocal, WithoutLocks, FakeObjectStore])
def test_of_two_drivers_that_start_at_once_one_gets_the_lease(
    make: Callable[[], FakeLocal | FakeObjectStore],
) -> None:
    both_start(make)()


# --- bugs ----------------------------------------------------------------------------------------


def leave_out(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> Any:
    """Let a method do nothing, always or for some arguments."""
    real = getattr(owner, name)

    def plant(patch: Patch) -> None:
        def mutated(self: Any, *rest: Any, **more: Any) -> Any:
            return None if when(*rest) else real(self, *rest, **more)

        patch.setattr(owner, name, mutated)

    return plant


def skip_fsync_at(end: str) -> Callable[[Patch], None]:
    """Files that are created under such names are not synced."""

    def plant(patch: Patch) -> None:
        create = FakeLocal.create

        def lazy(self: FakeLocal, path: str) -> Any:
            return _Unsynced(self, path) if path.endswith(end) else create(self, path)

        patch.setattr(FakeLocal, "create", lazy)

    return plant


class _Unsynced:
    def __init__(self, disk: FakeLocal, path: str) -> None:
        disk.delete_file(path)
        self._writer = disk.append(path)

    def __enter__(self) -> Writer:
        return self._writer

    def __exit__(self, *_: object) -> None:
        """Nothing: it is what is left out."""


def skip_fsync_of_segment(patch: Patch) -> None:
    patch.setattr(_FileWriter, "sync", lambda _: None)


def acknowledge_before_the_fsync(patch: Patch) -> None:
    real = _Appended._sync_segment

    def sync(self: _Appended, appender: Any) -> None:
        self._acknowledge(self.seq)
        real(self, appender)

    patch.setattr(_Appended, "_sync_segment", sync)


def acknowledge_before_the_upload(patch: Patch) -> None:
    real = _Uploaded._do

    def do(self: _Uploaded, what: str, path: str, operation: Callable[[], None]) -> None:
        if self._in_flight:
            self._acknowledge(self._in_flight[-1].seq)
        real(self, what, path, operation)

    patch.setattr(_Uploaded, "_do", do)


def append_behind_a_failed_write(patch: Patch) -> None:
    real = _Appended._take

    def take(self: _Appended, line: Any) -> None:
        behind = self._is_behind
        real(self, line)
        self._is_behind = behind

    patch.setattr(_Appended, "_take", take)


def roll_before_the_sync(patch: Patch) -> None:
    full_bytes = 1_000
    real = _Appended._take

    def take(self: _Appended, line: Any) -> None:
        if self._bytes >= full_bytes:
            self._appender, self._bytes = None, 0
        real(self, line)

    patch.setattr(_Appended, "_take", take)


def ignore_the_fence(patch: Patch) -> None:
    real = Reading._read_segment
    patch.setattr(Reading, "_read_segment", lambda self, one, _: real(self, one, None))


def ignore_the_epoch_of_a_snapshot(patch: Patch) -> None:
    patch.setattr(SnapshotName, "is_replaced", lambda *_: False)


def snapshot_before_its_events(patch: Patch) -> None:
    patch.setattr(Driver, "_is_durable", lambda *_: True)


def prune_before_the_snapshot(patch: Patch) -> None:
    real = snapshot.write

    def write(disk: Disk, directory: str, name: SnapshotName, data: bytes, **more: Any) -> None:
        for old in snapshot.names_in(disk, directory, retry_s=0)[snapshot.KEPT - 1 :]:
            disk.delete_file(f"{directory}/{old}")
        real(disk, directory, name, data, **more)

    patch.setattr(snapshot, "write", write)


def write_the_snapshot_in_place(patch: Patch) -> None:
    def write(disk: Disk, directory: str, name: SnapshotName, data: bytes, **_: Any) -> None:
        disk.make_directory(directory)
        disk.sync(directory.rpartition("/")[0])
        disk.write(f"{directory}/{name}", data)
        disk.sync(directory)

    patch.setattr(snapshot, "write", write)


def delete_parts_before_the_merge(patch: Patch) -> None:
    real = retry

    def disordered(disk: Disk, what: str, path: str, operation: Any, *, limit_s: float) -> Any:
        if what == "writing":
            merged = next(iter(segment.segments_among({path.rpartition("/")[2]})))
            directory = path.rpartition("/")[0]
            for one in segment.segments_among(disk.list_names(directory)):
                if one.epoch == merged.epoch and merged.first <= one.first <= merged.last:
                    disk.delete_file(f"{directory}/{one.name}")
        return real(disk, what, path, operation, limit_s=limit_s)

    patch.setattr(merging, "retry", disordered)


def merge_over_the_first_part(patch: Patch) -> None:
    delete = merging._delete
    patch.setattr(merging, "Segment", Over)
    patch.setattr(
        merging, "_delete", lambda disk, at, parts, retry_s: delete(disk, at, parts[1:], retry_s)
    )


class Over(Segment):
    """A merged segment with the name of its first part."""

    @property
    def name(self) -> str:
        return Segment(self.epoch, self.first).name


def verify_no_digest(patch: Patch) -> None:
    patch.setattr(record, "_is_sealed", lambda line: record._DIGEST.search(line[-29:]) is not None)


def count_a_torn_tail(patch: Patch) -> None:
    real = Reading._pass_over

    def pass_over(self: Reading, bad: Damage, end: int) -> None:
        self.seq += 1
        real(self, bad, end)

    patch.setattr(Reading, "_pass_over", pass_over)


def forget_the_damage(patch: Patch) -> None:
    patch.setattr(Reading, "_pass_over", lambda *_: None)


def rename_before_the_manifest(patch: Patch) -> None:
    write, rename = commit._Copy.write_manifest, commit._Copy.rename

    def rename_first(self: Any, manifest: Any) -> None:
        self._disk.sync(self._place)

    def write_last(self: Any, final: str, manifest: Any) -> None:
        rename(self, final, manifest)
        self._place = final
        write(self, manifest)

    patch.setattr(commit._Copy, "write_manifest", rename_first)
    patch.setattr(commit._Copy, "rename", write_last)


def ignore_a_higher_epoch(patch: Patch) -> None:
    patch.setattr(lease._Contender, "_is_beaten", lambda *_: False)
    patch.setattr(lease.Lease, "_require_ours", lambda _: None)


def take_an_epoch_that_is_taken(patch: Patch) -> None:
    real = lease._Contender.take
    patch.setattr(lease._Contender, "take", lambda self, _, before: real(self, 1, before))


def create_over_another(patch: Patch) -> None:
    def create(self: FakeLocal, path: str, data: bytes) -> None:
        self.write(path, data)

    patch.setattr(FakeLocal, "create_exclusive", create)


def is_journal(path: str) -> bool:
    return path.endswith("/journal")


def is_home(path: str) -> bool:
    return path.endswith("/.raytrials")


class Bug(NamedTuple):
    """A planted bug, and a scenario that must find it."""

    plant: Callable[[Patch], None]
    scenario: Callable[..., None]


BUGS = {
    # the journal on a local disk
    "no fsync of a segment": Bug(skip_fsync_of_segment, STOPS["local, power"]),
    "no fsync of a segment written anew": Bug(
        skip_fsync_at(".jsonl.partial"), FAILURES["local, writes"]
    ),
    "no sync of the directory of segments": Bug(
        leave_out(FakeLocal, "sync", is_journal), STOPS["local, power"]
    ),
    "no sync of the directory of all": Bug(
        leave_out(FakeLocal, "sync", is_home), STOPS["local, power"]
    ),
    "what the driver before left is not synced": Bug(
        leave_out(_Appended, "_secure"), STOPS["local, process, then power"]
    ),
    "acknowledged before the fsync": Bug(acknowledge_before_the_fsync, STOPS["local, power"]),
    "appended behind a failed write": Bug(append_behind_a_failed_write, FAILURES["local, each"]),
    "the next segment before the last is synced": Bug(roll_before_the_sync, STOPS["local, power"]),
    # the journal on an object store
    "acknowledged before the upload": Bug(acknowledge_before_the_upload, STOPS["store"]),
    "parts deleted before they are merged": Bug(delete_parts_before_the_merge, STOPS["store"]),
    "merged over a part": Bug(merge_over_the_first_part, FAILURES["store, full"]),
    # reading
    "the fence is ignored": Bug(ignore_the_fence, REPLACEMENTS["local"]),
    "the fence is ignored on a store": Bug(ignore_the_fence, REPLACEMENTS["store"]),
    "a replaced driver's snapshot counts": Bug(
        ignore_the_epoch_of_a_snapshot, REPLACEMENTS["local"]
    ),
    "no digest is verified": Bug(verify_no_digest, flipped_bytes),
    "a torn end counts as an event": Bug(count_a_torn_tail, STOPS["local, process"]),
    "damage is not recorded": Bug(forget_the_damage, STOPS["local, process"]),
    # snapshots
    "no fsync of a snapshot": Bug(skip_fsync_at(".snapshot.partial"), STOPS["local, power"]),
    "a snapshot before its events": Bug(snapshot_before_its_events, STOPS["local, power"]),
    "snapshots pruned before the new one is there": Bug(
        prune_before_the_snapshot, STOPS["local, process"]
    ),
    "a snapshot under its name at once": Bug(write_the_snapshot_in_place, STOPS["local, process"]),
    # checkpoints
    "renamed before the manifest is there": Bug(
        rename_before_the_manifest, commits("local, process")
    ),
    "no fsync of a checkpoint's file": Bug(skip_fsync_at("/model"), commits("local, power")),
    "no fsync of a manifest": Bug(skip_fsync_at(".json"), commits("local, power")),
    # the lease
    "a higher epoch is ignored": Bug(ignore_a_higher_epoch, taken_over(FakeObjectStore)),
    "an epoch is taken twice": Bug(take_an_epoch_that_is_taken, leases("local, process")),
    "the lease is created over another": Bug(create_over_another, both_start(WithoutLocks)),
}


def test_without_a_bug_no_flipped_byte_is_taken_for_an_event() -> None:
    flipped_bytes()


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises((AssertionError, RaytrialsError, pytest.fail.Exception)):
        bug.scenario()
