"""Drivers are killed at random moments, and the experiment is what it would have been without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.killed import Plan, moments, problems, run

pytestmark = pytest.mark.timeout(600)

KILLS = {"random search, three kept, slow storage that fails": 1}
"""Two everywhere else."""

EXPERIMENTS: dict[str, tuple[int, dict[str, Any]]] = {
    "random search": (7, {"reuses": False}),
    "Optuna, one kept": (6, {"searcher": "optuna", "num_to_keep": 1}),
    "random search, three kept, slow storage that fails": (
        1,
        {"samples": 4, "num_to_keep": 3, "steps": 2, "is_bad": True},
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_nothing_is_lost_doubled_or_changed(workspace: Path, name: str) -> None:
    seed, changes = EXPERIMENTS[name]
    plan = Plan(str(workspace), **changes)
    kills = moments(seed, KILLS.get(name, 2), plan)
    assert problems(plan, run(plan, kills), kills) == [], kills


def test_one_slot_and_seeds_give_the_table_of_an_uninterrupted_run(workspace: Path) -> None:
    for name in ("killed", "whole"):
        (workspace / name).mkdir()
    plan = Plan(f"{workspace}/killed", searcher="optuna", seed=3, num_to_keep=3, slots=1)
    whole = replace(plan, directory=f"{workspace}/whole")
    kills = moments(10, 2, plan)
    with ThreadPoolExecutor(1) as other:
        uninterrupted = other.submit(run, whole)
        found = run(plan, kills)
        uninterrupted.result()
    assert problems(plan, found, kills, against=whole) == [], kills
