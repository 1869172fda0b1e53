"""A line of the journal is a record, to the byte, or it is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
import xxhash
from support.events import Walk

from raytrials.core.event import VERSION, DriverDetached, Record, ResultReported, TrialPaused
from raytrials.errors import NewerFormatError
from raytrials.store.record import NotARecordError, decode, encode, place_of

RECORD = Record(12, 3, 1700000000.123456, ResultReported("t", 1, 4, {"loss": 0.25, "n": "ü"}))
LINE = encode(RECORD)[:-1]


def sealed(body: bytes) -> bytes:
    """A line whose digest is right, whatever it is."""
    digest = xxhash.xxh64_hexdigest(body)
    return body[:-1] + b',"digest":"' + digest.encode() + b'"}'


def body(**changes: Any) -> bytes:
    fields = {"v": VERSION, "seq": 1, "epoch": 1, "t": 1.0, "type": "TrialPaused"}
    fields |= {"data": {"trial_id": "t"}, **changes}
    return json.dumps(fields, separators=(",", ":")).encode()


def test_a_line_is_one_json_object_that_ends_with_its_digest() -> None:
    line = encode(RECORD)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    fields = json.loads(line)
    assert list(fields) == ["v", "seq", "epoch", "t", "type", "data", "digest"]
    assert (fields["v"], fields["seq"], fields["epoch"]) == (1, 12, 3)
    assert (fields["t"], fields["type"]) == (1700000000.123456, "ResultReported")
    rest = LINE[: LINE.index(b',"digest"')] + b"}"
    assert fields["digest"] == xxhash.xxh64_hexdigest(rest)


def test_what_was_encoded_is_decoded() -> None:
    assert decode(LINE) == RECORD
    assert place_of(LINE) == (12, 3)
    for record in Walk(1).steps(300):
        line = encode(record)[:-1]
        assert encode(decode(line)) == line + b"\n"
        assert place_of(line) == (record.seq, record.epoch)


def test_zero_bytes_behind_a_line_do_not_count() -> None:
    assert decode(LINE + b"\0" * 5000) == RECORD
    assert place_of(LINE + b"\0" * 5000) == (12, 3)


@pytest.mark.parametrize("text", ["", "ü\u2028\u2029\0\n\r", "\ud800", "𝄞" * 100_000, '"},"\\'])
def test_any_text_is_one_line_and_comes_back(text: str) -> None:
    record = Record(1, 0, 0.0, DriverDetached(text))
    line = encode(record)
    assert line.count(b"\n") == 1
    assert decode(line[:-1]) == record


@pytest.mark.parametrize("seq", [0, 1, 10**17])
def test_any_place_comes_back(seq: int) -> None:
    record = Record(seq, seq, -1.5, TrialPaused("t"))
    assert decode(encode(record)[:-1]) == record
    assert place_of(encode(record)[:-1]) == (seq, seq)


def test_a_newer_version_is_told_from_damage() -> None:
    line = sealed(body(v=VERSION + 1, type="NotYet", data=[]))
    assert place_of(line) == (1, 1)
    with pytest.raises(NewerFormatError) as caught:
        decode(line)
    assert caught.value.version == VERSION + 1
    with pytest.raises(NotARecordError):
        decode(line[:-1])


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "NotThere"},
        {"type": ["TrialPaused"]},
        {"type": None},
        {"data": {}},
        {"data": []},
        {"data": 3},
        {"data": None},
        {"data": {"trial_id": "t", "more": 1}},
        {"type": "AttemptStarted", "data": {"trial_id": "t", "attempt": 1, "metrics": 3}},
        {"type": "DriverAttached", "data": {"host": "h", "pid": 1, "damage": 3}},
        {"type": "TrialFinished", "data": {"trial_id": "t", "status": "what"}},
        {"type": "FaultRecorded", "data": {"trial_id": "t", "fault": [], "history": 1}},
        {"v": "1"},
        {"v": None},
    ],
)
def test_a_whole_line_of_another_form_is_no_record(changes: dict[str, Any]) -> None:
    with pytest.raises(NotARecordError):
        decode(sealed(body(**changes)))


@pytest.mark.parametrize(
    "line",
    [
        sealed(b"{}"),
        sealed(b"[]"),
        sealed(b'"x"'),
        sealed(b"3"),
        sealed(b"{\xff}"),
        sealed(b'{"v":1,"seq":1,"epoch":1,' + b"[" * 100_000 + b"}"),
        sealed(b'{"v":1,"seq":' + b"1" * 5000 + b',"epoch":1,"t":1.0}'),
        sealed(b'{"v":' + b"1" * 5000 + b',"seq":1,"epoch":1,"t":1.0}'),
    ],
    ids=range(8),
)
def test_a_line_with_a_right_digest_is_no_record_for_that(line: bytes) -> None:
    with pytest.raises(NotARecordError):
        decode(line)


def test_the_place_of_a_number_without_end_is_nowhere() -> None:
    with pytest.raises(NotARecordError):
        place_of(sealed(b'{"v":1,"seq":' + b"1" * 5000 + b',"epoch":1,"t":1.0}'))


@pytest.mark.parametrize(
    ("line", "whole", "says"),
    [
        (b"", False, "empty"),
        (b"\0\0\0", False, "zero bytes"),
        (LINE[:-1], False, "part of a record"),
        (LINE[:40] + b"\0" * 40, False, "part of a record"),
        (LINE[5:], False, "not a record"),
        (b"hello", False, "not a record"),
        (LINE + LINE, True, "something else on one line"),
        (LINE + LINE[:30], True, "something else on one line"),
        (LINE + b"\0" + LINE, True, "something else on one line"),
        (LINE + b"\r", True, "something else on one line"),
    ],
)
def test_a_refusal_says_what_is_there(line: bytes, whole: bool, says: str) -> None:
    for read in (decode, place_of):
        with pytest.raises(NotARecordError, match=says) as caught:
            read(line)
        assert caught.value.holds == (12 if whole else 0)


def test_a_file_without_newlines_is_refused_soon() -> None:
    # Each digest in it has to be looked at, and none of them twice.
    line = b"{" + LINE[:-1] + b"," + (LINE[:-18] + b"0" * 16 + b'"}') * 30_000
    with pytest.raises(NotARecordError) as caught:
        place_of(line)
    assert caught.value.holds == 0
    with pytest.raises(NotARecordError) as caught:
        place_of(line + LINE + LINE)
    assert caught.value.holds == 12
