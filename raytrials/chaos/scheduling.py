"""What a scheduler has to pass to be exact over the death of its driver.

For a scheduler of your own, subclass :class:`SchedulerConformance` in a test module::

    class TestMyScheduler(SchedulerConformance):
        def scheduler(self):
            return MyScheduler(metric="score", mode="max")

Each test runs a population of trials by chance, with the real scheduler and searcher and without a
cluster: once in one go, and once with a driver that is killed and replaced. What the scheduler
decides has to be the same. Other than the rest of this package it needs Ray.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from ray import tune
from ray.tune import Checkpoint
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import BasicVariantGenerator, Searcher
from ray.tune.search.search_generator import SearchGenerator

from raytrials import _ray
from raytrials.core.event import (
    EVENTS,
    AttemptStarted,
    CheckpointCommitted,
    DecisionMade,
    DriverAttached,
    Event,
    ExperimentCreated,
    FaultRecorded,
    Record,
    ResultReported,
    RunnerAssigned,
)
from raytrials.core.fault import Cause, Charge, ChargedFault, FaultClass, Phase
from raytrials.core.fold import apply
from raytrials.core.plain import plain_metrics
from raytrials.core.retry import RetryPolicy
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status
from raytrials.driver import recording
from raytrials.driver.account import without_config
from raytrials.driver.checkpoints import Checkpoints
from raytrials.driver.population import Population as PopulationWatch
from raytrials.driver.scheduling import Scheduling
from raytrials.driver.search import Search
from raytrials.driver.storage import TrialStorage
from raytrials.driver.trial import FitContext, Trial, adopt
from raytrials.store.manifest import checkpoint_name

SPACE = {"lr": tune.uniform(0.0, 1.0), "momentum": tune.uniform(0.0, 1.0)}
METRIC, MODE = "score", "max"

_WAITING = 2
"""How many trials may wait for a slot before no more are sampled."""


class _Journal:
    """A chronicle in memory, whose events go through their form on disk."""

    def __init__(self) -> None:
        self.is_open = True
        self.state = ExperimentState()
        self.records: list[Record] = []

    def record(self, event: Event) -> int:
        data = json.loads(json.dumps(event.to_data()))
        written = EVENTS[type(event).__name__].from_data(data)
        record = Record(len(self.records) + 1, 1, 0.0, written)
        apply(self.state, record)
        self.records.append(record)
        return record.seq

    def await_durable(self, *_: Any) -> None:
        """Nothing is lost here."""


class _Saves(Checkpoints):
    """Checkpoints that are there when they are asked for."""

    def choose(self, trial: Trial) -> Any:
        if trial.is_saving:
            index = trial.storage.current_checkpoint_index + 1
            return _saved(trial, index)
        return trial.latest_checkpoint_result


def _saved(trial: Trial, index: int) -> Any:
    path = f"{trial.storage.trial_fs_path}/{checkpoint_name(index)}"
    checkpoint = Checkpoint(path, filesystem=trial.storage.storage_filesystem)
    metrics = dict(trial.run_metadata.last_result)
    return _ray.TrainingResult(checkpoint=checkpoint, metrics=metrics)


@dataclass(frozen=True)
class Kill:
    """A driver dies.

    Attributes:
        snapshot: the step before which the latest snapshot was taken.
        step: the step before which it dies.
    """

    snapshot: int
    step: int


@dataclass
class Population:
    """Trials that come, report, are paused, fail and end, as a seed says.

    Stands for the controller as far as schedulers call it.

    Args:
        scheduler: makes the scheduler.
        search: makes the search algorithm, as for `TuneConfig(search_alg=...)`.
        seed: of all that happens.
        directory: for what schedulers write.
        trials: how many there are to be.
        slots: how many run at once.
        steps: after how many results a trial ends.
        fails: how often one that runs ends with an error, where it reports 2 times.
        noise: seed of what others draw from the global generators in between.
        on_kill: is called when a driver was replaced.

    Attributes:
        log: what was decided, in order.
        wrong: what a replaced scheduler or searcher answered otherwise.
        hangs: whether no trial can go on, and not all have ended.
    """

    scheduler: Callable[[], TrialScheduler]
    search: Callable[[], Any]
    seed: int
    directory: Path
    trials: int = 8
    slots: int = 3
    steps: int = 9
    fails: float = 0.02
    noise: int = 0
    on_kill: Callable[[Population], object] = lambda _: None
    log: list[tuple[Any, ...]] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    hangs: bool = False

    _reuse_actors = False

    def __post_init__(self) -> None:
        self._luck = random.Random(self.seed)  # noqa: S311 - not for secrets
        self._noise = random.Random(self.noise)  # noqa: S311 - likewise
        self._journal = _Journal()
        self._present: list[Trial] = []
        self._live: set[Trial] = set()
        self._cached: dict[Trial, str] = {}
        self._population = PopulationWatch(0.0)
        self._queued: tuple[Trial, str] | None = None
        self._ids = mock.patch.object(_ray.Trial, "generate_id", self._next_id)
        self._context = FitContext(RetryPolicy(), _Saves())
        self._context.chronicle = self._journal  # type: ignore[assignment]  # as much as is asked of it
        self._resource_updater = mock.Mock(get_num_cpus=lambda: 4, get_num_gpus=lambda: 0)
        self._journal.record(ExperimentCreated("population", "population", self.seed))
        self._journal.record(DriverAttached("host", 1))
        self._search_alg = _algorithm(self.search())
        self._search_alg.set_search_properties(METRIC, MODE, dict(SPACE))
        experiment = _ray.Experiment(
            "population",
            _train,
            config=dict(SPACE),
            num_samples=self.trials,
            storage_path=str(self.directory),
        )
        self._search_alg.add_configurations([experiment])
        self._storage = experiment.storage
        with self._ids:
            self._begin()
        self._snapshot()

    def _next_id(self) -> str:
        return f"{len(self._present):05d}"

    def _begin(self) -> None:
        scheduler = self.scheduler()
        scheduler.set_search_properties(METRIC, MODE)
        record_clones = functools.partial(recording.new_clones, self._context.reconfigured)
        self._scheduling = Scheduling(
            scheduler, self.seed, self._journal.record, self._storage, record_clones
        )
        self._search = Search(self._search_alg, self.seed, self._journal.record)

    def _snapshot(self) -> None:
        self._dumps = self._scheduling.dump(), self._search.dump()
        self._dumped_seq = len(self._journal.records)
        self._before = {}
        for trial_id, record in self._journal.state.trials.items():
            kept: TrialRecord = copy.copy(record)
            kept.checkpoints = dict(record.checkpoints)
            self._before[trial_id] = kept

    def run(self, kill: Kill | None = None, limit: int = 2_000) -> Population:
        """Go on until all trials have ended, or none can go on."""
        with self._ids:
            self._go_on(kill, limit)
        self.hangs = self.hangs or any(not one.is_finished() for one in self._present)
        return self

    def _go_on(self, kill: Kill | None, limit: int) -> None:
        for step in range(limit):
            for _ in range(self._noise.randrange(4)):
                random.random()  # noqa: S311 - others do so
                np.random.randn(self._noise.randrange(1, 4))  # noqa: NPY002 - likewise
            if kill is not None and step == kill.snapshot:
                self._snapshot()
            if kill is not None and step == kill.step:
                self._die()
            if not self._step():
                break
        else:
            self.hangs = True

    # --- a driver dies ---------------------------------------------------------------------------

    def _die(self) -> None:
        """Go on with a new scheduler and searcher, brought to where the old ones were."""
        tail = self._journal.records[self._dumped_seq :]
        results = {one: record.last_result for one, record in self._before.items()}
        by_id = {trial.trial_id: trial for trial in self._present}
        recorded = len(self._journal.records)
        self._journal.is_open = False
        self._search_alg = _algorithm(self.search())
        self._begin()
        scheduling, search = self._dumps
        self._scheduling.load(scheduling, by_id)
        replayed = self._scheduling.replay(tail, results, self._before, by_id, self)
        self._context.reconfigured.clear()
        self._search.load(search)
        self.wrong += replayed.wrong
        self.wrong += self._search.replay(tail, results, replayed.added)
        self._journal.is_open = True
        for trial in self._present:
            if trial.is_saving:
                trial.temporary_state.saving_to = self._scheduling.promise(trial)
        if len(self._journal.records) != recorded:
            self.wrong.append(("all", "a replay has recorded something"))
        self.on_kill(self)

    def tell_again(self) -> None:
        """Tell the latest result of each running trial again, as a driver must not do."""
        for trial in self._present:
            if trial.status == Trial.RUNNING and trial.run_metadata.last_result:
                self._tell(trial, trial.run_metadata.last_result)

    def add_again(self) -> None:
        """Add each trial that has not ended again, as a driver must not do."""
        for trial in self._present:
            if not trial.is_finished():
                self._scheduling.forget(trial)
                self._scheduling.recorded.on_trial_add(self, trial)

    def forget_decision(self) -> None:
        """Tell a result again whose decision was not carried out, as a driver must not do."""
        if self._queued is not None:
            trial, _ = self._queued
            self._queued = trial, self._tell(trial, trial.run_metadata.last_result)

    # --- what may happen -------------------------------------------------------------------------

    def _step(self) -> bool:
        if self._queued is not None:
            (trial, decision), self._queued = self._queued, None
            self._carry_out(trial, decision)
            return True
        options = self._options()
        if not options:
            stuck = self._population.look(self._scheduling.real, self._unfinished())
            if stuck is not None:
                self._scheduling.go_on_without(stuck, self)
            return stuck is not None
        weights, makers = zip(*options, strict=True)
        self._luck.choices(makers, weights)[0]()
        return True

    def _options(self) -> list[tuple[float, Callable[[], object]]]:
        """Return what may happen now, and how likely each is."""
        options: list[tuple[float, Callable[[], object]]] = []
        if len(self._present) < self.trials and self._count(Trial.PENDING) < _WAITING:
            options.append((2.0, self._add))
        if self._count(Trial.RUNNING) < self.slots:
            chosen = self._scheduling.recorded.choose_trial_to_run(self)
            if chosen is not None:
                options.append((3.0, functools.partial(self._start, chosen)))
        for trial in self._present:
            if trial.is_saving:
                options.append((2.0, functools.partial(self._save, trial)))
            elif trial.status == Trial.RUNNING:
                options.append((2.0, functools.partial(self._report, trial)))
            if trial.status == Trial.RUNNING:
                options.append((0.05, functools.partial(self._recover, trial)))
                options.append((self.fails, functools.partial(self._fail, trial)))
        return options

    def _number(self, trial: Trial) -> int:
        return self._present.index(trial)

    def _unfinished(self) -> list[Trial]:
        return [trial for trial in self._present if not trial.is_finished()]

    def _count(self, status: str) -> int:
        return sum(trial.status == status for trial in self._present)

    def _add(self) -> None:
        trial = self._search.next_trial()
        if trial is None:
            return
        trial = adopt(trial, self._context)
        trial.create_placement_group_factory()
        trial.storage.trial_dir_name = trial.trial_id
        Path(trial.local_experiment_path).mkdir(parents=True, exist_ok=True)
        self._present.append(trial)
        self._live.add(trial)
        recording.added(trial)
        self._scheduling.note(trial)
        self._scheduling.recorded.on_trial_add(self, trial)
        recording.config_changed(trial)

    def _start(self, trial: Trial) -> None:
        record = self._journal.state.trials[trial.trial_id]
        attempt = max(record.attempt, record.reserved) + 1
        trial.account.attempt = attempt
        self._journal.record(RunnerAssigned(trial.trial_id, recording.ANY, attempt))
        saved, first = trial.latest_checkpoint_result, record.next_index
        metrics = {} if saved is None else without_config(saved.metrics)
        own = min(metrics.get("training_iteration", 0), record.high_water)
        name = None if saved is None else recording.relative_path(trial, saved.checkpoint.path)
        iteration = metrics.get("training_iteration", 0) if trial.exploits() else own
        self.log.append(("start", self._number(trial), iteration))
        self._journal.record(
            AttemptStarted(trial.trial_id, attempt, "node", 1, iteration, first, name, metrics)
        )
        if trial.exploits():
            trial.told_iteration = iteration
        trial.storage.current_checkpoint_index = first - 1
        self._set(trial, Trial.RUNNING)

    def _report(self, trial: Trial) -> None:
        trial.told_iteration += 1
        own = random.Random(f"{self.seed}/{self._number(trial)}/{trial.told_iteration}")  # noqa: S311
        result = {
            "training_iteration": trial.told_iteration,
            "time_total_s": float(trial.told_iteration),
            METRIC: trial.told_iteration * trial.config["lr"] + own.uniform(-0.3, 0.3),
            "trial_id": trial.trial_id,
        }
        event = ResultReported(
            trial.trial_id, trial.account.attempt, trial.told_iteration, dict(result)
        )
        self._journal.record(event)
        done = trial.told_iteration >= self.steps
        decision = TrialScheduler.STOP if done else self._tell(trial, result)
        trial.run_metadata.last_result = {**result, "config": trial.config}
        if trial.is_saving:
            if trial not in self._cached or decision in {TrialScheduler.PAUSE, TrialScheduler.STOP}:
                self._cached[trial] = decision
            decision = self._cached[trial]
        else:
            self._queued = trial, decision
        self._journal.record(DecisionMade(trial.trial_id, trial.told_iteration, decision))
        self.log.append(("decide", self._number(trial), trial.told_iteration, decision))

    def _tell(self, trial: Trial, result: dict[str, Any]) -> str:
        flat = dict(_ray.flatten_dict({**result, "config": trial.config}))
        decision: str = self._scheduling.recorded.on_trial_result(self, trial, flat)
        if decision != TrialScheduler.STOP:
            self._search_alg.on_trial_result(trial.trial_id, flat)
        return decision

    def _carry_out(self, trial: Trial, decision: str) -> None:
        if decision == TrialScheduler.STOP:
            self.stop_trial(trial)
        elif decision == TrialScheduler.PAUSE:
            self.pause_trial(trial)

    def _save(self, trial: Trial) -> None:
        index = trial.storage.current_checkpoint_index + 1
        result = _saved(trial, index)
        trial.storage.current_checkpoint_index = index
        _ray.set_checkpoints(trial, _ray.registered_checkpoints(trial), result)
        iteration = result.metrics.get("training_iteration", 0)
        attempt = trial.account.attempt
        self._journal.record(CheckpointCommitted(trial.trial_id, attempt, index, iteration))
        trial.temporary_state.saving_to = None
        self._scheduling.note(trial)
        decision = self._cached.pop(trial, None)
        if decision == TrialScheduler.PAUSE:
            self.pause_trial(trial, should_checkpoint=False)
        elif decision is not None:
            self._carry_out(trial, decision)

    def _recover(self, trial: Trial) -> None:
        """A worker dies; its trial goes on, and nobody is told."""
        self.log.append(("recover", self._number(trial)))
        record = self._journal.state.trials[trial.trial_id]
        fault = ChargedFault(
            trial.trial_id,
            record.attempt,
            FaultClass.ACTOR,
            Phase.RUNNING,
            Cause.NODE_LOST,
            "node",
            "",
            0.0,
            (),
            None,
            Charge.FREE,
            "a machine's death is free",
        )
        number = len(record.faults) + 1
        self._journal.record(FaultRecorded(trial.trial_id, number, fault, record.history))
        self._set(trial, Trial.PENDING)
        if self._cached.pop(trial, None) == TrialScheduler.PAUSE:
            self._set(trial, Trial.PAUSED)
            recording.paused(trial)

    def _fail(self, trial: Trial) -> None:
        """A trial ends with an error."""
        self.log.append(("fail", self._number(trial)))
        recording.finished(trial, Status.FAILED, "it failed")
        self._cached.pop(trial, None)
        self._scheduling.recorded.on_trial_error(self, trial)
        self._search.on_complete(trial.trial_id, error=True)
        self._search_alg.on_trial_complete(trial.trial_id, error=True)
        self._set(trial, Trial.ERROR)
        self._live.discard(trial)

    def _set(self, trial: Trial, status: str) -> None:
        trial.set_status(status)
        trial.temporary_state.saving_to = None
        self._scheduling.note(trial)

    # --- what schedulers call --------------------------------------------------------------------

    @property
    def search_alg(self) -> Any:
        """The search algorithm."""
        return self._search_alg

    @property
    def trial_executor(self) -> Population:
        """What Ray's older schedulers call."""
        return self

    def get_trials(self) -> list[Trial]:
        """Return all trials."""
        return self._present

    def get_live_trials(self) -> set[Trial]:
        """Return those that have not ended."""
        return self._live

    def stop_trial(self, trial: Trial) -> None:
        """Stop a trial."""
        if trial.is_finished():
            return
        self.log.append(("stop", self._number(trial)))
        recording.finished(trial, Status.SUCCEEDED, "it was stopped")
        self._search.on_complete(trial.trial_id, error=False)
        self._cached.pop(trial, None)
        if trial.status == Trial.RUNNING:
            result = dict(_ray.flatten_dict(trial.run_metadata.last_result))
            self._scheduling.recorded.on_trial_complete(self, trial, result)
            self._search_alg.on_trial_complete(trial.trial_id, result=result)
        else:
            self._scheduling.recorded.on_trial_remove(self, trial)
            self._search_alg.on_trial_complete(trial.trial_id)
        self._set(trial, Trial.TERMINATED)
        self._live.discard(trial)

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:  # noqa: FBT001, FBT002 - Ray's signature
        """Pause a trial, now or when it is saved."""
        if trial.status != Trial.RUNNING:
            return
        self._cached.pop(trial, None)
        if should_checkpoint:
            self._cached[trial] = TrialScheduler.PAUSE
            self._schedule_trial_save(trial)
            return
        self.log.append(("pause", self._number(trial), plain_metrics(trial.config)))
        self._set(trial, Trial.PAUSED)
        recording.paused(trial)

    def _schedule_trial_save(self, trial: Trial, result: Any = None) -> Any:  # noqa: ARG002 - Ray's signature
        if trial.status != Trial.RUNNING:
            return None
        trial.temporary_state.saving_to = self._scheduling.promise(trial)
        self._scheduling.note(trial)
        return trial.temporary_state.saving_to


def _train(_: dict[str, Any]) -> None:
    """Never run."""


def _algorithm(made: Any) -> Any:
    return SearchGenerator(made) if isinstance(made, Searcher) else made


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    """A directory, where Ray's session is as well."""
    with tempfile.TemporaryDirectory(prefix="rt") as directory:
        session = {"_get_session_path": mock.Mock(return_value=directory)}
        with (
            mock.patch.multiple(TrialStorage, **session),
            mock.patch.multiple(_ray.StorageContext, **session),
        ):
            yield Path(directory)


class SchedulerConformance:
    """The tests. A subclass makes the scheduler.

    Attributes:
        seeds: of the populations.
        trials: how many trials there are.
        slots: how many run at once.
        steps: after how many results a trial ends.
        fails: how often one that runs ends with an error, where it reports 2 times.
    """

    seeds = range(4)
    trials = 8
    slots = 3
    steps = 9
    fails = 0.02

    def scheduler(self) -> TrialScheduler:
        """Return a new scheduler, each time the same."""
        raise NotImplementedError

    def search(self) -> Any:
        """Return a new search algorithm or searcher, each time the same."""
        return BasicVariantGenerator()

    def population(self, seed: int, directory: Path, **more: Any) -> Population:
        """Return trials that have not begun."""
        sizes = self.trials, self.slots, self.steps, self.fails
        return Population(self.scheduler, self.search, seed, directory, *sizes, **more)

    def differences(self, seed: int, **more: Any) -> tuple[list[str], int]:
        """Return what other decisions came of kills, and how many kills there were.

        Nothing of a population that hangs by itself.
        """
        with _place() as directory:
            whole = self.population(seed, directory / "whole", noise=1).run()
            if whole.hangs:
                return [], 0
            luck = random.Random(f"kills {seed}")  # noqa: S311 - not for secrets
            steps = len(whole.log)
            found, kills = [], [_kill(luck, steps) for _ in range(3)]
            for number, kill in enumerate(kills):
                place = directory / str(number)
                killed = self.population(seed, place, noise=2 + number, **more).run(kill)
                found += [f"{kill}: {one}" for one in _compared(whole, killed)]
        return found, len(kills)

    def test_decisions_after_a_kill_are_those_of_an_uninterrupted_run(self) -> None:
        """A killed driver's successor decides as it would have."""
        found, kills = [], 0
        for seed in self.seeds:
            differences, count = self.differences(seed)
            found += differences
            kills += count
        assert kills, "every population hung without a kill"  # noqa: S101 - a test
        assert found == []  # noqa: S101 - a test


def _kill(luck: random.Random, steps: int) -> Kill:
    step = luck.randrange(2, steps)
    return Kill(luck.randrange(step), step)


def _compared(whole: Population, killed: Population) -> Iterator[str]:
    yield from (f"{trial_id}: {detail}" for trial_id, detail in killed.wrong)
    for number, (one, other) in enumerate(zip(whole.log, killed.log, strict=False)):
        if one != other:
            yield f"decision {number} is {other}, without a kill {one}"
            return
    if len(whole.log) != len(killed.log):
        yield f"there are {len(killed.log)} decisions, without a kill {len(whole.log)}"
