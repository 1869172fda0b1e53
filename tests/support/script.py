"""An experiment as data: what its trials do, how long it takes, and what fails in their code."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ray import tune
from ray.tune.search.basic_variant import BasicVariantGenerator

from raytrials import RetryPolicy, Tuner

ROOT = "/storage"
NAME = "fit"


@dataclass(frozen=True)
class Raise:
    """The user's code raises, once.

    Attributes:
        trial: which trial, in the order of the table.
        where: `setup`, `step`, `save` or `load`.
        iteration: at which; in `setup` it is 0.
        error: what; `SystemExit` ends the worker.
    """

    trial: int
    where: str
    iteration: int
    error: type[BaseException] = ValueError


@dataclass(frozen=True)
class Script:
    """An experiment.

    Attributes:
        trials: how many.
        steps: after how many iterations a trial ends.
        save_every: iterations from one checkpoint to the next, 0 for none.
        paces_s: what a step may take; the searcher draws one for each trial.
        other_s: how long other methods take.
        nodes: slots by name; a trial takes one.
        max_failures: of a trial.
        num_to_keep: checkpoints of a trial.
        reuse_actors: as Ray's.
        raises: the faults of the user's code.
        policy: arguments of the retry policy.
        scheduler: makes the scheduler.
        searcher: makes the search algorithm; None for random samples of a grid of one point.
        max_concurrent: how many trials may run at once, 0 for no limit; of the random samples.
        stopper: makes what ends trials and the experiment; None for `steps`.
        budget_s: how long the experiment may run.
        fail_fast: as Ray's.
        callbacks: make the callbacks.
        seed: of the searcher, and of all that is drawn.
    """

    trials: int = 3
    steps: int = 4
    save_every: int = 1
    paces_s: Sequence[float] = (2.0, 3.0, 5.0)
    other_s: Mapping[str, float] = field(
        default_factory=lambda: {"save": 0.5, "restore": 0.5, "__init__": 0.2}
    )
    nodes: Mapping[str, int] = field(default_factory=lambda: {"a": 1, "b": 1})
    max_failures: int = 0
    num_to_keep: int | None = None
    reuse_actors: bool = False
    raises: Sequence[Raise] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Callable[[], Any] = tune.schedulers.FIFOScheduler
    searcher: Callable[[], Any] | None = None
    max_concurrent: int = 0
    stopper: Callable[[], Any] | None = None
    budget_s: float | None = None
    fail_fast: bool | str = False
    callbacks: Sequence[Callable[[], Any]] = ()
    seed: int = 0

    def takes_s(self, method: str, config: Mapping[str, Any]) -> float:
        if method == "train":
            return float(config["pace"])
        return self.other_s.get(method, 0.1)

    def space(self) -> dict[str, Any]:
        if self.searcher is not None:
            return {}  # it makes all of a config
        return {
            "lr": tune.uniform(0.0, 1.0),
            "pace": tune.choice(list(self.paces_s)),
            "kind": tune.grid_search(["plain"]),
        }

    def tuner(
        self, filesystem: Any, *, resume: Literal["auto", "overwrite"] | None = None
    ) -> Tuner:
        if self.searcher is None:
            searcher: Any = BasicVariantGenerator(
                random_state=self.seed, max_concurrent=self.max_concurrent
            )
        else:
            searcher = self.searcher()
        return Tuner(
            Scripted,
            param_space=self.space(),
            tune_config=tune.TuneConfig(
                num_samples=self.trials,
                search_alg=searcher,
                scheduler=self.scheduler(),
                reuse_actors=self.reuse_actors,
                time_budget_s=self.budget_s,
                trial_dirname_creator=_trial_id,
            ),
            run_config=tune.RunConfig(
                name=NAME,
                storage_path=ROOT,
                storage_filesystem=filesystem,
                stop=self.stopper() if self.stopper else {"training_iteration": self.steps},
                failure_config=tune.FailureConfig(
                    max_failures=self.max_failures, fail_fast=self.fail_fast
                ),
                callbacks=[make() for make in self.callbacks],
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=self.save_every, num_to_keep=self.num_to_keep
                ),
                verbose=0,
            ),
            retry_policy=RetryPolicy(**self.policy),
            resume=resume,
        )


def _trial_id(trial: Any) -> str:
    return str(trial.trial_id)


class Stage:
    """What the workers of an experiment share: what they have done, and what is still to go wrong.

    Attributes:
        steps: the iterations that workers ran, by trial: each time that they did.
        left: what has not gone wrong yet.
    """

    def __init__(self, raises: Sequence[Raise]) -> None:
        self.steps: Counter[tuple[str, int]] = Counter()
        self.left = list(raises)

    @contextlib.contextmanager
    def set(self) -> Iterator[None]:
        """Let the workers of this block be on it."""
        _stages.append(self)
        try:
            yield
        finally:
            _stages.remove(self)

    def raise_if_due(self, trial_id: str, where: str, iteration: int) -> None:
        """Raise what the script says for this place, if it has not been raised yet."""
        for fault in self.left:
            number = int(trial_id.rpartition("_")[2])  # the ids of a searcher have none
            if (fault.trial, fault.where, fault.iteration) == (number, where, iteration):
                self.left.remove(fault)
                raise fault.error(f"{where} {iteration}")


_stages: list[Stage] = []


def _current() -> Stage:
    if not _stages:
        raise RuntimeError("A worker outlived its driver.")
    return _stages[-1]


class Scripted(tune.Trainable):  # type: ignore[misc]
    """What each trial does: it counts, and its score follows from its configuration."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0
        self._at("setup")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        self.count += 1
        self._at("step")
        _current().steps[self.trial_id, self.count] += 1
        return {"count": self.count, "score": self.count * self.config["lr"]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "count.json").write_text(json.dumps(self.count))
        self._at("save")

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.count = json.loads(Path(checkpoint_dir, "count.json").read_text())
        self._at("load")

    def _at(self, where: str) -> None:
        _current().raise_if_due(self.trial_id, where, self.count)
