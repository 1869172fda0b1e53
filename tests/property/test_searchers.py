"""A search whose driver is killed suggests what it would have suggested without that.

With Ray's own searchers, each asked for up to 50 trials with results, errors and completions in any
order: once in one go, and once with saves and kills in between. No cluster is needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ray import tune
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater
from support.searching import METRIC, MODE, Scripted, copied, started

# Searchers and Ray warn of much that is given to them here.
pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES = 50
NUMBERS = {"x": tune.uniform(0, 1), "inner": {"lr": tune.loguniform(1e-4, 1e-1)}}
FLAT = {"x": tune.uniform(0, 1), "y": tune.uniform(-5, 5)}
SPACE = {**NUMBERS, "layers": tune.choice([1, 2, 3]), "n": tune.randint(1, 100), "fixed": 3}
POINTS = [{"x": 0.5, "inner": {"lr": 0.01}, "layers": 2, "n": 7}, {"x": 0.1, "n": 9, "layers": 1}]
OPTUNA_POINTS = [
    {"x": 0.5, "inner/lr": 0.01, "layers": 2, "n": 7},
    {"x": 0.1, "inner/lr": 0.02, "layers": 1, "n": 9},
]
GRID = {"x": tune.grid_search(list(range(10))), "y": tune.grid_search([1, 2, 3, 4, 5])}
MIXED = {
    "x": tune.grid_search([1, 2, 3, 4]),
    "y": tune.uniform(0, 1),
    "z": tune.sample_from(lambda spec: spec.config.y * random.random()),
    "inner": {"w": tune.grid_search(["a", "b"]), "v": tune.randn(0, 1)},
}
LAZY = {f"x{index}": tune.grid_search(list(range(11))) for index in range(6)} | {
    "y": tune.uniform(0, 1),
    "z": tune.sample_from(lambda _: random.random()),
}


class Case(NamedTuple):
    """A search algorithm, and what it is given."""

    make: Callable[[], Any]
    space: Mapping[str, Any] = SPACE
    samples: int = SAMPLES
    trials: int = SAMPLES


def optuna(**arguments: Any) -> Any:
    pytest.importorskip("optuna").logging.set_verbosity(30)
    from ray.tune.search.optuna import OptunaSearch  # noqa: PLC0415 - may not be installed

    return OptunaSearch(**({"metric": METRIC, "mode": MODE} | arguments))


def sampler(name: str, **arguments: Any) -> Any:
    return getattr(pytest.importorskip("optuna").samplers, name)(**arguments)


def hyperopt(**arguments: Any) -> Any:
    pytest.importorskip("hyperopt")
    from ray.tune.search.hyperopt import HyperOptSearch  # noqa: PLC0415 - likewise

    return HyperOptSearch(metric=METRIC, mode=MODE, **arguments)


def bayesopt(**arguments: Any) -> Any:
    pytest.importorskip("bayes_opt")
    from ray.tune.search.bayesopt import BayesOptSearch  # noqa: PLC0415 - likewise

    # It waits for ever for a random step that failed. And it draws for a suggestion that it then
    # skips as a repeated one: that is no answer, and no journal has it.
    answering = {"random_search_steps": 0, "skip_duplicate": False, "patience": 1_000}
    return BayesOptSearch(metric=METRIC, mode=MODE, **answering, **arguments)


def define_by_run(trial: Any) -> dict[str, Any]:
    """Two search spaces, one of which is drawn at a time."""
    if trial.suggest_categorical("kind", ["a", "b"]) == "a":
        trial.suggest_float("x", 0, 1)
    else:
        trial.suggest_int("n", 1, 100)
    return {"fixed": 3}


TWO = {"metric": [METRIC, "inner/other"], "mode": ["max", "min"]}

CASES = {
    "random": Case(BasicVariantGenerator),
    "random, seeded": Case(lambda: BasicVariantGenerator(random_state=7)),
    "grid": Case(BasicVariantGenerator, GRID, samples=1),
    "mixed": Case(BasicVariantGenerator, MIXED, samples=7),
    "mixed, constant": Case(
        lambda: BasicVariantGenerator(constant_grid_search=True), MIXED, samples=7
    ),
    "points": Case(lambda: BasicVariantGenerator(points_to_evaluate=POINTS)),
    "max_concurrent": Case(lambda: BasicVariantGenerator(max_concurrent=2)),
    "lazy": Case(BasicVariantGenerator, LAZY, samples=1),
    "lazy, max_concurrent, seeded": Case(
        lambda: BasicVariantGenerator(max_concurrent=2, random_state=7), LAZY, samples=1
    ),
    "Optuna, seeded": Case(lambda: optuna(seed=7)),
    "Optuna": Case(optuna),
    "Optuna, points": Case(lambda: optuna(points_to_evaluate=OPTUNA_POINTS)),
    "Optuna, two metrics": Case(lambda: optuna(**TWO)),
    "Optuna, define by run": Case(lambda: optuna(space=define_by_run), {}),
    "Optuna, random": Case(lambda: optuna(sampler=sampler("RandomSampler"))),
    "Optuna, NSGA-II": Case(
        lambda: optuna(**TWO, sampler=sampler("NSGAIISampler", population_size=8))
    ),
    "Optuna, multivariate": Case(
        lambda: optuna(sampler=sampler("TPESampler", multivariate=True, n_startup_trials=5))
    ),
    "HyperOpt, seeded": Case(lambda: hyperopt(random_state_seed=7)),
    "HyperOpt": Case(hyperopt),
    "BayesOpt": Case(lambda: bayesopt(random_state=7), FLAT, trials=20),
    "limiter": Case(lambda: ConcurrencyLimiter(optuna(), max_concurrent=2)),
    "limiter, batches": Case(lambda: ConcurrencyLimiter(optuna(), max_concurrent=3, batch=True)),
    "limiter, HyperOpt": Case(lambda: ConcurrencyLimiter(hyperopt(), max_concurrent=2)),
    "repeater": Case(lambda: Repeater(optuna(), repeat=3)),
    "repeater, limiter": Case(
        lambda: Repeater(ConcurrencyLimiter(optuna(), max_concurrent=2), repeat=2)
    ),
}


@pytest.mark.parametrize("script", range(2))
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_killed_search_goes_on_as_one_that_was_not(
    case: Case, script: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = started(case.make, case.space, case.samples, str(tmp_path))
    copy = copied(algorithm, case.make)
    draw = random.Random(f"steps {script}")
    kills, saves = draw.sample(range(5, 120), 3), draw.sample(range(120), 3)

    once = Scripted(algorithm, case.make, script, monkeypatch, noise=1)
    once.run(case.trials)
    killed = Scripted(copy, case.make, script, monkeypatch, noise=2)
    killed.run(case.trials, kills, saves)

    assert len(once.trials) == case.trials
    assert killed.wrong == []
    assert killed.trials == once.trials
    assert [record.event for record in killed.events] == [record.event for record in once.events]
