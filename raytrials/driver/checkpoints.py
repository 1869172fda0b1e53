"""What the driver does with checkpoints: name, choose, take over, retire.

:class:`Checkpoints` serves all trials of one `fit()`. What has to survive the driver it keeps in
the trials' accounts; the truth about a checkpoint is its manifest on storage.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from ray.tune import Checkpoint

from raytrials import _ray, settings
from raytrials.core.fault import Cause, Charge, Fault, FaultClass, Phase
from raytrials.driver import recording
from raytrials.driver.recording import relative_path
from raytrials.driver.retention import Leftovers
from raytrials.driver.trial import Trial
from raytrials.errors import NoCheckpointError
from raytrials.store.catalogue import highest_index, indices, newer, older
from raytrials.store.checkpoint import Finding, Verdict, inspect
from raytrials.store.disk import Disk
from raytrials.store.location import disk_of
from raytrials.store.manifest import MANIFEST, Manifest, checkpoint_name, index_of
from raytrials.store.retrying import retry

logger = logging.getLogger(__name__)

T = TypeVar("T")

GAP = 2
"""How many names are left free after an attempt that did not end cleanly.

Its worker may outlive every error that Ray reports, and commit what it is saving and no more.
"""

DRIVER_RETRY_S = 1.0
"""How long the driver waits for a storage that does not answer; the loop waits with it."""


class Checkpoints:
    """The checkpoints of an experiment, as its driver sees them."""

    def __init__(self) -> None:
        self._verification = settings.VERIFY.get()
        self.unverified: set[str] = set()
        self._told: set[str] = set()
        # What a driver before found bad may have been repaired: this is what this one has seen.
        self._rejected: dict[str, str] = {}

    def restored(self, trials: Sequence[Trial]) -> None:
        """Note what restored trials say of their checkpoints.

        An experiment that was moved keeps its checkpoints where it is now, also those that a trial
        has of another one, and those of vanilla Ray have no manifest.
        """
        for trial in trials:
            trial.account.may_be_alive |= not trial.account.ended_cleanly
            if trial.account.unverified and not trial.account.attempt:
                names = _names_without_manifest(trial)
            else:
                names = _made_by_vanilla(trial)
            trial.account.unverified = sorted(names | set(trial.account.unverified))
        homes = {trial.storage.trial_dir_name for trial in trials}
        for trial in trials:
            directory = trial.storage.trial_fs_path
            self.unverified |= {f"{directory}/{name}" for name in trial.account.unverified}
            for result in {
                id(one): one
                for one in (*_ray.registered_checkpoints(trial), trial.latest_checkpoint_result)
                if one is not None
            }.values():
                home, name = result.checkpoint.path.split("/")[-2:]
                if home in homes and index_of(name) is not None:
                    result.checkpoint = Checkpoint(
                        f"{trial.storage.experiment_fs_path}/{home}/{name}",
                        filesystem=trial.storage.storage_filesystem,
                    )
            trial.invalidate_json_state()

    # --- names -----------------------------------------------------------------------------------

    def name_attempt(self, trial: Trial) -> None:
        """Give the attempt that begins names of its own, above all that were ever given.

        The worker counts on from there. On an object store a trial's first attempt is not looked
        for on storage: a commit refuses a name that is taken.
        """
        account, storage = trial.account, trial.storage
        first = max(account.next_index, storage.current_checkpoint_index + 1)
        if account.attempt > 1 or storage.disk.has_rename:
            first = max(first, 1 + self._highest_index(trial))
        if not account.ended_cleanly:
            first += GAP
        account.ended_cleanly = False
        account.next_index = trial.first_index = first
        storage.current_checkpoint_index = first - 1
        trial.sign_attempt()

    def _highest_index(self, trial: Trial) -> int:
        try:
            return highest_index(trial.storage.disk, trial.storage.trial_fs_path)
        except Exception:
            logger.warning("Could not list the checkpoints of trial %s.", trial, exc_info=True)
            return -1

    def leftovers(self, trial: Trial) -> Leftovers:
        """Return what the attempts before the present one may have left half done."""
        storage, account = trial.storage, trial.account
        return Leftovers(
            disk=storage.disk,
            filesystem=storage.storage_filesystem,
            directory=storage.trial_fs_path,
            below=trial.first_index,
            spared=frozenset({*account.unverified, *account.bad, *map(_name, trial.kept_paths())}),
            all_dead=not account.may_be_alive and not trial.open_charges,
            retry_s=storage.attempt.retry_s,
        )

    # --- choice ----------------------------------------------------------------------------------

    def choose(self, trial: Trial) -> Any:
        """Return what to restore a trial from: a result with a checkpoint, None if it has none.

        It is the latest on record, or the next older one that is whole; those that are not are
        charged to themselves, once, and stay where they are.

        Raises:
            NoCheckpointError: the trial had checkpoints, and none is whole.
            StorageError: the storage does not answer.
        """
        problems: dict[str, str] = {}
        while (latest := trial.latest_checkpoint_result) is not None:
            problem, cause = self._problem(trial, latest.checkpoint)
            if not problem:
                return latest
            problems[_name(latest.checkpoint.path)] = problem
            self.reject(trial, latest.checkpoint, problem, cause)
        if not problems and trial.account.bad and not trial.account.restarted:
            problems = dict(trial.account.bad)  # all of them were found bad before
        if not problems:
            return None
        if settings.RESTART_WITHOUT_CHECKPOINT.get():
            logger.warning("Trial %s has no whole checkpoint left and starts anew.", trial)
            trial.account.restarted = True
            return None
        listed = tuple(f"{name}: {problem}" for name, problem in problems.items())
        raise NoCheckpointError(trial.trial_id, listed)

    def _problem(self, trial: Trial, checkpoint: Checkpoint) -> tuple[str, Cause]:
        path = checkpoint.path
        known = self._rejected.get(path)
        if known is not None:
            return known, Cause.CHECKPOINT_CORRUPT
        if self._verification == "off":
            return "", Cause.CHECKPOINT_CORRUPT
        finding = self._look(checkpoint)
        if finding.verdict is Verdict.MISSING:
            return finding.problem, Cause.CHECKPOINT_MISSING
        if finding.verdict is Verdict.INCOMPLETE and self._is_foreign(trial, path):
            if path not in self._told:
                self._told.add(path)
                logger.warning("The checkpoint %s has no manifest: it cannot be verified.", path)
            return "", Cause.CHECKPOINT_CORRUPT
        return finding.problem or _owner_problem(trial, path, finding), Cause.CHECKPOINT_CORRUPT

    def _look(self, checkpoint: Checkpoint) -> Finding:
        disk = disk_of(checkpoint.filesystem)
        return self._read(disk, checkpoint.path, lambda: inspect(disk, checkpoint.path, full=False))

    def is_verifiable(self, trial: Trial, checkpoint: Checkpoint) -> bool:
        """Whether the worker is to read every byte of a checkpoint before it is used."""
        return self._verification == "full" and not (
            self._is_foreign(trial, checkpoint.path)
            and self._look(checkpoint).verdict is Verdict.INCOMPLETE
        )

    def _is_foreign(self, trial: Trial, path: str) -> bool:
        """Whether a checkpoint was not made by raytrials: vanilla's, or from elsewhere."""
        inside = path.startswith(f"{trial.storage.experiment_fs_path}/")
        return not inside or path in self.unverified

    def charge(self, trial: Trial, checkpoint: Checkpoint, problem: str, cause: Cause) -> None:
        """Charge a bad checkpoint to itself, once. It stays where it is, and is not used again.

        A next driver looks at it again, and charges it only if something else is wrong with it.
        """
        key = relative_path(trial, checkpoint.path)
        self._rejected[checkpoint.path] = problem
        if trial.account.bad.get(key) == problem:
            return
        trial.account.bad[key] = problem
        recording.marked_bad(trial, key, problem)
        fault = Fault(
            trial_id=trial.trial_id,
            attempt=trial.account.attempt,
            fault_class=FaultClass.RESTORE,
            phase=Phase.RESTORING,
            cause=cause,
            node_id=None,
            detail=f"{key}: {problem}",
            time=time.time(),
        )
        trial.book_free(
            fault, Charge.CHECKPOINT, f"{cause}, charged to {key}: an older one is used"
        )
        logger.error("Trial %s: the checkpoint %s is not used: %s.", trial, key, problem)

    def mark(self, trial: Trial, problem: str) -> None:
        """Note that the trial's latest checkpoint could not be restored, and is not to be again."""
        if trial.checkpoint is not None:
            key = relative_path(trial, trial.checkpoint.path)
            if key not in trial.account.bad:
                recording.marked_bad(trial, key, problem)
            trial.account.bad.setdefault(key, problem)
            self._rejected.setdefault(trial.checkpoint.path, problem)

    def reject(self, trial: Trial, checkpoint: Checkpoint, problem: str, cause: Cause) -> None:
        """Charge a bad checkpoint, and make the next older one the trial's latest."""
        self.charge(trial, checkpoint, problem, cause)
        older = self._next_older(trial, checkpoint) or self._newest_own(trial)
        kept = [
            result
            for result in _ray.registered_checkpoints(trial)
            if result.checkpoint.path != checkpoint.path
        ]
        _ray.set_checkpoints(trial, kept, older)
        trial.invalidate_json_state()

    def _next_older(self, trial: Trial, checkpoint: Checkpoint) -> Any:
        """Return the result of the next older checkpoint beside `checkpoint`, None if none is.

        On record, or on storage alone.
        """
        directory, _, name = checkpoint.path.rpartition("/")
        than = index_of(name)
        if than is None:
            return None
        candidates = {
            index_of(_name(result.checkpoint.path)): result
            for result in _ray.registered_checkpoints(trial)
            if result.checkpoint.path.rpartition("/")[0] == directory
        }
        found = self._newest_below(checkpoint.filesystem, directory, than)
        if found is not None:
            candidates.setdefault(index_of(_name(found.checkpoint.path)), found)
        best = max((one for one in candidates if one is not None and one < than), default=None)
        return candidates[best] if best is not None else None

    def _newest_own(self, trial: Trial) -> Any:
        """Return the result of the trial's own newest checkpoint that nothing is known against.

        For a trial that has taken another one's, of which none is left.
        """
        storage = trial.storage
        return self._newest_below(
            storage.storage_filesystem, storage.trial_fs_path, sys.maxsize, self._rejected
        )

    def _newest_below(
        self, filesystem: Any, directory: str, than: int, skipped: Collection[str] = ()
    ) -> Any:
        """Return the result of the newest checkpoint on storage with a lower index, None if none.

        Without a manifest that can be read there is nothing to go on from.
        """
        disk = disk_of(filesystem)

        def look() -> Any:
            for name, finding in older(disk, directory, than):
                path = f"{directory}/{name}"
                if finding.manifest is not None and path not in skipped:
                    found = Checkpoint(path, filesystem=filesystem)
                    return _result_of(found, finding.manifest)
            return None

        return self._read(disk, directory, look)

    @staticmethod
    def _read(disk: Disk, path: str, operation: Callable[[], T]) -> T:
        return retry(disk, "reading", path, operation, limit_s=DRIVER_RETRY_S)

    # --- what no driver has seen -----------------------------------------------------------------

    def unseen(self, trial: Trial) -> list[tuple[Any, int]]:
        """Return results with whole checkpoints that the trial's record does not know, in order.

        Each with the attempt that made it.

        A worker can commit one, and die or lose its driver before the driver hears of it.
        """
        account = trial.account
        if not account.attempt or account.ended_cleanly:
            return []
        directory = trial.storage.trial_fs_path
        known = [_name(one.checkpoint.path) for one in _ray.registered_checkpoints(trial)]
        latest = trial.checkpoint
        if latest is not None and latest.path.startswith(f"{directory}/"):
            known.append(_name(latest.path))
        newest = max((index_of(name) or 0 for name in known), default=-1)
        disk = trial.storage.disk
        found = []
        for name, finding in self._read(
            disk, directory, lambda: list(newer(disk, directory, newest))
        ):
            checkpoint = Checkpoint(
                f"{directory}/{name}", filesystem=trial.storage.storage_filesystem
            )
            if checkpoint.path in self._rejected:
                continue
            problem = finding.problem or _owner_problem(trial, checkpoint.path, finding)
            if problem or finding.manifest is None:
                self.charge(trial, checkpoint, problem, Cause.CHECKPOINT_CORRUPT)
            elif finding.manifest.header.attempt >= account.adopts_from:
                if account.bad.pop(name, ""):
                    recording.marked_bad(trial, name, "")  # somebody has mended it
                attempt = finding.manifest.header.attempt
                found.append((_result_of(checkpoint, finding.manifest), attempt))
        return found

    def put_out(self, trial: Trial) -> list[str]:
        """Return the paths of checkpoints that were put out and not deleted.

        Those that a trial with a `num_to_keep` has on storage alone, older than its newest: a
        driver before had no time for it. Of a trial that takes another one's checkpoint, all that
        it has on storage alone: an exploit may come between a commit and its registration.
        """
        known = {_name(one.checkpoint.path) for one in _ray.registered_checkpoints(trial)}
        if _ray.num_to_keep(trial) is None or not known:
            return []
        newest = max(index_of(name) or 0 for name in known)
        if trial.exploits():
            newest = max(newest, trial.first_index)
        on_storage = indices(trial.storage.disk, trial.storage.trial_fs_path)
        names = {checkpoint_name(one) for one in on_storage if one < newest}
        names -= known | set(trial.account.bad)
        paths = [f"{trial.storage.trial_fs_path}/{name}" for name in sorted(names)]
        return [path for path in paths if self._is_committed(trial, path)]

    def _is_committed(self, trial: Trial, path: str) -> bool:
        """Whether raytrials committed a checkpoint for a trial; leftovers and bad ones stay."""
        found = self._look(Checkpoint(path, filesystem=trial.storage.storage_filesystem))
        return found.verdict is Verdict.VERIFIED and not _owner_problem(trial, path, found)


def _owner_problem(trial: Trial, path: str, finding: Finding) -> str:
    """Return whose checkpoint stands in the trial's directory, "" if it is the trial's own."""
    if finding.manifest is None or not path.startswith(f"{trial.storage.trial_fs_path}/"):
        return ""
    owner = finding.manifest.header.trial
    return "" if owner == trial.trial_id else f"it belongs to trial {owner}"


def _result_of(checkpoint: Checkpoint, manifest: Manifest) -> Any:
    metrics = {**manifest.header.metrics, "checkpoint_dir_name": _name(checkpoint.path)}
    return _ray.TrainingResult(checkpoint=checkpoint, metrics=metrics)


def _made_by_vanilla(trial: Trial) -> set[str]:
    """Return the names of checkpoints that vanilla Ray made when it continued our experiment.

    It registers them, and does not reserve their indices in the account.
    """
    names = {_name(one.checkpoint.path) for one in _ray.registered_checkpoints(trial)}
    first = trial.account.next_index if trial.account.attempt else 0
    return {name for name in names if (index_of(name) or 0) >= first}


def _names_without_manifest(trial: Trial) -> set[str]:
    """Return the names of all checkpoints in a trial's directory that have no manifest."""
    disk, directory = trial.storage.disk, trial.storage.trial_fs_path
    return {
        name
        for name in disk.list_names(directory)
        if index_of(name) is not None and MANIFEST not in disk.list_files(f"{directory}/{name}")
    }


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
