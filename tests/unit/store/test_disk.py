"""Which disk a path, URI or filesystem gets, and what only local disks do."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from raytrials.chaos.conformance import put
from raytrials.store import local
from raytrials.store.disk import Disk
from raytrials.store.filesystem import as_pyarrow
from raytrials.store.local import LocalDisk
from raytrials.store.location import disk_at, disk_of, resolve
from raytrials.store.objects import ObjectDisk


class MyLocal(LocalFileSystem):
    pass


def subtree(inner: Any) -> Any:
    return pyarrow.fs.SubTreeFileSystem("/tmp", inner)


@pytest.mark.parametrize(
    ("filesystem", "kind"),
    [
        (pyarrow.fs.LocalFileSystem(), LocalDisk),
        (pyarrow.fs.LocalFileSystem(use_mmap=True), LocalDisk),
        (as_pyarrow(LocalFileSystem()), LocalDisk),
        (as_pyarrow(MyLocal()), LocalDisk),
        (as_pyarrow(DirFileSystem(path="/tmp", fs=MyLocal())), LocalDisk),
        (subtree(pyarrow.fs.LocalFileSystem()), LocalDisk),
        (subtree(as_pyarrow(MyLocal())), LocalDisk),
        (as_pyarrow(MemoryFileSystem()), ObjectDisk),
        (as_pyarrow(DirFileSystem(path="/tmp", fs=MemoryFileSystem())), ObjectDisk),
        (subtree(as_pyarrow(MemoryFileSystem())), ObjectDisk),
    ],
)
def test_only_local_filesystems_are_local(filesystem: Any, kind: type[Disk]) -> None:
    assert type(disk_of(filesystem)) is kind
    assert disk_of(filesystem).has_rename is (kind is LocalDisk)


def test_a_path_is_local_and_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for location in (tmp_path / "x", str(tmp_path / "x"), "x", "~/x", f"file://{tmp_path}/x"):
        disk, path = disk_at(location)
        assert isinstance(disk, LocalDisk)
        assert path == str(tmp_path / "x")


def test_a_url_of_fsspec_is_found() -> None:
    disk, path = disk_at("memory://bucket/a")
    assert isinstance(disk, ObjectDisk)
    disk.write(f"{path}/file", b"x")
    assert fsspec.filesystem("memory").cat("/bucket/a/file") == b"x"


def test_a_filesystem_that_is_given_is_taken_with_the_path_as_it_is() -> None:
    filesystem = MemoryFileSystem()
    disk, path = disk_at("bucket/b", filesystem)
    assert path == "bucket/b"
    disk.write(f"{path}/file", b"x")
    assert filesystem.cat("/bucket/b/file") == b"x"
    given = pyarrow.fs.LocalFileSystem()
    assert resolve("/x", given) == (given, "/x")


def test_what_is_no_filesystem_is_refused() -> None:
    with pytest.raises(TypeError, match="not a filesystem"):
        resolve("/x", object())


def test_a_scheme_that_nobody_knows_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nosuchscheme"):
        resolve("nosuchscheme://bucket/x")


@pytest.mark.skipif(importlib.util.find_spec("ocifs") is not None, reason="it is installed")
def test_a_scheme_whose_package_is_missing_is_an_import_error() -> None:
    with pytest.raises(ImportError, match="ocifs"):
        resolve("oci://bucket/x")


def test_others_read_what_is_written_to_a_filesystem_as_it_is() -> None:
    filesystem = MemoryFileSystem()
    disk_of(as_pyarrow(filesystem)).write("/raw/file.gz", b"content")
    assert filesystem.cat("/raw/file.gz") == b"content"


@pytest.mark.parametrize("root", ["/sub/tree", "/sub/[tree]"])
def test_a_subtree_of_a_store_deletes_its_own_files_only(root: str) -> None:
    filesystem = MemoryFileSystem()
    disk = disk_of(pyarrow.fs.SubTreeFileSystem(root, as_pyarrow(filesystem)))
    names = {"lr=[01]/a": b"x", "lr=0/a": b"x"}
    put(disk, "trial", names)
    disk.delete_file("trial/lr=[01]/a")
    assert set(filesystem.find(root)) == {f"{root}/trial/lr=0/a"}
    put(disk, "trial", names)
    disk.delete_tree("trial/lr=[01]")
    assert set(filesystem.find(root)) == {f"{root}/trial/lr=0/a"}


class Synced:
    """Remembers, in order, what was synced."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def fsync(self, descriptor: int) -> None:
        self.paths.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    synced = Synced()
    monkeypatch.setattr(local.os, "fsync", synced.fsync)
    return synced


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc")  # noqa: PTH112
@pytest.mark.parametrize("filesystem", [None, as_pyarrow(LocalFileSystem())])
def test_files_and_names_are_forced_to_the_disk(
    filesystem: Any, tmp_path: Path, synced: Synced
) -> None:
    disk = LocalDisk(filesystem=filesystem)
    disk.write(f"{tmp_path}/file", b"x")
    disk.sync(str(tmp_path))
    assert synced.paths == ["file", tmp_path.name]
    silent = LocalDisk(filesystem=filesystem, fsync=False)
    silent.write(f"{tmp_path}/file", b"x")
    silent.sync(str(tmp_path))
    assert len(synced.paths) == 2


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc")  # noqa: PTH112
def test_directories_above_a_new_one_are_durable(tmp_path: Path, synced: Synced) -> None:
    disk = LocalDisk()
    disk.make_directory(f"{tmp_path}/a/b/c")
    assert synced.paths == [tmp_path.name, "a"]
    disk.make_directory(f"{tmp_path}/a/b/c")
    disk.make_directory(f"{tmp_path}/a/b/d")
    assert synced.paths == [tmp_path.name, "a"]


def test_links_that_lead_back_or_nowhere_are_not_followed(tmp_path: Path) -> None:
    disk = LocalDisk()
    put(disk, str(tmp_path), {"a/file": b"x", "b/file": b"x"})
    (tmp_path / "a" / "self").symlink_to(".")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "b").symlink_to("../b")
    (tmp_path / "b" / "a").symlink_to("../a")
    (tmp_path / "nowhere").symlink_to("none")
    found = set(disk.list_files(str(tmp_path)))
    assert found == {"a/file", "a/b/file", "b/file", "b/a/file"}


def test_a_tree_that_another_deletes_too_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk()
    put(disk, str(tmp_path), {f"tree/{n}/file": b"x" for n in range(4)})
    rmtree = local.shutil.rmtree
    rounds = []

    def disturbed(path: str) -> None:
        rounds.append(path)
        rmtree(f"{path}/{len(rounds)}")
        if len(rounds) < 3:
            raise FileNotFoundError(path)
        rmtree(path)

    monkeypatch.setattr(local.shutil, "rmtree", disturbed)
    disk.delete_tree(f"{tmp_path}/tree")
    assert os.listdir(tmp_path) == []  # noqa: PTH208


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc")  # noqa: PTH112
@pytest.mark.parametrize("filesystem", [None, as_pyarrow(LocalFileSystem())])
def test_appended_and_new_files_are_forced_to_the_disk(
    filesystem: Any, tmp_path: Path, synced: Synced
) -> None:
    for fsync in (True, False):
        disk = LocalDisk(filesystem=filesystem, fsync=fsync)
        appender = disk.append(f"{tmp_path}/appended-{fsync}")
        appender.write(memoryview(b"x"))
        appender.sync()
        appender.close()
        disk.create_exclusive(f"{tmp_path}/new-{fsync}", b"x")
    assert synced.paths == ["appended-True", "new-True"]


def test_a_filesystem_without_fsync_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(local.os, "fsync", refuse)
    appender = LocalDisk().append(f"{tmp_path}/file")
    error = errno.EINVAL
    appender.sync()
    error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        appender.sync()
    appender.close()


def test_what_comes_after_the_close_hits_no_other_file(tmp_path: Path) -> None:
    disk = LocalDisk()
    appender = disk.append(f"{tmp_path}/file")
    appender.close()
    with disk.create(f"{tmp_path}/other"), pytest.raises(OSError, match="descriptor"):
        appender.write(memoryview(b"late"))
    appender.close()
    assert disk.read(f"{tmp_path}/other") == b""


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_a_filesystem_without_locks_says_nothing_of_holders(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(local.fcntl, "flock", refuse)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH112, PTH208
    assert LocalDisk().hold(f"{tmp_path}/lock") is None
    assert LocalDisk().is_held(f"{tmp_path}/lock") is None
    if before:
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


HOLDS = """
import os, sys
from raytrials.store.local import LocalDisk
hold = LocalDisk().hold(sys.argv[1])
if sys.argv[2] == "fork" and os.fork() == 0:
    os.close(1)
    sys.stdin.read()
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["alone", "fork"])
def test_a_lock_ends_with_the_last_process_that_has_it(way: str, tmp_path: Path) -> None:
    disk, path = LocalDisk(), f"{tmp_path}/lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, path, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert disk.is_held(path) is True
        with pytest.raises(BlockingIOError):
            disk.hold(path)
        child.kill()
        child.wait()
        # The fork has the lock on: the answer errs on the safe side.
        assert disk.is_held(path) is (way == "fork")
        child.stdin.close()
    until_s = time.monotonic() + 10
    while disk.is_held(path) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert disk.is_held(path) is False


def test_a_program_that_is_started_does_not_keep_a_lock(tmp_path: Path) -> None:
    disk, path = LocalDisk(), f"{tmp_path}/lock"
    hold = disk.hold(path)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False
    ) as child:
        assert hold is not None
        os.close(hold._descriptor)  # as when this process dies
        hold._descriptor = None
        # The system lets a child's parent go on just before it closes the child's files.
        until_s = time.monotonic() + 5
        while disk.is_held(path) and time.monotonic() < until_s:
            pass
        assert disk.is_held(path) is False
        child.kill()
