"""The checkpoints in a trial's directory, as they are on storage."""

from __future__ import annotations

from collections.abc import Iterator

from raytrials.store.checkpoint import Finding, Verdict, index_in, inspect
from raytrials.store.disk import Disk
from raytrials.store.manifest import checkpoint_name, index_of


def highest_index(disk: Disk, directory: str) -> int:
    """Return the highest index that any name there holds, leftovers' included; -1 for none."""
    indices = map(index_in, disk.list_names(directory))
    return max((index for index in indices if index is not None), default=-1)


def newer(disk: Disk, directory: str, than: int) -> Iterator[tuple[str, Finding]]:
    """Give the committed checkpoints with an index above `than`, in order, each looked at quickly.

    Damaged ones too; what was never committed is left out.
    """
    for index in _indices(disk, directory):
        if index > than:
            yield from _committed(disk, directory, index)


def older(disk: Disk, directory: str, than: int) -> Iterator[tuple[str, Finding]]:
    """Give the committed checkpoints with an index below `than`, the newest first; as `newer`."""
    for index in reversed(_indices(disk, directory)):
        if index < than:
            yield from _committed(disk, directory, index)


def _indices(disk: Disk, directory: str) -> list[int]:
    return sorted(i for i in map(index_of, disk.list_names(directory)) if i is not None)


def _committed(disk: Disk, directory: str, index: int) -> Iterator[tuple[str, Finding]]:
    name = checkpoint_name(index)
    finding = inspect(disk, f"{directory}/{name}", full=False)
    if finding.verdict not in {Verdict.MISSING, Verdict.INCOMPLETE}:
        yield name, finding
