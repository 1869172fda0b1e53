"""How a location becomes a filesystem, and a disk that has no fsync."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from ray import tune
from support.bad_stores import Awkward, Store

from raytrials import Tuner
from raytrials.errors import ConfigurationError, StorageError
from raytrials.store.checkpoint import Verdict, complete, delete, fetch, inspect
from raytrials.store.commit import commit
from raytrials.store.disk import Disk
from raytrials.store.local import LocalDisk
from raytrials.store.location import disk_at, disk_of
from raytrials.store.manifest import MANIFEST, Header
from raytrials.store.objects import ObjectDisk
from raytrials.tuner import _storage_of

HEADER = Header("e", "t", 1, 0, 7, 7, 0.0)


def nothing() -> None:
    """Train nothing."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "below").mkdir(parents=True)
    (directory / "empty").touch()
    (directory / "below" / "nothing").touch()
    (directory / "below" / "a").write_text("a")
    return directory


def commit_from(source: Path, disk: Disk, target: str) -> str:
    commit(disk, target, HEADER, (LocalDisk(), str(source)), retry_s=0)
    return f"{target}/checkpoint_000007"


# --- locations -----------------------------------------------------------------------------------


def test_a_url_that_fsspec_alone_knows_is_resolved() -> None:
    path, filesystem = _storage_of("memory://bucket/experiments", None)
    assert isinstance(filesystem.handler.fs, MemoryFileSystem)
    assert path.strip("/") == "bucket/experiments"
    disk, path = disk_at("memory://bucket/experiments")
    disk.write(f"{path}/a", b"1")
    assert disk.list_names(path) == {"a"}
    assert fsspec.filesystem("memory").cat(f"{path}/a") == b"1"


def test_what_pyarrow_knows_is_left_to_ray(tmp_path: Path) -> None:
    for location in (str(tmp_path), f"file://{tmp_path}", "s3://bucket/x?region=us-east-1"):
        assert _storage_of(location, None) == (location, None)


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("nowhere://bucket", "nowhere"),
        ("oci://bucket@namespace/x", "ocifs"),  # known to fsspec, and its package is not installed
    ],
)
def test_a_scheme_that_nobody_knows_or_a_missing_package_is_said(location: str, says: str) -> None:
    config = tune.RunConfig(name="fit", storage_path=location)
    with pytest.raises(ConfigurationError, match=says) as caught:
        Tuner(nothing, run_config=config)
    assert location in str(caught.value)
    with pytest.raises(ConfigurationError, match=says):
        Tuner.restore(f"{location}/fit", nothing)


def test_what_is_no_filesystem_is_said() -> None:
    config = tune.RunConfig(name="fit", storage_path="/x", storage_filesystem="s3")
    with pytest.raises(ConfigurationError, match="the storage filesystem is 's3'"):
        Tuner(nothing, run_config=config)


# --- stores with ways of their own ---------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_disk_without_fsync_is_taken_as_it_is(
    tmp_path: Path, source: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def no_fsync(descriptor: int) -> None:
        asked.append(descriptor)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", no_fsync)
    disk = LocalDisk()
    path = commit_from(source, disk, str(tmp_path / "trial"))
    assert asked
    assert inspect(disk, path, full=True).verdict is Verdict.VERIFIED


def test_an_fsync_that_fails_is_a_failed_commit(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageError, match="unavailable"):
        commit_from(source, LocalDisk(), str(tmp_path / "trial"))
    assert not (tmp_path / "trial" / "checkpoint_000007").exists()


@pytest.mark.parametrize("store", [Store(), Awkward()], ids=lambda store: type(store).__name__)
def test_an_object_store_takes_gives_and_deletes_a_checkpoint(
    tmp_path: Path, source: Path, store: Store
) -> None:
    disk = disk_of(store.filesystem())
    assert isinstance(disk, ObjectDisk)
    trial = tmp_path / "trial"
    path = commit_from(source, disk, str(trial))
    finding = inspect(disk, path, full=True)
    assert (finding.verdict, finding.problem) == (Verdict.VERIFIED, "")
    assert Path(path, "empty").exists() is not isinstance(store, Awkward)
    assert finding.manifest is not None
    assert fetch(disk, path, finding.manifest, str(tmp_path / "fetched")) == ""
    names = sorted(LocalDisk().list_files(str(tmp_path / "fetched")))
    assert names == ["below/a", "below/nothing", "empty"]
    assert disk.list_names(f"{path}/{MANIFEST}") == set()
    delete(disk, path)
    assert disk.list_names(str(trial)) == set()


def test_a_checkpoint_from_a_store_without_empty_files_is_completed_on_a_local_disk(
    tmp_path: Path, source: Path
) -> None:
    path = commit_from(source, disk_of(Awkward().filesystem()), str(tmp_path / "trial"))
    disk = LocalDisk()
    finding = inspect(disk, path, full=True)
    assert (finding.verdict, finding.problem) == (Verdict.VERIFIED, "")
    assert finding.manifest is not None
    complete(disk, path, finding.manifest)
    assert set(disk.list_files(path)) == {MANIFEST, "below/a", "below/nothing", "empty"}
    assert inspect(disk, path, full=True).verdict is Verdict.VERIFIED
