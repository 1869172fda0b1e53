"""Holding an experiment: its lease, taken for as long as something is done to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from raytrials.store.clock import SystemClock
from raytrials.store.disk import Disk
from raytrials.store.lease import LeaseKeeper, acquire
from raytrials.store.process import this_process
from raytrials.store.recovery import HOME, LEASE, highest_epoch
from raytrials.store.tenure import Lease

LOCKED_S = 60.0
"""How long a driver that may be alive is waited for."""


@contextlib.contextmanager
def holding(disk: Disk, path: str, *, retry_s: float) -> Iterator[Lease]:
    """Hold the lease of an experiment while the block runs, and let the next driver have it then.

    Args:
        disk: where the experiment is.
        path: its directory; it need not exist.
        retry_s: how long a storage that fails is tried again.

    Raises:
        ExperimentLockedError: another driver has it, and did not let go in `LOCKED_S`.
        NewerFormatError: the other driver is of a newer release.
        StorageError: the storage failed for too long.
    """
    home = f"{path}/{HOME}"
    lease = acquire(
        disk,
        f"{home}/{LEASE}",
        clock=SystemClock(),
        identity=this_process(),
        wait_s=LOCKED_S,
        experiment=path,
        epoch_above=highest_epoch(disk, home, retry_s=retry_s),
    )
    keeper = LeaseKeeper(lease)
    try:
        yield lease
    finally:
        keeper.close()
        lease.release()
