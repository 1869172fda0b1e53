"""Drivers are killed, and the schedulers on a real Ray decide what they would have decided."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.killed import CHOICES, Moment, Plan, run

from raytrials.chaos.oracle import Oracle
from raytrials.core.event import ResultReported, SchedulerCalled, TrialConfigChanged

pytestmark = pytest.mark.timeout(600)


def killed_and_whole(workspace: Path, kills: Sequence[Moment], **changes: Any) -> Plan:
    """Run an experiment with kills, and the same without; their tables have to be equal."""
    for name in ("killed", "whole"):
        (workspace / name).mkdir()
    plan = Plan(f"{workspace}/killed", seed=3, slots=1, reuses=False, **changes)
    whole = replace(plan, directory=f"{workspace}/whole")
    with ThreadPoolExecutor(1) as other:
        uninterrupted = other.submit(run, whole)
        found = run(plan, kills)
        expected = uninterrupted.result()
    assert rows(found) == rows(expected)
    oracle = Oracle(plan.path, num_samples=plan.samples)
    assert [str(one) for one in oracle.violations()] == []
    return plan


def rows(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["config"], row["error"], row["rows"][-1:]) for row in found["table"]]


def told(plan: Plan) -> list[tuple[str, int]]:
    """Return the results that the scheduler was told, in order, as trial and iteration."""
    latest, found = {}, []
    for record in plan.records():
        event = record.event
        if isinstance(event, ResultReported):
            latest[event.trial_id] = event.iteration
        elif isinstance(event, SchedulerCalled) and event.call == "result":
            trial_id = str(event.trial_id)
            found.append((trial_id, latest[trial_id]))
    return found


def test_asha_stops_the_same_trials_at_the_same_iterations(workspace: Path) -> None:
    kills = [Moment("DecisionMade", 2), Moment("DecisionMade", 4), Moment("TrialFinished", 2)]
    plan = killed_and_whole(workspace, kills, scheduler="asha", samples=8, steps=6)
    assert len(told(plan)) == len(set(told(plan)))


def test_hyperband_ends(workspace: Path) -> None:
    kills = [Moment("TrialPaused", 3)]
    killed_and_whole(workspace, kills, scheduler="hyperband", samples=6, steps=6)


def test_a_synchronous_population_goes_on_at_the_same_intervals(workspace: Path) -> None:
    # After its second perturbation, which is at the fourth iteration of the last of four trials.
    kills = [Moment("DecisionMade", 17)]
    plan = killed_and_whole(workspace, kills, scheduler="pbt", samples=4, steps=8)
    changed = [
        (event.config["x"], iteration)
        for event, iteration in configured(plan)
        if event.checkpoint is None
    ]
    assert {iteration % 2 for _, iteration in changed} == {0}
    assert max(iteration for _, iteration in changed) > 4
    assert {x for x, _ in changed} <= set(CHOICES)


def configured(plan: Plan) -> list[tuple[TrialConfigChanged, int]]:
    """Return the changes of configurations, with the iteration that the population was at."""
    latest, found = 0, []
    for record in plan.records():
        event = record.event
        if isinstance(event, ResultReported):
            latest = event.iteration
        elif isinstance(event, TrialConfigChanged):
            found.append((event, latest))
    return found


def test_a_median_is_made_of_each_result_once(workspace: Path) -> None:
    kills = [Moment("ResultReported", 7)]
    plan = killed_and_whole(workspace, kills, scheduler="median", samples=6, steps=6)
    assert len(told(plan)) == len(set(told(plan)))
