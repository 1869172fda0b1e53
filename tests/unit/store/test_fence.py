"""A fenced disk is the disk behind it, until its holder may change nothing more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raytrials.chaos.conformance import DiskConformance, Place
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.errors import LeaseExpiredError
from raytrials.store.disk import Disk
from raytrials.store.fence import FencedDisk
from raytrials.store.local import LocalDisk


class Gate:
    is_open = True

    def check(self) -> None:
        if not self.is_open:
            raise LeaseExpiredError("/experiment", 1, 31)


class TestFencedLocalDisk(DiskConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return FencedDisk(LocalDisk(), Gate().check), str(tmp_path)


class TestFencedObjectStore(DiskConformance):
    @pytest.fixture
    def place(self) -> Place:
        return FencedDisk(FakeObjectStore(), Gate().check), "/bucket"


CHANGES: dict[str, Callable[[Disk], object]] = {
    "create": lambda disk: disk.write("/d/new", b"x"),
    "replace by create": lambda disk: disk.write("/d/old", b"x"),
    "overwrite": lambda disk: disk.overwrite("/d/old", b"x"),
    "append": lambda disk: disk.append("/d/old"),
    "create_exclusive": lambda disk: disk.create_exclusive("/d/new", b"x"),
    "hold": lambda disk: disk.hold("/d/new"),
    "make_directory": lambda disk: disk.make_directory("/d/e"),
    "rename": lambda disk: disk.rename("/d/c", "/d/e"),
    "replace": lambda disk: disk.replace("/d/old", "/d/new"),
    "delete_file": lambda disk: disk.delete_file("/d/old"),
    "delete_tree": lambda disk: disk.delete_tree("/d"),
}


def local() -> FakeLocal:
    disk = FakeLocal()
    disk.make_directory("/d/c")
    disk.write("/d/old", b"old")
    return disk


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_is_changed_without_the_right_to(change: Callable[[Disk], object]) -> None:
    disk, gate = local(), Gate()
    fenced = FencedDisk(disk, gate.check)
    gate.is_open = False
    with pytest.raises(LeaseExpiredError):
        change(fenced)
    assert {name: disk.read(f"/d/{name}") for name in disk.list_files("/d")} == {"old": b"old"}
    assert disk.list_directories("/d") == ["c"]
    assert fenced.read("/d/old") == b"old"
