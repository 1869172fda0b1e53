"""Deleting checkpoints: late enough, in the background, and never the last whole one."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

from raytrials import _ray, settings
from raytrials.core.retention import Retired, due
from raytrials.driver.background import Background
from raytrials.errors import IllegalEventError
from raytrials.store.checkpoint import REMOVED, STAGING, Verdict, delete, index_in, inspect
from raytrials.store.disk import Disk
from raytrials.store.fence import FencedDisk
from raytrials.store.location import disk_of
from raytrials.store.manifest import MANIFEST
from raytrials.store.mirror import Mirror
from raytrials.store.sweep import LEAST_AGE_S, sweep

logger = logging.getLogger(__name__)

AwaitDurable = Callable[[int, Callable[[], object]], object]
"""Takes the number of an event, and what to call when it is durable."""

UPLOAD_RETRY_S = 3.0
"""How long one upload of the driver's files tries again; the next one follows soon."""


class StateSyncer(_ray.FilesystemSyncer):  # type: ignore[misc]
    """The upload of the driver's files, in Ray's thread and at Ray's times.

    Ray's own writes over the state that is there: half of it would be left by a full disk.

    Args:
        storage: of the experiment.
        check: asked before each change of the storage; raises what keeps it from being made.

    Attributes:
        written: number of the newest state that the driver has written for upload.
        durable: number of the newest state that is on storage, whole.
        writing: held while the driver writes its state.
        is_last: whether there is no later upload to make up for this one.
    """

    def __init__(
        self, storage: _ray.StorageContext, check: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(
            storage_filesystem=storage.storage_filesystem,
            sync_period=storage.sync_config.sync_period,
            sync_timeout=storage.sync_config.sync_timeout,
        )
        self.written = 0
        self.durable = 0
        self.writing = threading.Lock()
        self.is_last = False
        filesystem = storage.storage_filesystem
        self._mirror = Mirror(
            FencedDisk(disk_of(filesystem), check),
            FencedDisk(disk_of(filesystem, fsync=False), check),
        )

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle as Ray's own syncer: what is left behind needs no raytrials."""
        own = ("written", "durable", "writing", "is_last", "_mirror")
        state = {name: value for name, value in self.__getstate__().items() if name not in own}
        return (object.__new__, (_ray.FilesystemSyncer,), state)

    def _sync_up_command(
        self,
        local_path: str,
        uri: str,
        exclude: list[str] | None = None,  # noqa: ARG002 - Ray's
    ) -> tuple[Callable[..., None], dict[str, Any]]:
        retry_s = settings.STORAGE_RETRY_S.get()

        def upload() -> None:
            number = self.written
            self._mirror.run(
                local_path,
                uri,
                retry_s=min(retry_s, self.sync_timeout if self.is_last else UPLOAD_RETRY_S),
                writing=self.writing,
            )
            self.durable = max(self.durable, number)

        return upload, {}


@dataclass(frozen=True)
class _Job:
    """One deletion: of what, where, which checkpoints of the trial stay, and who is told first.

    `forget` records the deletion, and returns the number of the event that has to be durable.
    """

    retired: Retired
    disk: Disk
    kept: Callable[[], Sequence[str]]
    forget: Callable[[], int]


@dataclass(frozen=True)
class Leftovers:
    """What earlier attempts of a trial may have left half done.

    Attributes:
        disk: where.
        filesystem: the same.
        directory: the trial's.
        below: the first index of the attempt that begins; its own names are not looked at.
        spared: names of checkpoints that are none, though they have no manifest.
        all_dead: whether every earlier attempt is known to be dead; otherwise what changed in the
            last hour is left alone.
        retry_s: how long a storage that does not answer is tried again.
    """

    disk: Disk
    filesystem: Any
    directory: str
    below: int
    spared: frozenset[str]
    all_dead: bool
    retry_s: float

    def sweep(self) -> None:
        """Delete them. Whatever fails is left for `raytrials verify --sweep`."""
        try:
            for name in sorted(self._names()):
                index = index_in(name)
                if index is not None and index < self.below:
                    sweep(
                        self.disk,
                        self.filesystem,
                        f"{self.directory}/{name}",
                        retry_s=self.retry_s,
                        least_age_s=0 if self.all_dead else LEAST_AGE_S,
                    )
        except Exception:
            logger.warning("Could not sweep %s.", self.directory, exc_info=True)

    def _names(self) -> set[str]:
        names = self.disk.list_names(self.directory)
        if self.disk.has_rename:
            # What is called a checkpoint there was one once: without a manifest it is damaged.
            return {name for name in names if name.startswith((STAGING, REMOVED))}
        files = [name.split("/") for name in self.disk.list_files(self.directory)]
        committed = {parts[0] for parts in files if parts[1:] == [MANIFEST]}
        return {parts[0] for parts in files if len(parts) > 1} - committed - self.spared


class Retention:
    """The deletion of retired checkpoints.

    Args:
        syncer: knows which state is on storage.
        in_use: returns the paths that some trial is restored from, or may be.
        unverified: paths of checkpoints that have no manifest and count as whole.
        await_durable: calls back when an event of the journal is durable.
        check: asked before each deletion; raises what keeps it from being made.
    """

    def __init__(
        self,
        syncer: StateSyncer,
        in_use: Callable[[], set[str]],
        unverified: Collection[str] = (),
        await_durable: AwaitDurable = lambda _, then: then(),
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._syncer = syncer
        self._in_use = in_use
        self._unverified = unverified
        self._await_durable = await_durable
        self._check = check
        self._committed: dict[str, int] = {}
        self._waiting: dict[str, _Job] = {}
        self._running: dict[Future[None], _Job] = {}
        self._next_s = 0.0
        self._is_closed = False
        self._background = Background("raytrials-delete")

    def committed(self, path: str) -> None:
        """Note that a checkpoint was committed: no state that was written before names it."""
        self._committed[path] = self._syncer.written

    def retire(
        self,
        path: str,
        disk: Disk,
        kept: Callable[[], Sequence[str]],
        forget: Callable[[], int] = lambda: 0,
    ) -> None:
        """Delete a checkpoint once nothing asks for it.

        Args:
            path: of its directory.
            disk: where it is.
            kept: returns the paths of the trial's checkpoints that stay, the newest last.
            forget: records the deletion, and returns the number of the event that has to be durable
                before it, 0 for none.
        """
        written = self._syncer.written
        since = -1 if self._committed.pop(path, None) == written else written
        self._waiting[path] = _Job(Retired(path, since), disk, kept, forget)

    def forget(self, paths: Collection[str]) -> None:
        """Let go of what is noted of checkpoints: should one be deleted, it is a little later."""
        for path in paths:
            self._committed.pop(path, None)

    def sweep(self, leftovers: Leftovers) -> None:
        """Delete what earlier attempts of a trial left half done."""
        fenced = FencedDisk(leftovers.disk, self._check)
        self._background.submit(replace(leftovers, disk=fenced).sweep)

    def tick(self) -> None:
        """Start what is due. Never waits; looking at the trials takes 5 % of the time at most."""
        if time.monotonic() >= self._next_s:
            # Its own time: on a busy machine it must not wait for what others cost it.
            begun_s = time.thread_time()
            self.start()
            self._next_s = time.monotonic() + 19 * (time.thread_time() - begun_s)

    def start(self) -> None:
        """Start what is due."""
        self._collect()
        if not self._waiting:
            return
        in_use = self._in_use() & self._waiting.keys()
        for path in in_use:
            # States that are written while another trial is on it name it too.
            job = self._waiting[path]
            since = replace(job.retired, since=self._syncer.written)
            self._waiting[path] = replace(job, retired=since)
        retired = [job.retired for job in self._waiting.values()]
        if all(one.since >= self._syncer.durable for one in retired):
            return
        for one in due(retired, self._syncer.durable, in_use):
            job = self._waiting.pop(one.path)
            try:
                seq = job.forget()
            except IllegalEventError as error:
                logger.warning("The checkpoint %s stays: %s", one.path, error)
                continue
            self._await_durable(seq, functools.partial(self._submit, job))

    def _submit(self, job: _Job) -> None:
        if not self._is_closed:
            self._running[self._background.submit(self._delete, job, job.kept())] = job

    def finish(self, timeout_s: float) -> None:
        """Delete what may go, and wait for it so long."""
        self.start()
        wait(self._running, timeout_s)
        self._collect()

    def close(self, timeout_s: float) -> None:
        """Wait for what runs so long, and start nothing more."""
        self._is_closed = True
        if not self._background.close(timeout_s):
            logger.warning("Checkpoints that may go stay: the storage did not answer in time.")

    def _collect(self) -> None:
        for future, job in [one for one in self._running.items() if one[0].done()]:
            del self._running[future]
            error = future.exception()
            if error is not None:
                # It is tried again after the next state; at worst it is a leftover.
                logger.warning("Could not delete the checkpoint %s: %s", job.retired.path, error)
                self.retire(job.retired.path, job.disk, job.kept, job.forget)

    def _delete(self, job: _Job, kept: Sequence[str]) -> None:
        if not any(self._is_whole(job.disk, path) for path in reversed(kept)):
            raise RuntimeError("no other checkpoint of its trial is whole")
        delete(FencedDisk(job.disk, self._check), job.retired.path)

    def _is_whole(self, disk: Disk, path: str) -> bool:
        if path in self._unverified:
            return True
        return inspect(disk, path, full=False).verdict is Verdict.VERIFIED
