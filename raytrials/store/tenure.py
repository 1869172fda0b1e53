"""A lease in its holder's hands: renewing it, trusting it, letting it go.

How one comes to hold it, and why only one does, is in :mod:`raytrials.store.lease`.
"""

from __future__ import annotations

import errno
import logging
import threading
from dataclasses import dataclass, replace

from raytrials.errors import (
    LeaseExpiredError,
    LeaseLostError,
    NewerFormatError,
    RaytrialsError,
    StorageError,
)
from raytrials.store.clock import Clock
from raytrials.store.disk import Disk, Hold
from raytrials.store.leasefile import Found, Record, epochs_in, newest, partial_name, read
from raytrials.store.retrying import retry

logger = logging.getLogger(__name__)

EXPIRY_S = 30.0
"""Without a renewal for so long a lease is dead."""

RENEW_S = 5.0
"""How often a holder renews."""

RENEW_LIMIT_S = 2.0
"""How long a renewal that fails is tried again before the next one has to do."""


@dataclass(frozen=True)
class Site:
    """Where the leases of an experiment are, and what is the same for all of them."""

    disk: Disk
    directory: str
    clock: Clock
    experiment: str
    expiry_s: float

    def at(self, name: str) -> str:
        """Return the path of a file there."""
        return f"{self.directory}/{name}"

    def moved(self, found: Found) -> bool:
        """Return whether a lease is not any more what it was when it was read."""
        now = read(self.disk, self.directory, found.name)
        return now is not None and now.data != found.data


class Lease:
    """The right to write an experiment, until it is released or lost.

    The methods may be called from any thread. :func:`acquire` makes it.

    Attributes:
        epoch: of this lease; what its holder writes carries it.
        error: what the storage said to the latest renewal, None if it took it.
    """

    def __init__(
        self, site: Site, record: Record, name: str, hold: Hold | None, began_s: float
    ) -> None:
        self.epoch = record.epoch
        self.error: StorageError | None = None
        self._site = site
        self._record = record
        self._name = name
        self._hold = hold
        self._renewed_s = began_s
        self._lost: LeaseLostError | None = None
        self._released = False
        self._writing = threading.Lock()

    def renew(self) -> None:
        """Show that this driver is alive. Does nothing once the lease is released.

        Raises:
            LeaseLostError: another driver has taken over; nothing was written, nor will be.
            StorageError: the storage failed for `RENEW_LIMIT_S`; to be tried again.
        """
        with self._writing:
            if self._lost is not None:
                raise self._lost
            if self._released:
                return
            began_s = self._site.clock.monotonic()
            record = replace(self._record, counter=self._record.counter + 1)
            try:
                self._write("renewing", record)
            except LeaseLostError as error:
                self._lost = error
                raise
            except StorageError as error:
                self.error = error
                raise
            self.error = None
            self._record = record
            self._renewed_s = began_s

    def is_valid(self) -> bool:
        """Return whether this driver may start, write and commit now."""
        return self._lost is None and not self._released and self._idle_s() < self._site.expiry_s

    @property
    def is_lost(self) -> bool:
        """Whether another driver has taken over, as far as is known."""
        return self._lost is not None

    def check(self) -> None:
        """Do nothing if the lease is valid.

        Raises:
            LeaseLostError: it is lost for good, or released.
            LeaseExpiredError: it was not renewed for too long, which may still come back.
        """
        if self._lost is not None:
            raise self._lost
        if self._released:
            raise LeaseLostError(self._site.experiment, self.epoch, 0, "", 0)
        if not self.is_valid():
            raise LeaseExpiredError(self._site.experiment, self.epoch, round(self._idle_s()))

    def release(self) -> None:
        """Let the next driver start at once. Never raises for a storage or a lease that is lost."""
        # A renewal that hangs must not keep the driver from ending.
        owned = self._writing.acquire(timeout=RENEW_LIMIT_S)
        try:
            if self._released:
                return
            self._released = True
            if self._lost is None and owned:
                last = replace(self._record, counter=self._record.counter + 1, released=True)
                self._write("releasing", last)
        except RaytrialsError as error:
            logger.warning("Lease of %s not released: %s", self._site.experiment, error)
        finally:
            if owned:
                self._writing.release()
            self._let_go()

    def _let_go(self) -> None:
        if self._hold is not None:
            try:
                self._hold.release()
            except OSError as error:
                # The system does it when this process ends.
                logger.warning("Lock of %s not released: %s", self._site.experiment, error)

    def _idle_s(self) -> float:
        return self._site.clock.monotonic() - self._renewed_s

    def _write(self, what: str, record: Record) -> None:
        site, path = self._site, self._site.at(self._name)
        retry(site.disk, what, path, lambda: self._put(record), limit_s=RENEW_LIMIT_S)

    def _put(self, record: Record) -> None:
        """Write the lease anew if it is still this driver's."""
        self._require_ours()
        site = self._site
        path = site.at(self._name)
        if site.disk.has_rename:
            try:
                self._replace(record, path)
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                # A disk that is full has no room for a second file.
                site.disk.overwrite(path, record.encode())
        else:
            site.disk.write(path, record.encode())
        if self._idle_s() >= site.expiry_s:
            self._require_ours()  # another may have judged by what was there before

    def _replace(self, record: Record, path: str) -> None:
        # Not by `create`, which would wait for the disk: a renewal need not survive the power.
        disk = self._site.disk
        partial = self._site.at(partial_name(record.epoch, record.nonce))
        disk.delete_file(partial)
        try:
            appender = disk.append(partial)
            try:
                appender.write(memoryview(record.encode()))
            finally:
                appender.close()
            disk.replace(partial, path)
        except FileNotFoundError:
            self._require_ours()  # who took over has cleared it
            raise
        except OSError:
            disk.delete_file(partial)
            raise

    def _require_ours(self) -> None:
        site = self._site
        epochs = epochs_in(site.disk.list_names(site.directory))
        highest = max(epochs.values(), default=0)
        if highest > self.epoch:
            try:
                raise self._lost_to(newest(site.disk, site.directory)[1], highest)
            except NewerFormatError:
                raise self._lost_to(None, highest) from None
        ours = read(site.disk, site.directory, self._name)
        if ours is None:
            raise self._lost_to(None)
        if ours.record is not None and ours.record.nonce != self._record.nonce:
            raise self._lost_to(ours, self.epoch)
        for name in sorted(name for name, epoch in epochs.items() if epoch == self.epoch):
            if name < self._name:  # of a store whose listing came late
                other = read(site.disk, site.directory, name)
                if other is not None and other.record is not None and other.record.held:
                    raise self._lost_to(other, self.epoch)

    def _lost_to(self, found: Found | None, epoch: int = 0) -> LeaseLostError:
        process = found.record.process if found is not None and found.record is not None else None
        return LeaseLostError(
            self._site.experiment,
            self.epoch,
            epoch,
            process.host if process is not None else "",
            process.pid if process is not None else 0,
        )


class LeaseKeeper:
    """Renews a lease from a thread of its own, which never keeps the interpreter from ending.

    Args:
        lease: to renew, from now until :meth:`close`, or until it is lost.
        renew_s: seconds from one renewal to the next.
    """

    def __init__(self, lease: Lease, *, renew_s: float = RENEW_S) -> None:
        self._lease = lease
        self._renew_s = renew_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raytrials-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(self._renew_s):
            try:
                self._lease.renew()
            except LeaseLostError:
                return  # the lease knows
            except Exception as error:  # noqa: BLE001 - whatever it is, the next renewal may work
                logger.warning("Lease not renewed, trying again in %g s: %s", self._renew_s, error)

    def close(self) -> None:
        """Stop renewing. Does not wait for a storage that hangs; leaves the lease as it is."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join(RENEW_LIMIT_S)
