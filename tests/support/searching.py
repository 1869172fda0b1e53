"""Searches without a cluster: asked, told, killed and gone on with, as a script says.

The script is drawn from a seed of its own, so that a search that is killed and one that is not go
through the same. What happens to the n-th trial does not depend on its id.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from ray import cloudpickle
from ray.tune.search import Searcher
from ray.tune.search.search_generator import SearchGenerator
from ray.tune.utils.util import flatten_dict

from raytrials import _ray
from raytrials.core.event import EVENTS, Event, Record, ResultReported, TrialAdded
from raytrials.driver.search import Search

METRIC, MODE = "m", "max"
AT_ONCE = 4


class Given(NamedTuple):
    """The n-th trial: what the search made of it."""

    trial_id: str
    tag: str
    config: Mapping[str, Any]


def _train(_: dict[str, Any]) -> None:
    """Never run."""


def fresh(make: Callable[[], Any], space: Mapping[str, Any]) -> Any:
    """Return an algorithm as `tune.run` makes it; a restored run has no space, and sets none."""
    made = make()
    algorithm = SearchGenerator(made) if isinstance(made, Searcher) else made
    if space:
        metric, mode = getattr(made, "metric", None) or METRIC, getattr(made, "mode", None) or MODE
        algorithm.set_search_properties(metric, mode, dict(space))
    return algorithm


def started(make: Callable[[], Any], space: Mapping[str, Any], samples: int, path: str) -> Any:
    """Return an algorithm with its experiment."""
    algorithm = fresh(make, space)
    algorithm.add_configurations(
        [_ray.Experiment("fit", _train, config=dict(space), num_samples=samples, storage_path=path)]
    )
    return algorithm


def copied(algorithm: Any, make: Callable[[], Any]) -> Any:
    """Return a started algorithm of the same entropy; no seed of its own is needed."""
    if isinstance(algorithm, SearchGenerator):
        return cloudpickle.loads(cloudpickle.dumps(algorithm))
    state = cloudpickle.dumps(_ray.variants_state(algorithm))
    copy = make()
    copy.set_state(cloudpickle.loads(state))
    return copy


def global_state() -> str:
    """Return the states of the two global generators."""
    return repr((random.getstate(), np.random.get_state()))  # noqa: NPY002 - this is about it


class Scripted:
    """A search, with the trials that it made.

    Args:
        algorithm: as `started` gives it.
        make: makes the algorithm of a restored run.
        script: seed of all that happens.
        monkeypatch: ids are the numbers of the trials, where Ray draws them.
        noise: seed of what others draw in between.
    """

    def __init__(
        self,
        algorithm: Any,
        make: Callable[[], Any],
        script: int,
        monkeypatch: pytest.MonkeyPatch,
        *,
        noise: int = 0,
    ) -> None:
        self.trials: list[Given] = []
        self.events: list[Record] = []
        self.wrong: list[tuple[str, str]] = []
        self._make = make
        self._algorithm = algorithm
        self._script = random.Random(script)
        self._seed = script
        self._noise = random.Random(noise)
        self._running: dict[int, int] = {}
        self._search = Search(algorithm, script, self.record)
        self._saved = self._search.dump()
        self._saved_seq, self._saved_results = 0, dict[str, Any]()
        self._results: dict[str, Any] = {}
        monkeypatch.setattr(
            "ray.tune.experiment.Trial.generate_id", lambda: f"{len(self.trials):05d}"
        )

    def record(self, event: Event) -> None:
        """Append to the journal, through its form on disk."""
        data = json.loads(json.dumps(event.to_data()))
        written = EVENTS[type(event).__name__].from_data(data)
        self.events.append(Record(len(self.events) + 1, 1, 0.0, written))
        if isinstance(event, ResultReported):
            self._results[event.trial_id] = event.metrics

    def run(self, samples: int, kills: Collection[int] = (), saves: Collection[int] = ()) -> None:
        """Go on until there are so many trials; saves and kills are steps."""
        step = 0
        while len(self.trials) < samples and step < 40 * samples:
            for _ in range(self._noise.randrange(4)):
                random.random()
                np.random.randn(self._noise.randrange(1, 4))  # noqa: NPY002 - others do so
            if step in saves:
                self._saved = self._search.dump()
                self._saved_seq, self._saved_results = len(self.events), dict(self._results)
            if step in kills:
                self.die()
            before = global_state()
            self._step()
            assert global_state() == before
            step += 1

    def die(self) -> None:
        """Lose the driver, after an ask that it did not record, and go on with another."""
        if len(self._running) < AT_ONCE:
            self._search.next_trial()
        self._algorithm = fresh(self._make, {})
        self._search = Search(self._algorithm, self._seed, self.record)
        self._search.load(self._saved)
        seq, recorded = self._saved_seq, len(self.events)
        self.wrong += self._search.replay(self.events[seq:], self._saved_results)
        assert len(self.events) == recorded

    def _step(self) -> None:
        draw = self._script.random
        if len(self._running) < AT_ONCE and draw() < 0.45:
            self._ask()
        elif self._running:
            number = self._script.choice(list(self._running))
            end = draw()
            if end < 0.5:
                self._report(number)
            elif end < 0.9 and self._running[number]:
                self._end(number, error=False)
            else:
                self._end(number, error=True)

    def _ask(self) -> None:
        trial = self._search.next_trial()
        if trial is not None:
            self._running[len(self.trials)] = 0
            self.trials.append(Given(trial.trial_id, trial.experiment_tag, trial.config))
            self.record(TrialAdded(trial.trial_id, trial.config, trial.experiment_tag))

    def _result(self, number: int) -> dict[str, Any]:
        iteration = self._running[number]
        own = random.Random(f"{self._seed}/{number}/{iteration}")
        return {
            "training_iteration": iteration,
            METRIC: own.uniform(-1, 1),
            "inner": {"other": own.gauss(0, 1)},
        }

    def _report(self, number: int) -> None:
        self._running[number] += 1
        trial_id, result = self.trials[number].trial_id, self._result(number)
        self.record(ResultReported(trial_id, 1, self._running[number], result))
        self._algorithm.on_trial_result(trial_id, flatten_dict(result))

    def _end(self, number: int, *, error: bool) -> None:
        trial_id = self.trials[number].trial_id
        result = None if error else flatten_dict(self._result(number))
        self._search.on_complete(trial_id, error=error)
        self._algorithm.on_trial_complete(trial_id, result=result, error=error)
        del self._running[number]
