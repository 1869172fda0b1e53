"""`tuner.pkl` and its copy: whole or not, to the byte."""

from __future__ import annotations

import contextlib
import errno
import pickle
from pathlib import Path

import pytest
import xxhash

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Stopped, fail_when, stop_at
from raytrials.errors import ExperimentCorruptError, StorageError
from raytrials.store.disk import Disk
from raytrials.store.tunerfile import (
    COPY,
    TUNER,
    DamagedCopyError,
    decode,
    encode,
    read,
    read_tuner_file,
    write,
    write_tuner_file,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "tuner-v1"
EXPERIMENT = "/storage/fit"
OLD, NEW = pickle.dumps({"num_samples": 1}), pickle.dumps({"num_samples": 2, "more": "x" * 100})


@pytest.fixture(params=[FakeLocal, FakeObjectStore])
def disk(request: pytest.FixtureRequest) -> Disk:
    made: Disk = request.param()
    return made


def test_the_golden_copy_reads_back_and_is_written_the_same() -> None:
    data = (GOLDEN / COPY).read_bytes()
    assert pickle.loads(decode(data)) == {}
    assert encode(decode(data)) == data
    line, _, content = data.partition(b"\n")
    head, _, tail = line.rpartition(b',"digest":"')
    assert tail == xxhash.xxh3_128_hexdigest(head + b"}").encode() + b'"}'
    assert xxhash.xxh3_128_hexdigest(content).encode() in head


def test_every_changed_or_missing_byte_is_seen() -> None:
    whole = encode(NEW)
    assert decode(whole) == NEW
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            with pytest.raises(DamagedCopyError):
                decode(damaged)
    with pytest.raises(DamagedCopyError):
        decode(whole + b"x")


def test_nothing_there_is_none(disk: Disk) -> None:
    assert read_tuner_file(disk, EXPERIMENT, retry_s=0) is None
    assert read(disk, f"{EXPERIMENT}/{TUNER}", retry_s=0) is None


def test_what_is_written_is_read_and_not_written_twice(disk: Disk) -> None:
    write_tuner_file(disk, EXPERIMENT, OLD, retry_s=0)
    found = read_tuner_file(disk, EXPERIMENT, retry_s=0)
    assert found is not None
    assert (found.data, found.damage, found.copy, found.copy_damage) == (OLD, "", True, "")
    full = OSError(errno.ENOSPC, "No space left on device")
    writes = {"create", "write", "replace"}
    broken = Faulty(disk, before=[fail_when(lambda one: one.name in writes, full)])
    write_tuner_file(broken, EXPERIMENT, OLD, retry_s=0)
    with pytest.raises(StorageError, match="full"):
        write_tuner_file(broken, EXPERIMENT, NEW, retry_s=0)


def test_a_whole_pickle_that_is_cut_anywhere_is_damage_without_a_copy(disk: Disk) -> None:
    disk.make_directory(EXPERIMENT)
    for end in range(len(NEW)):
        disk.write(f"{EXPERIMENT}/{TUNER}", NEW[:end])
        with pytest.raises(ExperimentCorruptError) as caught:
            read_tuner_file(disk, EXPERIMENT, retry_s=0)
        assert caught.value.path == f"{EXPERIMENT}/{TUNER}"


@pytest.mark.parametrize("kind", [FakeLocal, FakeObjectStore])
def test_stopped_anywhere_there_is_a_whole_old_one_or_a_whole_new_one(kind: type[Disk]) -> None:
    step = 0
    ended = False
    while not ended:
        step += 1
        disk = kind()
        write_tuner_file(disk, EXPERIMENT, OLD, retry_s=0)
        with contextlib.suppress(Stopped):
            write_tuner_file(Faulty(disk, before=[stop_at(step)]), EXPERIMENT, NEW, retry_s=0)
            ended = True
        if isinstance(disk, FakeLocal):
            disk.crash()
        found = read_tuner_file(disk, EXPERIMENT, retry_s=0)
        assert found is not None
        assert found.data in ({NEW} if ended else {OLD, NEW})
    assert step > 6


def test_a_file_is_put_where_no_directory_is(disk: Disk) -> None:
    write(disk, "/a/b/c/file", b"x", retry_s=0)
    assert disk.read("/a/b/c/file") == b"x"
    assert disk.list_names("/a/b/c") == {"file"}
