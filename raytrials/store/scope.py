"""What a path given to :func:`raytrials.verify` stands for: experiment, trial or checkpoint."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow.fs

from raytrials import settings
from raytrials.errors import NotAnExperimentError, StorageError
from raytrials.store.checkpoint import REMOVED, STAGING
from raytrials.store.disk import Disk
from raytrials.store.manifest import MANIFEST, index_of
from raytrials.store.retrying import retry
from raytrials.store.saved import SavedTrial, is_state_file, read_saved

_TRIAL_FILES = {"params.json", "result.json"}
_LISTED = 3

T = TypeVar("T")


def on(disk: Disk, what: str, path: str, operation: Callable[[], T]) -> T:
    """Return what an operation on storage returns; see :func:`raytrials.store.retrying.retry`."""
    return retry(disk, what, path, operation, limit_s=settings.STORAGE_RETRY_S.get())


@dataclass(frozen=True)
class Scope:
    """What is to be looked at.

    Attributes:
        experiment: the experiment's directory.
        trials: names of checkpoints, by the name of their trial's directory.
        has_manifests: whether any manifest is there.
        whole: directories of the trials that are looked at as a whole; None for all.
    """

    experiment: str
    trials: Mapping[str, Sequence[str]]
    has_manifests: bool
    whole: frozenset[str] | None = None

    def covers(self, directory: str) -> bool:
        """Whether all checkpoints of a trial are looked at."""
        return self.whole is None or directory in self.whole

    @classmethod
    def find(cls, disk: Disk, filesystem: pyarrow.fs.FileSystem, location: str, root: str) -> Scope:
        """Return what a path stands for.

        Raises:
            NotAnExperimentError: nothing that can be verified.
        """
        kind = on(disk, "opening", root, lambda: filesystem.get_file_info(root).type)
        if kind == pyarrow.fs.FileType.NotFound:
            raise NotAnExperimentError(location, "it does not exist")
        if kind == pyarrow.fs.FileType.File:
            raise NotAnExperimentError(location, "it is a file")
        files = on(disk, "listing", root, lambda: disk.list_files(root))
        parent, name = posixpath.split(root)
        if _is_checkpoint(name) or MANIFEST in files:
            has_manifests = MANIFEST in files or _has_manifests(disk, parent)
            experiment, trial = posixpath.split(parent)
            return cls(experiment, {trial: [name]}, has_manifests, frozenset())
        has_manifests = any(posixpath.basename(file) == MANIFEST for file in files)
        directories = _directories(files)
        if disk.has_rename:
            directories.update(on(disk, "listing", root, lambda: disk.list_directories(root)))
        tree = _by_parent(directories)
        is_experiment = any(map(is_state_file, files))
        if not is_experiment and ("" in tree or not _TRIAL_FILES.isdisjoint(files)):
            return cls(parent, {name: tree.get("", [])}, has_manifests, frozenset({name}))
        trials = {trial: names for trial, names in tree.items() if trial and "/" not in trial}
        if not is_experiment and not trials:
            raise NotAnExperimentError(location, _what_instead(files))
        return cls(root, trials, has_manifests)

    def read_saved(self, disk: Disk) -> dict[str, SavedTrial]:
        """Return what Ray saved of the trials, by the names of their directories."""
        try:
            names = on(disk, "listing", self.experiment, lambda: disk.list_names(self.experiment))
        except StorageError:
            if self.experiment:
                raise
            return {}  # beside a bucket there is no state; beside a subtree's first level there is
        return read_saved(disk, self.experiment, names, retry_s=settings.STORAGE_RETRY_S.get())


def _is_checkpoint(name: str) -> bool:
    return index_of(name) is not None or name.startswith((STAGING, REMOVED))


def _directories(files: Mapping[str, object]) -> set[str]:
    """Return the directories that files imply."""
    found: set[str] = set()
    for file in files:
        parent = posixpath.dirname(file)
        while parent and parent not in found:
            found.add(parent)
            parent = posixpath.dirname(parent)
    return found


def _by_parent(directories: set[str]) -> dict[str, list[str]]:
    tree: dict[str, list[str]] = {}
    for directory in sorted(directories):
        parent, name = posixpath.split(directory)
        if _is_checkpoint(name):
            tree.setdefault(parent, []).append(name)
    return tree


def _has_manifests(disk: Disk, trial: str) -> bool:
    """Return whether a checkpoint of a trial has a manifest, without listing what is no such."""

    def names_in(path: str) -> set[str]:
        return on(disk, "listing", path, lambda: disk.list_names(path))

    siblings = filter(_is_checkpoint, names_in(trial))
    return any(MANIFEST in names_in(posixpath.join(trial, name)) for name in siblings)


def _what_instead(files: Mapping[str, object]) -> str:
    inner = sorted(
        {posixpath.dirname(file) for file in files if is_state_file(posixpath.basename(file))}
    )
    if inner:
        listed = ", ".join(inner[:_LISTED]) + (", ..." if len(inner) > _LISTED else "")
        return f"experiments are below it, verify them one by one: {listed}"
    return "it holds no checkpoints and no experiment_state-*.json"
