"""Which checkpoints may be deleted.

A checkpoint that `CheckpointConfig` has put out is *retired*. It goes when nothing that could still
ask for it is left: neither the saved state that a next driver would read, nor another trial.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Retired:
    """A checkpoint that is to be deleted.

    Attributes:
        path: of its directory.
        since: the number of the last state that was written before it was retired, or while another
            trial was last seen on it; that state may name it, later ones do not.
    """

    path: str
    since: int


def due(retired: Iterable[Retired], durable: int, in_use: Collection[str]) -> list[Retired]:
    """Return what may be deleted now, in the order in which it was retired.

    Args:
        retired: what is to go some time.
        durable: the number of the newest state that is on storage, whole.
        in_use: paths that some trial is restored from, or may be.
    """
    return [one for one in retired if durable > one.since and one.path not in in_use]
