"""The files of the journal, and reading the events in them, whatever happened to them.

A segment is named by its epoch and the number of its first event, a merged one by that of its last
event too. Segments may overlap: what could not be made durable is written again into the next one,
and a merge that was cut off leaves what it merged. Of two that overlap the one that begins later
has all that the other has from there on: so a merge deletes what it merged from the front. Who
reads takes each event once, from the first place where it is whole. From the number on at which the
next epoch begins, what an epoch wrote does not count: its driver had been replaced.

Reading changes nothing, and takes no lock: the driver may be writing meanwhile.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from raytrials.core.event import Record
from raytrials.errors import JournalCorruptError
from raytrials.store.disk import Disk
from raytrials.store.record import NotARecordError, UnknownEventError, decode, place_of
from raytrials.store.retrying import retry

JOURNAL = "journal"
"""The directory of the segments, beside that of the snapshots."""

PARTIAL = ".partial"
"""Ends the name of a file that is being written, on a disk that renames it then."""

_NAME = re.compile(r"(\d{6,})-(\d{12,})(?:-(\d{12,}))?\.jsonl")
_RELISTS = 10


class Segment(NamedTuple):
    """A file of the journal.

    Attributes:
        epoch: of its events.
        first: number of its first event.
        last: of its last one if it was merged of others; 0 for any other.
    """

    epoch: int
    first: int
    last: int = 0

    @property
    def name(self) -> str:
        """The name of the file."""
        last = f"-{self.last:012d}" if self.last else ""
        return f"{self.epoch:06d}-{self.first:012d}{last}.jsonl"


def segments_among(names: set[str]) -> list[Segment]:
    """Return the segments among the names in a directory, in the order of their events."""
    found = (_NAME.fullmatch(name) for name in names)
    return sorted(Segment(*(int(part or 0) for part in one.groups())) for one in found if one)


def partials_among(names: set[str], epoch: int) -> list[str]:
    """Return the names of what drivers of older epochs have left half written."""
    found = {name: _NAME.fullmatch(name.removesuffix(PARTIAL)) for name in names}
    return sorted(
        name
        for name, one in found.items()
        if one and name.endswith(PARTIAL) and int(one.group(1)) < epoch
    )


def replaced_at(segments: Iterable[Segment], epoch: int) -> int | None:
    """Return from which event on an epoch does not count, since a later one has begun."""
    return min((one.first for one in segments if one.epoch > epoch), default=None)


@dataclass(frozen=True)
class Damage:
    """A place in a file that is not as it was written.

    Attributes:
        file: its name.
        offset: where in it, in bytes; None for the file as a whole.
        size: how many bytes from there on are left out.
        problem: what is wrong.
    """

    file: str
    offset: int | None
    size: int
    problem: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(self.__dict__)


class Reading:
    """The events of a journal after one of them, in order.

    Iterate over it once; the attributes are complete then.

    Args:
        disk: where it is.
        directory: of the segments.
        after: number of the last event that is known already.
        retry_s: how long a storage that fails is tried again.
        wanted: what the lines of the events have to match that are given; None for all.

    Attributes:
        seq: number of the last event so far.
        damage: what was passed over, since nothing is lost with it: torn ends among it.
        fenced: how many events do not count, since their driver had been replaced.

    Raises:
        JournalCorruptError: an event is missing or damaged, and later ones are there or were; or
            it is whole, and none that this release knows. All events before it have been given.
        NewerFormatError: an event is of a newer version.
        StorageError: the storage failed for good.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        after: int = 0,
        retry_s: float = 0,
        wanted: re.Pattern[bytes] | None = None,
    ) -> None:
        self.seq = after
        self.damage: list[Damage] = []
        self.fenced = 0
        self._disk = disk
        self._directory = directory
        self._after = after
        self._retry_s = retry_s
        self._wanted = wanted
        self._hole: tuple[int, JournalCorruptError] | None = None
        self._skipped = False
        self._seen = 0

    def __iter__(self) -> Iterator[Record]:
        for _ in range(_RELISTS):
            segments = self._list()
            try:
                yield from self._read(segments, skip=True)
                before = -1
                while self._may_be_elsewhere() and before < self.seq:
                    # What a later segment has made good may stand before more in an earlier one,
                    # and what it lost at its end may stand in one that was skipped.
                    before = self.seq
                    yield from self._read(segments, skip=False)
            except FileNotFoundError:
                continue  # merged meanwhile
            break
        else:
            raise JournalCorruptError(self._directory, None, "its files vanish while they are read")
        if self._hole is not None and self._is_open():
            raise self._hole[1]
        if self._seen < self._after == self.seq:
            detail = f"it ends with event {self._seen}, and {self._after} of them were written"
            at = self.damage[-1] if self.damage else None
            path = f"{self._directory}/{at.file}" if at else self._directory
            raise JournalCorruptError(path, at.offset if at else None, detail)

    def _may_be_elsewhere(self) -> bool:
        return self._hole is not None or (self._skipped and bool(self.damage))

    def _is_open(self) -> bool:
        """Whether events are missing that no segment had."""
        return self._hole is not None and self._hole[0] > self.seq

    def _list(self) -> list[Segment]:
        names = retry(
            self._disk,
            "listing",
            self._directory,
            lambda: self._disk.list_names(self._directory),
            limit_s=self._retry_s,
        )
        return segments_among(names)

    def _read(self, segments: list[Segment], *, skip: bool) -> Iterator[Record]:
        self.damage.clear()
        self.fenced = 0
        for number, segment in enumerate(segments):
            later = segments[number + 1 :]
            if skip and later and later[0].first <= self._after + 1:
                self._skipped = True
                continue  # what it holds is known, or stands in the next one too
            limit = replaced_at(later, segment.epoch)
            if segment.first > self.seq + 1 and (limit is None or segment.first < limit):
                before = segments[number - 1].name if number else ""
                torn = next((one for one in self.damage if one.file == before), None)
                self._note_hole(torn or Damage(segment.name, None, 0, ""), segment.first)
                continue
            yield from self._read_segment(segment, limit)

    def _read_segment(self, segment: Segment, limit: int | None) -> Iterator[Record]:
        data = self._load(segment)
        if limit is None or segment.first <= limit:
            self._seen = max(self._seen, segment.first - 1)
        bad: Damage | None = None
        held = 0
        last = segment.first - 1
        for offset, line in _lines(data):
            try:
                seq = _seq_in(line, segment.epoch)
                is_fenced = limit is not None and seq >= limit
                record = None if is_fenced else self._decode(seq, line)
            except UnknownEventError as error:
                path = f"{self._directory}/{segment.name}"
                raise JournalCorruptError(path, offset, str(error)) from error
            except NotARecordError as error:
                held = max(held, error.holds)
                bad = bad or Damage(segment.name, offset, len(data) - offset, str(error))
                continue
            last = max(last, seq)
            if is_fenced:
                self.fenced += 1
                continue
            self._seen = max(self._seen, seq)
            if seq > self.seq + 1:
                self._note_hole(bad or Damage(segment.name, offset, 0, ""), seq)
                return
            if bad is not None:
                self._pass_over(bad, offset)
                bad, held = None, 0
            self.seq = max(self.seq, seq)
            if record is not None:
                yield record
        if bad is not None:
            # One line may be torn. Of several that have their ends all but one were whole.
            damaged = data.count(b"\n", bad.offset)
            held = max(held, last + damaged if damaged > 1 else 0)
            self._end(bad, held if limit is None or last + 1 < limit else 0, len(data))

    def _end(self, bad: Damage, held: int, size: int) -> None:
        """Take note of damage at the end of a segment, in which an event may have been held."""
        if held > self.seq:
            self._note_hole(bad, held + 1)
        else:
            self._pass_over(bad, size)

    def _decode(self, seq: int, line: bytes) -> Record | None:
        """Return the event if it is the next one, and wanted."""
        if seq != self.seq + 1 or (self._wanted and not self._wanted.search(line)):
            return None
        return decode(line)

    def _load(self, segment: Segment) -> bytes:
        path = f"{self._directory}/{segment.name}"
        read = functools.partial(self._disk.read, path)
        try:
            return retry(self._disk, "reading", path, read, limit_s=self._retry_s)
        except Exception as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from error
            raise

    def _pass_over(self, bad: Damage, end: int) -> None:
        damage = Damage(bad.file, bad.offset, end - (bad.offset or 0), bad.problem)
        if damage not in self.damage:
            self.damage.append(damage)

    def _note_hole(self, at: Damage, end: int) -> None:
        """Remember that the events before `end` are missing; a later segment may have them."""
        if self._is_open():
            return
        first = self.seq + 1
        lost = f"event {first}" if end == first + 1 else f"events {first} to {end - 1}"
        problem = f"{at.problem}; lost with it" if at.problem else "missing"
        error = JournalCorruptError(f"{self._directory}/{at.file}", at.offset, f"{problem}: {lost}")
        self._hole = (first, error)


def _seq_in(line: bytes, epoch: int) -> int:
    """Return the number of the event in a line. Raises NotARecordError if it does not belong."""
    seq, found = place_of(line)
    if found != epoch:
        raise NotARecordError(f"an event of epoch {found}")
    return seq


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the lines of a file with their offsets, the unfinished one at its end among them."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield start, data[start:end]
        start = end + 1
