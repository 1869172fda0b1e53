"""Experiments on storage as a driver leaves them, made without Ray."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs

from raytrials.store.commit import commit
from raytrials.store.disk import Disk
from raytrials.store.location import disk_of
from raytrials.store.manifest import Header, checkpoint_name
from raytrials.store.objects import ObjectDisk

FILES: Mapping[str, bytes] = {"weights.bin": b"w" * 100, "inner/state.json": b"{}"}


@dataclass(frozen=True)
class Experiment:
    """An experiment in the making.

    Attributes:
        filesystem: of pyarrow, where it stands.
        path: its directory there.
    """

    filesystem: pyarrow.fs.FileSystem
    path: str
    disk: Disk = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "disk", disk_of(self.filesystem, fsync=False))

    def at(self, *names: str) -> str:
        """Return the path of something in it."""
        return posixpath.join(self.path, *names)

    def write(self, data: bytes, *names: str) -> None:
        """Write a file in it."""
        self.disk.make_directory(posixpath.dirname(self.at(*names)))
        self.disk.write(self.at(*names), data)

    def put(self, directory: str, files: Mapping[str, bytes] = FILES) -> None:
        """Write files without a manifest, as vanilla Ray does."""
        for name, data in files.items():
            self.write(data, directory, name)

    def commit(self, trial: str, index: int, files: Mapping[str, bytes] = FILES) -> str:
        """Commit a checkpoint of a trial; return its directory's name."""
        scratch = ObjectDisk(pyarrow.fs._MockFileSystem())
        for name, data in files.items():
            scratch.write(f"source/{name}", data)
        header = Header("exp", f"id-{trial}", 1, 0, index, index + 1, 1.5, {"loss": 0.5})
        commit(self.disk, self.at(trial), header, (scratch, "source"), retry_s=0)
        return checkpoint_name(index)

    def save_state(self, *trials: tuple[str, str], time: str = "2026-01-01_00-00-00") -> None:
        """Write Ray's state file, of what :func:`saved` returns."""
        name = f"experiment_state-{time}.json"
        self.write(json.dumps({"trial_data": trials, "stats": {}}).encode(), name)


def saved(
    trial: str, *, account: dict[str, Any] | None = None, runtime: str = "{}"
) -> tuple[str, str]:
    """Return a trial as Ray saves it; with an account when raytrials ran it."""
    fields = {"trial_id": f"id-{trial}", "relative_logdir": trial, "status": "RUNNING"}
    if account is not None:
        fields["raytrials"] = account  # type: ignore[assignment]
    return json.dumps(fields, indent=2), runtime
