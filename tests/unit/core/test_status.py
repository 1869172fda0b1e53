"""The statuses of a trial, and the sets that everybody goes by."""

from raytrials.core.status import Status


def test_a_status_is_runnable_running_or_finished() -> None:
    assert {"pending", "scheduled", "paused", "interrupted"} == Status.RUNNABLE
    assert {"succeeded", "failed", "aborted"} == Status.FINISHED
    assert set(Status) == Status.RUNNABLE | Status.FINISHED | {Status.RUNNING}
    assert len(Status) == len(Status.RUNNABLE) + len(Status.FINISHED) + 1


def test_a_status_is_its_own_text() -> None:
    assert str(Status.PENDING) == "pending"
    assert Status("failed") is Status.FAILED
