"""The thread that makes the journal durable."""

from __future__ import annotations

import logging
import threading
import time

from raytrials.errors import StorageError
from raytrials.store.journal import Journal

logger = logging.getLogger(__name__)

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0


class Pump(threading.Thread):
    """Makes a journal's events durable, together those that come together.

    At once if something waits for them; otherwise when the oldest is so many seconds old. When the
    storage fails it tries again, with backoff from 0.1 to 5 s; when there is nothing to do it does
    nothing. It does not keep the process from ending.

    Args:
        journal: whose.
        interval_s: how long an event may wait that nothing waits for.
    """

    def __init__(self, journal: Journal, interval_s: float) -> None:
        super().__init__(name="raytrials-journal", daemon=True)
        self._journal = journal
        self._interval_s = interval_s
        self._closing = False

    def run(self) -> None:
        """Work until :meth:`close`."""
        wait_s = 0.0
        changed = self._journal.changed
        while True:
            with changed:
                if wait_s:
                    changed.wait_for(lambda: self._closing, wait_s)
                while not self._closing and not self._is_due():
                    changed.wait(self._due_in_s())
                if self._closing:
                    return
            before = self._journal.durable_seq
            try:
                self._journal.sync()
                # What may not be written yet stays due; what came during the sync does not wait.
                is_stuck = self._journal.durable_seq == before and self._is_due()
                wait_s = FIRST_WAIT_S if is_stuck else 0.0
            except StorageError as error:
                wait_s = min(LONGEST_WAIT_S, max(FIRST_WAIT_S, 2 * wait_s))
                logger.warning("The journal is tried again in %.1f s: %s", wait_s, error)
            except Exception:
                wait_s = LONGEST_WAIT_S
                logger.exception("The journal is tried again in %.1f s.", wait_s)

    def _is_due(self) -> bool:
        journal = self._journal
        return journal.is_urgent or (journal.is_pending and journal.lag_s >= self._interval_s)

    def _due_in_s(self) -> float | None:
        if not self._journal.is_pending:
            return None
        return max(0.001, self._interval_s - self._journal.lag_s)

    def close(self, timeout_s: float) -> bool:
        """Make all durable that is there, and end.

        Args:
            timeout_s: how long the storage may take.

        Returns:
            Whether all is durable.
        """
        until_s = time.monotonic() + timeout_s
        done = self._journal.wait_durable(timeout_s)
        self.abandon()
        self.join(max(FIRST_WAIT_S, until_s - time.monotonic()))
        self._journal.close()
        return done

    def abandon(self) -> None:
        """End without writing anything more."""
        with self._journal.changed:
            self._closing = True
            self._journal.changed.notify_all()
