"""What a look at a checkpoint says, what fetching one gives, and what deleting one leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.disks import TRIAL, contents_of, path_of, save

from raytrials.chaos.conformance import put
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, Stopped, fail_when, stop_at
from raytrials.store.checkpoint import Finding, Verdict, complete, delete, fetch, inspect
from raytrials.store.disk import Disk
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import MANIFEST, RAY_METADATA

FILES = {"model.pt": b"weights" * 100, "a/b": b"x", "empty": b""}
BOTH = pytest.mark.parametrize("kind", [FakeLocal, FakeObjectStore])
HOW = pytest.mark.parametrize("full", [False, True])


def at(disk: Disk, name: str) -> str:
    return f"{path_of()}/{name}"


# --- inspect


@BOTH
@HOW
def test_nothing_there_is_missing(kind: type[Disk], full: bool) -> None:
    finding = inspect(kind(), path_of(), full=full)
    assert finding == Finding(Verdict.MISSING, "nothing is there")


@BOTH
@HOW
def test_files_without_a_manifest_are_incomplete(kind: type[Disk], full: bool) -> None:
    disk = kind()
    save(disk, FILES)
    disk.delete_file(at(disk, MANIFEST))
    finding = inspect(disk, path_of(), full=full)
    assert finding == Finding(Verdict.INCOMPLETE, "it has no manifest")


def flip(disk: Disk, name: str) -> None:
    data = bytearray(disk.read(at(disk, name)))
    data[len(data) // 2] ^= 1
    disk.write(at(disk, name), bytes(data))


DAMAGE: dict[str, tuple[Callable[[Disk], None], str, bool]] = {
    # what is done: what it says, and whether one listing shows it
    "manifest": (lambda d: flip(d, MANIFEST), MANIFEST, True),
    "shorter": (lambda d: d.write(at(d, "a/b"), b""), "a/b: expected 1 bytes, found 0", True),
    "longer": (lambda d: d.write(at(d, "a/b"), b"xy"), "a/b: expected 1 bytes, found 2", True),
    "deleted": (lambda d: d.delete_file(at(d, "a/b")), "a/b: missing", True),
    "extra": (lambda d: d.write(at(d, "a/c"), b"x"), "a/c: does not belong to it", True),
    "bit": (lambda d: flip(d, "model.pt"), "model.pt: expected digest", False),
}


@BOTH
@pytest.mark.parametrize(("damage", "problem", "listed"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_named(
    kind: type[Disk], damage: Any, problem: str, listed: bool
) -> None:
    disk = kind()
    save(disk, FILES)
    damage(disk)
    finding = inspect(disk, path_of(), full=True)
    assert finding.verdict is Verdict.CORRUPT
    assert finding.problem.startswith(problem)
    quick = inspect(disk, path_of(), full=False)
    assert quick.verdict is (Verdict.CORRUPT if listed else Verdict.VERIFIED)


def test_a_missing_empty_file_is_damage_only_where_all_stores_keep_them() -> None:
    for disk, expected in ((FakeLocal(), "empty: missing"), (FakeObjectStore(), "")):
        save(disk, FILES)
        disk.delete_file(at(disk, "empty"))
        assert inspect(disk, path_of(), full=True).problem == expected


def test_an_empty_file_that_a_store_did_not_take_is_no_damage_anywhere_and_made_on_a_disk() -> None:
    store, disk = FakeObjectStore(takes_empty_files=False), FakeLocal()
    manifest = save(store, FILES)
    disk.make_directory(path_of())
    put(disk, path_of(), {n: store.read(at(store, n)) for n in store.list_files(path_of())})
    assert inspect(disk, path_of(), full=True).verdict is Verdict.VERIFIED
    complete(disk, path_of(), manifest)
    assert disk.read(at(disk, "empty")) == b""
    assert inspect(disk, path_of(), full=True).verdict is Verdict.VERIFIED


def test_a_checkpoint_under_another_s_name_is_damage() -> None:
    disk = FakeLocal()
    save(disk, FILES, 0)
    disk.rename(path_of(0), path_of(1))
    finding = inspect(disk, path_of(1), full=True)
    assert finding.verdict is Verdict.CORRUPT
    assert finding.problem == "its manifest is that of checkpoint_000000"


@BOTH
def test_a_checkpoint_is_verified_wherever_it_is_copied(kind: type[Disk]) -> None:
    disk = kind()
    save(disk, FILES)
    other = FakeObjectStore(takes_empty_files=False)
    for name in disk.list_files(path_of()):
        if data := disk.read(at(disk, name)):
            other.write(f"/elsewhere/checkpoint_000000/{name}", data)
    finding = inspect(other, "/elsewhere/checkpoint_000000", full=True)
    assert finding.verdict is Verdict.VERIFIED


@HOW
def test_a_stale_listing_never_makes_a_deleted_checkpoint_look_verified(full: bool) -> None:
    disk = FakeObjectStore()
    save(disk, FILES)
    with disk.stale_listings():
        delete(disk, path_of())
        assert inspect(disk, path_of(), full=full).verdict is Verdict.INCOMPLETE
    assert inspect(disk, path_of(), full=full).verdict is Verdict.MISSING


def test_a_file_that_goes_while_it_is_checked_is_missing() -> None:
    disk = FakeLocal()
    save(disk, FILES)
    gone = Faulty(
        disk, before=[fail_when(lambda o: o.path.endswith("model.pt"), FileNotFoundError("gone"))]
    )
    assert inspect(gone, path_of(), full=True).problem == "model.pt: missing"


@pytest.mark.parametrize("name", ["list_files", "open", "read"])
def test_a_storage_that_fails_says_nothing_of_the_checkpoint(name: str) -> None:
    disk = FakeLocal()
    save(disk, FILES)
    broken = Faulty(disk, before=[fail_when(lambda o: o.name == name, TimeoutError("slow"))])
    with pytest.raises(TimeoutError):
        inspect(broken, path_of(), full=True)


# --- fetch


@BOTH
def test_what_is_fetched_is_what_was_committed(kind: type[Disk], tmp_path: Path) -> None:
    disk = kind()
    manifest = save(disk, {**FILES, RAY_METADATA: b"{}"})
    target = tmp_path / "not" / "there"
    assert fetch(disk, path_of(), manifest, str(target)) == ""
    assert contents_of(LocalDisk(), str(target)) == FILES
    assert (target / RAY_METADATA).read_bytes() == b"{}"
    assert not (target / MANIFEST).exists()


@BOTH
def test_a_checkpoint_without_files_is_fetched_as_a_directory(
    kind: type[Disk], tmp_path: Path
) -> None:
    disk = kind()
    assert fetch(disk, path_of(), save(disk, {}), str(tmp_path / "target")) == ""
    assert (tmp_path / "target").is_dir()


def test_empty_files_that_a_store_did_not_take_are_fetched(tmp_path: Path) -> None:
    disk = FakeObjectStore(takes_empty_files=False)
    manifest = save(disk, FILES)
    assert fetch(disk, path_of(), manifest, str(tmp_path)) == ""
    assert contents_of(LocalDisk(), str(tmp_path)) == FILES


@BOTH
@pytest.mark.parametrize("name", ["shorter", "longer", "deleted", "bit"])
def test_fetching_finds_the_damage(kind: type[Disk], name: str, tmp_path: Path) -> None:
    disk = kind()
    manifest = save(disk, FILES)
    damage, problem, _ = DAMAGE[name]
    damage(disk)
    assert fetch(disk, path_of(), manifest, str(tmp_path)).startswith(problem)


def test_an_extra_file_is_not_fetched(tmp_path: Path) -> None:
    disk = FakeLocal()
    manifest = save(disk, FILES)
    disk.write(at(disk, "extra"), b"x")
    assert fetch(disk, path_of(), manifest, str(tmp_path)) == ""
    assert contents_of(LocalDisk(), str(tmp_path)) == FILES


# --- delete


@BOTH
def test_a_deleted_checkpoint_is_gone_with_all_its_files(kind: type[Disk]) -> None:
    disk = kind()
    save(disk, FILES, 0)
    save(disk, FILES, 1)
    delete(disk, path_of(0))
    assert disk.list_names(TRIAL) == {"checkpoint_000001"}
    assert inspect(disk, path_of(1), full=True).verdict is Verdict.VERIFIED


@BOTH
def test_deleting_what_is_gone_is_no_error(kind: type[Disk]) -> None:
    disk = kind()
    delete(disk, path_of())
    save(disk, FILES)
    delete(disk, path_of())
    delete(disk, path_of())


@BOTH
@HOW
def test_a_delete_that_stops_anywhere_never_looks_verified(kind: type[Disk], full: bool) -> None:
    counted = Faulty(kind())
    save(counted, FILES)
    before = len(counted.operations)
    delete(counted, path_of())
    count = len(counted.operations) - before
    whole = len(FILES) + 1
    for number in range(1, count + 1):
        disk = kind()
        save(disk, FILES)
        with pytest.raises(Stopped):
            delete(Faulty(disk, before=[stop_at(number)]), path_of())
        verdict = inspect(disk, path_of(), full=full).verdict
        left = len(disk.list_files(path_of()))
        expected = {whole: Verdict.VERIFIED, 0: Verdict.MISSING}.get(left, Verdict.INCOMPLETE)
        assert verdict is expected
        delete(disk, path_of())
        assert disk.list_names(TRIAL) == set()


@BOTH
def test_a_delete_whose_answers_are_lost_can_be_repeated(kind: type[Disk]) -> None:
    counted = Faulty(kind())
    save(counted, FILES)
    before = len(counted.operations)
    delete(counted, path_of())
    for number in range(1, len(counted.operations) - before + 1):
        disk = kind()
        save(disk, FILES)

        def at_number(operation: Operation, number: int = number) -> bool:
            return operation.number == number

        lossy = Faulty(disk, after=[fail_when(at_number, TimeoutError("lost"))])
        with pytest.raises(TimeoutError):
            delete(lossy, path_of())
        delete(lossy, path_of())
        assert disk.list_names(TRIAL) == set()
