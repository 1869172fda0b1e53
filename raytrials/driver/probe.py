"""The checkpoint as a worker gets it to restore: checked once, and watched.

Ray takes a function trainable for restored before the user's code has loaded anything. So the
driver hands the worker a watched checkpoint: on the way into its `as_directory()` block (or
`to_directory()` call), out of it, and out of it by an exception, the worker leaves a word in the
cluster's key-value store, where it outlives the worker. The driver reads it only after a failure.

A checkpoint on an object store was downloaded when it was checked (`raytrials.driver.check`); the
watched one gives out those files instead of downloading them again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from ray import exceptions
from ray.tune import Checkpoint

from raytrials import _ray

logger = logging.getLogger(__name__)


class Stage(str, Enum):
    """How far the worker said that it got in loading its checkpoint."""

    ENTERED = "entered"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True)
class Word:
    """The last word of the worker about the load of its checkpoint.

    Attributes:
        stage: how far it got.
        exception: name of the class of the exception that ended the load; "" for none.
    """

    stage: Stage
    exception: str = ""


class WatchedCheckpoint(Checkpoint):  # type: ignore[misc]
    """A checkpoint that was handed to a worker to restore.

    One that the user's code makes of it, to report it again, was not, and travels as a plain one.

    Attributes:
        start_iteration: the `training_iteration` that it holds.
    """

    start_iteration = 0
    _is_handed_out = False
    _key: str | None = None
    _depth = 0

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give the files as Ray does; a failure before the block is left is a failed restore."""
        try:
            with self._watched(), super().as_directory() as path:
                yield path
        finally:
            if not os.path.isdir(self.download_path):  # noqa: PTH112 - text is enough
                self.downloaded_mark.unlink(missing_ok=True)

    @property
    def download_path(self) -> str:
        """Where the files are on this machine if the checkpoint is not on a local disk."""
        return _ray.temporary_directory_of(self)

    def remove_earlier_downloads(self) -> None:
        """Delete what earlier attempts of the same trial have downloaded on this machine and left.

        Whoever dies while it loads, or never looks at the files, leaves them.
        """
        own = Path(self.download_path)
        for path in own.parent.glob(f"{own.name[:-8]}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    @property
    def downloaded_mark(self) -> Path:
        """A file that stands while all files are in `download_path`, and were checked."""
        return Path(f"{self.download_path}.checked")

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files as Ray does; a failure in the copy is a failed restore."""
        with self._watched():
            if not self.downloaded_mark.exists():
                return cast("str", super().to_directory(path))
            if path is None:
                return self.download_path
            return str(shutil.copytree(self.download_path, path, dirs_exist_ok=True))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        outermost = self._depth == 0
        self._depth += 1
        try:
            if outermost:
                self._tell(Stage.ENTERED)
            yield
        except BaseException as error:
            if outermost:
                self._tell(Stage.FAILED, type(error).__name__)
            raise
        else:
            if outermost:
                self._tell(Stage.LEFT)
        finally:
            self._depth -= 1

    def _tell(self, stage: Stage, exception: str = "") -> None:
        if self._key is None:
            return
        try:
            _ray.kv_put(self._key, f"{stage.value} {exception}".strip())
        except (exceptions.RayError, RuntimeError, AttributeError):
            # The user's code must not fail because the cluster did not listen.
            logger.warning("Could not tell the driver: checkpoint %s.", stage.value, exc_info=True)

    def __reduce__(self) -> tuple[Any, ...]:
        plain = _plain_class(type(self))
        if not self._is_handed_out:
            return (object.__new__, (plain,), self.__dict__)
        return (_rebuild, (plain, self.__dict__))


def _plain_class(kind: type) -> type:
    """Return `kind` without the watch."""
    return next(base for base in kind.__mro__ if not issubclass(base, WatchedCheckpoint))


@functools.cache
def _watched_class(plain: Any) -> type[WatchedCheckpoint]:
    """Return `plain` with the watch built in; users' own subclasses of `Checkpoint` stay such."""
    if plain is Checkpoint:
        return WatchedCheckpoint
    metaclass = type(plain)
    watched: type[WatchedCheckpoint] = metaclass(plain.__name__, (WatchedCheckpoint, plain), {})
    return watched


def _rebuild(plain: type, state: dict[str, Any]) -> WatchedCheckpoint:
    kind = _watched_class(plain)
    checkpoint = kind.__new__(kind)
    checkpoint.__dict__.update(state)
    return checkpoint


def hand_out(
    checkpoint: Checkpoint, start_iteration: int, owner: str, attempt: int, *, watched: bool
) -> tuple[WatchedCheckpoint, str | None]:
    """Return `checkpoint` as a worker gets it, and the key under which it tells its stage.

    Args:
        checkpoint: what is to be restored.
        start_iteration: the `training_iteration` that it holds.
        owner: names the trial among all of all experiments.
        attempt: which of its attempts restores it.
        watched: whether the worker is to tell how far it got; the key is None otherwise.
    """
    key = f"restore-{uuid.uuid4().hex}" if watched else None
    state = {
        **checkpoint.__dict__,
        # Names the download: that of another trial or attempt is another one, and can be told.
        "_uuid": uuid.UUID(f"{uuid.uuid5(uuid.NAMESPACE_OID, owner).hex[:24]}{attempt:08x}"),
        "_key": key,
        "_is_handed_out": True,
        "start_iteration": start_iteration,
    }
    return _rebuild(_plain_class(type(checkpoint)), state), key


def read(key: str) -> Word | None:
    """Return the worker's last word, None if there is none or the cluster does not answer."""
    word = _quietly(_ray.kv_get, key)
    if word is None:
        return None
    stage, _, exception = word.partition(" ")
    return Word(Stage(stage), exception)


def forget(key: str) -> None:
    """Remove the worker's word."""
    _quietly(_ray.kv_del, key)


def _quietly(operation: Callable[[str], str | None], key: str) -> str | None:
    try:
        return operation(key)
    except (exceptions.RayError, RuntimeError):
        logger.warning("The cluster's key-value store does not answer.", exc_info=True)
        return None
