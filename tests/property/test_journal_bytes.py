"""Whatever happens to a byte of a line, the line is no record any more, and nothing worse."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import Walk

from raytrials.core.event import Record, TrialPaused
from raytrials.store.record import NotARecordError, decode, encode, place_of

patient = settings(deadline=None, max_examples=100)
LINES = [encode(record) for seed in range(4) for record in Walk(seed).steps(60)]
lines = st.sampled_from(LINES)


def assert_no_record(line: bytes) -> None:
    for read in (decode, place_of):
        with pytest.raises(NotARecordError):
            read(line)


@settings(patient, max_examples=300)
@given(lines, st.data())
def test_a_flipped_byte_is_found(line: bytes, data: st.DataObject) -> None:
    damaged = bytearray(line[:-1])
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    if place == len(damaged) - 1 and not damaged[place]:
        damaged[place] = 1  # a zero byte at the end is a cut
    assert_no_record(bytes(damaged))


def test_any_flipped_bit_of_a_small_line_is_found() -> None:
    line = encode(Record(1, 1, 1.5, TrialPaused("t")))[:-1]
    for place in range(len(line)):
        for bit in range(8):
            damaged = bytearray(line)
            damaged[place] ^= 1 << bit
            assert_no_record(bytes(damaged))


@patient
@given(lines, st.data())
def test_a_cut_of_more_than_the_newline_is_found(line: bytes, data: st.DataObject) -> None:
    assert encode(decode(line[:-1])) == line
    cut = data.draw(st.integers(0, len(line) - 2))
    assert_no_record(line[:cut])
    assert_no_record(line[:cut] + b"\0" * data.draw(st.integers(0, 9)))
    front = data.draw(st.integers(1, len(line) - 1))
    assert_no_record(line[front:-1])


@settings(patient, max_examples=300)
@given(lines, st.binary(min_size=1, max_size=20), st.data())
def test_inserted_bytes_are_found(line: bytes, extra: bytes, data: st.DataObject) -> None:
    line = line[:-1]
    place = data.draw(st.integers(0, len(line)))
    damaged = line[:place] + extra + line[place:]
    if damaged.rstrip(b"\0") == line:
        assert encode(decode(damaged)) == line + b"\n"
    else:
        assert_no_record(damaged)


@patient
@given(lines, st.data())
def test_bytes_that_are_swapped_or_left_out_are_found(line: bytes, data: st.DataObject) -> None:
    line = line[:-1]
    start = data.draw(st.integers(0, len(line) - 1))
    end = data.draw(st.integers(start + 1, len(line)))
    assert_no_record(line[:start] + line[end:])
    turned = line[:start] + line[start:end][::-1] + line[end:]
    if turned != line:
        assert_no_record(turned)


@patient
@given(lines, lines)
def test_the_front_of_one_record_and_the_end_of_another_are_none(one: bytes, two: bytes) -> None:
    one, two = one[:-1], two[:-1]
    for middle in range(1, min(len(one), len(two)), 17):
        mixed = one[:middle] + two[middle:]
        if mixed not in {one, two}:
            assert_no_record(mixed)


@settings(patient, max_examples=300)
@given(st.binary(max_size=200))
def test_anything_is_refused_in_the_same_way(data: bytes) -> None:
    assert_no_record(data)
    for line in data.split(b"\n"):
        assert_no_record(line)


@patient
@given(st.lists(st.one_of(lines, st.binary(max_size=30)), max_size=20))
def test_many_records_on_one_line_are_refused_soon(parts: list[bytes]) -> None:
    line = b"".join(part.removesuffix(b"\n") for part in parts)
    with contextlib.suppress(NotARecordError):
        decode(line)
