"""Whatever happened to its files, a journal is read to its end, or to an error that says where."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import xxhash
from support.journals import (
    DIRECTORY,
    append,
    assert_whole,
    line,
    lines,
    path_of,
    put,
    read,
)

from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, fail_when
from raytrials.core.event import Record, TrialPaused
from raytrials.errors import NewerFormatError, StorageError
from raytrials.store.clock import SystemClock
from raytrials.store.disk import Disk
from raytrials.store.journal import open_journal
from raytrials.store.local import LocalDisk
from raytrials.store.pump import Pump
from raytrials.store.record import encode
from raytrials.store.segment import Reading, Segment, segments_among

Fake = FakeLocal | FakeObjectStore
DAMAGED = line(3)[:20]


@pytest.fixture(params=[FakeLocal, FakeObjectStore])
def disk(request: pytest.FixtureRequest) -> Fake:
    fake: Fake = request.param()
    return fake


def assert_corrupt(disk: Disk, last: int, name: str, offset: int | None, says: str) -> None:
    """All before the damage is given; then an error says where it is and what is lost."""
    found = read(disk)
    assert found.seqs == list(range(1, last + 1))
    assert found.error is not None
    assert found.error.path == f"{DIRECTORY}/{name}"
    assert found.error.offset == offset
    assert says in found.error.detail


def test_a_segment_is_named_by_its_epoch_and_its_first_event() -> None:
    assert Segment(3, 17).name == "000003-000000000017.jsonl"
    big = Segment(10**7, 10**13)
    names = {Segment(3, 17).name, big.name, Segment(3, 5).name, Segment(2, 90).name}
    assert segments_among(names) == [Segment(2, 90), Segment(3, 5), Segment(3, 17), big]


def test_no_journal_has_no_events(disk: Fake) -> None:
    assert assert_whole(disk, 0).damage == []
    disk.make_directory(DIRECTORY)
    assert assert_whole(disk, 0).damage == []


def test_a_whole_journal_is_read_from_any_event_on(disk: Fake) -> None:
    put(disk, 1, lines(1, 4))
    put(disk, 5, lines(5, 7))
    put(disk, 8, lines(8, 9))
    for after in range(10):
        found = assert_whole(disk, 9, after)
        assert (found.damage, found.fenced) == ([], 0)


def test_segments_that_are_known_are_not_read(disk: Fake) -> None:
    put(disk, 1, lines(1, 4))
    put(disk, 5, lines(5, 7))
    put(disk, 8, lines(8, 9))
    faulty = Faulty(disk)
    assert_whole(faulty, 9, after=7)
    opened = [one.path for one in faulty.operations if one.name == "open"]
    assert opened == [path_of(8)]


def test_reading_changes_nothing(disk: Fake) -> None:
    put(disk, 1, lines(1, 2) + DAMAGED)
    put(disk, 9, lines(9, 9))
    faulty = Faulty(disk)
    read(faulty)
    assert {one.name for one in faulty.operations} <= {"list_names", "open", "read"}


# --- torn ends ---------------------------------------------------------------------------------

TAILS = {
    "part of a record": DAMAGED,
    "a record but for its last byte": line(3)[:-2],
    "zero bytes": b"\0" * 100,
    "part of a record and zero bytes": DAMAGED + b"\0" * 100,
    "part of a record and a newline": DAMAGED + b"\n",
    "a blank line": b"\n",
    "anything": b"\xff\xfehello",
    "a damaged line and part of another": DAMAGED + b"\n\0\0" + DAMAGED,
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_a_torn_end_is_passed_over_and_named(disk: Fake, tail: bytes) -> None:
    put(disk, 1, lines(1, 2) + tail)
    found = assert_whole(disk, 2)
    [damage] = found.damage
    assert damage.file == Segment(1, 1).name
    assert (damage.offset, damage.size) == (len(lines(1, 2)), len(tail))
    assert damage.problem
    assert damage.to_json() == dict(damage.__dict__)
    assert_whole(disk, 2, after=1)
    assert_whole(disk, 2, after=2)


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_a_segment_that_begins_where_another_is_torn_goes_on(disk: Fake, tail: bytes) -> None:
    put(disk, 1, lines(1, 2) + tail)
    put(disk, 3, lines(3, 5))
    found = assert_whole(disk, 5)
    assert [one.offset for one in found.damage] == [len(lines(1, 2))]
    for after in (1, 2, 3):
        assert_whole(disk, 5, after)


@pytest.mark.parametrize("tail", [b"", b"\0", b"\0" * 4096, b"\n" + b"\0" * 9])
def test_the_last_record_needs_no_newline(disk: Fake, tail: bytes) -> None:
    put(disk, 1, lines(1, 3)[:-1] + tail)
    assert_whole(disk, 3)


def test_a_file_of_damage_alone_is_passed_over(disk: Fake) -> None:
    put(disk, 1, b"\0" * 100)
    assert [one.offset for one in assert_whole(disk, 0).damage] == [0]


def test_an_empty_newest_segment_is_no_damage() -> None:
    disk = FakeLocal()
    put(disk, 1, lines(1, 2))
    put(disk, 3, b"")
    for after in range(3):
        assert assert_whole(disk, 2, after).damage == []


# --- damage that loses events ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (DAMAGED + b"\n", "part of a record; lost with it: event 3"),
        (DAMAGED, "lost with it: events 3 to 4"),
        (b"\0" * 80 + b"\n", "zero bytes; lost with it: event 3"),
        (b"", "missing: event 3"),
        (line(3).replace(b"event", b"EVENT"), "lost with it: event 3"),
        (line(3)[:-1] + b" \n", "something else on one line; lost with it: event 3"),
        (line(3)[:-1], "a record and something else on one line; lost with it: events 3 to 4"),
        (line(3, epoch=2), "an event of epoch 2; lost with it: event 3"),
    ],
)
def test_damage_in_the_middle_is_an_error_with_its_place(
    disk: Fake, damaged: bytes, says: str
) -> None:
    put(disk, 1, lines(1, 2) + damaged + lines(4, 6))
    assert_corrupt(disk, 2, Segment(1, 1).name, len(lines(1, 2)), says)


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (DAMAGED + b"\n" + DAMAGED + b"\n", "part of a record; lost with it: events 3 to 4"),
        (b"\n\n", "an empty line, or zero bytes; lost with it: events 3 to 4"),
        (b"x\n" * 9 + DAMAGED, "not a record; lost with it: events 3 to 11"),
        (lines(3, 5).replace(b"event", b"EVENT"), "lost with it: events 3 to 5"),
    ],
)
def test_only_one_line_at_the_end_may_be_torn(disk: Fake, damaged: bytes, says: str) -> None:
    put(disk, 1, lines(1, 2) + damaged)
    assert_corrupt(disk, 2, Segment(1, 1).name, len(lines(1, 2)), says)
    put(disk, 3, lines(3, 20))
    for after in range(21):
        assert_whole(disk, 20, after)
    disk.delete_file(path_of(3))
    put(disk, 3, lines(3, 4, epoch=2), epoch=2)
    assert_whole(disk, 4)


def test_several_damaged_lines_are_no_error_if_their_events_are_known(disk: Fake) -> None:
    put(disk, 1, lines(1, 2) + lines(3, 5).replace(b"event", b"EVENT"))
    found = read(disk, after=4)
    assert found.error is not None
    put(disk, 6, lines(6, 7))
    for after in (5, 6, 7):
        assert_whole(disk, 7, after)


def sealed(seq: int, kind: str, data: str, start: str = "") -> bytes:
    """A whole line with an event that nobody knows."""
    start = start or f'{{"v":1,"seq":{seq},"epoch":1,'
    body = f'{start}"t":1.5,"type":"{kind}","data":{data}}}'.encode()
    digest = xxhash.xxh64_hexdigest(body).encode()
    return body[:-1] + b',"digest":"' + digest + b'"}\n'


UNKNOWN = {
    "type": sealed(3, "Brandnew", "{}"),
    "more fields": sealed(3, "DriverDetached", '{"reason":"x","more":1}'),
    "fewer fields": sealed(3, "DriverDetached", "{}"),
    "another type of field": sealed(3, "DriverDetached", '{"reason":7}'),
    "data": sealed(3, "DriverDetached", "[]"),
    "no place": sealed(3, "DriverDetached", '{"reason":"x"}', '{"seq":3,"v":1,"epoch":1,'),
}


@pytest.mark.parametrize("behind", [b"", line(4), DAMAGED], ids=["last", "middle", "torn"])
@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
def test_a_whole_line_that_is_no_event_is_never_passed_over(
    disk: Fake, unknown: bytes, behind: bytes
) -> None:
    put(disk, 1, lines(1, 2) + unknown + behind)
    says = "it is no event of this format"
    assert_corrupt(disk, 2, Segment(1, 1).name, len(lines(1, 2)), says)
    put(disk, 1, lines(1, 2) + unknown[:-1] + b"\0" * 9)
    assert_corrupt(disk, 2, Segment(1, 1).name, len(lines(1, 2)), says)


def test_events_of_a_replaced_driver_need_not_be_known(disk: Fake) -> None:
    put(disk, 1, lines(1, 2) + UNKNOWN["type"])
    put(disk, 3, lines(3, 4, epoch=2), epoch=2)
    assert assert_whole(disk, 4).fenced == 1


def test_two_records_on_the_last_line_are_an_error_with_their_place(disk: Fake) -> None:
    put(disk, 1, lines(1, 2) + line(3)[:-1] + line(4))
    offset = len(lines(1, 2))
    assert_corrupt(disk, 2, Segment(1, 1).name, offset, "something else on one line")
    put(disk, 1, lines(1, 2) + line(3)[:-1] + line(4)[:30])
    assert_corrupt(disk, 2, Segment(1, 1).name, offset, "something else on one line")


def test_two_records_on_a_line_are_no_error_where_they_stand_whole_elsewhere(disk: Fake) -> None:
    put(disk, 1, lines(1, 2) + line(3)[:-1] + line(4))
    put(disk, 3, lines(3, 5))
    assert_whole(disk, 5)


def test_damage_of_what_is_known_is_no_error(disk: Fake) -> None:
    put(disk, 1, lines(1, 2) + DAMAGED + b"\n" + lines(4, 6))
    for after in range(3, 7):
        assert_whole(disk, 6, after)


@pytest.mark.parametrize(("missing", "last"), [(1, 0), (3, 2), (5, 4)])
def test_a_missing_segment_is_an_error_that_names_the_next(
    disk: Fake, missing: int, last: int
) -> None:
    for first in (1, 3, 5, 7):
        put(disk, first, lines(first, first + 1))
    disk.delete_file(path_of(missing))
    says = f"missing: events {missing} to {missing + 1}"
    assert_corrupt(disk, last, Segment(1, missing + 2).name, None, says)
    for after in range(missing + 1, 8):
        assert_whole(disk, 8, after)


def test_a_torn_segment_before_a_gap_is_named_with_its_place(disk: Fake) -> None:
    put(disk, 1, lines(1, 2) + DAMAGED)
    put(disk, 5, lines(5, 6))
    assert_corrupt(disk, 2, Segment(1, 1).name, len(lines(1, 2)), "events 3 to 4")


def test_a_segment_that_does_not_begin_as_its_name_says_loses_events(disk: Fake) -> None:
    put(disk, 1, lines(3, 4))
    assert_corrupt(disk, 0, Segment(1, 1).name, 0, "events 1 to 2")


@pytest.mark.parametrize(("there", "after"), [(0, 1), (2, 3), (2, 9)])
def test_what_a_snapshot_knows_has_to_be_in_the_journal(disk: Fake, there: int, after: int) -> None:
    if there:
        put(disk, 1, lines(1, there) + DAMAGED)
    found = read(disk, after)
    assert found.seqs == []
    assert found.error is not None
    assert f"it ends with event {there}, and {after} of them were written" in found.error.detail


def test_what_a_snapshot_knows_is_there_if_a_later_segment_is(disk: Fake) -> None:
    put(disk, 1, lines(1, 4))
    put(disk, 5, b"" if disk.has_rename else DAMAGED)
    assert_whole(disk, 4, after=4)


def test_a_newer_version_is_no_damage(disk: Fake) -> None:
    newer = encode(Record(3, 1, 1.5, TrialPaused("t")))
    body = newer[: newer.index(b',"digest"')].replace(b'"v":1', b'"v":2') + b"}"
    digest = xxhash.xxh64_hexdigest(body).encode()
    put(disk, 1, lines(1, 2) + body[:-1] + b',"digest":"' + digest + b'"}\n' + line(4))
    reading = Reading(disk, DIRECTORY)
    seqs: list[int] = []
    with pytest.raises(NewerFormatError):
        seqs.extend(record.seq for record in reading)
    assert seqs == [1, 2]
    assert reading.seq == 2


# --- several places ----------------------------------------------------------------------------


def test_an_event_that_stands_twice_is_taken_once(disk: Fake) -> None:
    put(disk, 1, lines(1, 3) + lines(2, 4) + line(4))
    put(disk, 2, lines(2, 5))
    put(disk, 3, lines(3, 9))
    for after in range(10):
        assert_whole(disk, 9, after)


def test_what_was_written_again_after_a_failure_is_taken_from_where_it_is_whole(
    disk: Fake,
) -> None:
    put(disk, 1, lines(1, 4) + line(5)[:30])
    put(disk, 3, lines(3, 7))
    for after in range(8):
        assert_whole(disk, 7, after)
    put(disk, 1, lines(1, 2) + DAMAGED + b"\n" + lines(4, 6))
    for after in range(8):
        assert_whole(disk, 7, after)


def test_what_stands_behind_damage_is_read_when_the_damage_is_made_good_elsewhere(
    disk: Fake,
) -> None:
    put(disk, 1, lines(1, 2) + DAMAGED + b"\n" + lines(4, 6))
    put(disk, 3, lines(3, 4) + line(5)[:20])
    for after in range(2):
        assert_whole(disk, 6, after)


def test_what_a_segment_lost_at_its_end_is_found_in_one_before_it_from_anywhere(disk: Fake) -> None:
    put(disk, 1, lines(1, 20))
    put(disk, 16, lines(16, 18) + line(19)[:20])
    for after in range(21):
        found = assert_whole(disk, 20, after)
        assert [one.file for one in found.damage] == [Segment(1, 16).name]


def test_a_merge_that_was_cut_off_anywhere_loses_and_doubles_nothing(disk: Fake) -> None:
    parts = {1: lines(1, 3), 4: lines(4, 6), 7: lines(7, 9), 10: lines(10, 11)}
    for first, data in parts.items():
        put(disk, first, data)
    put(disk, 1, parts[1] + parts[4] + parts[7])
    for gone in (None, 4, 7):
        if gone is not None:
            disk.delete_file(path_of(gone))
        for after in range(12):
            assert_whole(disk, 11, after)


def test_a_merge_of_all_segments_that_was_cut_off_loses_nothing(disk: Fake) -> None:
    parts = {1: lines(1, 3), 4: lines(4, 6), 7: lines(7, 9)}
    for first, data in parts.items():
        put(disk, first, data)
    put(disk, 1, b"".join(parts.values()))
    for gone in (None, 4, 7):
        if gone is not None:
            disk.delete_file(path_of(gone))
        for after in range(10):
            assert_whole(disk, 9, after)


# --- drivers that were replaced ----------------------------------------------------------------


def test_events_of_a_driver_that_was_replaced_do_not_count(disk: Fake) -> None:
    put(disk, 1, lines(1, 6))  # went on after 3
    put(disk, 7, lines(7, 9))
    put(disk, 4, lines(4, 5, epoch=2), epoch=2)
    for after in range(4):
        found = assert_whole(disk, 5, after)
        assert found.epochs == ([1] * 3 + [2] * 2)[after:]
        assert found.fenced == (6 if after < 3 else 3)  # files that are known are not read
        assert found.damage == []
    for after in (4, 5):
        assert_whole(disk, 5, after)


def test_damage_of_a_driver_that_was_replaced_is_no_error(disk: Fake) -> None:
    put(disk, 1, lines(1, 4) + DAMAGED + b"\n" + lines(6, 7) + line(8)[:-1] + line(9))
    put(disk, 20, lines(20, 22))
    put(disk, 4, lines(4, 6, epoch=2), epoch=2)
    for after in range(7):
        found = assert_whole(disk, 6, after)
        assert found.epochs == ([1] * 3 + [2] * 3)[after:]


def test_only_the_latest_of_several_drivers_counts_from_where_it_began(disk: Fake) -> None:
    put(disk, 1, lines(1, 9))
    put(disk, 6, lines(6, 12, epoch=2), epoch=2)
    put(disk, 4, lines(4, 5, epoch=5), epoch=5)
    for after in range(4):
        assert assert_whole(disk, 5, after).epochs == ([1] * 3 + [5] * 2)[after:]


def test_a_driver_that_wrote_nothing_whole_fences_what_stands_behind_it(disk: Fake) -> None:
    put(disk, 1, lines(1, 5))
    put(disk, 4, line(4, epoch=2)[:20], epoch=2)
    assert assert_whole(disk, 3).fenced == 2


def test_events_before_the_one_where_the_next_driver_began_have_to_be_there(disk: Fake) -> None:
    put(disk, 1, lines(1, 2) + DAMAGED)
    put(disk, 4, lines(4, 5, epoch=2), epoch=2)
    assert_corrupt(disk, 2, Segment(1, 1).name, len(lines(1, 2)), "lost with it: event 3")


def test_what_is_passed_twice_is_counted_once(disk: Fake) -> None:
    # The damage is known to be made good only when all has been read once.
    put(disk, 1, lines(1, 2) + DAMAGED + b"\n" + lines(4, 6))
    put(disk, 3, lines(3, 4))
    put(disk, 7, lines(7, 8, epoch=2), epoch=2)
    put(disk, 9, lines(9, 9))
    found = assert_whole(disk, 8)
    assert found.fenced == 1
    assert len(found.damage) == len(set(found.damage))


# --- other files, clocks and readers at work ---------------------------------------------------


def test_foreign_files_are_left_alone(disk: Fake) -> None:
    put(disk, 1, lines(1, 2))
    for name in (
        "000001-000000000003.jsonl.partial",
        "x000001-000000000003.jsonl",
        "000001-3.jsonl",
        "000001-000000000003.jsonl~",
        "000001-000000000003.JSONL",
        ".DS_Store",
        "notes.txt",
    ):
        disk.write(f"{DIRECTORY}/{name}", lines(3, 4))
    disk.make_directory(f"{DIRECTORY}/more")
    disk.write(f"{DIRECTORY}/more/{Segment(1, 3).name}", lines(3, 4))
    assert assert_whole(disk, 2).damage == []


def test_a_clock_that_jumps_changes_nothing(disk: Fake) -> None:
    times = (5.0, 1e9, -3.0, 0.0)
    data = b"".join(line(seq, time=time) for seq, time in enumerate(times, 1))
    put(disk, 1, data)
    assert_whole(disk, 4)
    assert [record.time for record in Reading(disk, DIRECTORY)] == list(times)


def test_a_segment_that_is_merged_while_it_is_read_is_read_where_it_is_now(disk: Fake) -> None:
    for number in range(1, 30):
        put(disk, 1, lines(1, 3))
        put(disk, 4, lines(4, 6))
        put(disk, 7, lines(7, 9))

        def merge(operation: Operation) -> None:
            if operation.number == number:  # noqa: B023 - called within this round
                put(disk, 1, lines(1, 9))
                disk.delete_file(path_of(4))
                disk.delete_file(path_of(7))

        for after in (0, 3, 7):
            assert_whole(Faulty(disk, before=[merge]), 9, after)


def test_files_that_vanish_again_and_again_are_an_error(disk: Fake) -> None:
    put(disk, 1, lines(1, 3))
    gone = fail_when(lambda operation: operation.name == "open", FileNotFoundError("gone"))
    found = read(Faulty(disk, before=[gone]))
    assert found.seqs == []
    assert found.error is not None
    assert "vanish" in found.error.detail


def test_a_storage_that_fails_is_no_damage(disk: Fake) -> None:
    put(disk, 1, lines(1, 3))
    for name in ("list_names", "open", "read"):
        error = fail_when(lambda operation: operation.name == name, TimeoutError())  # noqa: B023
        with pytest.raises(StorageError):
            read(Faulty(disk, before=[error]))


def test_a_listing_that_is_late_gives_what_was_there() -> None:
    disk = FakeObjectStore()
    put(disk, 1, lines(1, 3))
    with disk.stale_listings():
        put(disk, 4, lines(4, 6))
        assert_whole(disk, 3)
    assert_whole(disk, 6)


def test_a_listing_that_still_has_what_was_merged_is_an_error_and_not_a_gap() -> None:
    disk = FakeObjectStore()
    put(disk, 1, lines(1, 3))
    put(disk, 4, lines(4, 6))
    with disk.stale_listings():
        put(disk, 1, lines(1, 6))
        disk.delete_file(path_of(4))
        found = read(disk)
        assert found.error is not None
        assert found.seqs == list(range(1, 7))
    assert_whole(disk, 6)


def test_a_thousand_readings_of_a_journal_that_grows_are_prefixes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raytrials.store.journal.SEGMENT_BYTES", 4000)
    directory = f"{tmp_path}/journal"
    disk = LocalDisk()
    journal = open_journal(disk, directory, epoch=1, seq=0, clock=SystemClock())
    pump = Pump(journal, 0.002)
    pump.start()
    rounds = threading.Semaphore(0)

    def write() -> None:
        for _ in range(1000):
            assert rounds.acquire(timeout=20)
            append(journal, 3)

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    try:
        for round_ in range(1000):
            rounds.release()
            known = last if round_ % 10 else 0
            found = read(disk, known, directory)
            assert found.error is None, found.error
            assert known + len(found.seqs) >= last
            last = known + len(found.seqs)
    finally:
        rounds.release(1000)
        writer.join(30)
        assert pump.close(10)
    assert len(disk.list_names(directory)) > 3
    assert len(read(disk, 0, directory).seqs) == journal.seq == 3000
