"""A power cut leaves what was synced, and a store what was closed."""

from __future__ import annotations

import contextlib
import random

import pytest

from raytrials.chaos.conformance import put
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.store.disk import Disk


@pytest.fixture
def disk() -> FakeLocal:
    disk = FakeLocal()
    disk.make_directory("/d/below")
    disk.sync("/d")
    return disk


def write_half(disk: Disk, error: type[BaseException]) -> None:
    with contextlib.suppress(error), disk.create("/d/file") as writer:
        writer.write(memoryview(b"half"))
        raise error


def test_a_synced_name_of_a_whole_file_survives(disk: FakeLocal) -> None:
    disk.write("/d/file", b"content")
    disk.sync("/d")
    disk.crash()
    assert disk.read("/d/file") == b"content"


def test_a_name_that_was_not_synced_is_gone(disk: FakeLocal) -> None:
    disk.write("/d/file", b"content")
    disk.make_directory("/d/new")
    disk.crash()
    assert disk.list_names("/d") == {"below"}


def test_a_synced_name_may_lead_to_nothing(disk: FakeLocal) -> None:
    with disk.create("/d/file") as writer:
        writer.write(memoryview(b"content"))
        disk.sync("/d")
        assert disk.read("/d/file") == b"content"
        disk.crash()
        assert disk.read("/d/file") == b""


def test_a_file_that_is_written_again_falls_back_to_what_it_was(disk: FakeLocal) -> None:
    disk.write("/d/file", b"old")
    disk.sync("/d")
    write_half(disk, ZeroDivisionError)
    disk.crash()
    assert disk.read("/d/file") == b"old"


def test_a_rename_and_a_delete_come_undone(disk: FakeLocal) -> None:
    put(disk, "/d", {"below/file": b"x", "gone": b"y"})
    disk.sync("/d/below")
    disk.sync("/d")
    disk.rename("/d/below", "/d/renamed")
    disk.delete_file("/d/gone")
    disk.crash()
    assert set(disk.list_files("/d")) == {"below/file", "gone"}


def test_directories_above_a_new_one_are_durable_and_itself_is_not(disk: FakeLocal) -> None:
    disk.make_directory("/x/y/z")
    disk.crash()
    assert disk.list_names("/x") == {"y"}
    assert disk.list_names("/x/y") == set()


def test_with_luck_some_of_it_survives_in_the_order_it_was_done() -> None:
    seen = set()
    for seed in range(40):
        disk = FakeLocal()
        put(disk, "", dict.fromkeys("abc", b"x"))
        disk.crash(random.Random(seed))
        seen.add("".join(sorted(disk.list_names("/"))))
    assert seen == {"", "a", "ab", "abc"}


def test_luck_takes_nothing_of_what_was_synced(disk: FakeLocal) -> None:
    disk.write("/d/file", b"content")
    disk.sync("/d")
    for seed in range(20):
        disk.crash(random.Random(seed))
        assert disk.read("/d/file") == b"content"


def test_a_writer_that_fails_puts_what_it_has_and_a_dead_process_puts_nothing() -> None:
    for error, expected in ((OSError, {"file"}), (KeyboardInterrupt, set())):
        store = FakeObjectStore()
        write_half(store, error)
        assert store.list_names("/d") == expected


def test_stale_listings_show_what_was() -> None:
    store = FakeObjectStore()
    put(store, "/d", {"old": b"x"})
    with store.stale_listings():
        store.write("/d/new", b"x")
        store.delete_file("/d/old")
        assert store.list_names("/d") == {"old"}
        assert store.read("/d/new") == b"x"
    assert store.list_names("/d") == {"new"}


def append(disk: FakeLocal, data: bytes, *, sync: bool = False) -> None:
    appender = disk.append("/d/file")
    appender.write(memoryview(data))
    if sync:
        appender.sync()
    appender.close()


def test_what_is_appended_is_durable_when_it_is_synced(disk: FakeLocal) -> None:
    append(disk, b"synced", sync=True)
    disk.sync("/d")
    append(disk, b"lost")
    assert disk.read("/d/file") == b"syncedlost"
    disk.crash()
    assert disk.read("/d/file") == b"synced"


def test_a_file_that_was_appended_to_has_no_durable_name_by_that(disk: FakeLocal) -> None:
    append(disk, b"synced", sync=True)
    disk.crash()
    assert disk.list_names("/d") == {"below"}


def test_with_luck_more_of_what_was_appended_survives_and_never_less() -> None:
    seen = set()
    for seed in range(40):
        disk = FakeLocal()
        disk.make_directory("/d")
        append(disk, b"sync", sync=True)
        disk.sync("/d")
        disk.sync("/")
        append(disk, b"ed")
        disk.crash(random.Random(seed))
        seen.add(disk.read("/d/file"))
    assert seen == {b"sync", b"synce", b"synced"}


def test_locks_end_with_the_process_and_with_the_machine(disk: FakeLocal) -> None:
    for end in (disk.end_process, disk.crash):
        assert disk.hold("/d/lock") is not None
        disk.sync("/d")
        end()
        assert disk.is_held("/d/lock") is False
