"""Experiments that were begun, as they stand on storage: tuners are made, and nothing is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow.fs
import pytest
from ray import tune

from raytrials import Tuner, _ray
from raytrials.core.event import DriverAttached, ExperimentCreated, Record
from raytrials.driver import launch as launching
from raytrials.driver.space import describe
from raytrials.store.disk import Disk
from raytrials.store.location import disk_of
from raytrials.store.record import encode
from raytrials.store.segment import Segment

NAME = "fit"


def train(config: dict[str, Any]) -> None:
    """Train nothing."""


@dataclass(frozen=True)
class Place:
    """Where an experiment is to be.

    Attributes:
        filesystem: of pyarrow.
        root: the storage path on it.
        is_given: whether tuners are given the filesystem, and not the path alone.
    """

    filesystem: pyarrow.fs.FileSystem
    root: str
    is_given: bool = True
    disk: Disk = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "disk", disk_of(self.filesystem))

    @property
    def path(self) -> str:
        """The experiment's directory."""
        return f"{self.root}/{NAME}"

    def named(self, name: str) -> Place:
        """Another place on the same storage."""
        return replace(self, root=f"{self.root}/{name}")

    def files(self) -> dict[str, bytes]:
        """What is in the experiment's directory."""
        names = self.disk.list_files(self.path)
        return {name: self.disk.read(f"{self.path}/{name}") for name in sorted(names)}

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the experiment."""
        path = f"{self.path}/{name}"
        self.disk.make_directory(path.rpartition("/")[0])
        self.disk.write(path, data)

    def run_config(self, **kwargs: Any) -> tune.RunConfig:
        """Return the configuration of a run there."""
        filesystem = self.filesystem if self.is_given else None
        given = {"name": NAME, "verbose": 0, **kwargs}
        return tune.RunConfig(storage_path=self.root, storage_filesystem=filesystem, **given)

    def tuner(self, *, resume: Any = None, run: Any = None, **kwargs: Any) -> Tuner:
        """Make a tuner there."""
        return Tuner(train, run_config=self.run_config(**(run or {})), resume=resume, **kwargs)

    def restore(self, **kwargs: Any) -> Tuner:
        """Restore the experiment."""
        return Tuner.restore(self.path, train, storage_filesystem=self._given(), **kwargs)

    def can_restore(self) -> bool:
        """Whether it can be restored."""
        return Tuner.can_restore(self.path, self._given())

    def _given(self) -> Any:
        return self.filesystem if self.is_given else None

    def save_state(
        self, *ids: str, time: str = "2026-01-01_00-00-00", config: dict[str, Any] | None = None
    ) -> str:
        """Write a state file as Ray does, of trials with these ids; return its name."""
        trials = []
        for one in ids:
            trial = _ray.Trial("train", trial_id=one, config=config or {"x": 1}, stub=True)
            trial.placement_group_factory = tune.PlacementGroupFactory([{"CPU": 1}])
            trial.storage = _ray.StorageContext(
                storage_path=self.root,
                experiment_dir_name=NAME,
                storage_filesystem=self.filesystem,
                trial_dir_name=f"trial_{one}",
            )
            trials.append(trial.get_json_state())
        name = f"experiment_state-{time}.json"
        state = {"trial_data": trials, "runner_data": {}, "stats": {}}
        self.write(name, json.dumps(state).encode())
        return name

    def write_journal(self, param_space: dict[str, Any] | None = None) -> None:
        """Write the first events of a journal."""
        events = (
            ExperimentCreated("id", NAME, 1, describe(param_space)),
            DriverAttached("host", 1),
        )
        lines = [encode(Record(seq, 1, 1.5, one)) for seq, one in enumerate(events, 1)]
        self.write(f".raytrials/journal/{Segment(1, 1).name}", b"".join(lines))


def never_run(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Have fits do everything but run; return what they would have run, in order."""
    runs: list[dict[str, Any]] = []

    def launch(controller: Callable[..., Any], *_: Any) -> Callable[..., Any]:
        def run(**arguments: Any) -> Any:
            runs.append(arguments)
            return SimpleNamespace(trials=[])

        return run

    monkeypatch.setattr(launching, "_run", launch)
    return runs
