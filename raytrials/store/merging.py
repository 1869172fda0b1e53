"""Merging small segments of the journal on an object store, which are many."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from itertools import pairwise

from raytrials.store.disk import Disk
from raytrials.store.journal import SEGMENT_BYTES
from raytrials.store.record import NotARecordError, place_of
from raytrials.store.retrying import retry
from raytrials.store.segment import Segment, segments_among


def merge(disk: Disk, directory: str, *, epoch: int, seq: int, retry_s: float) -> None:
    """Merge neighbouring segments of a driver's own epoch into few.

    The merged segment has the name of its first part, so that it takes its place in one step; the
    other parts are deleted in their order. Wherever that stops, every event is there.

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
    ended = [
        (segment, following.first - 1, files[segment.name].size)
        for segment, following in pairwise(segments)
        if following.first - 1 <= seq
    ]
    for group in _groups(ended):
        if len(group) > 1:
            _merge(disk, directory, group, retry_s)


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
    parts = []
    for segment, _, _ in group:
        path = f"{directory}/{segment.name}"
        read = functools.partial(disk.read, path)
        parts.append(retry(disk, "reading", path, read, limit_s=retry_s))
    data = b"".join(parts)
    if not _is_gapless(data, group[0][0], group[-1][1]):
        return  # damaged: what finds that is a recovery, and it finds it as it is
    path = f"{directory}/{group[0][0].name}"
    retry(disk, "writing", path, lambda: disk.write(path, data), limit_s=retry_s)
    for segment, _, _ in group[1:]:
        path = f"{directory}/{segment.name}"
        delete = functools.partial(disk.delete_file, path)
        retry(disk, "deleting", path, delete, limit_s=retry_s)


def _is_gapless(data: bytes, first: Segment, last: int) -> bool:
    """Whether these are the lines from the first event to the last, each one once."""
    try:
        places = [place_of(line) for line in data.splitlines()]
    except NotARecordError:
        return False
    return places == [(seq, first.epoch) for seq in range(first.first, last + 1)]
