"""The mirror of files that are written again and again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from support.bad_stores import Flaky, Store
from support.disks import Clock

from raytrials.chaos import disk_of
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, fail_when
from raytrials.errors import StorageError
from raytrials.store import mirror as mirror_module
from raytrials.store.disk import Disk
from raytrials.store.mirror import Mirror

NOBODY = contextlib.nullcontext()
TARGET = "/storage/experiment"
TIMEOUT = TimeoutError("the store timed out")

DISKS: list[Callable[[], Disk]] = [FakeLocal, FakeObjectStore]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "trial").mkdir(parents=True)
    (directory / "state.json").write_text("one")
    (directory / "trial" / "result.json").write_text("1\n")
    return directory


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("raytrials.store.retrying.time", clock)
    monkeypatch.setattr("raytrials.store.mirror.time", clock)
    return clock


def bring(
    mirror: Mirror,
    source: Path,
    target: Path | str = TARGET,
    retry_s: float = 0,
    writing: Any = None,
) -> None:
    mirror.run(str(source), str(target), retry_s=retry_s, writing=writing or NOBODY)


def there(disk: Disk, target: Path | str = TARGET) -> dict[str, str]:
    return {name: disk.read(f"{target}/{name}").decode() for name in disk.list_files(str(target))}


def write(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)


def doing(name: str, path: str, action: Callable[[], object]) -> Callable[[Operation], None]:
    """Do something, once, before an operation on a file."""
    left = [action]

    def fault(operation: Operation) -> None:
        if operation.name == name and path in operation.path and left:
            left.pop()()

    return fault


# --- what is brought -----------------------------------------------------------------------------

KINDS = {
    "local": lambda path: (disk_of(fs.LocalFileSystem()), path),
    "object store": lambda path: (disk_of(Store().filesystem()), path),
    "fake local": lambda _path: (FakeLocal(), TARGET),
    "fake object store": lambda _path: (FakeObjectStore(), TARGET),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_changed_arrives(tmp_path: Path, source: Path, kind: str) -> None:
    disk, target = KINDS[kind](str(tmp_path / "target"))
    mirror = Mirror(disk)
    bring(mirror, source, target)
    assert there(disk, target) == {"state.json": "one", "trial/result.json": "1\n"}
    (source / "state.json").write_text("another")
    write(source, "trial/new", "trial/deep/er/file")
    disk.delete_file(f"{target}/trial/result.json")
    bring(mirror, source, target)
    # What has not changed is not sent again.
    assert there(disk, target) == {
        "state.json": "another",
        "trial/new": "trial/new",
        "trial/deep/er/file": "trial/deep/er/file",
    }


def test_each_target_gets_everything(source: Path) -> None:
    disk = FakeLocal()
    mirror = Mirror(disk)
    bring(mirror, source, "/one")
    bring(mirror, source, "/two")
    assert there(disk, "/one") == there(disk, "/two") != {}


def test_a_change_that_keeps_the_size_is_seen(source: Path) -> None:
    disk = FakeLocal()
    mirror = Mirror(disk)
    bring(mirror, source)
    for name, text in (("state.json", "two"), ("trial/result.json", "2\n")):
        stat = (source / name).stat()
        (source / name).write_text(text)
        os.utime(source / name, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    bring(mirror, source)
    assert there(disk) == {"state.json": "two", "trial/result.json": "2\n"}


@pytest.mark.parametrize("make", DISKS)
def test_nothing_is_deleted_on_either_side(source: Path, make: Callable[[], Disk]) -> None:
    disk = Faulty(make())
    disk.make_directory(f"{TARGET}/trial")
    disk.write(f"{TARGET}/trial/theirs", b"theirs")
    mirror = Mirror(disk)
    bring(mirror, source)
    assert {path.name for path in source.rglob("*")} == {"state.json", "trial", "result.json"}
    (source / "trial" / "result.json").unlink()
    (source / "trial").rmdir()
    bring(mirror, source)
    assert there(disk)["trial/result.json"] == "1\n"
    assert there(disk)["trial/theirs"] == "theirs"
    assert not {one.name for one in disk.operations} & {"delete_file", "delete_tree", "rename"}


def test_the_files_of_the_directory_itself_go_last_and_are_durable(source: Path) -> None:
    write(source, "a", "zz/file")
    disk = FakeLocal()
    observed = Faulty(disk)
    bring(Mirror(observed), source)
    placed = [one.path for one in observed.operations if one.name == "replace"]
    own = [path.count("/") == TARGET.count("/") + 1 for path in placed]
    assert own == [False, False, True, True]
    disk.crash()
    assert there(disk)["state.json"] == "one"


def test_other_files_go_the_quick_way(source: Path) -> None:
    durable, quick = FakeLocal(), FakeLocal()
    bring(Mirror(durable, quick), source)
    assert there(durable) == {"state.json": "one"}
    assert there(quick) == {"trial/result.json": "1\n"}


# --- what is left alone --------------------------------------------------------------------------

CHECKPOINTS = ["checkpoint_000000", "checkpoint_1234567", ".staging-3-1", ".removed-3-x"]


@pytest.mark.parametrize("make", DISKS)
def test_no_checkpoint_is_brought_nor_looked_into(
    source: Path, make: Callable[[], Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CHECKPOINTS:
        write(
            source, f"trial/{name}/model", f"trial/{name}/deep/model", f"trial/below/{name}/model"
        )
    looked: list[str] = []
    scandir = os.scandir

    def scan(path: str) -> Any:
        looked.append(str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", scan)
    disk = make()
    bring(Mirror(disk), source)
    assert set(there(disk)) == {"state.json", "trial/result.json"}
    assert [os.path.relpath(path, source) for path in looked] == [".", ".", "trial", "trial/below"]


def test_what_only_looks_like_a_checkpoint_is_brought(source: Path) -> None:
    names = {
        "trial/checkpoint_12/file",  # too short
        "trial/my_checkpoint_000001/file",
        "trial/checkpoint_000001",  # a file
        "checkpoint_000002/result.json",  # a trial may have any name
    }
    write(source, *names)
    disk = FakeLocal()
    bring(Mirror(disk), source)
    assert set(there(disk)) == {"state.json", "trial/result.json", *names}


def test_the_journal_is_not_brought(source: Path) -> None:
    write(source, ".raytrials/journal/1.jsonl", ".raytrials/lease", "trial/.raytrials/file")
    disk = FakeLocal()
    bring(Mirror(disk), source)
    # A directory of that name elsewhere is the user's.
    assert set(there(disk)) == {"state.json", "trial/result.json", "trial/.raytrials/file"}


def test_links_lead_to_files_and_directories_but_not_in_circles_nor_to_what_is_left_alone(
    source: Path, tmp_path: Path
) -> None:
    write(source, "trial/checkpoint_000000/model", ".raytrials/journal/1.jsonl")
    write(tmp_path, "elsewhere/file")
    for name, to in {
        "elsewhere": tmp_path / "elsewhere",
        "circle": source,
        "newest": source / "trial" / "checkpoint_000000",
        "journal": source / ".raytrials" / "journal",
        "nowhere": tmp_path / "nowhere",
    }.items():
        (source / "trial" / name).symlink_to(to)
    os.mkfifo(source / "trial" / "pipe")
    disk = FakeLocal()
    bring(Mirror(disk), source)
    assert set(there(disk)) == {"state.json", "trial/result.json", "trial/elsewhere/file"}


# --- files that change meanwhile -----------------------------------------------------------------


def test_a_file_that_vanishes_before_it_is_opened_is_left_out(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, "gone", "trial/gone", "trial/going/file")
    entries = mirror_module._entries

    def then_delete(run: Any, path: str) -> Any:
        found = entries(run, path)
        for entry in found:
            if entry.name == "gone":
                Path(entry.path).unlink()
            if entry.name == "going":
                shutil.rmtree(entry.path)
        return found

    monkeypatch.setattr(mirror_module, "_entries", then_delete)
    disk = FakeLocal()
    bring(Mirror(disk), source)
    assert set(there(disk)) == {"state.json", "trial/result.json"}


@pytest.mark.parametrize("make", DISKS)
def test_a_file_that_vanishes_before_it_is_tried_again_is_left_out(
    source: Path, make: Callable[[], Disk]
) -> None:
    path = source / "trial" / "result.json"
    disk = Faulty(
        make(),
        before=[
            doing("create", "result.json", path.unlink),
            fail_when(lambda one: one.name == "create" and "result" in one.path, TIMEOUT, times=1),
        ],
    )
    bring(Mirror(disk), source, retry_s=5)
    assert there(disk) == {"state.json": "one"}


@pytest.mark.parametrize("make", DISKS)
def test_a_file_that_is_replaced_while_it_is_read_arrives_whole_then_anew(
    source: Path, tmp_path: Path, make: Callable[[], Disk]
) -> None:
    path, new = source / "trial" / "result.json", tmp_path / "new"
    new.write_text("longer\n")
    disk = Faulty(make(), before=[doing("create", "result.json", lambda: new.replace(path))])
    mirror = Mirror(disk)
    bring(mirror, source)
    assert there(disk)["trial/result.json"] == "1\n"
    bring(mirror, source)
    assert there(disk)["trial/result.json"] == "longer\n"


@pytest.mark.parametrize("make", DISKS)
def test_a_log_that_grows_as_fast_as_it_is_read_arrives_in_parts(
    source: Path, make: Callable[[], Disk]
) -> None:
    path = source / "trial" / "result.json"
    path.write_text("1234" * 3)

    def grow(operation: Operation) -> None:
        is_write = "result.json" in operation.path and operation.name == "write"
        if is_write and path.stat().st_size < 1000:
            with path.open("a") as log:
                log.write("5678")

    disk = Faulty(make(), before=[grow])
    disk.chunk_bytes = 4
    mirror = Mirror(disk)
    for runs in (1, 2):
        before = path.read_text()
        bring(mirror, source)
        text = there(disk)["trial/result.json"]
        assert text == before, runs
        assert path.read_text().startswith(text)


# --- what fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", DISKS)
@pytest.mark.parametrize("name", ["a", "m/file", "state.json"])
def test_a_file_that_fails_keeps_no_other_back_and_is_tried_again_unchanged(
    source: Path, make: Callable[[], Disk], name: str
) -> None:
    names = {"a", "b", "m/file", "m/other", "z/file"}
    write(source, *names)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    last = name.rpartition("/")[2]

    def is_it(one: Operation) -> bool:
        file = one.path.rpartition("/")[2].removeprefix(".").removesuffix(".partial")
        return one.name == "create" and file == last and (last != "file" or "/m/" in one.path)

    disk = Faulty(make(), before=[fail_when(is_it, full, times=1)])
    mirror = Mirror(disk)
    with pytest.raises(StorageError) as caught:
        bring(mirror, source)
    assert (caught.value.kind, caught.value.path) == ("full", f"{TARGET}/{name}")
    everything = {*names, "state.json", "trial/result.json"}
    assert set(there(disk)) == everything - {name}
    done = len(disk.operations)
    bring(mirror, source)
    assert set(there(disk)) == everything
    assert sum(one.name == "create" for one in disk.operations[done:]) == 1


def test_half_a_file_does_not_take_the_place_of_the_old_one(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk, target = disk_of(fs.LocalFileSystem()), tmp_path / "target"
    mirror = Mirror(disk)
    bring(mirror, source, target)
    (source / "state.json").write_text("another")
    (source / "trial" / "result.json").write_text("1\n2\n")

    def no_space_for_logs(descriptor: int, data: bytes) -> int:
        if bytes(data).startswith(b"1"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(descriptor, data)

    write_bytes = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", no_space_for_logs)
        with pytest.raises(StorageError) as caught:
            bring(mirror, source, target)
    assert caught.value.kind == "full"
    assert there(disk, target) == {"state.json": "another", "trial/result.json": "1\n"}
    bring(mirror, source, target)
    assert there(disk, target) == {"state.json": "another", "trial/result.json": "1\n2\n"}


def test_writes_that_time_out_are_tried_again(tmp_path: Path, source: Path) -> None:
    disk, target = disk_of(Flaky(1, 0.6, str(tmp_path / "log")).filesystem()), tmp_path / "target"
    write(source, *"0123")
    with pytest.raises(StorageError):
        bring(Mirror(disk), source, target)
    bring(Mirror(disk), source, target, retry_s=5)
    assert set(there(disk, target)) == {*"0123", "state.json", "trial/result.json"}


def test_the_time_for_trying_again_is_that_of_all_files_together(
    source: Path, clock: Clock
) -> None:
    write(source, *"0123")
    broken = fail_when(lambda one: one.name == "create", TIMEOUT)
    with pytest.raises(StorageError):
        bring(Mirror(Faulty(FakeLocal(), before=[broken])), source, retry_s=1)
    assert 0.5 < sum(clock.slept) <= 1


def test_what_cannot_be_read_keeps_no_other_back(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, "secret/file", "z/file")
    scandir = os.scandir

    def scan(path: str) -> Any:
        if "secret" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(path)

    monkeypatch.setattr("os.scandir", scan)
    disk = FakeLocal()
    with pytest.raises(StorageError) as caught:
        bring(Mirror(disk), source)
    assert (caught.value.operation, caught.value.kind) == ("reading", "forbidden")
    assert set(there(disk)) == {"state.json", "trial/result.json", "z/file"}


def test_an_empty_file_that_the_store_does_not_take_is_no_failure(source: Path) -> None:
    (source / "trial" / "empty").write_text("")
    (source / "empty").write_text("")
    disk = FakeObjectStore(takes_empty_files=False)
    mirror = Mirror(disk)
    bring(mirror, source)
    assert set(there(disk)) == {"state.json", "trial/result.json"}
    write(source, "trial/empty", "empty")
    bring(mirror, source)
    assert there(disk)["trial/empty"] == "trial/empty"
    assert there(disk)["empty"] == "empty"


# --- the lock of who writes ----------------------------------------------------------------------


def test_no_half_written_file_is_taken(source: Path) -> None:
    """The driver holds the lock while it writes; what is read is what it has written then."""
    lock, disk, asked = threading.Lock(), FakeLocal(), threading.Event()

    class Waiting:
        def __enter__(self) -> None:
            asked.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    with lock:
        (source / "state.json").write_text("")
        thread = threading.Thread(
            target=bring, args=(Mirror(disk), source), kwargs={"writing": Waiting()}
        )
        thread.start()
        assert asked.wait(30)
        assert there(disk) == {}
        (source / "state.json").write_text("whole")
    thread.join(30)
    assert there(disk)["state.json"] == "whole"


def test_the_lock_is_not_held_while_storage_is_written_or_trials_are_looked_at(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, held = threading.Lock(), []
    entries = mirror_module._entries

    def looking(run: Any, path: str) -> Any:
        held.append((path.removeprefix(str(source)), lock.locked()))
        return entries(run, path)

    monkeypatch.setattr(mirror_module, "_entries", looking)
    disk = Faulty(FakeLocal(), before=[lambda one: held.append((one.name, lock.locked()))])
    bring(Mirror(disk), source, writing=lock)
    assert [name for name, locked in held if locked] == [""]
    assert ("/trial/", False) in held
