"""One driver at a time writes an experiment: who does holds its lease.

:func:`acquire` waits for the lease and returns a :class:`Lease`, which its holder renews, most
often through a :class:`LeaseKeeper`. Each lease has a higher epoch than all before it, and what a
driver writes carries its epoch, so that what a displaced one still writes is told apart.

Why two drivers never believe at the same time that they hold it, whatever freezes or fails:

- A holder trusts its lease for `EXPIRY_S` from the moment its last renewal *began*, on its own
  monotonic clock. Another takes it over when the file has not changed for as long after it was
  *seen*, on its own monotonic clock, or when the holder is surely dead. So it trusts less long.
- A renewal that ends later than that looks for a higher epoch after it has written, and one who
  takes over reads the old lease again after writing its own: one of the two sees the other.

The one gap on local disks: Linux stops that clock while a whole machine sleeps. A driver that wakes
trusts its lease until its first renewal, `RENEW_S` later at most.

**Object stores** can do nothing on condition. Two that find the lease free at the same moment both
write; after `SETTLE_S` the one with the lowest nonce marks its own as held and looks once more.
With a store whose listings show all that was written (S3, GCS, Azure) one winner is left at most.
What remains possible: on a store whose listings lag by more than `SETTLE_S`, two that start within
that lag both win. The one with the lower epoch, or the higher nonce, is told so by its first
renewal that lists the other; until then only the epochs in what both write keep them apart, and
those may be equal.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from raytrials.errors import ExperimentLockedError, RaytrialsError
from raytrials.store.clock import Clock
from raytrials.store.disk import Disk, Hold
from raytrials.store.leasefile import (
    Found,
    Record,
    all_epochs_in,
    epochs_in,
    lease_name,
    lock_name,
    newest,
    read,
)
from raytrials.store.process import Process, is_gone
from raytrials.store.retrying import retry
from raytrials.store.tenure import EXPIRY_S, RENEW_S, Lease, LeaseKeeper, Site

__all__ = ["EXPIRY_S", "RENEW_S", "SETTLE_S", "Lease", "LeaseKeeper", "acquire"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

SETTLE_S = 2.0
"""How long a driver on an object store waits for others who found the lease free when it did."""

ACQUIRE_LIMIT_S = 30.0
"""How long the storage may fail while a lease is taken."""


def acquire(  # noqa: PLR0913 - what differs between drivers, machines and tests
    disk: Disk,
    directory: str,
    *,
    clock: Clock,
    identity: Process,
    wait_s: float,
    experiment: str,
    epoch_above: int = 0,
    expiry_s: float = EXPIRY_S,
    gone: Callable[[Process], bool] = is_gone,
) -> Lease:
    """Return the lease of an experiment, taken over from a dead driver if need be.

    A lease that is released, whose process is surely gone or, on a local disk of this machine,
    whose lock is free, is taken over at once; any other when it has not changed for `expiry_s`.

    Args:
        disk: of the experiment.
        directory: of its leases, made if missing.
        clock: to wait by, and to measure by.
        identity: this process.
        wait_s: seconds to wait for a driver that may be alive; with 0 it looks once.
        experiment: for messages.
        epoch_above: an epoch known from elsewhere; the new one is higher.
        expiry_s: see `EXPIRY_S`; all drivers of an experiment must agree on it.
        gone: tells whether the process of a lease is surely gone.

    Raises:
        ExperimentLockedError: another driver has it still.
        NewerFormatError: the other driver is of a newer release.
        StorageError: the storage failed for too long.
    """
    site = Site(disk, directory, clock, experiment, expiry_s)
    contender = _Contender(site, identity, gone)
    contender.storage("making", lambda: _make_directory(disk, directory))
    started_s = clock.monotonic()
    is_told = False
    while True:
        highest, found = contender.look()
        if found is None or contender.is_free(found):
            lease = contender.take(max(highest, epoch_above) + 1, found)
            if lease is not None:
                return lease
        left_s = started_s + wait_s - clock.monotonic()
        if left_s <= 0:
            raise contender.locked(clock.monotonic() - started_s)
        if not is_told:
            is_told = True
            logger.warning("Waiting up to %g s for %s.", wait_s, contender.holder())
        clock.sleep(min(RENEW_S / 5, expiry_s / 6, left_s))


class _Contender:
    """A driver that wants the lease, and what it has seen so far."""

    def __init__(self, site: Site, identity: Process, gone: Callable[[Process], bool]) -> None:
        self._site = site
        self._identity = identity
        self._gone = gone
        self._seen: Found | None = None
        self._seen_s = site.clock.monotonic()  # when it was first seen as it is
        self._looked_s = 0.0  # when it was last asked for
        self._blocked_s: dict[int, float] = {}  # since when another has the lock of an epoch

    def storage(self, what: str, operation: Callable[[], T]) -> T:
        site = self._site
        return retry(site.disk, what, site.directory, operation, limit_s=ACQUIRE_LIMIT_S)

    def look(self) -> tuple[int, Found | None]:
        """Return the highest epoch and the lease that counts, remembered as seen."""
        site = self._site
        self._looked_s = site.clock.monotonic()
        highest, found = self.storage("listing", lambda: newest(site.disk, site.directory))
        if found != self._seen:
            self._seen = found
            self._seen_s = site.clock.monotonic()
        return highest, found

    def is_free(self, found: Found) -> bool:
        """Return whether the lease that was just looked at is released or dead."""
        if self._looked_s - self._seen_s >= self._site.expiry_s:
            return True
        record = found.record
        if record is None:
            return False  # it may be being written
        return record.released or self._gone(record.process) or self._is_unlocked(record)

    def _is_unlocked(self, record: Record) -> bool:
        boot_id = record.process.boot_id
        if record.lock is None or boot_id is None or boot_id != self._identity.boot_id:
            return False  # who holds a lock is known to one kernel
        path = self._site.at(lock_name(record.epoch))
        held = self.storage("asking", lambda: self._site.disk.is_held(path, record.lock))
        return held is False

    def holder(self) -> str:
        """Return in words who has the lease that was seen."""
        record = self._seen.record if self._seen is not None else None
        lease = f"the lease of {self._site.experiment}"
        if record is None:
            return f"{lease}, which cannot be read (yet)"
        return f"{lease}, which process {record.process.pid} on {record.process.host} has"

    def locked(self, waited_s: float) -> ExperimentLockedError:
        """Return the error that names who has the lease."""
        self.look()
        record = self._seen.record if self._seen is not None else None
        if record is not None and record.released:
            record = None  # one who was faster, and has written nothing yet
        return ExperimentLockedError(
            self._site.experiment,
            record.process.host if record is not None else "",
            record.process.pid if record is not None else 0,
            round(self._site.clock.monotonic() - self._seen_s),
            round(waited_s),
        )

    def take(self, epoch: int, before: Found | None) -> Lease | None:
        """Write a lease of a new epoch; return it, or None if another was faster.

        Args:
            epoch: higher than all that were seen.
            before: the lease that was found free.
        """
        now_s = self._site.clock.monotonic()
        # One who locks and then freezes has no lease, and will find itself beaten.
        while now_s - self._blocked_s.get(epoch, now_s) >= self._site.expiry_s:
            epoch += 1
        record = Record(epoch, secrets.token_hex(8), self._identity, lock=None)
        take = self._take_locally if self._site.disk.has_rename else self._take_from_store
        lease = take(record, before)
        if lease is not None:
            try:
                self.storage("clearing", lambda: _clear(self._site, epoch))
            except RaytrialsError as error:
                # They are in nobody's way.
                logger.warning("Older leases of %s stay: %s", self._site.experiment, error)
        return lease

    def _take_locally(self, record: Record, before: Found | None) -> Lease | None:
        site = self._site
        # First the lock: a lease that is seen with its lock free is one of a dead driver.
        taken, hold = self.storage("locking", lambda: self._lock(record.epoch))
        if not taken:
            self._blocked_s.setdefault(record.epoch, site.clock.monotonic())
            return None
        kept = False
        try:
            record = replace(record, lock=hold.place if hold is not None else None)
            began_s = site.clock.monotonic()
            name = lease_name(record.epoch)
            if self.storage("creating", lambda: self._create(name, record)):
                kept = not self.storage("listing", lambda: self._is_beaten(record, name, before))
                if not kept:
                    self.storage("deleting", lambda: site.disk.delete_file(site.at(name)))
            return Lease(site, record, name, hold, began_s) if kept else None
        finally:
            if hold is not None and not kept:
                hold.release()

    def _lock(self, epoch: int) -> tuple[bool, Hold | None]:
        try:
            return True, self._site.disk.hold(self._site.at(lock_name(epoch)))
        except BlockingIOError:
            return False, None

    def _create(self, name: str, record: Record) -> bool:
        try:
            self._site.disk.create_exclusive(self._site.at(name), record.encode())
        except FileExistsError:
            return False
        # An epoch that is used is never given again, whatever the power does.
        self._site.disk.sync(self._site.directory)
        return True

    def _take_from_store(self, record: Record, before: Found | None) -> Lease | None:
        site = self._site
        name = lease_name(record.epoch, record.nonce)
        path = site.at(name)
        waiting = replace(record, held=False)
        self.storage("writing", lambda: site.disk.write(path, waiting.encode()))
        site.clock.sleep(SETTLE_S)
        if not self.storage("listing", lambda: self._is_beaten(waiting, name, before)):
            began_s = site.clock.monotonic()
            record = replace(record, counter=1)
            self.storage("writing", lambda: site.disk.write(path, record.encode()))
            if not self.storage("listing", lambda: self._is_beaten(record, name, before)):
                return Lease(site, record, name, None, began_s)
        self.storage("deleting", lambda: site.disk.delete_file(path))
        return None

    def _is_beaten(self, record: Record, name: str, before: Found | None) -> bool:
        """Return whether another has, or may have, a better claim than a lease just written.

        Of two of the same epoch the lower nonce wins, unless the higher was already held when the
        lower was first able to see it. Each has written before it looks, so they cannot miss each
        other both.
        """
        site = self._site
        epochs = epochs_in(site.disk.list_names(site.directory))
        if any(epoch > record.epoch for epoch in epochs.values()):
            return True
        for other in sorted(epochs):
            if epochs[other] != record.epoch or other == name:
                continue
            if other < name:
                return True
            found = read(site.disk, site.directory, other)
            if not record.held and found is not None and (not found.record or found.record.held):
                return True
        return before is not None and site.moved(before)


def _make_directory(disk: Disk, directory: str) -> None:
    disk.make_directory(directory)
    disk.sync(directory.rpartition("/")[0] or "/")


def _clear(site: Site, epoch: int) -> None:
    """Delete what older leases left."""
    names = all_epochs_in(site.disk.list_names(site.directory))
    for name in sorted(name for name, older in names.items() if older < epoch):
        site.disk.delete_file(site.at(name))
