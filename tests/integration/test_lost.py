"""What cannot be kept exactly shows in the result."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch
from support.telling import Stopping

from raytrials import Tuner
from raytrials.driver.result import TrialResultGrid
from raytrials.errors import SearchSpaceNeededError

pytestmark = pytest.mark.usefixtures("ray_local")


class Locked(Searcher):
    """A searcher that nobody can pickle once it has its lock."""

    def __init__(self) -> None:
        super().__init__(metric="count", mode="max")
        self.lock: Any = None
        self.number = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.number += 1
        return {"x": self.number}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text(str(self.number))

    def restore(self, checkpoint_path: str) -> None:
        self.number = int(Path(checkpoint_path).read_text())


def train(config: dict[str, Any]) -> None:
    for step in range(2):
        tune.report({"count": step})


def tuner(workspace: Path, searcher: Searcher | None, **kwargs: Any) -> Tuner:
    return Tuner(
        train,
        param_space=None if searcher else {"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(
            search_alg=searcher, num_samples=2 if searcher else 1, max_concurrent_trials=1
        ),
        run_config=tune.RunConfig(name="fit", storage_path=str(workspace), verbose=0, **kwargs),
    )


def test_a_searcher_that_cannot_be_pickled_is_named_by_the_fit_and_by_every_later_one(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = workspace / "stop"
    stop.write_text("1")
    searcher = Locked()
    first = tuner(workspace, searcher, callbacks=[Stopping(stop)])
    searcher.lock = threading.Lock()  # Ray pickles it when a tuner is made
    with pytest.raises(tune.TuneError, match="stopped here"):
        first.fit()
    assert "The state of the searcher is not saved" in caplog.text
    again = Tuner.restore(str(workspace / "fit"), train)
    before = again.get_results()
    grid = again.fit()
    assert isinstance(grid, TrialResultGrid)
    assert [result.error for result in grid] == [None, None]
    for one in (before, grid, Tuner.restore(str(workspace / "fit"), train).get_results()):
        assert list(one.lost) == ["searcher"]
        assert "lock" in one.lost["searcher"]


def test_nothing_is_lost_where_everything_is_kept(workspace: Path) -> None:
    grid = tuner(workspace, None).fit()
    assert dict(grid.lost) == {}
    with pytest.raises(TypeError):
        grid.lost["searcher"] = "no"  # type: ignore[index]


SEARCHERS: dict[str, Callable[[], Searcher | None]] = {
    "random": lambda: None,
    "optuna": lambda: OptunaSearch(seed=1),
}


@pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS)
def test_a_search_whose_state_is_gone_begins_anew_in_the_same_space_or_not_at_all(
    workspace: Path, make: Callable[[], Searcher | None]
) -> None:
    stop = workspace / "stop"
    stop.write_text("1")
    space = {"x": tune.uniform(3, 4), "same": "value"}
    first = Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="count", mode="max", search_alg=make(), num_samples=3, max_concurrent_trials=1
        ),
        run_config=tune.RunConfig(
            name="fit", storage_path=str(workspace), verbose=0, callbacks=[Stopping(stop)]
        ),
    )
    with pytest.raises(tune.TuneError, match="stopped here"):
        first.fit()
    home = workspace / "fit" / ".raytrials"
    shutil.rmtree(home / "snapshots")
    before = {path.name: path.read_bytes() for path in (home / "journal").iterdir()}
    with pytest.raises(SearchSpaceNeededError, match="x, same"):
        Tuner.restore(str(workspace / "fit"), train).fit()
    assert {path.name: path.read_bytes() for path in (home / "journal").iterdir()} == before

    grid = Tuner.restore(str(workspace / "fit"), train, param_space=space).fit()
    assert [result.error for result in grid] == [None] * 3
    configs = [result.config or {} for result in grid]
    assert all(3 <= config["x"] <= 4 and config["same"] == "value" for config in configs)
    assert isinstance(grid, TrialResultGrid)
    # Ray's own gives trials other ids in each new search.
    assert list(grid.lost) == (["searcher"] if make() is None else [])
