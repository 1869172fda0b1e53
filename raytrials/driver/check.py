"""The check of a checkpoint in the worker, before the user's code sees its files.

The driver has looked at names and sizes already; here every byte is read, once for each checkpoint
and node. What an object store holds is downloaded in the same pass.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from raytrials import _ray
from raytrials.driver.probe import WatchedCheckpoint
from raytrials.store.checkpoint import Finding, Verdict, complete, fetch, inspect
from raytrials.store.disk import Disk
from raytrials.store.location import disk_of
from raytrials.store.manifest import digest_of
from raytrials.store.retrying import retry


def check(trainable: Any, checkpoint: WatchedCheckpoint, retry_s: float) -> str:
    """Return what is wrong with a checkpoint, "" if nothing is. Runs in the trial's actor.

    Args:
        trainable: the actor's; only its storage context is looked at.
        checkpoint: what is about to be restored.
        retry_s: how long a storage that does not answer is tried again.

    Raises:
        StorageError: the storage failed for good; that says nothing of the checkpoint.
    """
    disk = disk_of(checkpoint.filesystem)
    marks = Path(_ray.session_directory_of(trainable._storage), "checked")  # noqa: SLF001 - Ray's

    def look() -> Finding:
        if disk.has_rename:
            return _check_here(disk, checkpoint.path, marks)
        return _download(disk, checkpoint)

    return retry(disk, "reading", checkpoint.path, look, limit_s=retry_s).problem


def _download(disk: Disk, checkpoint: WatchedCheckpoint) -> Finding:
    """Check a checkpoint on its way from an object store to this machine, where it stays."""
    finding = inspect(disk, checkpoint.path, full=False)
    if finding.verdict is not Verdict.VERIFIED or finding.manifest is None:
        return finding
    target = checkpoint.download_path
    checkpoint.remove_earlier_downloads()
    problem = fetch(disk, checkpoint.path, finding.manifest, target)
    if problem:
        shutil.rmtree(target, ignore_errors=True)
        return Finding(Verdict.CORRUPT, problem)
    checkpoint.downloaded_mark.touch()
    return finding


def _check_here(disk: Disk, path: str, marks: Path) -> Finding:
    """Check a checkpoint where it is, unless it was checked on this node and is as it was."""
    state = {name: [entry.size, entry.modified_ns] for name, entry in disk.list_files(path).items()}
    content = json.dumps(state, sort_keys=True)
    mark = marks / digest_of(path.encode())
    if mark.exists() and mark.read_text() == content:
        return Finding(Verdict.VERIFIED)
    finding = inspect(disk, path, full=True)
    if finding.verdict is Verdict.VERIFIED and finding.manifest is not None:
        complete(disk, path, finding.manifest)
        marks.mkdir(parents=True, exist_ok=True)
        new = mark.with_name(f"{mark.name}.{os.getpid()}")
        new.write_text(content)
        new.replace(mark)
    return finding
