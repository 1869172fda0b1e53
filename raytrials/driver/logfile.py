"""The two files in which Ray's loggers keep a trial's results, and how one is brought to a point.

`result.json` has a result a line; `progress.csv` a header and the flattened values. Any part of
either may be lost, torn, doubled or of an attempt that was withdrawn. Nothing here knows of trials
or of loggers: that is `raytrials.driver.history`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raytrials import _ray
from raytrials.store.checkpoint import STAGING

ITERATION = "training_iteration"
TIMESTAMP = "timestamp"

Result = Mapping[str, Any]
"""A row of either file: what was reported and Ray's own values beside, nested or flat."""

Source = Callable[[], Iterable[Result]]
"""Where missing rows may be found; of two rows of an iteration in one source the later counts."""

Gap = tuple[float, float]
"""Two iterations with rows, and none between them; the first may be 0."""

_PIECES = 100
"""How many lines a row of a table has at most, which has line ends in its values."""


class Contents(NamedTuple):
    """What a file holds.

    Attributes:
        rows: those that are whole, in their order.
        is_whole: whether there is nothing else in it.
        columns: of a table.
    """

    rows: list[Result]
    is_whole: bool
    columns: tuple[str, ...] = ()


class LogFile(ABC):
    """One of the two kinds."""

    name: str

    @abstractmethod
    def parse(self, data: bytes) -> Contents:
        """Return what is whole in a file; a row without a `training_iteration` is not."""

    @abstractmethod
    def format(self, rows: Sequence[Result], columns: Sequence[str]) -> bytes:
        """Return a file with these rows as Ray's logger would have written it.

        Args:
            rows: at least one.
            columns: of a table; none for those of its first row, as Ray takes them.
        """


class JsonFile(LogFile):
    """`result.json`."""

    name = _ray.EXPR_RESULT_FILE

    def parse(self, data: bytes) -> Contents:
        """See :meth:`LogFile.parse`."""
        *lines, rest = data.split(b"\n")
        found = [_parse_json(line) for line in (*lines, rest) if line]
        rows = [row for row in found if row is not None]
        return Contents(rows, not rest and len(rows) == len(lines))

    def format(self, rows: Sequence[Result], columns: Sequence[str]) -> bytes:  # noqa: ARG002 - a table's
        """See :meth:`LogFile.format`."""
        return "".join(f"{_ray.result_as_json(row)}\n" for row in rows).encode()


def _parse_json(line: bytes) -> Result | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and iteration_of(row) is not None else None


class CsvFile(LogFile):
    """`progress.csv`."""

    name = _ray.EXPR_PROGRESS_FILE

    def parse(self, data: bytes) -> Contents:
        """See :meth:`LogFile.parse`."""
        end = b"\r\n" if data.partition(b"\n")[0].endswith(b"\r") else b"\n"
        *lines, rest = data.split(end)
        columns: tuple[str, ...] = tuple(_fields(lines[0]) or ()) if lines else ()
        if ITERATION not in columns:
            return Contents([], not data)
        found = list(_rows(lines[1:], columns, end))
        rows = [row for row in found if row is not None]
        return Contents(rows, not rest and len(rows) == len(found), columns)

    def format(self, rows: Sequence[Result], columns: Sequence[str]) -> bytes:
        """See :meth:`LogFile.format`."""
        flat = [_ray.flattened(row) for row in rows]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns or list(flat[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(flat)
        return text.getvalue().encode()


def _rows(lines: Sequence[bytes], columns: Sequence[str], end: bytes) -> Iterator[Result | None]:
    """Yield the rows of a table, None for a line that is of none."""
    at = 0
    while at < len(lines):
        row, count = _row_at(lines, at, columns, end)
        yield row
        at += count


def _row_at(
    lines: Sequence[bytes], at: int, columns: Sequence[str], end: bytes
) -> tuple[Result | None, int]:
    """Return the row that begins at a line, and how many lines it has."""
    text = lines[at]
    count = 1
    while text.count(b'"') % 2 and count < _PIECES and at + count < len(lines):
        text += end + lines[at + count]
        count += 1
    fields = _fields(text)
    if fields is not None and len(fields) == len(columns):
        row = dict(zip(columns, fields, strict=True))
        if iteration_of(row) is not None:
            return row, count
    return None, 1  # a torn line can have taken whole ones for its own


def _fields(line: bytes) -> list[str] | None:
    if b"\0" in line:
        return None
    try:
        found = list(csv.reader([line.decode()], strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    return found[0] if len(found) == 1 else None


def iteration_of(row: Result) -> float | None:
    """Return the `training_iteration` of a row of either file, None if it has none."""
    return _number(row.get(ITERATION))


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            with contextlib.suppress(ValueError):
                value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def is_newer(row: Result, other: Result) -> bool:
    """Whether a row was reported later than another, as far as both say when."""
    at, other_at = _number(row.get(TIMESTAMP)), _number(other.get(TIMESTAMP))
    return at is not None and other_at is not None and at > other_at


def _is_as(row: Result, known: Result) -> bool:
    return not (is_newer(row, known) or is_newer(known, row))


def restore(  # noqa: PLR0913 - what it needs to know
    file: LogFile,
    directory: Path,
    upto: int,
    copy: Source,
    sources: Sequence[Source] = (),
    *,
    report: Result | None = None,
    gaps: Collection[Gap] = (),
    before_writing: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Bring a file to exactly the rows up to an iteration that there are, one for each iteration.

    It is left alone if it is that already. Else it is written whole and replaced in one step; where
    it was empty and stays so, nothing is made.

    Rows are missing when the last one is, when the report is a newer one than the row, and when
    there are gaps, which a user's own `training_iteration` may have too. Then the copy is asked,
    and the sources one after another until nothing is missing.

    A row that is here counts. One of the copy may have been run again since it was made. Who runs a
    row again runs all later ones again: so if the copy has one row as it is known, those before are
    right. The others are doubtful: they are asked for further, and what is newer replaces them.

    Args:
        file: which.
        directory: of the trial, on this machine; need not exist.
        upto: rows of later iterations are cut.
        copy: the file as it was at some time.
        sources: ask them for rows in this order; what they have is right, as far as they go.
        report: what is known to be the report of `upto`; None if nothing is, and the copy is
            believed.
        gaps: those that nobody can fill, from an earlier time.
        before_writing: called when the file is replaced or begins anew, for whoever has it open to
            close it.

    Returns:
        the rows.

    Raises:
        OSError: it could not be written.
    """
    path = directory / file.name
    try:
        data = path.read_bytes()
        here = file.parse(data)
    except FileNotFoundError:
        here = Contents([], is_whole=True)
    except OSError:
        here = Contents([], is_whole=False)
    table: dict[float, Result] = {}
    _add(table, here.rows, upto)
    if _misses(table, upto, report, gaps):
        doubtful: set[float] = set()
        if report is not None:
            known = {**table, upto: report}
            copied = {iteration_of(row) or 0: row for row in copy()}
            right = [one for one in copied if one in known and _is_as(copied[one], known[one])]
            doubtful = {one for one in copied if max(right, default=0) < one <= upto}
            _add(table, copied.values(), upto)
        else:
            _add(table, copy(), upto)
        for source in sources:
            if not doubtful and not _misses(table, upto, report, gaps):
                break
            doubtful -= _add(table, source(), upto)
    if report is not None and iteration_of(report) == upto:
        _add(table, [report], upto)
    rows = [table[iteration] for iteration in sorted(table)]
    is_same = len(rows) == len(here.rows) and all(map(_is, rows, here.rows))
    is_right = here.is_whole and is_same
    if not (is_right and rows):
        # Also where nothing is to be written: a file that is gone may still be open.
        before_writing()
    if not is_right:
        is_kept = any(table.get(iteration_of(row) or 0) is row for row in here.rows)
        _replace(path, file.format(rows, here.columns if is_kept else ()) if rows else b"")
    return rows


def gaps_in(iterations: Iterable[float | None]) -> set[Gap]:
    """Return between which iterations others are missing, from 0 on."""
    there = sorted({0, *(one for one in iterations if one is not None and one > 0)})
    return {(one, other) for one, other in itertools.pairwise(there) if other - one > 1}


def _misses(
    table: Mapping[float, Result], upto: int, report: Result | None, gaps: Collection[Gap]
) -> bool:
    if upto <= 0:
        return False
    if upto not in table or (report is not None and is_newer(report, table[upto])):
        return True
    return not gaps_in(table) <= set(gaps)


def _add(table: dict[float, Result], rows: Iterable[Result], upto: int) -> set[float]:
    """Add rows that are not there, or newer; return the iterations of all of them."""
    latest = {iteration_of(row): row for row in rows}
    found = {one: row for one, row in latest.items() if one is not None and one <= upto}
    for iteration, row in found.items():
        if iteration not in table or is_newer(row, table[iteration]):
            table[iteration] = row
    return set(found)


def _is(one: object, other: object) -> bool:
    return one is other


def _replace(path: Path, data: bytes) -> None:
    # In a directory of a name that is not mirrored: see `raytrials.store.mirror`.
    staging = path.parent / f"{STAGING}{path.name}"
    staging.mkdir(parents=True, exist_ok=True)
    try:
        (staging / path.name).write_bytes(data)
        (staging / path.name).replace(path)
    finally:
        (staging / path.name).unlink(missing_ok=True)
        staging.rmdir()
