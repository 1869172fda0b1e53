"""What time mends is tried again; what it does not, is not."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pyarrow as pa
import pytest
from support.disks import Clock

from raytrials.chaos.disk import FakeLocal
from raytrials.errors import StorageError
from raytrials.store import retrying
from raytrials.store.retrying import kind_of, retry


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retrying, "time", clock)
    return clock


class Renewable(FakeLocal):
    """A disk whose credentials can be renewed so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def refresh(self) -> bool:
        self.left -= 1
        return self.left >= 0


def failing(errors: list[Exception]) -> Callable[[], str]:
    def operation() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    return operation


def test_what_passes_by_itself_is_outlasted(clock: Clock) -> None:
    errors: list[Exception] = [ConnectionResetError(), TimeoutError(), OSError("503"), EOFError()]
    assert retry(FakeLocal(), "writing", "/x", failing(errors), limit_s=10) == "done"
    assert clock.slept == [0.1, 0.2, 0.4, 0.8]


def test_waits_grow_to_five_seconds_and_end_within_the_limit(clock: Clock) -> None:
    with pytest.raises(StorageError) as caught:
        retry(FakeLocal(), "writing", "/x", failing([TimeoutError("slow")] * 99), limit_s=60)
    assert (caught.value.operation, caught.value.path) == ("writing", "/x")
    assert caught.value.kind == "unavailable"
    assert caught.value.detail == "TimeoutError: slow"
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert max(clock.slept) == 5.0
    assert 55 <= clock.now_s <= 60


def test_the_limit_counts_from_the_first_failure(clock: Clock) -> None:
    def operation() -> str:
        if clock.now_s < 100:
            clock.now_s += 100
            raise TimeoutError
        return "done"

    assert retry(FakeLocal(), "writing", "/x", operation, limit_s=1) == "done"


def test_without_time_it_is_tried_once(clock: Clock) -> None:
    errors: list[Exception] = [TimeoutError()] * 2
    with pytest.raises(StorageError):
        retry(FakeLocal(), "writing", "/x", failing(errors), limit_s=0)
    assert len(errors) == 1
    assert clock.slept == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "no space"), "full"),
        (OSError(errno.EDQUOT, "quota"), "full"),
        (RuntimeError("Quota exceeded"), "full"),
        (OSError(errno.EROFS, "read only"), "forbidden"),
        (PermissionError("no"), "forbidden"),
        (OSError("AWS Error ACCESS_DENIED during PutObject operation"), "forbidden"),
        (RuntimeError("The provided token has expired"), "forbidden"),
        (FileNotFoundError("/x"), "refused"),
        (FileNotFoundError(errno.ENOENT, "none"), "refused"),
        (FileExistsError("/x"), "refused"),
        (IsADirectoryError("/x"), "refused"),
        (NotADirectoryError("/x"), "refused"),
        (OSError(errno.ENAMETOOLONG, "long"), "refused"),
        (pa.ArrowInvalid("bad"), "refused"),
        (pa.ArrowNotImplementedError("none"), "refused"),
        (KeyError("x"), "refused"),
    ],
    ids=repr,
)
def test_what_time_does_not_mend_fails_at_once(error: Exception, kind: str, clock: Clock) -> None:
    with pytest.raises(StorageError) as caught:
        retry(FakeLocal(), "writing", "/y", failing([error]), limit_s=60)
    assert caught.value.kind == kind
    assert clock.slept == []


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "io"), OSError("Slow down"), ConnectionError(), RuntimeError("closed")],
    ids=repr,
)
def test_anything_else_may_pass(error: Exception) -> None:
    assert kind_of(error) == "unavailable"


@pytest.mark.parametrize("name", ["signature.pb", "quota.csv", "Expired"])
def test_words_of_the_path_say_nothing(name: str) -> None:
    path = f"bucket/trial/{name}"
    assert kind_of(OSError(f"connection reset by peer: {path}"), path) == "unavailable"


def test_credentials_are_renewed_once(clock: Clock) -> None:
    disk = Renewable(9)
    assert retry(disk, "writing", "/x", failing([PermissionError()]), limit_s=60) == "done"
    assert clock.slept == []
    with pytest.raises(StorageError, match="forbidden"):
        retry(disk, "writing", "/x", failing([PermissionError()] * 2), limit_s=60)
    assert disk.left == 7


def test_credentials_that_cannot_be_renewed_are_believed_at_once(clock: Clock) -> None:
    with pytest.raises(StorageError, match="forbidden"):
        retry(Renewable(0), "writing", "/x", failing([PermissionError()]), limit_s=60)
    assert clock.slept == []


def test_a_storage_error_from_within_stays_as_it_is(clock: Clock) -> None:
    inner = StorageError("commit", "/x", "refused", "it is there")
    with pytest.raises(StorageError) as caught:
        retry(FakeLocal(), "writing", "/x", failing([inner]), limit_s=60)
    assert caught.value is inner
