"""What a recovery finds: the snapshots that count, and whether there is anything at all."""

from __future__ import annotations

import pytest
from support.journals import line, lines

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.core.event import DriverAttached, ExperimentCreated, Record, StateLost
from raytrials.core.fold import fold
from raytrials.store import snapshot as snapshots
from raytrials.store.disk import Disk
from raytrials.store.record import encode
from raytrials.store.recovery import JOURNAL, SNAPSHOTS, has_journal, recover
from raytrials.store.segment import Segment
from raytrials.store.snapshot import Snapshot, SnapshotName

HOME = "/experiment/.raytrials"

Fake = FakeLocal | FakeObjectStore


@pytest.fixture(params=[FakeLocal, FakeObjectStore])
def disk(request: pytest.FixtureRequest) -> Fake:
    fake: Fake = request.param()
    return fake


def record(seq: int, epoch: int = 1) -> Record:
    if seq == 1:
        return Record(1, epoch, 1.0, ExperimentCreated("e", "n", 1))
    if seq == 2:
        return Record(2, epoch, 1.0, DriverAttached("h", 1))
    return Record(seq, epoch, 1.0, StateLost("searcher", str(seq)))


def put(disk: Disk, first: int, last: int, *, epoch: int = 1, tail: bytes = b"") -> None:
    data = b"".join(encode(record(seq, epoch)) for seq in range(first, last + 1))
    disk.make_directory(f"{HOME}/{JOURNAL}")
    disk.write(f"{HOME}/{JOURNAL}/{Segment(epoch, first).name}", data + tail)


def save(disk: Disk, seq: int) -> None:
    """Write the snapshot that the first driver makes after an event."""
    snapshot = Snapshot(fold(record(one) for one in range(1, seq + 1)))
    write(disk, snapshot)


def write(disk: Disk, snapshot: Snapshot) -> None:
    snapshots.write(disk, f"{HOME}/{SNAPSHOTS}", snapshot.name, snapshot.encode(), retry_s=0)


def kept(disk: Disk) -> set[str]:
    return disk.list_names(f"{HOME}/{SNAPSHOTS}")


def named(*places: tuple[int, int]) -> set[str]:
    return {str(SnapshotName(*place)) for place in places}


def test_the_last_two_snapshots_that_count_are_kept(disk: Fake) -> None:
    put(disk, 1, 40)
    for seq in (10, 14, 20, 30):
        save(disk, seq)
    assert kept(disk) == named((1, 20), (1, 30))
    save(disk, 10)
    save(disk, 14)
    assert named((1, 20), (1, 30)) < kept(disk)
    state = fold(record(one) for one in range(1, 15))
    attached = fold([Record(15, 2, 1.0, DriverAttached("h", 2))], state)
    disk.write(
        f"{HOME}/{JOURNAL}/{Segment(2, 15).name}",
        encode(Record(15, 2, 1.0, DriverAttached("h", 2))),
    )
    write(disk, Snapshot(attached))
    assert kept(disk) == named((1, 14), (2, 15))
    save(disk, 40)  # the first driver, who knows of nothing
    assert kept(disk) >= named((1, 14), (2, 15))
    assert recover(disk, HOME).parts_seq == 15
    disk.write(f"{HOME}/{SNAPSHOTS}/{SnapshotName(2, 15)}", b"damaged")
    assert recover(disk, HOME).parts_seq == 14


def test_a_snapshot_that_was_left_half_written_is_deleted_with_the_next() -> None:
    disk = FakeLocal()
    put(disk, 1, 20)
    disk.make_directory(f"{HOME}/{SNAPSHOTS}")
    later = f"{SnapshotName(1, 15)}.partial"
    for name in (f"{SnapshotName(1, 5)}.partial", later, "notes.partial"):
        disk.write(f"{HOME}/{SNAPSHOTS}/{name}", b"half")
    save(disk, 10)
    assert kept(disk) == {*named((1, 10)), later, "notes.partial"}


def test_a_recovery_from_a_snapshot_finds_what_a_full_reading_finds(disk: Fake) -> None:
    put(disk, 1, 20)
    put(disk, 16, 18, tail=encode(record(19))[:20])
    assert recover(disk, HOME).state.seq == 20
    save(disk, 15)
    recovered = recover(disk, HOME)
    assert (recovered.state.seq, recovered.parts_seq) == (20, 15)
    assert [one.file for one in recovered.damage] == [Segment(1, 16).name]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", False),
        (line(1)[:30], False),
        (line(1)[:30] + b"\n", False),
        (b"\0" * 99, False),
        (line(1)[:-1], True),
        (lines(1, 2)[:-9], True),
        (line(1)[:-1] + line(2)[:9], True),
        (lines(1, 2).replace(b"event", b"EVENT"), True),
        (b"x\nx\n", True),
    ],
)
def test_there_is_a_journal_if_an_event_is_or_was_there(
    disk: Fake, data: bytes, expected: bool
) -> None:
    assert not has_journal(disk, HOME)
    put(disk, 1, 0, tail=data)
    assert has_journal(disk, HOME) is expected
