"""A driver that dies between two reports, or while it looks for what it missed, misses nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.disks import TRIAL, contents_of, path_of, save

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Stopped, stop_at
from raytrials.store.catalogue import highest_index, newer, older
from raytrials.store.checkpoint import Verdict, inspect
from raytrials.store.disk import Disk
from raytrials.store.manifest import MANIFEST, index_of

Fake = FakeLocal | FakeObjectStore
KINDS = pytest.mark.parametrize("make", [FakeLocal, FakeObjectStore])


def files(index: int) -> dict[str, bytes]:
    return {"model": bytes([index]) * 50, "more/state": bytes([index])}


def whole(disk: Disk, index: int) -> bool:
    finding = inspect(disk, path_of(index), full=True)
    return finding.verdict is Verdict.VERIFIED and contents_of(disk, path_of(index)) == files(index)


def seen_by(disk: Disk, than: int) -> list[int]:
    """The checkpoints that a driver takes over if it knows those up to `than`."""
    found = [(index_of(name), one) for name, one in newer(disk, TRIAL, than)]
    assert all(one.verdict is Verdict.VERIFIED for _, one in found)
    return [index for index, _ in found if index is not None]


@KINDS
def test_wherever_a_worker_stops_its_newest_commit_is_taken_over_whole(
    make: Callable[[], Fake],
) -> None:
    stopped, number = True, 0
    while stopped:
        number, stopped = number + 1, False
        disk = make()
        save(disk, files(0), 0)
        done = 0
        try:
            for index in (1, 2):
                save(
                    Faulty(disk, before=[stop_at(number)] if index == 2 else []),
                    files(index),
                    index,
                )
                done = index
        except Stopped:
            stopped = True
        if isinstance(disk, FakeLocal):
            disk.crash()
        # The driver heard of the first one only.
        taken = seen_by(disk, 0)
        assert taken in ([1], [1, 2])
        assert taken[-1] >= done
        assert all(whole(disk, index) for index in taken)
        assert highest_index(disk, TRIAL) >= taken[-1]
        save(disk, files(highest_index(disk, TRIAL) + 1), highest_index(disk, TRIAL) + 1)
        assert len(seen_by(disk, 0)) == len(taken) + 1
    assert number > 10


@KINDS
def test_a_driver_that_stops_while_it_looks_changes_nothing_and_sees_the_same_again(
    make: Callable[[], Fake],
) -> None:
    disk = make()
    for index in range(3):
        save(disk, files(index), index)
    before = {name: disk.read(f"{TRIAL}/{name}") for name in disk.list_files(TRIAL)}
    stopped, number = True, 0
    while stopped:
        number, stopped = number + 1, False
        faulty = Faulty(disk, before=[stop_at(number)])
        try:
            assert seen_by(faulty, 0) == [1, 2]
        except Stopped:
            stopped = True
        assert {name: disk.read(f"{TRIAL}/{name}") for name in disk.list_files(TRIAL)} == before
        assert seen_by(disk, 0) == [1, 2]
    assert number > 5


@KINDS
def test_falling_back_finds_the_newest_whole_one_below(make: Callable[[], Fake]) -> None:
    disk = make()
    for index in range(4):
        save(disk, files(index), index)
    disk.write(f"{path_of(2)}/model", b"short")
    disk.delete_file(f"{path_of(1)}/{MANIFEST}")
    found = [(name, finding.verdict) for name, finding in older(disk, TRIAL, 3)]
    assert found == [
        ("checkpoint_000002", Verdict.CORRUPT),
        ("checkpoint_000000", Verdict.VERIFIED),
    ]
