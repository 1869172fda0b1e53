"""Whatever happens to a checkpoint's files, it is never taken for whole when it is not."""

from __future__ import annotations

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks import contents_of, path_of, save

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.store.checkpoint import Verdict, fetch, inspect
from raytrials.store.disk import Disk
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import MANIFEST, Manifest

patient = settings(deadline=None, max_examples=60)  # a busy machine may take its time
names = st.sampled_from(["a", "b.gz", "c/d", "c/e f", "g/h/ï"])
contents = st.dictionaries(names, st.binary(max_size=64), min_size=1)
kinds = st.sampled_from([FakeLocal, FakeObjectStore])


def assert_found(disk: Disk, manifest: Manifest, committed: dict[str, bytes]) -> None:
    """A look finds the damage; what can be fetched all the same is what was committed."""
    finding = inspect(disk, path_of(), full=True)
    assert finding.verdict in {Verdict.CORRUPT, Verdict.INCOMPLETE}
    assert finding.problem
    assert_fetched_or_found(disk, manifest, committed)


def assert_fetched_or_found(disk: Disk, manifest: Manifest, committed: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as target:
        problem = fetch(disk, path_of(), manifest, target)
        fetched = contents_of(LocalDisk(), target)
    whole = all(contents_of(disk, path_of()).get(n, b"") == data for n, data in committed.items())
    assert (problem == "") is whole
    if not problem:
        assert fetched == committed


@patient
@given(kinds, contents)
def test_an_untouched_checkpoint_is_whole(kind: type[Disk], committed: dict[str, bytes]) -> None:
    disk = kind()
    manifest = save(disk, committed)
    for full in (False, True):
        assert inspect(disk, path_of(), full=full).verdict is Verdict.VERIFIED
    assert contents_of(disk, path_of()) == committed
    assert_fetched_or_found(disk, manifest, committed)


@settings(patient, max_examples=150)
@given(kinds, contents, st.data())
def test_a_changed_byte_is_found(
    kind: type[Disk], committed: dict[str, bytes], data: st.DataObject
) -> None:
    disk = kind()
    manifest = save(disk, committed)
    files = sorted(name for name in (*committed, MANIFEST) if committed.get(name, b"x"))
    name = data.draw(st.sampled_from(files))
    damaged = bytearray(disk.read(f"{path_of()}/{name}"))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    disk.write(f"{path_of()}/{name}", bytes(damaged))
    assert_found(disk, manifest, committed)


def test_any_changed_byte_of_a_manifest_is_found() -> None:
    disk = FakeObjectStore()
    save(disk, {"a": b"x", "c/d": b""})
    whole = disk.read(f"{path_of()}/{MANIFEST}")
    for place in range(len(whole)):
        for other in {whole[place] ^ 1, whole[place] ^ 32, ord("0"), ord(" ")} - {whole[place]}:
            damaged = whole[:place] + bytes([other]) + whole[place + 1 :]
            disk.write(f"{path_of()}/{MANIFEST}", damaged)
            assert inspect(disk, path_of(), full=True).verdict is Verdict.CORRUPT


@patient
@given(kinds, contents, st.data())
def test_a_truncated_file_is_found(
    kind: type[Disk], committed: dict[str, bytes], data: st.DataObject
) -> None:
    disk = kind()
    manifest = save(disk, committed)
    files = sorted(name for name in (*committed, MANIFEST) if committed.get(name, b"x"))
    path = f"{path_of()}/{data.draw(st.sampled_from(files))}"
    whole = disk.read(path)
    disk.write(path, whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert_found(disk, manifest, committed)


@patient
@given(kinds, contents, st.data())
def test_a_deleted_file_is_found(
    kind: type[Disk], committed: dict[str, bytes], data: st.DataObject
) -> None:
    disk = kind()
    manifest = save(disk, committed)
    name = data.draw(st.sampled_from(sorted([*committed, MANIFEST])))
    disk.delete_file(f"{path_of()}/{name}")
    if committed.get(name) == b"" and not disk.has_rename:
        # Not all stores take empty files, and nothing is lost with them.
        assert inspect(disk, path_of(), full=True).verdict is Verdict.VERIFIED
        assert_fetched_or_found(disk, manifest, committed)
    else:
        assert_found(disk, manifest, committed)


@patient
@given(kinds, contents, st.sampled_from(["z", "c/z", ".z", "c/.metadata.json"]), st.binary())
def test_an_extra_file_is_found(
    kind: type[Disk], committed: dict[str, bytes], name: str, extra: bytes
) -> None:
    disk = kind()
    manifest = save(disk, committed)
    path = f"{path_of()}/{name}"
    disk.make_directory(path.rpartition("/")[0])
    disk.write(path, extra)
    assert_found(disk, manifest, committed)


@patient
@given(kinds, st.binary(max_size=64), st.binary(max_size=64), st.data())
def test_a_file_of_another_checkpoint_is_found(
    kind: type[Disk], mine: bytes, other: bytes, data: st.DataObject
) -> None:
    disk = kind()
    committed = {"a": mine, "b": b"same"}
    manifest = save(disk, committed, 0)
    save(disk, {"a": other, "b": b"same"}, 1)
    name = data.draw(st.sampled_from(["a", "b", MANIFEST]))
    disk.write(f"{path_of(0)}/{name}", disk.read(f"{path_of(1)}/{name}"))
    if name == "b" or (name == "a" and mine == other):
        assert inspect(disk, path_of(), full=True).verdict is Verdict.VERIFIED
        assert_fetched_or_found(disk, manifest, committed)
    else:
        assert_found(disk, manifest, committed)
