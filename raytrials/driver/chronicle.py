"""The chronicle of a running experiment: its journal, and what that comes to.

Everything that must survive the driver goes through :meth:`Chronicle.record`. The state changes by
nothing else, so what a recovery finds is what the driver knew. What must not be done before an
event is durable waits for it here, and the loop does not.
"""

from __future__ import annotations

import functools
import logging
import posixpath
import time
from collections.abc import Callable, Mapping

from raytrials import settings
from raytrials.core.event import DriverDetached, Event, Record
from raytrials.core.fold import apply
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.driver.background import Background
from raytrials.errors import LeaseExpiredError, LeaseLostError, StorageError
from raytrials.store import snapshot as snapshots
from raytrials.store.clock import Clock, SystemClock
from raytrials.store.disk import Disk
from raytrials.store.fence import FencedDisk
from raytrials.store.journal import Journal, open_journal
from raytrials.store.merging import merge
from raytrials.store.pump import Pump
from raytrials.store.recovery import (
    HOME,
    JOURNAL,
    SNAPSHOTS,
    Recovered,
    has_journal,
    recover,
)
from raytrials.store.segment import Reading
from raytrials.store.snapshot import Snapshot, SnapshotName
from raytrials.store.tenure import Lease

logger = logging.getLogger(__name__)

_LASTING = {"forbidden", "refused"}
"""Kinds of storage errors that time does not mend. A full disk may be emptied."""

_LEVELS = 2
"""How many directories above an experiment's may be as new as it is."""

CLOSE_S = 30.0
"""How long the last events may take to become durable when the driver goes."""


class Chronicle:
    """The journal of an experiment with what it comes to.

    Args:
        disk: where the experiment is.
        experiment_path: its directory there.
        lease: of this driver. Nothing is written when it is not valid.
        clock: gives events their time.
        in_background: whether a thread makes events durable. Without one :meth:`tick` does, which
            makes every operation on the disk happen at a moment that a test can choose.

    Attributes:
        state: what the events come to. Nobody but the journal changes it.
    """

    def __init__(
        self,
        disk: Disk,
        experiment_path: str,
        lease: Lease,
        *,
        clock: Clock | None = None,
        in_background: bool = True,
    ) -> None:
        self.state = ExperimentState()
        self._disk = FencedDisk(disk, lease.check)
        self._lease = lease
        self._home = f"{experiment_path}/{HOME}"
        self._clock = clock or SystemClock()
        self._in_background = in_background
        self._journal: Journal | None = None
        self._pump: Pump | None = None
        self._writer: Background | None = None
        self._interval_s = 0.0
        self._durable_seq = 0
        self._snapshot_seq = 0
        self._snapshot_s = 0.0
        self._snapshot_cost_s = 0.0
        self._is_writing = False
        self._has_given_up = False

    # --- beginning and end -----------------------------------------------------------------------

    def has_events(self) -> bool:
        """Return whether there is a journal to go on with. Raises StorageError."""
        return has_journal(self._disk, self._home, retry_s=settings.STORAGE_RETRY_S.get())

    def recover(self) -> Recovered:
        """Return what the drivers before have left, and go on from there.

        Raises:
            JournalCorruptError: events are lost that nothing else holds; nothing is written.
            NewerFormatError: it was written by a newer release.
            StorageError: the storage failed for good.
        """
        recovered = recover(self._disk, self._home, retry_s=settings.STORAGE_RETRY_S.get())
        self.state = recovered.state
        for damage in recovered.damage:
            logger.warning("Damaged, and not needed: %s", damage)
        return recovered

    def records(self) -> list[Record]:
        """Return all events that are on storage.

        Raises:
            JournalCorruptError: some are lost.
            StorageError: the storage failed for good.
        """
        retry_s = settings.STORAGE_RETRY_S.get()
        return list(Reading(self._disk, f"{self._home}/{JOURNAL}", retry_s=retry_s))

    def write_first(self, parts: Mapping[str, bytes]) -> None:
        """Write the snapshot that a new experiment begins with. Raises StorageError."""
        self._secure_directories()
        snapshot = Snapshot(ExperimentState(), parts)
        self._write(snapshot.name, snapshot.encode())

    def open(self) -> None:
        """Begin to write. Raises StorageError."""
        self._secure_directories()
        self._journal = open_journal(
            self._disk,
            f"{self._home}/{JOURNAL}",
            epoch=self._lease.epoch,
            seq=self.state.seq,
            clock=self._clock,
            accept=functools.partial(apply, self.state),
            may_write=self._lease.is_valid,
        )
        self._durable_seq = self._snapshot_seq = self.state.seq
        self._snapshot_s = self._clock.monotonic()
        interval = settings.FSYNC_S if self._disk.has_rename else settings.FLUSH_S
        self._interval_s = interval.get()
        if self._in_background:
            self._pump = Pump(self._journal, self._interval_s)
            self._pump.start()
            self._writer = Background("raytrials-snapshot")

    def _secure_directories(self) -> None:
        """Make the experiment's own directory durable: Ray makes it, and syncs nothing."""
        above = posixpath.dirname(self._home)
        for _ in range(_LEVELS):
            above = posixpath.dirname(above)
            try:
                self._disk.sync(above or "/")
            except OSError as error:
                logger.debug("%s cannot be synced: %s", above, error)

    @property
    def is_open(self) -> bool:
        """Whether events are taken."""
        return self._journal is not None

    def close(self, reason: str, timeout_s: float = CLOSE_S) -> bool:
        """Record that the driver goes, make all durable, and end.

        Args:
            reason: in words.
            timeout_s: how long the storage may take for it.

        Returns:
            Whether all is durable.
        """
        journal, self._journal = self._journal, None
        if journal is None:
            return True
        if self._has_given_up or self._lease.is_lost:
            if self._pump is not None:
                self._pump.abandon()
            return False
        if self.state.is_attached:
            journal.append(DriverDetached(reason))
        if self._pump is None:
            journal.sync()
            journal.close()
            return True
        until_s = time.monotonic() + timeout_s
        done = self._pump.close(timeout_s)
        if done and self._writer is not None:
            self._writer.close(max(0.0, until_s - time.monotonic()))
        if not done:
            logger.error(
                "The last %d events of the journal are not on storage.",
                journal.seq - journal.durable_seq,
            )
        return done

    # --- while it runs ---------------------------------------------------------------------------

    def record(self, event: Event) -> int:
        """Record that something happened; return the event's number.

        After :meth:`close` nothing is recorded any more: what happens then is the clean-up.

        Raises:
            IllegalEventError: it cannot follow what was recorded before: a mistake in raytrials.
        """
        return self._journal.append(event).seq if self._journal is not None else 0

    def trial(self, trial_id: str) -> TrialRecord:
        """Return what is known of a trial."""
        return self.state.trials[trial_id]

    def is_durable(self, seq: int) -> bool:
        """Return whether an event survived the machine when :meth:`tick` last looked.

        The same for all who ask in between: what was recorded first goes on first.
        """
        return self._journal is None or self._durable_seq >= seq

    def await_durable(self, seq: int, then: Callable[[], object] = lambda: None) -> None:
        """Have an event made durable at once, and `then` called by :meth:`tick` when it is."""
        if self._journal is None:
            then()
        else:
            self._journal.await_durable(seq, then)

    def settle(self, timeout_s: float = CLOSE_S) -> bool:
        """Wait until everything recorded is durable; return whether it is."""
        if self._journal is None:
            return True
        if self._has_given_up or self._lease.is_lost:
            return False
        if self._pump is None:
            self._journal.sync()
            return True
        return self._journal.wait_durable(timeout_s)

    def require_durable(self) -> None:
        """Wait until everything recorded is durable. Raises StorageError if it is not then."""
        if not self.settle():
            detail = f"it did not take the journal in {CLOSE_S:.0f} s"
            raise StorageError("writing", self._home, "unavailable", detail)

    @property
    def is_awaited(self) -> bool:
        """Whether something waits for an event that is not durable."""
        return self._journal is not None and self._journal.is_urgent

    def tick(self, parts: Callable[[], Mapping[str, bytes]]) -> None:
        """Go on with what waited for durable events; take a snapshot when it is time.

        Args:
            parts: gives what belongs into a snapshot beside the state.

        Raises:
            LeaseLostError: another driver has the experiment.
            StorageError: something waits, and the storage does not take the journal any more for a
                reason that does not pass. What can pass is waited for.
        """
        journal = self._journal
        if journal is None:
            return
        self._require_lease()
        if self._pump is None:
            self._sync_if_due(journal)
        journal.tick()
        self._durable_seq = journal.durable_seq
        self._give_up_if_refused(journal)
        if not self._is_writing and snapshots.is_due(
            journal.seq - self._snapshot_seq,
            self._clock.monotonic() - self._snapshot_s,
            self._snapshot_cost_s,
        ):
            # Its own time: on a busy machine it must not become rarer for what others cost it.
            begun_s = time.thread_time()
            self.take_snapshot(parts())
            self._snapshot_cost_s = time.thread_time() - begun_s

    def _require_lease(self) -> None:
        """Do nothing while the lease is this driver's, or may be again."""
        if self._has_given_up:
            return
        try:
            self._lease.check()
        except LeaseExpiredError:
            pass  # what waits for the journal waits for this too
        except LeaseLostError:
            self._has_given_up = True
            raise

    def _give_up_if_refused(self, journal: Journal) -> None:
        # Nothing is written while the lease is in doubt; then its renewals tell of the storage.
        error = journal.error if self._lease.is_valid() else self._lease.error
        if self._has_given_up or error is None:
            return
        if error.kind not in _LASTING or not journal.is_urgent:
            return
        if journal.lag_s > settings.STORAGE_RETRY_S.get():
            self._has_given_up = True
            raise error

    def _sync_if_due(self, journal: Journal) -> None:
        """Do what the thread does where there is none."""
        if journal.is_urgent or (journal.is_pending and journal.lag_s >= self._interval_s):
            try:
                journal.sync()
            except StorageError as error:
                logger.warning("The journal is tried again: %s", error)

    def take_snapshot(self, parts: Mapping[str, bytes], *, at_once: bool = False) -> None:
        """Write what there is now as a snapshot, when all events in it are durable.

        Args:
            parts: what belongs into it beside the state.
            at_once: wait for it. Raises StorageError then.
        """
        journal = self._journal
        if journal is None:
            return
        snapshot = Snapshot(self.state, parts)
        name, data = snapshot.name, snapshot.encode()
        self._snapshot_seq = journal.seq
        self._snapshot_s = self._clock.monotonic()
        if at_once:
            self.require_durable()
            self._write(name, data)
            return
        self._is_writing = True
        journal.await_durable(name.seq, functools.partial(self._submit, name, data))

    def _submit(self, name: SnapshotName, data: bytes) -> None:
        if self._writer is None:
            self._write_quietly(name, data)
        else:
            self._writer.submit(self._write_quietly, name, data)

    def _write_quietly(self, name: SnapshotName, data: bytes) -> None:
        try:
            self._write(name, data)
        except Exception:
            # The journal has everything: a recovery reads more of it.
            logger.warning("Could not write the snapshot %s.", name, exc_info=True)
        finally:
            self._is_writing = False

    def _write(self, name: SnapshotName, data: bytes) -> None:
        retry_s = settings.STORAGE_RETRY_S.get()
        directory = f"{self._home}/{SNAPSHOTS}"
        snapshots.write(self._disk, directory, name, data, retry_s=retry_s)
        if not self._disk.has_rename and name.seq:
            merge(
                self._disk,
                f"{self._home}/{JOURNAL}",
                epoch=name.epoch,
                seq=name.seq,
                retry_s=retry_s,
            )
