"""Vanilla Ray and raytrials take an experiment up from each other, in any order.

Each driver is a process of its own on one shared Ray. Where vanilla Ray runs, raytrials cannot be
imported, neither by the driver nor by the workers.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from support.fits import finish, last_json, start, wait_until
from support.foreign import STEPS, TRIALS
from support.telling import lines, saved, starts

pytestmark = pytest.mark.usefixtures("ray_local")

SCRIPT = """
import json, sys
from pathlib import Path
import ray
from ray import tune
from support import foreign

kind, how, directory, address = sys.argv[1:]
runtime = None
if kind == "vanilla":
    foreign.forbid()
    runtime = {"worker_process_setup_hook": "support.foreign.forbid"}
    Tuner = tune.Tuner
else:
    from raytrials import Tuner
ray.init(address=address, log_to_driver=False, runtime_env=runtime)
path = str(Path(directory, "storage", "fit"))
read = None
if how == "begin":
    tuner = Tuner(foreign.train, **foreign.arguments(Path(directory)))
else:
    tuner = Tuner.restore(path, foreign.train)
    frame = tune.ExperimentAnalysis(path).dataframe()
    read = [foreign.seen(tuner.get_results()), sorted(frame.get("count", []))]
grid = tuner.fit()
print(json.dumps([read, foreign.seen(grid), dict(getattr(grid, "lost", {}))]))
assert ("raytrials.tuner" in sys.modules) is (kind == "ours")
"""


@dataclass(frozen=True)
class Search:
    """The search of `support.foreign` in a directory."""

    directory: Path

    def _start(self, kind: str, how: str, state_s: float) -> Any:
        address = ray.get_runtime_context().gcs_address
        arguments = (kind, how, str(self.directory), address)
        return start(SCRIPT, *arguments, TUNE_GLOBAL_CHECKPOINT_S=str(state_s))

    def run(self, kind: str, how: str) -> tuple[Any, dict[Any, Any], dict[str, str]]:
        """Run to the end; return what was read before, each trial's results, and what is lost."""
        (self.directory / "go").touch()
        read, results, lost = last_json(finish(self._start(kind, how, 0)))
        assert [result[1] for result in results] == [STEPS] * TRIALS
        assert {result[3] for result in results} == {None}
        assert len({result[0] for result in results}) == TRIALS
        return read, {trial: drawn for trial, _, drawn, _ in results}, lost

    def begin_and_kill(self, kind: str) -> None:
        """Run until the second trial has saved three steps, and SIGKILL the driver."""
        driver = self._start(kind, "begin", 1)  # it is not killed while it writes
        try:
            wait_until(self._holds, alive=lambda: driver.poll() is None)
        finally:
            driver.kill()
            driver.communicate()

    def _holds(self) -> bool:
        """Whether the report of the third step is in Ray's state."""
        for path in (self.directory / "storage" / "fit").glob("experiment_state-*.json"):
            with contextlib.suppress(ValueError):  # vanilla Ray writes it in place
                trials = json.loads(path.read_text())["trial_data"]
                counts = [json.loads(one)["last_result"].get("count") for _, one in trials]
                if 3 in counts and 3 in saved(self._log(1)):
                    return True
        return False

    def _log(self, number: int) -> Path:
        return self.directory / f"log{number}"

    @property
    def starts(self) -> list[list[int]]:
        """Which step each attempt of each trial went on from."""
        return [starts(self._log(number)) for number in range(TRIALS)]

    @property
    def without(self) -> list[int]:
        """How many attempts of each trial ran where raytrials cannot be imported."""
        logs = [lines(self._log(number)) for number in range(TRIALS)]
        return [log.count("without raytrials") for log in logs]


@pytest.fixture
def search(workspace: Path) -> Search:
    return Search(workspace)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("first", "second"), [("ours", "vanilla"), ("vanilla", "ours")])
def test_a_finished_experiment_is_opened_by_the_other(
    search: Search, first: str, second: str
) -> None:
    _, began, _ = search.run(first, "begin")
    (read, frame), results, lost = search.run(second, "restore")
    assert {trial: drawn for trial, _, drawn, _ in read} == results == began
    assert frame == [STEPS] * TRIALS
    assert search.starts == [[0]] * TRIALS  # nothing has run again
    assert lost == {}
    assert search.without == [int(first == "vanilla")] * TRIALS


@pytest.mark.timeout(200)
def test_vanilla_goes_on_with_ours_after_a_kill_and_ours_goes_on_after_that(
    search: Search,
) -> None:
    search.begin_and_kill("ours")
    (read, _), vanilla, _ = search.run("vanilla", "restore")
    assert [result[1] for result in read] == [5, 3]
    assert search.starts == [[0], [0, 3], [0]]
    assert search.without == [0, 1, 1]
    # The journal knows neither the end of the second trial nor the third one.
    _, ours, lost = search.run("ours", "restore")
    assert ours == vanilla
    assert search.starts == [[0], [0, 3], [0]]  # nothing that vanilla Ray did is done again
    assert lost == {}
    _, again, _ = search.run("ours", "restore")
    assert again == ours


@pytest.mark.timeout(200)
def test_ours_goes_on_with_vanilla_after_a_kill(search: Search) -> None:
    search.begin_and_kill("vanilla")
    (read, _), ours, lost = search.run("ours", "restore")
    assert {trial: drawn for trial, _, drawn, _ in read}.items() <= ours.items()
    assert search.starts == [[0], [0, 3], [0]]
    assert search.without == [1, 1, 0]
    assert lost == {}
