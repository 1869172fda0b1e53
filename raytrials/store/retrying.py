"""Storage operations that outlast a storage's bad moments.

:func:`retry` runs one operation until it works, until its error is one that time does not mend, or
until its time is up. Whatever ends it is a :class:`raytrials.errors.StorageError`.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from raytrials.errors import RaytrialsError, StorageError
from raytrials.store.disk import Disk

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL_WORDS = ("no space left", "quota")
_FORBIDDEN_WORDS = (
    "access_denied",
    "accessdenied",
    "access denied",
    "forbidden",
    "expired",
    "expiredtoken",
    "http status 403",
    "invalid_access_key",
    "invalidaccesskeyid",
    "signature",
    "unauthorized",
    "invalid_client_token",
)
_MISSING_WORDS = ("no_such_bucket", "nosuchbucket", "bucket does not exist")
_LASTING = {
    errno.EEXIST,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
}
_LASTING_TYPES = (
    # As `_LASTING`: fsspec's filesystems raise these without a number.
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    # A mistake in the call, or in the filesystem's code.
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    ValueError,
)


def kind_of(error: BaseException, path: str = "") -> str:
    """Return what ails the storage: `full`, `forbidden`, `refused` or `unavailable`.

    Only the last may pass by itself. Clients of object stores tell by text alone; words that are in
    the path, which most errors name, say nothing.
    """
    code = error.errno if isinstance(error, OSError) else None
    text = str(error).lower()

    def says(words: tuple[str, ...]) -> bool:
        return any(word in text and word not in path.lower() for word in words)

    if code in _FULL:
        return "full"
    if code in _FORBIDDEN or isinstance(error, PermissionError):
        return "forbidden"
    if code in _LASTING or isinstance(error, _LASTING_TYPES):
        return "refused"
    if says(_FULL_WORDS):
        return "full"
    if says(_FORBIDDEN_WORDS):
        return "forbidden"
    return "refused" if says(_MISSING_WORDS) else "unavailable"


def retry(
    disk: Disk,
    what: str,
    path: str,
    operation: Callable[[], T],
    *,
    limit_s: float,
) -> T:
    """Return what `operation` returns, trying again while the storage may come back.

    Between tries it waits 0.1 s, doubling to 5 s. Credentials that the disk can renew are renewed
    once before a "forbidden" is believed.

    Args:
        disk: where it works.
        what: the operation in words, for messages.
        path: where it works.
        operation: can be run again from its beginning.
        limit_s: seconds from the first failure after which it gives up.

    Raises:
        StorageError: it failed for good.
    """
    refreshed = False
    wait_s = FIRST_WAIT_S
    until_s: float | None = None
    while True:
        try:
            return operation()
        except RaytrialsError:
            raise
        except Exception as error:
            kind = kind_of(error, path)
            if kind == "forbidden" and not refreshed and disk.refresh():
                refreshed = True
                continue
            until_s = until_s or time.monotonic() + limit_s
            if kind != "unavailable" or time.monotonic() + wait_s > until_s:
                raise StorageError(what, path, kind, f"{type(error).__name__}: {error}") from error
            logger.warning("Storage: %s of %s failed, trying again: %s", what, path, error)
            time.sleep(wait_s)
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
