"""The status of a trial."""

from __future__ import annotations

from typing import ClassVar

from raytrials.core.word import Word


class Status(Word):
    """Where a trial is in its life.

    Attributes:
        RUNNABLE: may be started.
        FINISHED: has ended; only a resume brings it back.
    """

    PENDING = "pending"
    """Has no runner."""
    SCHEDULED = "scheduled"
    """Has a runner, and has not started on it."""
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    """Came to its end, or was stopped on its merits; Ray's TERMINATED."""
    ABORTED = "aborted"
    """Was stopped by order; Ray's TERMINATED."""
    FAILED = "failed"
    """Ended with an error; Ray's ERROR."""
    INTERRUPTED = "interrupted"
    """Was running when its driver went."""

    RUNNABLE: ClassVar[frozenset[Status]]
    FINISHED: ClassVar[frozenset[Status]]


Status.RUNNABLE = frozenset({Status.PENDING, Status.SCHEDULED, Status.PAUSED, Status.INTERRUPTED})
Status.FINISHED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.ABORTED})
