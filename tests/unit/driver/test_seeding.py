"""Each call has seeds of its own, and nobody else notices."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ray.tune.search import ConcurrencyLimiter, Searcher
from support.searching import global_state

from raytrials.driver.seeding import Seeding, draw_lazy_generators


def drawn(seeding: Seeding) -> tuple[float, float]:
    with seeding.call():
        return random.random(), np.random.rand()  # noqa: NPY002 - what searchers draw from


def test_a_call_draws_the_same_whatever_was_drawn_before_it() -> None:
    first = drawn(Seeding("search", 7))
    random.random()
    np.random.rand(3)  # noqa: NPY002 - likewise
    assert drawn(Seeding("search", 7)) == first


def test_calls_objects_and_experiments_draw_differently() -> None:
    later = Seeding("search", 7)
    later.number = 1
    all_of_them = [Seeding("search", 7), later, Seeding("search", 8), Seeding("scheduler", 7)]
    assert len({value for seeding in all_of_them for value in drawn(seeding)}) == 8


@pytest.mark.parametrize("raised", [None, KeyError])
def test_the_global_generators_are_as_if_nobody_had_drawn(raised: type[Exception] | None) -> None:
    np.random.randn()  # noqa: NPY002 - leaves the second of a pair behind
    before = global_state()
    with pytest.raises(raised) if raised else contextlib.nullcontext():
        _draw_within(Seeding("search", 7), raised)
    assert global_state() == before


def _draw_within(seeding: Seeding, raised: type[Exception] | None) -> None:
    with seeding.call():
        random.random()
        np.random.randn(3)  # noqa: NPY002 - likewise
        if raised:
            raise raised


@pytest.fixture
def _another_generator() -> Iterator[None]:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    yield
    np.random.set_bit_generator(before)


@pytest.mark.usefixtures("_another_generator")
def test_a_global_generator_that_takes_no_seed_is_put_back_too() -> None:
    before = repr(np.random.get_state(legacy=False))  # noqa: NPY002 - this is about it
    drawn(Seeding("search", 7))
    assert repr(np.random.get_state(legacy=False)) == before  # noqa: NPY002 - likewise


def generators_of(seed: int | None, search: int = 7) -> list[float]:
    optuna = pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch  # noqa: PLC0415 - may not be installed

    sampler: Any = optuna.samplers.TPESampler(seed=seed)
    searcher = ConcurrencyLimiter(OptunaSearch(metric="m", mode="max", sampler=sampler), 2)
    draw_lazy_generators(searcher, Seeding("search", search))
    return [part._rng.rng.rand() for part in (sampler, sampler._random_sampler)]


def test_the_lazy_generators_of_optuna_start_from_the_seed_of_the_experiment() -> None:
    assert generators_of(None) == generators_of(None)
    assert len({*generators_of(None), *generators_of(None, search=8)}) == 4


def test_a_generator_with_a_seed_keeps_it() -> None:
    assert generators_of(3) == generators_of(3, search=8)


def test_nothing_is_looked_for_where_optuna_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "optuna.samplers._lazy_random_state", raising=False)
    draw_lazy_generators(Searcher(metric="m", mode="max"), Seeding("search", 7))
