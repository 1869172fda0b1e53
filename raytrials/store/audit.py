"""Which checkpoints of an experiment are whole.

:func:`verify` reads an experiment's directory, or a part of it, where Ray is not installed. What
it says of one checkpoint is what :func:`raytrials.store.checkpoint.inspect` says.
"""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.fs

from raytrials import settings
from raytrials.errors import (
    ConfigurationError,
    MissingFilesystemError,
    StorageError,
)
from raytrials.store.checkpoint import REMOVED, STAGING, Finding, Verdict, inspect
from raytrials.store.copying import THREADS
from raytrials.store.disk import Disk
from raytrials.store.location import disk_of, resolve
from raytrials.store.retrying import kind_of
from raytrials.store.saved import SavedTrial
from raytrials.store.scope import Scope, on
from raytrials.store.sweep import Outcome, Swept, sweep

SHOWN = (
    Verdict.VERIFIED,
    Verdict.UNVERIFIED,
    Verdict.CORRUPT,
    Verdict.MISSING,
    Verdict.INCOMPLETE,
)
"""The verdicts that an audit gives."""

_WANTED = "the path or URI of an experiment, a trial or a checkpoint"


@dataclass(frozen=True)
class AuditedCheckpoint:
    """One checkpoint, or what is left of one.

    Attributes:
        name: of its directory.
        verdict: verified; unverified (made without raytrials, so nothing tells whether it is
            whole); corrupt (not what was committed); missing (gone, though the saved state of its
            trial names it); incomplete (never committed, or half deleted).
        problem: what is wrong with it; "" if nothing is.
        iteration: the `training_iteration` that it holds; None without a readable manifest.
        size_bytes: of its files; None without a readable manifest.
        swept: what the sweep did with it; None unless it is a leftover and one was asked for.
    """

    name: str
    verdict: Verdict
    problem: str = ""
    iteration: int | None = None
    size_bytes: int | None = None
    swept: Swept | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "name": self.name,
            "verdict": str(self.verdict),
            "problem": self.problem,
            "iteration": self.iteration,
            "size_bytes": self.size_bytes,
            "swept": self.swept and self.swept.to_json(),
        }


@dataclass(frozen=True)
class AuditedTrial:
    """The checkpoints of one trial.

    Attributes:
        directory: name of the trial's directory.
        trial_id: the trial, None where no saved state tells.
        checkpoints: in the order of their names.
    """

    directory: str
    trial_id: str | None
    checkpoints: tuple[AuditedCheckpoint, ...]

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """How many checkpoints have each verdict."""
        return _count(self.checkpoints)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "directory": self.directory,
            "trial_id": self.trial_id,
            "checkpoints": [checkpoint.to_json() for checkpoint in self.checkpoints],
        }


@dataclass(frozen=True)
class Audit:
    """What :func:`verify` found.

    Attributes:
        path: as it was given.
        full: whether digests were compared, or only names and sizes.
        trials: in the order of their directories' names.
    """

    path: str
    full: bool
    trials: tuple[AuditedTrial, ...]

    @property
    def ok(self) -> bool:
        """Whether no committed checkpoint is corrupt or missing."""
        return self.counts[Verdict.CORRUPT] == self.counts[Verdict.MISSING] == 0

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """How many checkpoints have each verdict."""
        return _count([checkpoint for trial in self.trials for checkpoint in trial.checkpoints])

    @property
    def swept(self) -> Mapping[Outcome, int]:
        """How many leftovers the sweep removed, kept and failed to remove."""
        found = Counter(
            checkpoint.swept.outcome
            for trial in self.trials
            for checkpoint in trial.checkpoints
            if checkpoint.swept is not None
        )
        return {outcome: found[outcome] for outcome in Outcome}

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "path": self.path,
            "full": self.full,
            "ok": self.ok,
            "counts": {str(verdict): count for verdict, count in self.counts.items()},
            "swept": {str(outcome): count for outcome, count in self.swept.items()},
            "trials": [trial.to_json() for trial in self.trials],
        }


def _count(checkpoints: Sequence[AuditedCheckpoint]) -> Mapping[Verdict, int]:
    found = Counter(checkpoint.verdict for checkpoint in checkpoints)
    return {verdict: found[verdict] for verdict in SHOWN}


def verify(
    path: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    full: bool = False,
    sweep: bool = False,
) -> Audit:
    """Say of each checkpoint of an experiment whether it is whole. Needs no Ray.

    Args:
        path: of an experiment, of one of its trials or of one checkpoint: a local path, a URI, or
            a URL of fsspec whose package is installed.
        filesystem: of pyarrow or fsspec; then `path` is one on it.
        full: read every file and compare digests; otherwise manifests, names and sizes.
        sweep: delete what interrupted attempts left behind, if it is older than one hour.

    Raises:
        NotAnExperimentError: there is none.
        ConfigurationError: nobody knows the URI's scheme, or `filesystem` is none.
        MissingFilesystemError: the package for the URI's scheme is not installed.
        StorageError: the storage cannot be read. What it failed to delete is told in the result.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError("path", path, _WANTED)
    location = os.fspath(path)
    found, root = _open(location, filesystem)
    disk = disk_of(found)
    scope = Scope.find(disk, found, location, root)
    saved = scope.read_saved(disk)
    auditor = _Auditor(disk, found if sweep else None, full, scope, saved)
    trials = auditor.audit()
    if auditor.missing:
        _refuse_unreadable(auditor.missing, Scope.find(disk, found, location, root))
    if _gone(trials, saved, scope):
        # A driver that runs deletes what its newer state no longer names.
        saved = scope.read_saved(disk)
    return Audit(location, full, _with_gone(trials, _gone(trials, saved, scope)))


def _gone(
    trials: Sequence[AuditedTrial], saved: Mapping[str, SavedTrial], scope: Scope
) -> dict[str, set[str]]:
    """Return the checkpoints that the saved state names and the storage lacks, by directory."""
    found = {one.directory: {each.name for each in one.checkpoints} for one in trials}
    return {
        directory: gone
        for directory, trial in saved.items()
        if scope.covers(directory)
        if (gone := set(trial.registered) - found.get(directory, set()))
    }


def _with_gone(
    trials: Sequence[AuditedTrial], gone: Mapping[str, set[str]]
) -> tuple[AuditedTrial, ...]:
    audited = {trial.directory: trial for trial in trials}
    for directory, names in gone.items():
        trial = audited.get(directory, AuditedTrial(directory, None, ()))
        problem = "the saved state of its trial names it, and nothing is there"
        lost = [AuditedCheckpoint(name, Verdict.MISSING, problem) for name in names]
        both = sorted((*trial.checkpoints, *lost), key=lambda one: one.name)
        audited[directory] = replace(trial, checkpoints=tuple(both))
    return tuple(audited[directory] for directory in sorted(audited))


def _refuse_unreadable(missing: Sequence[tuple[str, str]], scope: Scope) -> None:
    """Raise unless what was missing was deleted meanwhile: else it would pass for good."""
    for trial, name in missing:
        if name in scope.trials.get(trial, ()):
            path = posixpath.join(scope.experiment, trial, name)
            raise StorageError("verifying", path, "refused", "It is listed, and nothing is in it.")


def _open(location: str, filesystem: Any) -> tuple[pyarrow.fs.FileSystem, str]:
    if not location:
        raise ConfigurationError("path", location, _WANTED)
    try:
        if filesystem is None and "://" not in location:
            # Names count: of a link, those that it leads to.
            location = str(Path(location).expanduser().resolve())
        found, path = resolve(location, filesystem)
    except ImportError as error:
        raise MissingFilesystemError(location, str(error)) from error
    except TypeError as error:
        raise ConfigurationError(
            "filesystem", filesystem, "a filesystem of pyarrow or fsspec, or None"
        ) from error
    except ValueError as error:
        raise ConfigurationError("path", location, f"{_WANTED} ({error})") from error
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        raise StorageError("opening", location, kind_of(error), detail) from error
    return found, path.rstrip("/") or path


@dataclass(frozen=True)
class _Auditor:
    disk: Disk
    sweeping: pyarrow.fs.FileSystem | None
    full: bool
    scope: Scope
    saved: Mapping[str, SavedTrial]
    missing: list[tuple[str, str]] = field(default_factory=list)

    def audit(self) -> tuple[AuditedTrial, ...]:
        trials: dict[str, list[AuditedCheckpoint]] = {
            name: [] for name in sorted(self.scope.trials)
        }
        pairs = [(trial, name) for trial in trials for name in sorted(self.scope.trials[trial])]
        # A full look reads the files of one checkpoint in parallel, a quick one many checkpoints.
        with ThreadPoolExecutor(1 if self.full else THREADS) as pool:
            found = pool.map(lambda pair: self._checkpoint(*pair), pairs)
            for (trial, name), checkpoint in zip(pairs, found, strict=True):
                if checkpoint is None:
                    self.missing.append((trial, name))
                else:
                    trials[trial].append(checkpoint)
        return tuple(
            AuditedTrial(trial, self._trial_id(trial), tuple(checkpoints))
            for trial, checkpoints in trials.items()
        )

    def _trial_id(self, directory: str) -> str | None:
        saved = self.saved.get(directory)
        return saved.trial_id if saved else None

    def _checkpoint(self, directory: str, name: str) -> AuditedCheckpoint | None:
        path = posixpath.join(self.scope.experiment, directory, name)
        saved = self.saved.get(directory)
        finding = self._finding(path, name, saved)
        if finding.verdict is Verdict.MISSING:
            return None
        checkpoint = AuditedCheckpoint(name, finding.verdict, finding.problem)
        if finding.manifest is not None:
            sizes = (record.size for record in finding.manifest.files.values())
            iteration = finding.manifest.header.iteration
            checkpoint = replace(checkpoint, iteration=iteration, size_bytes=sum(sizes))
        if self.sweeping is not None and finding.verdict is Verdict.INCOMPLETE:
            swept = sweep(
                self.disk,
                self.sweeping,
                path,
                retry_s=settings.STORAGE_RETRY_S.get(),
            )
            checkpoint = replace(checkpoint, swept=swept)
        return checkpoint

    def _finding(self, path: str, name: str, saved: SavedTrial | None) -> Finding:
        if name.startswith(STAGING):
            return Finding(Verdict.INCOMPLETE, "an attempt ended while it saved")
        if name.startswith(REMOVED):
            return Finding(Verdict.INCOMPLETE, "its deletion was interrupted")
        finding = self._inspect(path, full=self.full)
        if finding.verdict is Verdict.CORRUPT:
            # Files also go missing while a driver deletes the checkpoint.
            again = self._inspect(path, full=False)
            if again.verdict in {Verdict.MISSING, Verdict.INCOMPLETE}:
                finding = again
        if finding.verdict is Verdict.MISSING and self._exists(path):
            finding = Finding(Verdict.INCOMPLETE, "it is empty")
        if finding.verdict is Verdict.INCOMPLETE and not self._is_ours(name, saved):
            return Finding(
                Verdict.UNVERIFIED, "made without raytrials: nothing tells if it is whole"
            )
        if finding.verdict is Verdict.INCOMPLETE and saved and saved.was_committed(name):
            problem = f"{finding.problem}, though the saved state of its trial names it"
            return Finding(Verdict.CORRUPT, problem)
        manifest = finding.manifest
        if manifest is not None and saved is not None and manifest.header.trial != saved.trial_id:
            problem = f"it belongs to trial {manifest.header.trial}"
            return replace(finding, verdict=Verdict.CORRUPT, problem=problem)
        return finding

    def _inspect(self, path: str, *, full: bool) -> Finding:
        return on(self.disk, "verifying", path, lambda: inspect(self.disk, path, full=full))

    def _exists(self, path: str) -> bool:
        parent, name = posixpath.split(path)
        return name in on(self.disk, "listing", parent, lambda: self.disk.list_names(parent))

    def _is_ours(self, name: str, saved: SavedTrial | None) -> bool:
        if saved is not None:
            return not saved.is_vanilla(name)
        return self.scope.has_manifests or any(trial.ours for trial in self.saved.values())
