"""Faults strike where they are planned, and nowhere else."""

from __future__ import annotations

import contextlib
import errno

import pytest

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import (
    Faulty,
    Stopped,
    fail_share,
    fail_when,
    fill_up,
    slow_down,
    stop_at,
)


def test_operations_are_numbered_in_order() -> None:
    disk = Faulty(FakeLocal())
    disk.make_directory("/d/e")
    disk.write("/d/e/file", b"content")
    disk.read("/d/e/file")
    disk.sync("/d")
    disk.delete_tree("/d/e")
    assert [operation.number for operation in disk.operations] == list(range(1, 11))
    assert [operation.name for operation in disk.operations] == [
        "make_directory",
        "create",
        "write",
        "close",
        "open",
        "read",
        "read",
        "sync",
        "delete_file",
        "delete_tree",
    ]


def test_a_stop_is_final() -> None:
    inner = FakeLocal()
    disk = Faulty(inner, before=[stop_at(2)])
    disk.make_directory("/d")
    for _ in range(2):
        with pytest.raises(Stopped):
            disk.make_directory("/e")
    assert inner.list_names("/") == {"d"}


def test_nothing_is_written_after_a_stop() -> None:
    inner = FakeLocal()
    inner.make_directory("/d")
    disk = Faulty(inner, before=[fail_when(lambda one: one.name == "sync", Stopped())])
    appender = disk.append("/d/appended")
    appender.write(memoryview(b"whole"))
    with contextlib.suppress(Stopped), disk.create("/d/created") as writer:
        writer.write(memoryview(b"whole"))
        with pytest.raises(Stopped):
            disk.sync("/d")
        for one in (appender, writer):
            for _ in range(2):
                with pytest.raises(Stopped):
                    one.write(memoryview(b"dead and gone"))
    assert inner.read("/d/appended") == inner.read("/d/created") == b"whole"


def test_a_write_that_the_disk_itself_refuses_leaves_what_the_disk_left() -> None:
    inner = FakeLocal()
    full = Faulty(inner, before=[fill_up(3)])
    with pytest.raises(OSError, match="No space"):
        Faulty(full).write("/file", b"content!")
    assert inner.read("/file") == b"cont"


@pytest.mark.parametrize("kind", [FakeLocal, FakeObjectStore])
def test_a_stop_while_writing_leaves_half_on_a_local_disk_and_nothing_on_a_store(
    kind: type[FakeLocal | FakeObjectStore],
) -> None:
    inner = kind()
    with pytest.raises(Stopped):
        Faulty(inner, before=[stop_at(2)]).write("/file", b"content")
    found = {name: inner.read(f"/{name}") for name in inner.list_names("/")}
    assert found == ({"file": b"con"} if inner.has_rename else {})


def test_a_file_is_whole_but_not_durable_before_its_close() -> None:
    inner = FakeLocal()
    with pytest.raises(Stopped):
        Faulty(inner, before=[stop_at(3)]).write("/file", b"content")
    assert inner.read("/file") == b"content"
    inner.sync("/")
    inner.crash()
    assert inner.read("/file") == b""


def test_the_first_few_that_match_fail() -> None:
    fault = fail_when(lambda operation: operation.name == "open", TimeoutError(), times=2)
    disk = Faulty(FakeLocal(), before=[fault])
    disk.write("/file", b"x")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            disk.read("/file")
    assert disk.read("/file") == b"x"


def test_an_answer_that_is_lost_is_of_something_done() -> None:
    inner = FakeLocal()
    fault = fail_when(lambda operation: operation.name in {"close", "write"}, TimeoutError())
    with pytest.raises(TimeoutError):
        Faulty(inner, after=[fault]).write("/file", b"content")
    assert inner.read("/file") == b"content"


def test_a_share_fails_and_the_same_for_a_seed() -> None:
    def failed(seed: int) -> list[int]:
        disk = Faulty(FakeLocal(), before=[fail_share(0.3, TimeoutError(), seed=seed)])
        numbers = []
        for number in range(500):
            try:
                disk.list_names("/")
            except TimeoutError:
                numbers.append(number)
        return numbers

    assert 100 < len(failed(1)) < 200
    assert failed(1) == failed(1) != failed(2)


def test_a_disk_fills_up() -> None:
    disk = Faulty(FakeLocal(), before=[fill_up(10)])
    disk.write("/a", b"x" * 10)
    with pytest.raises(OSError, match="space") as caught:
        disk.write("/b", b"x")
    assert caught.value.errno == errno.ENOSPC
    assert disk.read("/a") == b"x" * 10


def test_a_slow_disk_takes_its_time_for_each_operation() -> None:
    slept: list[float] = []
    disk = Faulty(FakeLocal(), before=[slow_down(0.5, slept.append)])
    disk.write("/file", b"x" * 10)
    assert slept == [0.5] * 3


def test_an_append_that_fails_leaves_half() -> None:
    inner = FakeLocal()
    disk = Faulty(inner, before=[fill_up(8)])
    appender = disk.append("/file")
    appender.write(memoryview(b"whole"))
    with pytest.raises(OSError, match="space"):
        appender.write(memoryview(b"content"))
    appender.sync()
    appender.close()
    assert [operation.name for operation in disk.operations] == [
        "append",
        "write",
        "write",
        "sync_file",
        "close",
    ]
    assert inner.read("/file") == b"wholecon"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_new_file_is_seen_before_it_is_whole_on_a_local_disk(number: int) -> None:
    inner = FakeLocal()
    with pytest.raises(Stopped):
        Faulty(inner, before=[stop_at(number)]).create_exclusive("/file", b"content")
    found = inner.read("/file") if inner.list_names("/") else None
    assert found == {1: None, 2: b"", 3: b"con", 4: b"content"}[number]


def test_a_new_object_is_there_or_not() -> None:
    inner = FakeObjectStore()
    with pytest.raises(Stopped):
        Faulty(inner, before=[stop_at(1)]).create_exclusive("/file", b"content")
    assert inner.list_names("/") == set()
    with pytest.raises(Stopped):
        Faulty(inner, after=[stop_at(1)]).create_exclusive("/file", b"content")
    assert inner.read("/file") == b"content"


def test_a_lock_is_taken_asked_for_and_released_in_operations_of_their_own() -> None:
    disk = Faulty(FakeLocal())
    hold = disk.hold("/lock")
    assert hold is not None
    assert disk.is_held("/lock", hold.place) is True
    hold.release()
    assert [operation.name for operation in disk.operations] == ["hold", "is_held", "release"]
    assert Faulty(FakeObjectStore()).hold("/lock") is None
