"""An event as a line of the journal.

`docs/formats.md` describes it. A line is one JSON object with a digest of its own at the end, and a
newline: whatever happens to a byte of it, it is no record any more.
"""

from __future__ import annotations

import json
import re
from typing import Any

import xxhash

from raytrials.core.event import EVENTS, VERSION, Record
from raytrials.errors import NewerFormatError

_ENCODE = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_DIGEST = re.compile(rb',"digest":"([0-9a-f]{16})"}')
_DIGEST_BYTES = 29
_SEQ = re.compile(rb'\{"v":\d+,"seq":(\d{1,18}),"epoch":(\d{1,18}),')


class NotARecordError(ValueError):
    """A line of the journal is not a record.

    Attributes:
        holds: number of the first whole record that stands in it with something else behind; 0 for
            none.
    """

    def __init__(self, detail: str, *, holds: int = 0) -> None:
        super().__init__(detail)
        self.holds = holds


class UnknownEventError(NotARecordError):
    """A line of the journal is as it was written, and no event that this release knows."""

    def __init__(self, problem: object) -> None:
        super().__init__(f"it is no event of this format: {problem}")


def encode(record: Record) -> bytes:
    """Return a record as its line, newline included."""
    fields = {
        "v": VERSION,
        "seq": record.seq,
        "epoch": record.epoch,
        "t": round(record.time, 6),
        "type": type(record.event).__name__,
        "data": record.event.to_data(),
    }
    body = _ENCODE(fields).encode()
    return body[:-1] + f',"digest":"{xxhash.xxh64_hexdigest(body)}"}}\n'.encode()


def place_of(line: bytes) -> tuple[int, int]:
    """Return seq and epoch of a line that is whole, without looking at the rest.

    Args:
        line: without its newline; zero bytes at its end do not count.

    Raises:
        NotARecordError: it is not whole, to the byte.
        UnknownEventError: it is whole, and has no place.
        NewerFormatError: likewise, and it is of a newer version.
    """
    line = line.rstrip(b"\0")
    if not _is_sealed(line):
        raise _refusal(line)
    found = _SEQ.match(line)
    if found is None:
        decode(line)  # knows if it is of a newer version
        raise UnknownEventError("its first fields are others")
    return int(found.group(1)), int(found.group(2))


def decode(line: bytes) -> Record:
    """Return the record in a line.

    Args:
        line: as for :func:`place_of`.

    Raises:
        NotARecordError: it is not whole, to the byte.
        UnknownEventError: it is whole, and no event of this version.
        NewerFormatError: it is whole, and of a newer version.
    """
    line = line.rstrip(b"\0")
    if not _is_sealed(line):
        raise _refusal(line)
    try:
        fields: dict[str, Any] = json.loads((line[:-_DIGEST_BYTES] + b"}").decode())
        if fields["v"] > VERSION:
            raise NewerFormatError(fields["v"], VERSION, "event of the journal")
        event = EVENTS[fields["type"]].from_data(fields["data"])
        return Record(*_place_in(fields), event)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UnknownEventError(repr(error)) from error


def _place_in(fields: dict[str, Any]) -> tuple[int, int, float]:
    seq, epoch, time = fields["seq"], fields["epoch"], fields["t"]
    if not (type(seq) is type(epoch) is int and type(time) in {float, int}):
        raise TypeError("seq, epoch or t is no number")
    return seq, epoch, time


def _is_sealed(line: bytes) -> bool:
    """Return whether the digest at the end of a line is right."""
    found = _DIGEST.fullmatch(line[-_DIGEST_BYTES:])
    if found is None:
        return False
    digest = xxhash.xxh64(line[:-_DIGEST_BYTES])
    digest.update(b"}")
    return digest.hexdigest().encode() == found.group(1)


def _refusal(line: bytes) -> NotARecordError:
    if not line:
        return NotARecordError("an empty line, or zero bytes")
    start = 0
    for found in _DIGEST.finditer(line):
        one = line[start : found.end()]
        place = _SEQ.match(one)
        if place is not None and found.end() < len(line) and _is_sealed(one):
            seq = int(place.group(1))
            return NotARecordError("a record and something else on one line", holds=seq)
        start = found.end()
    return NotARecordError("part of a record" if line[:1] == b"{" else "not a record")
