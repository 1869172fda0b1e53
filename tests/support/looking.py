"""What is on storage, read to the last byte."""

from __future__ import annotations

from typing import Any

from raytrials.store.checkpoint import Verdict, inspect
from raytrials.store.disk import Disk
from raytrials.store.location import disk_at
from raytrials.store.manifest import index_of


def verdicts(location: str, filesystem: Any = None) -> dict[str, tuple[Verdict, int]]:
    """Read every byte of all checkpoints of an experiment.

    Returns:
        `trial/checkpoint` and what the look gave, with the iteration that it holds, 0 if unknown.
    """
    disk, path = disk_at(location, filesystem)
    found = {}
    for name in checkpoints(disk, path):
        finding = inspect(disk, f"{path}/{name}", full=True)
        iteration = finding.manifest.header.iteration if finding.manifest else 0
        found[name] = (finding.verdict, iteration)
    return found


def checkpoints(disk: Disk, path: str) -> list[str]:
    """Return the names `trial/checkpoint` of all checkpoints of an experiment, sorted."""
    return sorted(
        f"{trial}/{name}"
        for trial in disk.list_names(path)
        for name in disk.list_names(f"{path}/{trial}")
        if index_of(name) is not None
    )


def verified(location: str, filesystem: Any = None) -> list[int]:
    """Return the iterations of all verified checkpoints of an experiment, sorted."""
    found = verdicts(location, filesystem).values()
    return sorted(iteration for verdict, iteration in found if verdict is Verdict.VERIFIED)
