"""What is recorded, saved, loaded and replayed of a search algorithm."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle, tune
from ray.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    SearchAlgorithm,
    Searcher,
)
from ray.tune.search.search_generator import SearchGenerator
from support.searching import fresh, started

from raytrials import _ray
from raytrials.core.event import (
    AttemptStarted,
    CheckpointCommitted,
    DriverDetached,
    Event,
    Record,
    ResultReported,
    SearcherTold,
    TrialAdded,
)
from raytrials.core.fold import apply
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.driver.search import VERSION, Search
from raytrials.driver.seeding import wrapped
from raytrials.errors import ConfigurationError, NewerFormatError, UnpicklableStateError

SPACE = {"x": tune.uniform(0, 1), "fixed": 3}


class Fake(Searcher):
    """Suggests what it draws, and keeps what it is told."""

    def __init__(self, limit: int = 100) -> None:
        super().__init__(metric="m", mode="max")
        self.told: list[Any] = []
        self.limit = limit
        self.extra: Any = None

    def set_search_properties(self, *args: Any, **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        if len(self.told) >= self.limit:
            return self.FINISHED
        if self.extra == "none now":
            return None
        self.told.append(("suggest", trial_id))
        return {"x": float(np.random.rand()), "inner": {"list": [1, 2], "object": self.keep}}  # noqa: NPY002 - as searchers do

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        self.told.append(("result", trial_id, result))
        if result["m"] < 0:
            raise ValueError("negative")

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.told.append(("complete", trial_id, result, error, float(np.random.rand())))  # noqa: NPY002 - likewise

    def keep(self) -> None:
        """Only to be bound."""

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_bytes(pickle.dumps(self.told))

    def restore(self, checkpoint_path: str) -> None:
        self.told = pickle.loads(Path(checkpoint_path).read_bytes())


class Pausing(Fake):
    """Knows pauses, too."""

    def on_pause(self, trial_id: str) -> None:
        self.told.append(("pause", trial_id))

    def on_unpause(self, trial_id: str) -> None:
        self.told.append(("unpause", trial_id))


class Custom(SearchAlgorithm):
    """Makes trials without a searcher."""

    def __init__(self) -> None:
        self.made = 0
        self.told: list[Any] = []

    def next_trial(self) -> Any:
        if self.made == 3:
            return None
        self.made += 1
        config = {"x": float(np.random.rand())}  # noqa: NPY002 - likewise
        return _ray.Trial(
            "train", stub=True, trial_id=f"c{self.made}", config=config, evaluated_params=config
        )

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.told.append((trial_id, result, error))


class Journal:
    """What a search records."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def records(self) -> list[Record]:
        return [Record(seq, 1, 0.0, event) for seq, event in enumerate(self.events, 1)]

    def add(self, trial: Any) -> str:
        """Record a trial that the search made."""
        self(TrialAdded(trial.trial_id, trial.config, trial.experiment_tag or ""))
        return str(trial.trial_id)


def search_of(
    make: Callable[[], Any], path: Path, seed: int = 7, samples: int = 20
) -> tuple[Search, Any, Journal]:
    algorithm, journal = started(make, SPACE, samples, str(path)), Journal()
    return Search(algorithm, seed, journal), algorithm, journal


def again(make: Callable[[], Any], seed: int = 7) -> tuple[Search, Any, Journal]:
    """Return the search of the next driver, which has no space."""
    algorithm, journal = fresh(make, {}), Journal()
    return Search(algorithm, seed, journal), algorithm, journal


# --- what stands for the searcher ----------------------------------------------------------------


def test_the_searcher_is_told_after_the_journal(tmp_path: Path) -> None:
    inner = Pausing()
    search, algorithm, journal = search_of(lambda: inner, tmp_path)
    trial_id = search.next_trial().trial_id
    inner.told = journal.events  # one list, so that the order shows
    result = {"m": 1.0, "training_iteration": 4}
    algorithm.on_trial_result(trial_id, result)
    algorithm.searcher.on_pause(trial_id)
    algorithm.searcher.on_unpause(trial_id)
    algorithm.on_trial_complete(trial_id, result=result)
    search.on_complete(trial_id, error=False)
    algorithm.on_trial_complete("other", error=True)
    assert [one if isinstance(one, Event) else one[0] for one in journal.events] == [
        SearcherTold(trial_id, "result", 4),
        "result",
        SearcherTold(trial_id, "pause", 0),
        "pause",
        SearcherTold(trial_id, "unpause", 0),
        "unpause",
        SearcherTold(trial_id, "complete", 4),
        "complete",
        SearcherTold("other", "complete", 0, error=True),
        "complete",
    ]


def test_a_pause_leaves_the_iteration_that_was_told_in_the_state() -> None:
    state = ExperimentState(epoch=1, is_attached=True, trials={"t": TrialRecord("t", 0)})
    for seq, call in enumerate(("result", "pause", "unpause"), 1):
        event = SearcherTold("t", call, 3 if call == "result" else 0)
        apply(state, Record(seq, 1, 0.0, event))
    assert (state.trials["t"].told_iteration, state.trials["t"].told_complete) == (3, False)


def test_ray_and_the_user_see_the_real_searcher(tmp_path: Path) -> None:
    inner = Fake()
    outer = ConcurrencyLimiter(inner, max_concurrent=2)
    _, algorithm, _ = search_of(lambda: outer, tmp_path)
    stand_in = algorithm.searcher
    assert isinstance(stand_in, ConcurrencyLimiter)
    assert not isinstance(stand_in, Repeater)
    assert (type(stand_in).__name__, stand_in.searcher) == ("ConcurrencyLimiter", inner)
    assert (stand_in.metric, stand_in.mode, algorithm.metric) == ("m", "max", "m")
    stand_in.max_concurrent = 5
    assert (outer.max_concurrent, stand_in.max_concurrent) == (5, 5)
    with pytest.raises(AttributeError, match="no_such"):
        _ = stand_in.no_such
    with pytest.raises(NotImplementedError):
        stand_in.add_evaluated_point({}, 1.0)


def test_pauses_are_for_searchers_that_know_them(tmp_path: Path) -> None:
    _, algorithm, _ = search_of(Fake, tmp_path)
    assert not hasattr(algorithm.searcher, "on_pause")


def test_a_copy_or_pickle_is_one_of_the_real_searcher(tmp_path: Path) -> None:
    _, algorithm, _ = search_of(lambda: ConcurrencyLimiter(Fake(), 2), tmp_path)
    for pickler in (pickle, cloudpickle):
        assert type(pickler.loads(pickler.dumps(algorithm.searcher))) is ConcurrencyLimiter
    assert type(cloudpickle.loads(cloudpickle.dumps(algorithm)).searcher) is ConcurrencyLimiter


def test_a_second_driver_of_the_same_object_does_not_record_for_the_first(tmp_path: Path) -> None:
    _, algorithm, first = search_of(Fake, tmp_path)
    second = Journal()
    Search(algorithm, 7, second)
    algorithm.on_trial_complete("t")
    assert (len(first.events), len(second.events)) == (0, 1)


READER = """
import sys
sys.modules["raytrials"] = None
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.search_generator import SearchGenerator
algorithm = SearchGenerator(ConcurrencyLimiter(OptunaSearch(), 9))
algorithm.restore_from_dir(sys.argv[1])
limiter = algorithm.searcher
print(algorithm._counter, limiter.max_concurrent, len(limiter.live_trials))
print(len(limiter.searcher._ot_trials))
"""


@pytest.mark.filterwarnings("ignore")
def test_rays_files_are_those_of_the_real_searcher(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from ray.tune.search.optuna import OptunaSearch  # noqa: PLC0415 - may not be installed

    def make() -> Any:
        return ConcurrencyLimiter(OptunaSearch(metric="m", mode="max"), 2)

    search, algorithm, _ = search_of(make, tmp_path)
    search.next_trial()
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    algorithm.save_to_dir(str(tmp_path / "with"), "now")
    saved = pickle.loads((tmp_path / "with/search_gen_state-now.json").read_bytes())
    plain = SearchGenerator(cloudpickle.loads(cloudpickle.dumps(algorithm.searcher)))
    plain.set_state(algorithm.get_state())
    plain.save_to_dir(str(tmp_path / "without"), "now")
    vanilla = pickle.loads((tmp_path / "without/search_gen_state-now.json").read_bytes())
    assert saved.keys() == vanilla.keys()
    assert {one.name for one in (tmp_path / "with").iterdir()} == {
        one.name for one in (tmp_path / "without").iterdir()
    }
    read = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READER, str(tmp_path / "with")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert read.stdout.split() == ["1", "2", "1", "1"]
    algorithm.restore_from_dir(str(tmp_path / "with"))


# --- saved and loaded ----------------------------------------------------------------------------


def test_a_loaded_search_is_as_the_dumped_one(tmp_path: Path) -> None:
    search, algorithm, _ = search_of(lambda: Repeater(Fake(), repeat=2), tmp_path)
    inner = algorithm.searcher.searcher
    inner.extra = inner.keep
    search.next_trial()
    data = search.dump()
    other, restored, _ = again(lambda: Repeater(Fake(), repeat=2))
    outermost, innermost = wrapped(restored.searcher)
    other.load(data)
    assert restored.get_state().keys() == algorithm.get_state().keys()
    assert restored._experiment.spec["num_samples"] == 20
    assert (restored._counter, restored.total_samples) == (1, 20)
    assert restored.searcher.searcher is innermost
    assert (innermost.told, outermost.repeat) == (inner.told, 2)
    innermost.told.append("more")
    assert innermost.extra.__self__.told is innermost.told
    assert other.next_trial().config["x"] == search.next_trial().config["x"]


def test_the_user_s_variables_and_the_seed_do_not_enter_the_next_suggestion(tmp_path: Path) -> None:
    one, _, _ = search_of(Fake, tmp_path, seed=1)
    two, _, _ = search_of(Fake, tmp_path, seed=2)
    same, _, _ = search_of(Fake, tmp_path, seed=1)
    first = one.next_trial().config["x"]
    assert first != two.next_trial().config["x"]
    np.random.rand()  # noqa: NPY002 - others do so
    assert same.next_trial().config["x"] == first


def test_an_ask_without_an_answer_does_not_count(tmp_path: Path) -> None:
    one, algorithm, _ = search_of(Fake, tmp_path)
    algorithm.searcher.extra = "none now"
    assert [one.next_trial() for _ in range(3)] == [None] * 3
    algorithm.searcher.extra = None
    two, _, _ = search_of(Fake, tmp_path)
    assert one.next_trial().config["x"] == two.next_trial().config["x"]
    assert one.next_trial().config["x"] == two.next_trial().config["x"]


def unpicklable(kind: str, lock: Any, path: Path) -> tuple[Any, str]:
    """Return an algorithm with a lock in it, and where that is."""
    if kind == "variants":
        algorithm = started(BasicVariantGenerator, {"x": lock}, 1, str(path))
        return algorithm, "BasicVariantGenerator['_iterators'][0].unresolved_spec['config']['x']"
    if kind == "algorithm":
        algorithm = Custom()
        algorithm.told.append({"lock": lock})
        return algorithm, "Custom.told[0]['lock']"
    inner = Fake()
    inner.extra = lock
    if kind == "searcher":
        return SearchGenerator(inner), "SearchGenerator.searcher.extra"
    return SearchGenerator(ConcurrencyLimiter(inner, 2)), "SearchGenerator.searcher.searcher.extra"


@pytest.mark.parametrize("kind", ["searcher", "inner searcher", "algorithm", "variants"])
def test_what_cannot_be_pickled_is_named(kind: str, tmp_path: Path) -> None:
    algorithm, name = unpicklable(kind, threading.Lock(), tmp_path)
    with pytest.raises(UnpicklableStateError) as caught:
        Search(algorithm, 7, Journal()).dump()
    assert caught.value.detail == f"{name}: cannot pickle '_thread.lock' object"


class Copied:
    """Can be copied, as Ray copies a search space, and not be pickled."""

    def __deepcopy__(self, memo: Any) -> Copied:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


def test_a_grid_that_is_made_one_by_one_says_why_it_has_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.tune.search.basic_variant.SERIALIZATION_THRESHOLD", 5)
    space = {"x": tune.grid_search(list(range(10))), "y": Copied()}
    with pytest.warns(UserWarning, match="Resume ability"):
        algorithm = started(BasicVariantGenerator, space, 1, str(tmp_path))
    search = Search(algorithm, 7, Journal())
    assert search.next_trial().config["x"] == 0
    with pytest.raises(UnpicklableStateError, match=r"'y'.*not this one"):
        search.dump()


def test_another_kind_of_algorithm_is_refused(tmp_path: Path) -> None:
    search, _, _ = search_of(lambda: ConcurrencyLimiter(Fake(), 2), tmp_path)
    other, _, _ = again(Fake)
    with pytest.raises(ConfigurationError) as caught:
        other.load(search.dump())
    assert "SearchGenerator(ConcurrencyLimiter(Fake" in str(caught.value)
    with pytest.raises(ConfigurationError):
        again(Custom)[0].load(search.dump())


def test_a_dump_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    search, _, _ = search_of(Fake, tmp_path)
    with pytest.raises(NewerFormatError):
        search.load(cloudpickle.dumps((VERSION + 1, "anything")))


def test_a_class_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    search, _, _ = search_of(Fake, tmp_path)
    with pytest.raises(UnpicklableStateError, match="no_such_module"):
        search.load(b"cno_such_module\nKind\n.")


# --- replayed ------------------------------------------------------------------------------------


def test_the_tail_is_told_again_and_not_recorded(tmp_path: Path) -> None:
    search, algorithm, journal = search_of(Pausing, tmp_path)
    a = journal.add(search.next_trial())
    before = {"m": 0.5, "training_iteration": 1}
    algorithm.on_trial_result(a, before)
    data, seen = search.dump(), len(journal.events)
    b = journal.add(search.next_trial())
    algorithm.searcher.on_pause(a)
    algorithm.searcher.on_unpause(a)
    algorithm.on_trial_complete(a, result=before)
    nested = {"m": 2.0, "training_iteration": 1, "inner": {"y": 1}}
    journal(ResultReported(b, 1, 1, nested))
    algorithm.on_trial_result(b, {"m": 2.0, "training_iteration": 1, "inner/y": 1})
    journal(DriverDetached("for the test"))
    algorithm.on_trial_complete(b, error=True)
    other, restored, silent = again(Pausing)
    other.load(data)
    assert other.replay(journal.records()[seen:], {a: before}) == []
    assert restored.searcher.told == algorithm.searcher.told
    assert (restored._counter, silent.events) == (2, [])
    assert other.next_trial().config["x"] == search.next_trial().config["x"]


def test_a_result_is_looked_up_by_its_iteration(tmp_path: Path) -> None:
    search, algorithm, _ = search_of(Fake, tmp_path)
    a = search.next_trial().trial_id
    of = {n: {"m": float(n), "training_iteration": n} for n in range(1, 7)}
    journal = Journal()
    journal(CheckpointCommitted(a, 1, 0, 2, of[2]))
    journal(ResultReported(a, 1, 3, of[3]))
    journal(SearcherTold(a, "result", 3))
    journal(AttemptStarted(a, 2, from_iteration=4, metrics=of[4]))
    for iteration in (1, 2, 4, 5):
        journal(SearcherTold(a, "complete", iteration))
    wrong = search.replay(journal.records(), {a: of[1]})
    told = [one[2]["training_iteration"] for one in algorithm.searcher.told if len(one) > 2]
    assert told == [3, 1, 2, 4, 4]
    assert [(trial_id, "iteration 5" in what) for trial_id, what in wrong] == [(a, True)]


def test_a_call_that_raises_counts_and_does_not_end_the_replay(tmp_path: Path) -> None:
    search, algorithm, journal = search_of(Fake, tmp_path)
    data = search.dump()
    a = journal.add(search.next_trial())
    bad = {"m": -1.0, "training_iteration": 1}
    journal(ResultReported(a, 1, 1, bad))
    with pytest.raises(ValueError, match="negative"):
        algorithm.on_trial_result(a, bad)
    algorithm.on_trial_complete(a, result=bad)
    other, restored, _ = again(Fake)
    other.load(data)
    assert other.replay(journal.records(), {}) == []
    assert restored.searcher.told == algorithm.searcher.told


def test_what_the_searcher_answers_otherwise_is_returned(tmp_path: Path) -> None:
    search, _, _ = search_of(lambda: Fake(limit=2), tmp_path)
    data = search.dump()
    x, y = search.next_trial().config["x"], search.next_trial().config["x"]
    rest = {"fixed": 3, "inner": {"list": [1, 2], "object": "<something>"}}
    journal = Journal()
    journal(TrialAdded("a", {"x": x, **rest}))
    journal(TrialAdded("b", {"x": 0.5, "inner": {"list": [1, 3]}}))
    journal(TrialAdded("c", {"x": 0.5}))
    other, restored, _ = again(lambda: Fake(limit=2))
    other.load(data)
    assert other.replay(journal.records(), {}) == [
        ("b", f"x is {y!r} instead of 0.5; inner/list/1 is 2 instead of 3"),
        ("c", "the searcher has no suggestion; the journal has one"),
    ]
    assert restored._counter == 3
    restored.searcher.limit = "none"
    ((trial_id, what),) = other.replay([Record(1, 1, 0.0, TrialAdded("d"))], {})
    assert trial_id == "d"
    assert "TypeError" in what


# --- without a searcher --------------------------------------------------------------------------


def test_another_algorithm_is_saved_whole_and_seeded() -> None:
    first, journal = Custom(), Journal()
    search = Search(first, 7, journal)
    journal.add(search.next_trial())
    data = search.dump()
    trials = [search.next_trial(), search.next_trial()]
    assert search.next_trial() is None
    for trial in trials:
        journal.add(trial)
    last = {"m": 1, "training_iteration": 2}
    journal(ResultReported("c1", 1, 2, last))
    for trial_id, error in (("c1", False), ("c2", True)):
        search.on_complete(trial_id, error=error)
        first.on_trial_complete(trial_id, result=None if error else last, error=error)
    assert journal.events[-1] == SearcherTold("c2", "complete", 0, error=True)
    other, restored, _ = again(Custom)
    other.load(data)
    journal(TrialAdded("c4", {"x": 1.0}))
    assert other.replay(journal.records()[1:], {}) == [
        ("c4", "the searcher has no suggestion; the journal has one")
    ]
    assert vars(restored) == vars(first)


def test_variants_of_another_run_count_under_the_ids_of_the_journal(tmp_path: Path) -> None:
    def make() -> Any:
        return BasicVariantGenerator(max_concurrent=2)

    search, _, journal = search_of(make, tmp_path)
    for _ in range(2):
        journal.add(search.next_trial())
    search.on_complete(journal.events[0].trial_id, error=False)  # type: ignore[attr-defined]
    other, algorithm, _ = search_of(make, tmp_path)
    algorithm._uuid_prefix = algorithm._iterators[0].uuid_prefix = "other_"
    wrong = other.replay(journal.records(), {})
    assert [what for _, what in wrong] == ["its id is other_00000", "its id is other_00001"]
    assert algorithm._live_trials == {journal.events[1].trial_id}  # type: ignore[attr-defined]
    assert other.next_trial() is not None
    assert other.next_trial() is None
