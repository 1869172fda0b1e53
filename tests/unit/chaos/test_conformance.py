"""Every disk that raytrials offers, and every fake of one, keeps the semantics of the port."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from support.stores import AnswersWithAll, CachesListings, ReplacesOnClose

from raytrials.chaos.conformance import DiskConformance, Place
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty
from raytrials.store.filesystem import as_pyarrow
from raytrials.store.local import LocalDisk
from raytrials.store.location import disk_of
from raytrials.store.objects import ObjectDisk

fresh = itertools.count()


class TestLocalDisk(DiskConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return LocalDisk(), str(tmp_path)


class TestLocalDiskWithoutFsync(DiskConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return LocalDisk(fsync=False), str(tmp_path)


class Mine(LocalFileSystem):
    """A subclass of a user's."""


def inside(tmp_path: Path, *names: str) -> str:
    path = tmp_path.joinpath(*names)
    path.mkdir(parents=True)
    return str(path)


LOCAL_KINDS: dict[str, Any] = {
    "pyarrow": lambda path: (pyarrow.fs.LocalFileSystem(), str(path)),
    "fsspec": lambda path: (as_pyarrow(LocalFileSystem()), str(path)),
    "subclass": lambda path: (as_pyarrow(Mine()), str(path)),
    "subtree": lambda path: (
        pyarrow.fs.SubTreeFileSystem(str(path), pyarrow.fs.LocalFileSystem()),
        "below",
    ),
    "subtree of subtree": lambda path: (
        pyarrow.fs.SubTreeFileSystem(
            "inner",
            pyarrow.fs.SubTreeFileSystem(
                os.path.dirname(inside(path, "inner")),  # noqa: PTH120
                pyarrow.fs.LocalFileSystem(),
            ),
        ),
        "below",
    ),
    "dir of fsspec": lambda path: (
        as_pyarrow(DirFileSystem(path=str(path), fs=LocalFileSystem())),
        "below",
    ),
    "dir of dir": lambda path: (
        as_pyarrow(
            DirFileSystem(
                path="/inner",
                fs=DirFileSystem(path=str(Path(inside(path, "inner")).parent), fs=Mine()),
            )
        ),
        "/below",
    ),
    "subtree of fsspec": lambda path: (
        pyarrow.fs.SubTreeFileSystem(str(path), as_pyarrow(LocalFileSystem())),
        "below",
    ),
}


@pytest.mark.parametrize("kind", LOCAL_KINDS.values(), ids=LOCAL_KINDS)
class TestLocalKinds(DiskConformance):
    @pytest.fixture
    def place(self, kind: Any, tmp_path: Path) -> Place:
        filesystem, root = kind(tmp_path)
        disk = disk_of(filesystem)
        assert isinstance(disk, LocalDisk)
        return disk, root

    def test_files_are_where_the_filesystem_says(self, place: Place, tmp_path: Path) -> None:
        disk, root = place
        disk.make_directory(root)
        disk.write(f"{root}/marked", b"x")
        assert len(list(tmp_path.rglob("marked"))) == 1


class TestLocalTakenForAStore(DiskConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return ObjectDisk(pyarrow.fs.LocalFileSystem()), str(tmp_path)


class TestMemory(DiskConformance):
    @pytest.fixture
    def place(self) -> Place:
        filesystem = as_pyarrow(fsspec.filesystem("memory"))
        disk = disk_of(filesystem)
        assert isinstance(disk, ObjectDisk)
        return disk, f"/memory-{next(fresh)}"


@pytest.mark.parametrize("kind", [AnswersWithAll, CachesListings, ReplacesOnClose])
class TestStoresWithHabits(DiskConformance):
    @pytest.fixture
    def place(self, kind: Any) -> Place:
        return ObjectDisk(as_pyarrow(kind())), f"/{kind.__name__}-{next(fresh)}"


class TestDirectoryOfAStore(DiskConformance):
    @pytest.fixture
    def place(self) -> Place:
        filesystem = DirFileSystem(path=f"/dir-{next(fresh)}", fs=CachesListings())
        return ObjectDisk(as_pyarrow(filesystem)), "below"


class TestFakeLocal(DiskConformance):
    @pytest.fixture
    def place(self) -> Place:
        return FakeLocal(), "/root"


class TestFakeObjectStore(DiskConformance):
    whole_on_close = True

    @pytest.fixture
    def place(self) -> Place:
        return FakeObjectStore(), "/root"


class TestFakeObjectStoreWithoutEmptyFiles(TestFakeObjectStore):
    takes_empty_files = False

    @pytest.fixture
    def place(self) -> Place:
        return FakeObjectStore(takes_empty_files=False), "/root"


@pytest.mark.parametrize("kind", [FakeLocal, FakeObjectStore, LocalDisk])
class TestFaultyWithoutFaults(DiskConformance):
    @pytest.fixture
    def place(self, kind: Any, tmp_path: Path) -> Place:
        return Faulty(kind()), str(tmp_path)
