"""A whole experiment as data, run by our own `Tuner` on a fake cluster and a fake disk.

Everything is real but Ray's processes, the disk and the time: searcher, scheduler, controller,
trials, commits, Ray's state files. Nothing that runs here outlives the call that runs it.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raytrials import RetryPolicy, Tuner, _ray
from raytrials.chaos import FakeClock, FakeCluster
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, Stopped, stop_at
from raytrials.chaos.happening import Happening
from raytrials.chaos.plan import Fault, Plan
from support.disk_filesystem import mounted
from support.fake_ray import fake_ray
from support.script import NAME, ROOT, Script, Scripted, Stage
from support.virtual import virtual


@dataclass(frozen=True)
class Row:
    """A line of the table of results."""

    trial_id: str
    config: Mapping[str, Any]
    tag: str
    status: str
    iteration: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What one driver did.

    Attributes:
        table: its trials in order; empty if it was stopped.
        stopped: whether it died on the way.
        happenings: what the cluster told it.
        operations: what it and its workers did to the disk.
        struck: the faults of the cluster that befell it, and when.
        trials: as they were at its end, for what is not in the table; empty if it was stopped.
        steps: the iterations that workers ran, by trial: each time that they did.
        ended_s: when it ended, on the clock of the experiment.
    """

    table: tuple[Row, ...]
    stopped: bool
    happenings: tuple[Happening, ...]
    operations: tuple[Operation, ...]
    struck: tuple[tuple[float, Fault], ...]
    trials: tuple[Any, ...]
    steps: Counter[tuple[str, int]]
    ended_s: float


class Storage(Faulty):
    """A disk that does one thing at a time, so that its operations have one order."""

    def threads(self, sizes: Collection[int]) -> int:
        return 1


@dataclass
class Experiment:
    """A script on its way through one driver or several.

    Args:
        script: what is to be done.
        disk: where it is stored.
        directory: for what Ray keeps on the driver's machine.

    Attributes:
        clock: goes on from driver to driver.
        stage: what its workers share.
    """

    script: Script
    disk: FakeLocal | FakeObjectStore
    directory: Path
    clock: FakeClock = field(default_factory=FakeClock)
    stage: Stage = field(init=False)
    _drivers: int = 0

    def __post_init__(self) -> None:
        self.stage = Stage(self.script.raises)

    def run(self, plan: Plan = (), *, stop_at: int | None = None) -> Outcome:
        """Begin the experiment.

        Args:
            plan: what befalls the cluster.
            stop_at: the number of the operation on the disk before which all dies.
        """
        return self._drive(plan, stop_at, anew=True)

    def resume(self, plan: Plan = (), *, stop_at: int | None = None) -> Outcome:
        """Continue the experiment, or begin it if there is none to continue."""
        return self._drive(plan, stop_at, anew=False)

    def die(self, *, machine: bool, luck: random.Random | None = None) -> None:
        """Leave what the death of a driver's process, or of its machine, leaves.

        Args:
            machine: whether what is not durable is gone, and what Ray kept beside it.
            luck: as :meth:`FakeLocal.crash`.
        """
        if machine:
            shutil.rmtree(self.directory, ignore_errors=True)
        if isinstance(self.disk, FakeLocal):
            if machine:
                self.disk.crash(luck)
            else:
                self.disk.end_process()

    def _drive(self, plan: Plan, number: int | None, *, anew: bool) -> Outcome:
        self._drivers += 1
        self.stage.steps = Counter()
        storage = Storage(self.disk, before=[] if number is None else [stop_at(number)])
        cluster = FakeCluster(self.clock, plan=plan)
        for name, slots in self.script.nodes.items():
            cluster.add_node(name, slots)
        trials: tuple[Any, ...] = ()
        stopped = False
        try:
            with (
                self.stage.set(),
                virtual(
                    self.clock,
                    seed=1000 * self.script.seed + self._drivers,
                    temporary=self.directory / "tmp",
                ),
                fake_ray(cluster, self.script.takes_s, self.directory),
                mounted(storage) as filesystem,
            ):
                grid = self._tuner(filesystem, anew=anew).fit()
                trials = tuple(_ray.analysis_of(grid).trials)
        except Stopped:
            stopped = True
        return Outcome(
            table=tuple(map(_row, trials)),
            stopped=stopped,
            happenings=tuple(cluster.told),
            operations=tuple(storage.operations),
            struck=tuple(cluster.struck),
            trials=trials,
            steps=self.stage.steps,
            ended_s=self.clock.monotonic(),
        )

    def _tuner(self, filesystem: Any, *, anew: bool) -> Tuner:
        path = f"{ROOT}/{NAME}"
        if anew or not Tuner.can_restore(path, filesystem):
            return self.script.tuner(filesystem)
        return Tuner.restore(
            path,
            Scripted,
            param_space=self.script.space(),
            storage_filesystem=filesystem,
            retry_policy=RetryPolicy(**self.script.policy),
        )


def _row(trial: Any) -> Row:
    result = trial.last_result
    return Row(
        trial_id=trial.trial_id,
        config=dict(trial.config),
        tag=trial.experiment_tag,
        status=trial.status,
        iteration=result.get("training_iteration", 0),
        metrics={name: result.get(name) for name in ("count", "score")},
    )
