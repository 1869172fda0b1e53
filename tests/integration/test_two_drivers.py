"""One driver at a time has an experiment, whoever freezes, dies or starts at the same moment."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
from support.fits import finish, kill_driver, last_json, wait_until
from support.signalled import RETURNED, Plan, begin, wait_for_steps

from raytrials.core.event import DriverAttached
from raytrials.store.manifest import MANIFEST
from raytrials.store.tenure import EXPIRY_S


def files(plan: Plan) -> dict[str, tuple[int, bytes]]:
    found = (path for path in plan.path.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_a_driver_that_was_frozen_and_replaced_changes_nothing_and_says_why(
    workspace: Path,
) -> None:
    plan = Plan(str(workspace))
    frozen = begin(plan)
    try:
        wait_for_steps(plan, frozen, 6)
        workers = {pid for _, _, pid in plan.lines()}
        os.kill(frozen.pid, signal.SIGSTOP)
        found = last_json(finish(begin(plan)))
        assert found == {RETURNED: [plan.steps] * plan.trials, "errors": [None] * plan.trials}
        before = files(plan)
        os.kill(frozen.pid, signal.SIGCONT)
        output, _ = frozen.communicate(timeout=60)
    finally:
        if frozen.poll() is None:
            kill_driver(frozen)
    assert frozen.returncode == 1
    assert "LeaseLostError" in output
    assert "was taken over by process" in output
    assert files(plan) == before
    wait_until(lambda: not any(map(psutil.pid_exists, workers)), alive=lambda: True, timeout_s=30)
    assert len({one.epoch for one in plan.records()}) == 2


def test_of_two_that_start_together_one_runs_and_the_other_names_it(workspace: Path) -> None:
    plan = Plan(str(workspace), steps=100, locked_s=2)
    drivers = [begin(plan), begin(plan)]
    outputs = [driver.communicate(timeout=120)[0] for driver in drivers]
    winner, loser = sorted((0, 1), key=lambda one: drivers[one].returncode)
    assert drivers[winner].returncode == 0, outputs[winner]
    assert last_json(outputs[winner])[RETURNED] == [plan.steps] * plan.trials
    assert drivers[loser].returncode == 1
    assert "ExperimentLockedError" in outputs[loser]
    assert f"process {drivers[winner].pid} on" in outputs[loser]
    steps = [(trial, step) for trial, step, _ in plan.lines()]
    assert len(steps) == len(set(steps)) == plan.trials * plan.steps


def test_a_dead_driver_on_the_same_machine_is_replaced_at_once(workspace: Path) -> None:
    plan = Plan(str(workspace))
    driver = begin(plan)
    wait_for_steps(plan, driver, 6)
    kill_driver(driver)
    killed_s = time.time()
    finish(begin(plan))
    attached = [one.time for one in plan.records() if isinstance(one.event, DriverAttached)]
    assert attached[1] - killed_s < EXPIRY_S
    manifests = [json.loads(path.read_bytes()) for path in plan.path.rglob(MANIFEST)]
    assert {manifest["epoch"] for manifest in manifests} == {2}
