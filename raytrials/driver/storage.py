"""Where a worker saves: Ray's storage context with commits in the place of copies.

A :class:`TrialStorage` travels to the worker inside Ray's own calls. For function and class
trainables alike Ray hands it every checkpoint, with the report that it belongs to; what it leaves
on storage is committed by `raytrials.store.commit` or is no checkpoint at all.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow.fs
from ray.tune import Checkpoint

from raytrials import _ray, settings
from raytrials.driver.account import without_config
from raytrials.errors import StorageError
from raytrials.store.checkpoint import REMOVED, STAGING
from raytrials.store.commit import commit
from raytrials.store.disk import Disk
from raytrials.store.location import disk_of
from raytrials.store.manifest import Header
from raytrials.store.retrying import kind_of, retry

_CHECKPOINT = f"checkpoint_{'[0-9]' * 6}"
NOT_SYNCED = (_CHECKPOINT, f"{_CHECKPOINT}*/*", f"{STAGING}*", f"{REMOVED}*")
"""What the syncing of artifacts leaves alone; patterns of `fnmatch` on paths below the trial."""


@dataclass(frozen=True)
class Attempt:
    """What a worker has to know of the attempt that it runs, to name and sign its checkpoints.

    Attributes:
        experiment: id of the experiment.
        trial: id of the trial.
        number: of the attempt.
        epoch: lease epoch of the driver, 0 without a lease.
        fsync: whether saves are forced to the disk.
        retry_s: how long a storage that does not answer is tried again.
    """

    experiment: str
    trial: str
    number: int
    epoch: int = 0
    fsync: bool = dataclasses.field(default_factory=settings.CHECKPOINT_FSYNC.get)
    retry_s: float = dataclasses.field(default_factory=settings.STORAGE_RETRY_S.get)


class TrialStorage(_ray.StorageContext):  # type: ignore[misc]
    """Ray's storage context of one trial, whose saves are commits.

    Attributes:
        attempt: whose checkpoints are saved; set by the driver for each attempt.
    """

    attempt: Attempt
    _metrics: Mapping[str, Any] = {}
    _start_iteration: int | None = None
    _reports_before: int = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in a worker."""
        self.__dict__.update(state)
        # When its actor is used again for another trial, Ray's session does not count anew.
        self._reports_before, _ = _ray.session_iteration()

    @classmethod
    def of(cls, storage: _ray.StorageContext) -> TrialStorage:
        """Return a copy of Ray's storage context that is one of ours."""
        own = copy.copy(storage)
        own.__class__ = cls
        own.syncer = _ray.FilesystemSyncer(
            storage_filesystem=storage.storage_filesystem,
            sync_period=storage.sync_config.sync_period,
            sync_timeout=storage.sync_config.sync_timeout,
        )
        return cast("TrialStorage", own)

    def plain(self) -> _ray.StorageContext:
        """Return a copy that Ray can read where raytrials is not installed."""
        plain = copy.copy(self)
        for name in ("attempt", "_metrics", "_start_iteration", "_reports_before"):
            plain.__dict__.pop(name, None)
        plain.__class__ = _ray.StorageContext
        return plain

    @property
    def disk(self) -> Disk:
        """The port to the storage."""
        return disk_of(self.storage_filesystem, fsync=self.attempt.fsync)

    def _create_validation_file(self) -> None:
        marker = _ray.validation_file_of(self)

        def once() -> None:
            try:
                super(TrialStorage, self)._create_validation_file()
            except Exception:  # noqa: BLE001 - whatever a filesystem raises
                # Some stores take no empty files, and Ray's marker is one.
                with self.storage_filesystem.open_output_stream(marker) as stream:
                    stream.write(b"\n")

        disk = disk_of(self.storage_filesystem)
        retry(disk, "writing", marker, once, limit_s=settings.STORAGE_RETRY_S.get())

    def _update_checkpoint_index(self, metrics: dict[str, Any]) -> None:
        super()._update_checkpoint_index(metrics)
        self._metrics = metrics

    def persist_current_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """Commit a checkpoint under the current index.

        Raises:
            StorageError: the storage failed for good; nothing was committed.
            SourceChangedError: its files changed while they were copied.
        """
        disk = self.disk
        self._check_reachable(disk)
        iteration = self._iteration()
        header = Header(
            experiment=self.attempt.experiment,
            trial=self.attempt.trial,
            attempt=self.attempt.number,
            epoch=self.attempt.epoch,
            index=self.current_checkpoint_index,
            iteration=iteration,
            time=time.time(),
            metrics={**without_config(self._metrics), "training_iteration": iteration},
        )
        commit(
            disk,
            self.trial_fs_path,
            header,
            (disk_of(checkpoint.filesystem), checkpoint.path),
            retry_s=self.attempt.retry_s,
        )
        return type(checkpoint)(filesystem=self.storage_filesystem, path=self.checkpoint_fs_path)

    def _check_reachable(self, disk: Disk) -> None:
        """Raise a StorageError if this machine does not see the driver's storage."""
        marker = _ray.validation_file_of(self)
        found = retry(
            disk,
            "looking",
            marker,
            lambda: self.storage_filesystem.get_file_info(marker),
            limit_s=self.attempt.retry_s,
        )
        if found.type != pyarrow.fs.FileType.NotFound:
            return
        experiment = self.experiment_fs_path
        if not retry(
            disk,
            "listing",
            experiment,
            lambda: disk.list_names(experiment),
            limit_s=self.attempt.retry_s,
        ):
            detail = (
                "This node does not see the experiment that the driver sees. The storage path must "
                "be one that all nodes share: an object store, or a filesystem mounted everywhere."
            )
            raise StorageError("reaching", experiment, "absent", detail)

    def _iteration(self) -> int:
        """Return the `training_iteration` of what is saved.

        A class trainable has it in its report. The report of a function trainable gets it later, in
        another thread: it is where the attempt started plus what was reported here since then.
        """
        given = self._metrics.get("training_iteration")
        if isinstance(given, int):
            return given
        reports, loaded = _ray.session_iteration()
        if self._start_iteration is None:
            self._start_iteration = getattr(loaded, "start_iteration", 0)
        return self._start_iteration + reports - self._reports_before

    def persist_artifacts(self, force: bool = False) -> None:  # noqa: FBT001, FBT002 - Ray's
        """Upload the trial's artifacts as Ray does, but nothing that looks like a checkpoint."""
        directory = self.trial_working_directory
        if not self.sync_config.sync_artifacts or not any(os.scandir(directory)):
            return
        upload = self.syncer.sync_up if force else self.syncer.sync_up_if_needed
        try:
            if force:
                self.syncer.wait()
            upload(local_dir=directory, remote_dir=self.trial_fs_path, exclude=list(NOT_SYNCED))
            if force:
                self.syncer.wait()
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            raise StorageError(
                "uploading artifacts", self.trial_fs_path, kind_of(error), detail
            ) from error
