"""Merging small segments of the journal on an object store, which are many."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from raytrials.store.disk import Disk
from raytrials.store.journal import SEGMENT_BYTES
from raytrials.store.record import NotARecordError, place_of
from raytrials.store.retrying import retry
from raytrials.store.segment import Segment, segments_among


def merge(disk: Disk, directory: str, *, epoch: int, seq: int, retry_s: float) -> None:
    """Merge neighbouring segments of a driver's own epoch into few.

    The merged segment has a name of its own, with the number of its last event, so that it is never
    written over what it is made of: a write that fails may leave half of it. The parts are deleted
    when it is there, also those that a merge that was cut off has left. Wherever that stops, every
    event is there.

    Args:
        disk: an object store.
        directory: of the segments.
        epoch: of the driver.
        seq: only segments that end with this event or before it are touched; they are written no
            more.
        retry_s: how long a storage that fails is tried again.

    Raises:
        StorageError: the storage failed for good; nothing is lost.
    """
    files = retry(disk, "listing", directory, lambda: disk.list_files(directory), limit_s=retry_s)
    segments = [one for one in segments_among(set(files)) if one.epoch == epoch]
    for merged in [one for one in segments if one.last]:
        parts = [
            one for one, last in _ended(segments) if one != merged and _is_in(one, last, merged)
        ]
        if parts and _is_gapless(_read(disk, directory, merged, retry_s), merged):
            _delete(disk, directory, parts, retry_s)
            segments = [one for one in segments if one not in parts]
        elif parts:
            segments.remove(merged)  # half of one: it is made again
    ended = [
        (segment, last, files[segment.name].size)
        for segment, last in _ended(segments)
        if last <= seq
    ]
    for group in _groups(ended):
        if len(group) > 1:
            _merge(disk, directory, group, retry_s)


def _ended(segments: Sequence[Segment]) -> list[tuple[Segment, int]]:
    """Return the segments that are written no more, with the number of the last event of each."""
    following = [*(one.first - 1 for one in segments[1:]), None]
    last = [one.last or end for one, end in zip(segments, following, strict=True)]
    return [(one, end) for one, end in zip(segments, last, strict=True) if end is not None]


def _is_in(part: Segment, last: int, merged: Segment) -> bool:
    return merged.first <= part.first and last <= merged.last


_Ended = tuple[Segment, int, int]
"""A segment, its last event and its size in bytes."""


def _groups(ended: Iterable[_Ended]) -> Iterator[list[_Ended]]:
    group: list[_Ended] = []
    size = 0
    for one in ended:
        if group and size + one[2] > SEGMENT_BYTES:
            yield group
            group, size = [], 0
        group.append(one)
        size += one[2]
    yield group


def _merge(disk: Disk, directory: str, group: list[_Ended], retry_s: float) -> None:
    parts = [segment for segment, _, _ in group]
    merged = Segment(parts[0].epoch, parts[0].first, group[-1][1])
    data = b"".join(_read(disk, directory, part, retry_s) for part in parts)
    if not _is_gapless(data, merged):
        return  # damaged: what finds that is a recovery, and it finds it as it is
    path = f"{directory}/{merged.name}"
    retry(disk, "writing", path, lambda: disk.write(path, data), limit_s=retry_s)
    _delete(disk, directory, parts, retry_s)


def _read(disk: Disk, directory: str, segment: Segment, retry_s: float) -> bytes:
    path = f"{directory}/{segment.name}"
    return retry(disk, "reading", path, functools.partial(disk.read, path), limit_s=retry_s)


def _delete(disk: Disk, directory: str, segments: Iterable[Segment], retry_s: float) -> None:
    for segment in segments:
        path = f"{directory}/{segment.name}"
        delete = functools.partial(disk.delete_file, path)
        retry(disk, "deleting", path, delete, limit_s=retry_s)


def _is_gapless(data: bytes, merged: Segment) -> bool:
    """Whether these are the lines of a merged segment, each one once."""
    try:
        places = [place_of(line) for line in data.splitlines()]
    except NotARecordError:
        return False
    return places == [(seq, merged.epoch) for seq in range(merged.first, merged.last + 1)]
