"""A commit puts all of a checkpoint on storage, or nothing that looks like one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from support.disks import SOURCE, TRIAL, Clock, contents_of, header, path_of, save, source

from raytrials.chaos.conformance import put
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, fail_share, fail_when, fill_up
from raytrials.errors import SourceChangedError, StorageError
from raytrials.store import local, retrying
from raytrials.store.checkpoint import Verdict, inspect
from raytrials.store.commit import commit
from raytrials.store.disk import CHUNK_BYTES, Disk
from raytrials.store.filesystem import as_pyarrow
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import MANIFEST, RAY_METADATA, FileRecord, Manifest, digest_of
from raytrials.store.objects import ObjectDisk

FILES = {
    "model.pt": os.urandom(5000),
    "packed.gz": b"not really packed" * 100,
    "a/b/with space": b"x",
    "a/Ünïcödé": b"y" * 300,
}
BOTH = pytest.mark.parametrize("kind", [FakeLocal, FakeObjectStore])


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retrying, "time", clock)
    return clock


def verdict(disk: Disk, index: int = 0) -> Verdict:
    return inspect(disk, path_of(index), full=True).verdict


@BOTH
def test_what_is_committed_is_verified_and_is_what_was_reported(kind: type[Disk]) -> None:
    disk = kind()
    manifest = save(disk, FILES)
    assert inspect(disk, path_of(), full=True).manifest == manifest
    assert verdict(disk) is Verdict.VERIFIED
    assert contents_of(disk, path_of()) == FILES
    assert manifest.files["a/b/with space"] == FileRecord(1, digest_of(b"x"))
    assert Manifest.decode(disk.read(f"{path_of()}/{MANIFEST}")) == manifest
    assert disk.list_names(TRIAL) == {"checkpoint_000000"}


@BOTH
def test_a_file_longer_than_a_chunk_is_committed_whole(kind: type[Disk]) -> None:
    disk = kind()
    data = os.urandom(1000) * (2 * CHUNK_BYTES // 1000 + 1)
    manifest = save(disk, {"model": data})
    assert manifest.files == {"model": FileRecord(len(data), digest_of(data))}
    assert disk.read(f"{path_of()}/model") == data


@BOTH
def test_the_manifest_of_what_it_is_a_copy_of_is_left_out(kind: type[Disk]) -> None:
    disk = kind()
    manifest = save(disk, {**FILES, MANIFEST: b"another's"}, 3, attempt=2)
    assert manifest.header == header(3, 2)
    assert MANIFEST not in manifest.files
    assert verdict(disk, 3) is Verdict.VERIFIED


@BOTH
def test_ray_s_metadata_is_copied_and_may_change(kind: type[Disk]) -> None:
    disk = kind()
    manifest = save(disk, {**FILES, RAY_METADATA: b"{}"})
    assert RAY_METADATA not in manifest.files
    assert disk.read(f"{path_of()}/{RAY_METADATA}") == b"{}"
    for change in (lambda p: disk.write(p, b'{"user": 1}'), disk.delete_file):
        change(f"{path_of()}/{RAY_METADATA}")
        assert verdict(disk) is Verdict.VERIFIED


@BOTH
def test_a_directory_without_files_is_a_checkpoint(kind: type[Disk]) -> None:
    disk = kind()
    reported, path = source({})
    assert commit(disk, TRIAL, header(), (reported, path), retry_s=0).files == {}
    assert verdict(disk) is Verdict.VERIFIED


@BOTH
def test_a_directory_that_is_not_there_is_none(kind: type[Disk]) -> None:
    disk = kind()
    with pytest.raises(SourceChangedError, match="no such directory"):
        commit(disk, TRIAL, header(), (FakeLocal(), SOURCE), retry_s=60)
    assert disk.list_files(TRIAL) == {}


def test_empty_directories_are_kept_on_a_local_disk() -> None:
    disk = FakeLocal()
    reported, path = source(FILES)
    reported.make_directory(f"{path}/logs/empty")
    commit(disk, TRIAL, header(), (reported, path), retry_s=0)
    assert "logs/empty" in disk.list_directories(path_of())
    assert verdict(disk) is Verdict.VERIFIED


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "file").write_bytes(b"linked")
    (tmp_path / "reported").mkdir()
    (tmp_path / "reported" / "link").symlink_to(tmp_path / "elsewhere" / "deep" / "file")
    (tmp_path / "reported" / "directory").symlink_to(tmp_path / "elsewhere")
    disk = LocalDisk()
    trial = str(tmp_path / "trial")
    commit(disk, trial, header(), (LocalDisk(), str(tmp_path / "reported")), retry_s=0)
    found = tmp_path / "trial" / "checkpoint_000000"
    assert (found / "link").read_bytes() == b"linked"
    assert (found / "directory" / "deep" / "file").read_bytes() == b"linked"
    assert not [path for path in found.rglob("*") if path.is_symlink()]


@BOTH
def test_a_name_that_is_taken_is_refused_and_stays(kind: type[Disk]) -> None:
    disk = kind()
    save(disk, FILES, attempt=1)
    with pytest.raises(StorageError) as caught:
        save(disk, {"other": b"other"}, attempt=2)
    assert caught.value.kind == "refused"
    assert contents_of(disk, path_of()) == FILES
    assert verdict(disk) is Verdict.VERIFIED


def test_leftovers_of_a_failed_commit_are_no_part_of_the_next(clock: Clock) -> None:
    disk = FakeLocal()
    full = Faulty(disk, before=[fill_up(6000)])
    with pytest.raises(StorageError):
        save(full, {**FILES, "only-then": b"x" * 2000})
    save(disk, FILES)
    assert contents_of(disk, path_of()) == FILES
    assert verdict(disk) is Verdict.VERIFIED


def meddle(disk: Disk) -> dict[str, Callable[[], None]]:
    """What a user's code may still do to the directory that it reported."""
    model = f"{SOURCE}/model.pt"
    return {
        "longer": lambda: disk.write(model, FILES["model.pt"] + b"x"),
        "shorter": lambda: disk.write(model, b"x"),
        "as long": lambda: disk.write(model, b"z" * len(FILES["model.pt"])),
        "deleted": lambda: disk.delete_file(model),
        "all deleted": lambda: disk.delete_tree(SOURCE),
        "new": lambda: disk.write(f"{SOURCE}/new", b"x"),
    }


@BOTH
@pytest.mark.parametrize("change", list(meddle(FakeLocal())))
@pytest.mark.parametrize("moment", ["list_files", "open", "read"])
def test_a_source_that_changes_meanwhile_is_an_error(
    kind: type[Disk], change: str, moment: str, clock: Clock
) -> None:
    reported, path = source(FILES)
    changes = [meddle(reported)[change]]

    def meddling(operation: Operation) -> None:
        of_model = operation.path.endswith("model.pt") or moment == "list_files"
        if changes and operation.name == moment and of_model:
            changes.pop()()

    disk = kind()
    meddled = Faulty(reported, after=[meddling])
    with pytest.raises(SourceChangedError):
        commit(disk, TRIAL, header(), (meddled, path), retry_s=60)
    assert not changes
    assert clock.slept == []
    assert verdict(disk) in {Verdict.MISSING, Verdict.INCOMPLETE}


def test_a_source_whose_listing_hides_a_change_is_found_by_its_bytes() -> None:
    reported = FakeObjectStore()
    put(reported, SOURCE, FILES)
    disk = FakeLocal()
    with reported.stale_listings():
        reported.write(f"{SOURCE}/model.pt", b"longer" * 1000)
        with pytest.raises(SourceChangedError, match="had 5000 bytes, then 6000"):
            commit(disk, TRIAL, header(), (reported, SOURCE), retry_s=60)
    assert verdict(disk) is Verdict.MISSING


def test_a_store_that_takes_no_empty_files_is_told_of_them_by_the_manifest() -> None:
    disk = FakeObjectStore(takes_empty_files=False)
    manifest = save(disk, {**FILES, "__init__.py": b""}, retry_s=60)
    assert manifest.files["__init__.py"] == FileRecord(0, digest_of(b""), omitted=True)
    assert verdict(disk) is Verdict.VERIFIED


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_an_empty_file_is_no_excuse_for_a_store_that_is_full_or_closed(code: int) -> None:
    store = FakeObjectStore()
    broken = fail_when(lambda o: o.name == "close" and o.path.endswith("empty"), OSError(code, ""))
    with pytest.raises(StorageError):
        save(Faulty(store, before=[broken]), {**FILES, "empty": b""})
    assert verdict(store) is Verdict.MISSING  # what a failed commit wrote is taken away again


@BOTH
@pytest.mark.parametrize("lost_answers", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_three_failures_in_ten_are_outlasted(
    kind: type[Disk], lost_answers: bool, seed: int, clock: Clock
) -> None:
    disk = kind()
    fault = fail_share(0.3, TimeoutError("now and then"), seed=seed)
    faults = {"after": [fault]} if lost_answers else {"before": [fault]}
    save(Faulty(disk, **faults), {**FILES, "empty": b""}, retry_s=600)
    assert clock.slept
    assert verdict(disk) is Verdict.VERIFIED
    assert contents_of(disk, path_of()).items() >= FILES.items()


@BOTH
def test_a_storage_that_is_gone_ends_the_commit_and_hurts_nothing(kind: type[Disk]) -> None:
    disk = kind()
    save(disk, FILES, 0)
    broken = Faulty(disk, before=[fail_share(1.0, ConnectionError("gone"), seed=0)])
    with pytest.raises(StorageError) as caught:
        save(broken, {"other": b"x"}, 1, retry_s=60)
    assert caught.value.kind == "unavailable"
    assert verdict(disk, 1) is Verdict.MISSING
    assert verdict(disk, 0) is Verdict.VERIFIED
    assert contents_of(disk, path_of(0)) == FILES


@BOTH
@pytest.mark.parametrize("capacity_bytes", [0, 100, 5000, 7010, 7100])
def test_a_full_disk_ends_the_commit_and_hurts_nothing(
    kind: type[Disk], capacity_bytes: int, clock: Clock
) -> None:
    disk = kind()
    save(disk, FILES, 0)
    full = Faulty(disk, before=[fill_up(capacity_bytes)])
    with pytest.raises(StorageError) as caught:
        save(full, FILES, 1, retry_s=60)
    assert caught.value.kind == "full"
    assert clock.slept == []
    assert verdict(disk, 1) is not Verdict.VERIFIED
    assert verdict(disk, 0) is Verdict.VERIFIED


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_filesystem_without_fsync_is_taken_as_it_is(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local.os, "fsync", refuse)
    disk = LocalDisk()
    commit(disk, str(tmp_path), header(), source(FILES), retry_s=0)
    assert inspect(disk, f"{tmp_path}/checkpoint_000000", full=True).verdict is Verdict.VERIFIED


def test_a_failing_fsync_ends_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(local.os, "fsync", fail)
    with pytest.raises(StorageError, match="unavailable"):
        commit(LocalDisk(), str(tmp_path), header(), source(FILES), retry_s=0)
    assert not (tmp_path / "checkpoint_000000").exists()


def test_a_commit_is_durable_when_it_returns() -> None:
    disk = FakeLocal()
    reported, path = source(FILES)
    reported.make_directory(f"{path}/logs/empty")
    commit(disk, TRIAL, header(), (reported, path), retry_s=0)
    disk.crash()
    assert verdict(disk) is Verdict.VERIFIED
    assert contents_of(disk, path_of()) == FILES
    assert "logs/empty" in disk.list_directories(path_of())


def test_it_goes_from_a_store_to_a_local_disk_and_back(tmp_path: Path) -> None:
    store = ObjectDisk(as_pyarrow(fsspec.filesystem("memory")))
    local = LocalDisk()
    put(store, "/commit/reported", FILES)
    commit(local, str(tmp_path), header(1), (store, "/commit/reported"), retry_s=0)
    there = (local, f"{tmp_path}/checkpoint_000001")
    commit(store, "/commit/trial", header(2), there, retry_s=0)
    assert contents_of(store, "/commit/trial/checkpoint_000002") == FILES
    finding = inspect(store, "/commit/trial/checkpoint_000002", full=True)
    assert finding.verdict is Verdict.VERIFIED


def test_a_file_that_someone_writes_on_and_on_ends_the_copy(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 600_000)

    class Growing(LocalDisk):
        """Appends to the file whenever some of it has been read."""

        def open(self, path: str) -> Any:
            opened = super().open(path)
            readinto = opened.readinto

            class Reading:
                def __enter__(self) -> Any:
                    opened.__enter__()
                    return self

                def __exit__(self, *error: object) -> None:
                    opened.__exit__(*error)

                def readinto(self, buffer: memoryview) -> int:
                    with (tmp_path / "log").open("ab") as file:
                        file.write(b"y" * len(buffer))
                    return int(readinto(buffer))

            return Reading()

    disk = FakeLocal()
    with pytest.raises(SourceChangedError):
        commit(disk, TRIAL, header(), (Growing(), str(tmp_path)), retry_s=0)
    assert (tmp_path / "log").stat().st_size < 100_000_000
