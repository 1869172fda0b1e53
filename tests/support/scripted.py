"""A whole experiment as data, run by our own `Tuner` on a fake cluster and a fake disk.

Everything is real but Ray's processes, the disk and the time: searcher, scheduler, controller,
trials, commits, Ray's state files. Nothing that runs here outlives the call that runs it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from raytrials import RetryPolicy, Tuner, _ray
from raytrials.chaos import FakeClock, FakeCluster
from raytrials.chaos.disk import FakeLocal, FakeObjectStore
from raytrials.chaos.fault import Faulty, Operation, Stopped, fail_when, stop_at
from raytrials.chaos.happening import Happening
from raytrials.chaos.oracle import Oracle, Violation
from raytrials.chaos.plan import Fault, Plan
from raytrials.core.event import Event
from raytrials.core.state import ExperimentState
from raytrials.driver.controller import Controller
from raytrials.store.recovery import HOME, JOURNAL, recover
from raytrials.store.segment import Reading
from support.disk_filesystem import mounted
from support.fake_ray import fake_ray
from support.script import NAME, ROOT, Script, Scripted, Stage
from support.virtual import virtual

PATH = f"{ROOT}/{NAME}"


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
        watch: is called with the controller after each of its steps, and may raise.
    """

    script: Script
    disk: FakeLocal | FakeObjectStore
    directory: Path
    clock: FakeClock = field(default_factory=FakeClock)
    stage: Stage = field(init=False)
    watch: Callable[[Any], None] | None = None
    _drivers: int = 0

    def __post_init__(self) -> None:
        self.stage = Stage(self.script.raises)

    def run(
        self, plan: Plan = (), *, stop_at: int | None = None, stop_s: float | None = None
    ) -> Outcome:
        """Begin the experiment.

        Args:
            plan: what befalls the cluster.
            stop_at: the number of the operation on the disk before which all dies.
            stop_s: when all dies, on the clock of the experiment: with its next operation.
        """
        return self._drive(self.script.tuner, plan, stop_at, stop_s)

    def resume(
        self, plan: Plan = (), *, stop_at: int | None = None, stop_s: float | None = None
    ) -> Outcome:
        """Continue the experiment, or begin it if there is none to continue."""
        return self._drive(self._continued, plan, stop_at, stop_s)

    def restore(self, plan: Plan = (), *, stop_s: float | None = None, **how: Any) -> Outcome:
        """Continue the experiment.

        Args:
            plan: as :meth:`run`.
            stop_s: likewise.
            **how: arguments of `Tuner.restore`.
        """
        return self._drive(functools.partial(self._restored, **how), plan, None, stop_s)

    def go_on(self, plan: Plan = ()) -> Outcome:
        """Continue the experiment with `resume="auto"`, by what the script says now."""
        return self._drive(functools.partial(self.script.tuner, resume="auto"), plan, None, None)

    def can_restore(self) -> bool:
        """What `Tuner.can_restore` says of it."""
        with mounted(Storage(self.disk)) as filesystem:
            return Tuner.can_restore(PATH, filesystem)

    def state(self) -> ExperimentState:
        """Return what the journal comes to."""
        return recover(self.disk, f"{PATH}/{HOME}").state

    def events(self) -> list[Event]:
        """Return the events of the journal."""
        return [one.event for one in Reading(self.disk, f"{PATH}/{HOME}/{JOURNAL}")]

    def files(self) -> dict[str, bytes]:
        """Return all that is in the experiment's directory."""
        return {name: self.disk.read(f"{PATH}/{name}") for name in self.disk.list_files(PATH)}

    def violations(self) -> list[Violation]:
        """What the oracle says of it, and that all trials have to be there and ended."""
        with mounted(Storage(self.disk)) as filesystem:
            oracle = Oracle(PATH, storage_filesystem=filesystem, num_samples=self.script.trials)
            return oracle.violations()

    def copy(self, directory: Path) -> Experiment:
        """Return another experiment that is where this one is, on another machine."""
        other = Experiment(self.script, copy.deepcopy(self.disk), directory, watch=self.watch)
        other.clock = copy.deepcopy(self.clock)
        other.stage = copy.deepcopy(self.stage)
        other._drivers = self._drivers
        return other

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

    def _drive(
        self,
        make: Callable[[Any], Tuner],
        plan: Plan,
        number: int | None,
        stop_s: float | None,
    ) -> Outcome:
        self._drivers += 1
        self.stage.steps = Counter()
        before = [] if number is None else [stop_at(number)]
        if stop_s is not None:
            before.append(fail_when(lambda _: self.clock.monotonic() >= stop_s, Stopped()))
        storage = Storage(self.disk, before=before)
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
                watched(self.watch),
            ):
                grid = make(filesystem).fit()
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

    def _continued(self, filesystem: Any) -> Tuner:
        if not Tuner.can_restore(PATH, filesystem):
            return self.script.tuner(filesystem)
        return self._restored(filesystem)

    def _restored(self, filesystem: Any, **how: Any) -> Tuner:
        return Tuner.restore(
            PATH,
            Scripted,
            param_space=self.script.space(),
            storage_filesystem=filesystem,
            retry_policy=RetryPolicy(**self.script.policy),
            **how,
        )


@contextlib.contextmanager
def watched(watch: Callable[[Any], None] | None) -> Iterator[None]:
    """Within this block controllers show themselves after each of their steps."""
    end = Controller.on_step_end

    def on_step_end(controller: Controller) -> None:
        end(controller)
        if watch is not None:
            watch(controller)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Controller, "on_step_end", on_step_end)
        yield


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
