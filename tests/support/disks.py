"""Disks to commit to, and checkpoints to commit."""

from __future__ import annotations

from typing import Any

from raytrials.chaos.conformance import put
from raytrials.chaos.disk import FakeLocal
from raytrials.store.commit import commit
from raytrials.store.disk import Disk
from raytrials.store.manifest import MANIFEST, RAY_METADATA, Header, Manifest, checkpoint_name

TRIAL = "/experiment/trial"
SOURCE = "/reported"


class Clock:
    """Stands for the module `time`: sleeping takes no time, and is remembered."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def header(index: int = 0, attempt: int = 1, **metrics: Any) -> Header:
    return Header("experiment", "trial", attempt, 0, index, index + 1, 1.5, metrics)


def source(contents: dict[str, bytes]) -> tuple[Disk, str]:
    """A directory as a user's code reports it."""
    disk = FakeLocal()
    disk.make_directory(SOURCE)
    put(disk, SOURCE, contents)
    return disk, SOURCE


def save(
    disk: Disk,
    contents: dict[str, bytes],
    index: int = 0,
    *,
    attempt: int = 1,
    retry_s: float = 0.0,
) -> Manifest:
    """Commit files as a checkpoint of `TRIAL`."""
    return commit(disk, TRIAL, header(index, attempt), source(contents), retry_s=retry_s)


def path_of(index: int = 0) -> str:
    return f"{TRIAL}/{checkpoint_name(index)}"


def contents_of(disk: Disk, path: str) -> dict[str, bytes]:
    """What is in a checkpoint, without its manifest and Ray's metadata."""
    names = set(disk.list_files(path)) - {MANIFEST, RAY_METADATA}
    return {name: disk.read(f"{path}/{name}") for name in names}
