"""A path that holds an experiment is safe, and what is restored is whole or a typed error."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem
from ray import cloudpickle, tune
from ray.exceptions import RaySystemError
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from support.made import NAME, Place, never_run, train
from support.s3 import BUCKET, filesystem, s3_server
from support.s3 import place as way_to

from raytrials import Tuner, _ray
from raytrials.driver.asked import Asked
from raytrials.driver.beginning import experiment_at, is_free
from raytrials.errors import (
    ConfigurationError,
    ExperimentCorruptError,
    ExperimentExistsError,
    ExperimentLockedError,
    JournalCorruptError,
    MissingCodeError,
    NewerFormatError,
    NotAnExperimentError,
    SearchSpaceChangedError,
    SearchSpaceNeededError,
    StorageError,
)
from raytrials.store import holding, occupant
from raytrials.store.clock import SystemClock
from raytrials.store.lease import acquire
from raytrials.store.manifest import digest_of
from raytrials.store.process import this_process
from raytrials.store.tunerfile import decode, encode

COPY = ".raytrials/tuner.bin"
SPACE = {"lr": tune.loguniform(1e-4, 0.1), "epochs": 3}


class Memory(MemoryFileSystem):
    """A store of its own, in memory."""

    cachable = False
    protocol = "memory-of-its-own"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]


@pytest.fixture(autouse=True)
def _settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else wants these experiments."""
    monkeypatch.setattr("raytrials.store.lease.SETTLE_S", 0.01)


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture(params=["local", "fsspec", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(pyarrow.fs.LocalFileSystem(), str(tmp_path / "storage"), is_given=False)
    if request.param == "fsspec":
        return Place(PyFileSystem(FSSpecHandler(Memory())), "/storage")
    port = request.getfixturevalue("s3_port")
    return Place(filesystem(port), f"{BUCKET}/{tmp_path.name}")


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(pyarrow.fs.LocalFileSystem(), str(tmp_path / "storage"), is_given=False)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setenv("RAYTRIALS_STORAGE_RETRY_S", "0")
    return never_run(monkeypatch)


def fitted(place: Place, *, journal: bool = False, **kwargs: Any) -> Tuner:
    """An experiment that was begun: its tuner's files, and a state of two trials or a journal."""
    tuner = place.tuner(**kwargs)
    tuner.fit()
    if journal:
        place.write_journal(kwargs.get("param_space"))
    else:
        place.save_state("a", "b")
    return tuner


# --- a path that holds an experiment -------------------------------------------------------------


def journal(place: Place) -> None:
    place.write_journal()


OCCUPANTS: dict[str, Callable[[Place], object]] = {
    "a journal": journal,
    "experiment_state-": lambda place: place.save_state("a"),
    "trial_a/result.json": lambda place: place.write("trial_a/result.json", b"{}\n"),
    "trial_a/checkpoint_000003": lambda place: place.write("trial_a/checkpoint_000003/w", b"w"),
}


@pytest.mark.parametrize("shown", OCCUPANTS)
def test_a_path_that_holds_an_experiment_is_refused_and_nothing_is_written(
    place: Place, shown: str
) -> None:
    OCCUPANTS[shown](place)
    before = place.files()
    with pytest.raises(ExperimentExistsError) as caught:
        place.tuner(param_space=SPACE)
    said = str(caught.value)
    for part in (place.path, shown, 'resume="auto"', 'resume="overwrite"', "RunConfig(name="):
        assert part in said
    assert place.files() == before


def test_a_tuner_that_was_never_fitted_is_no_experiment(place: Place) -> None:
    place.tuner(param_space=SPACE)
    tuner = place.tuner(param_space={"other": 1})
    assert "tuner.pkl" in place.files()
    assert not place.can_restore()
    with pytest.raises(NotAnExperimentError, match="never fitted"):
        place.restore()
    tuner.fit()


def test_of_two_tuners_at_one_path_one_fits_and_is_what_a_restore_finds(
    place: Place, runs: list[dict[str, Any]]
) -> None:
    first, second = place.tuner(param_space=SPACE), place.tuner(param_space={"other": 1})
    first.fit()
    place.save_state("a")
    before = place.files()
    for tuner in (second, first):
        with pytest.raises(ExperimentExistsError):
            tuner.fit()
    assert place.files() == before
    assert len(runs) == 1
    state = cloudpickle.loads(before["tuner.pkl"])
    assert state["__flattened_param_space_keys"] == ["epochs", "lr"]
    assert decode(before[COPY]) == before["tuner.pkl"]


def test_tuners_without_a_name_never_share_a_directory(tmp_path: Path) -> None:
    config = tune.RunConfig(storage_path=str(tmp_path))
    for _ in range(3):
        Tuner(train, run_config=config)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("resume", ["Auto", True, ""])
def test_another_resume_is_refused(local: Place, resume: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"resume.*'auto' or 'overwrite'"):
        local.tuner(resume=resume)


def test_what_is_saved_is_read_by_vanilla_ray(place: Place) -> None:
    fitted(place, param_space=SPACE)
    given = place.filesystem if place.is_given else None
    assert tune.Tuner.can_restore(place.path, given)
    assert len(tune.Tuner.restore(place.path, train, storage_filesystem=given).get_results()) == 2
    assert b"raytrials" not in place.files()["tuner.pkl"]


# --- auto ----------------------------------------------------------------------------------------


def test_auto_starts_and_then_continues(place: Place, runs: list[dict[str, Any]]) -> None:
    for samples, failures in ((2, 0), (5, 3)):
        tuner = place.tuner(
            resume="auto",
            param_space=SPACE,
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=samples),
            run={"failure_config": tune.FailureConfig(max_failures=failures)},
        )
        tuner.fit()
        place.write_journal(SPACE)
        place.save_state("a", "b")
    first, second = runs
    assert "resume_config" not in first
    assert second["resume_config"] == tune.ResumeConfig()
    assert (second["num_samples"], second["max_failures"]) == (5, 3)
    assert (second["name"], second["metric"]) == (NAME, "loss")
    assert len(tuner.get_results()) == 0  # of the fit that never ran
    assert len(place.tuner(resume="auto", param_space=SPACE).get_results()) == 2


def test_auto_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"RunConfig\(name"):
        Tuner(train, run_config=tune.RunConfig(storage_path=str(tmp_path)), resume="auto")
    with pytest.raises(ConfigurationError, match=r"RunConfig\(name"):
        Tuner(train, resume="auto")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"metric": "accuracy"}, r"metric=.*'accuracy'; expected 'loss'"),
        ({"mode": "max"}, r"mode=.*'max'; expected 'min'"),
        ({"num_samples": 2}, "num_samples=.* is 2; expected 3 or more"),
        ({"scheduler": ASHAScheduler()}, "scheduler=.*expected one of FIFOScheduler"),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else "",
)
def test_what_contradicts_the_experiment_is_refused(
    local: Place, changed: dict[str, Any], says: str
) -> None:
    given = {"metric": "loss", "mode": "min", "num_samples": 3}
    fitted(local, tune_config=tune.TuneConfig(**given))
    before = local.files()
    with pytest.raises(ConfigurationError, match=says):
        local.tuner(resume="auto", tune_config=tune.TuneConfig(**{**given, **changed}))
    assert local.files() == before


def test_auto_takes_the_experiments_own_where_nothing_is_said(
    local: Place, runs: list[dict[str, Any]]
) -> None:
    fitted(local, tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=3))
    local.tuner(resume="auto").fit()
    local.tuner(resume="auto", tune_config=tune.TuneConfig(num_samples=-1)).fit()
    assert [(run["metric"], run["num_samples"]) for run in runs[1:]] == [("loss", 3), ("loss", -1)]


def test_auto_finds_an_experiment_by_a_uri_with_settings(tmp_path: Path, s3_port: int) -> None:
    place = Place(filesystem(s3_port), f"{BUCKET}/{tmp_path.name}")
    fitted(place, param_space=SPACE)
    uri, _ = way_to("uri", s3_port, place.root)
    path = experiment_at(uri, NAME)
    assert path.startswith(f"s3://{place.path}?scheme=http&")
    assert not is_free(path, None)
    assert is_free(experiment_at(uri, "other"), None)
    assert Tuner.can_restore(path)
    assert not Tuner.can_restore(experiment_at(uri, "other"))


@pytest.mark.parametrize(
    ("old", "new", "agree"),
    [
        (None, BasicVariantGenerator(), True),
        (None, OptunaSearch(), False),
        (OptunaSearch(), OptunaSearch(seed=1), True),
        (ConcurrencyLimiter(OptunaSearch(), 2), ConcurrencyLimiter(OptunaSearch(), 4), True),
        (OptunaSearch(), ConcurrencyLimiter(OptunaSearch(), 2), False),
        ("random", "random", True),
        ("random", "optuna", False),
    ],
)
def test_a_searcher_has_to_be_of_the_same_kind(old: Any, new: Any, agree: bool) -> None:
    before, now = tune.TuneConfig(search_alg=old), tune.TuneConfig(search_alg=new)
    run = tune.RunConfig(name="fit")
    if agree:
        assert Asked(now, run).over(before, run)[0].search_alg is new
        return
    with pytest.raises(ConfigurationError, match="search_alg"):
        Asked(now, run).over(before, run)


# --- overwrite -----------------------------------------------------------------------------------


def test_overwrite_changes_nothing_before_the_fit_and_then_removes_all(place: Place) -> None:
    fitted(place, journal=True, param_space=SPACE)
    place.write("trial_a/checkpoint_000003/w", b"w")
    place.write("notes.txt", b"mine")
    before = place.files()
    tuner = place.tuner(resume="overwrite", param_space={"x": 1})
    assert place.files() == before
    tuner.fit()
    after = place.files()
    left = {name for name in after if not name.startswith(".raytrials/lease/")}
    assert left - {".validate_storage_marker"} == {"tuner.pkl", COPY}
    assert cloudpickle.loads(after["tuner.pkl"])["__flattened_param_space_keys"] == ["x"]
    place.tuner().fit()


def test_overwrite_without_an_experiment_removes_nothing(place: Place) -> None:
    place.write("notes.txt", b"mine")
    place.tuner(resume="overwrite").fit()
    assert place.files()["notes.txt"] == b"mine"


def test_overwrite_follows_no_link(local: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    for name in ("data", "below/data"):
        (outside / name).write_text("precious")
    fitted(local)
    experiment = Path(local.path)
    (experiment / "trial_a").mkdir()
    for at, target in (
        ("file", outside / "data"),
        ("directory", outside),
        ("trial_a/deeper", outside),
        ("gone", tmp_path / "nothing"),
        ("itself", experiment),
    ):
        (experiment / at).symlink_to(target)
    local.tuner(resume="overwrite").fit()
    assert (outside / "data").read_text() == (outside / "below" / "data").read_text() == "precious"
    assert {one.name for one in experiment.iterdir()} == {".raytrials", "tuner.pkl"}


def test_overwrite_of_a_path_that_is_a_link_empties_what_it_leads_to(
    local: Place, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "storage").mkdir()
    Path(local.path).symlink_to(tmp_path / "real")
    fitted(local)
    local.tuner(resume="overwrite").fit()
    assert Path(local.path).is_symlink()
    assert {one.name for one in (tmp_path / "real").iterdir()} == {".raytrials", "tuner.pkl"}


def test_an_experiment_with_a_live_driver_is_not_removed(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "LOCKED_S", 0.1)
    fitted(local, journal=True)
    lease = acquire(
        local.disk,
        f"{local.path}/.raytrials/lease",
        clock=SystemClock(),
        identity=this_process(),
        wait_s=0,
        experiment=local.path,
    )
    tuner = local.tuner(resume="overwrite")
    before = local.files()
    with pytest.raises(ExperimentLockedError, match=str(os.getpid())):
        tuner.fit()
    assert local.files() == before
    lease.release()
    tuner.fit()
    assert not (Path(local.path) / ".raytrials" / "journal").exists()


@pytest.mark.parametrize("has_journal", [False, True], ids=["state", "journal"])
def test_a_removal_that_is_cut_off_leaves_what_is_no_experiment_to_restore(
    local: Place, monkeypatch: pytest.MonkeyPatch, has_journal: bool
) -> None:
    fitted(local, journal=has_journal)
    local.write("trial_a/result.json", b"{}\n")
    steps = len(occupant._in_order(local.disk, local.path, retry_s=0))
    delete = occupant._delete
    for step in range(1, steps):
        left = [step]

        def cut_off(*args: Any, left: list[int] = left) -> None:
            if not left[0]:
                raise OSError("the driver dies")
            left[0] -= 1
            delete(*args)

        monkeypatch.setattr(occupant, "_delete", cut_off)
        with pytest.raises(StorageError, match="the driver dies"):
            occupant.remove(local.disk, local.path, retry_s=0)
        monkeypatch.setattr(occupant, "_delete", delete)
        if not occupant.occupant_of(local.disk, local.path, retry_s=0):
            break
        # The copy went first; what it was made of does as well, and all else is still there.
        assert not local.can_restore() or step == 1
        with pytest.raises(ExperimentExistsError):
            local.tuner()
        local.tuner(resume="overwrite").fit()
        fitted(local, journal=has_journal)
        local.write("trial_a/result.json", b"{}\n")


# --- tuner.pkl -----------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "other": lambda data: data[:-9] + bytes(reversed(data[-9:])),
}


@pytest.mark.parametrize("damage", [*DAMAGE, "missing"])
def test_a_damaged_tuner_file_is_replaced_by_its_copy(
    place: Place, damage: str, caplog: pytest.LogCaptureFixture, runs: list[dict[str, Any]]
) -> None:
    fitted(place, tune_config=tune.TuneConfig(num_samples=7))
    whole = place.files()["tuner.pkl"]
    if damage == "missing":
        place.disk.delete_file(f"{place.path}/tuner.pkl")
    else:
        place.write("tuner.pkl", DAMAGE[damage](whole))
    before = place.files()
    assert place.can_restore()
    with caplog.at_level(logging.WARNING):
        tuner = place.restore()
    assert f"{place.path}/tuner.pkl is damaged" in caplog.text
    assert len(tuner.get_results()) == 2
    assert place.files() == before
    tuner.fit()
    assert place.files()["tuner.pkl"] == whole
    assert runs[-1]["num_samples"] == 7


def test_a_tuner_of_vanilla_ray_at_the_path_costs_nothing(local: Place) -> None:
    fitted(local, tune_config=tune.TuneConfig(num_samples=7))
    config = local.run_config()
    tune.Tuner(train, param_space={"b": 1}, run_config=config)
    assert local.restore()._local_tuner._tune_config.num_samples == 7


@pytest.mark.parametrize("damage", [*DAMAGE, "missing"])
def test_without_a_whole_copy_a_damaged_tuner_file_is_an_error_that_names_it(
    place: Place, damage: str
) -> None:
    fitted(place)
    whole, copy = place.files()["tuner.pkl"], place.files()[COPY]
    if damage == "missing":
        place.disk.delete_file(f"{place.path}/tuner.pkl")
    else:
        place.write("tuner.pkl", DAMAGE[damage](whole))
    place.write(COPY, copy[:-1])
    before = place.files()
    with pytest.raises(ExperimentCorruptError) as caught:
        place.restore()
    assert caught.value.path == f"{place.path}/tuner.pkl"
    with pytest.raises(ExperimentExistsError):
        place.tuner()
    assert place.files() == before
    if damage != "other":  # of which nothing tells without unpickling
        assert f"{COPY} is damaged: it holds {len(whole) - 1} bytes" in caught.value.reason
        assert not place.can_restore()


@pytest.mark.parametrize("damage", [None, "empty", "half", "missing"])
def test_an_experiment_without_a_copy_is_restored_as_it_is_or_not_at_all(
    place: Place, damage: str | None
) -> None:
    fitted(place)
    whole = place.files()["tuner.pkl"]
    place.disk.delete_file(f"{place.path}/{COPY}")
    if damage is None:
        assert place.can_restore()
        place.restore().fit()
        assert decode(place.files()[COPY]) == whole
        return
    if damage == "missing":
        place.disk.delete_file(f"{place.path}/tuner.pkl")
    else:
        place.write("tuner.pkl", DAMAGE[damage](whole))
    assert not place.can_restore()
    with pytest.raises(ExperimentCorruptError, match=r"tuner\.pkl"):
        place.restore()


def test_a_damaged_copy_alone_is_written_again(place: Place) -> None:
    fitted(place)
    copy = place.files()[COPY]
    for data in (b"", copy[:40], copy.replace(b'"size"', b'"sice"')):
        place.write(COPY, data)
        assert place.can_restore()
        place.restore().fit()
        assert place.files()[COPY] == copy


def test_a_copy_of_a_newer_version_is_left_to_the_newer_release(local: Place) -> None:
    fitted(local)
    head = encode(b"x").replace(b'"version":1', b'"version":2').partition(b',"digest"')[0]
    line = head + f',"digest":"{digest_of(head + b"}")}"}}\nx'.encode()
    local.write(COPY, line)
    assert not local.can_restore()
    with pytest.raises(NewerFormatError, match=r"copy of tuner\.pkl has version 2"):
        local.restore()


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_missing_module_is_named_and_is_no_damage(
    local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_copy: bool
) -> None:
    (tmp_path / "their_module.py").write_text("class Callback:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import their_module  # type: ignore[import-not-found]  # noqa: PLC0415

    fitted(local, run={"callbacks": [their_module.Callback()]})
    if not has_copy:
        local.disk.delete_file(f"{local.path}/{COPY}")
    monkeypatch.delattr(their_module, "Callback")
    with pytest.raises(MissingCodeError, match="Callback"):
        local.restore()
    monkeypatch.delitem(sys.modules, "their_module")
    (tmp_path / "their_module.py").unlink()
    with pytest.raises(MissingCodeError, match="their_module") as caught:
        local.restore()
    assert isinstance(caught.value, ImportError)


def test_no_moment_of_writing_leaves_less_than_a_whole_tuner_file(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.tuner(param_space=SPACE)
    written = local.files()["tuner.pkl"]

    def torn(path: Any, target: Any) -> None:
        raise OSError("the machine is gone")

    monkeypatch.setattr(Path, "replace", torn)
    with pytest.raises(Exception, match="the machine is gone"):
        local.tuner(param_space={"other": [1] * 1000})
    assert local.files()["tuner.pkl"] == written


# --- can_restore and restore ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["", "nothing/here", "/nothing/here", "nowhere://bucket/x", "s3://", "/\0", "/etc/passwd", "~"],
)
def test_a_path_without_an_experiment_cannot_be_restored(path: str) -> None:
    assert Tuner.can_restore(path) is False


@pytest.mark.parametrize("path", [None, 3])
def test_what_is_no_path_cannot_be_restored(path: Any) -> None:
    assert Tuner.can_restore(path) is False


def test_only_a_whole_state_or_journal_can_be_restored(place: Place) -> None:
    fitted(place)
    (state,) = [name for name in place.files() if name.startswith("experiment_state")]
    data = place.files()[state]
    assert place.can_restore()
    for damaged in (b"", data[: len(data) // 2], b"[]", b'{"trial_data": []}'):
        place.write(state, damaged)
        assert not place.can_restore()
        before = place.files()
        with pytest.raises(ExperimentCorruptError) as caught:
            place.restore()
        assert caught.value.path == f"{place.path}/{state}"
        assert place.files() == before
    place.write_journal()
    assert place.can_restore()
    place.restore()


def test_a_damaged_journal_is_said(place: Place) -> None:
    fitted(place, journal=True)
    (name,) = [name for name in place.files() if "/journal/" in name]
    place.write(name, b"x" + place.files()[name])
    assert not place.can_restore()
    before = place.files()
    with pytest.raises(JournalCorruptError):
        place.restore()
    assert place.files() == before


def test_trials_without_any_state_are_said(local: Place) -> None:
    local.tuner().fit()
    local.write("trial_a/result.json", b"{}\n")
    assert not local.can_restore()
    with pytest.raises(ExperimentCorruptError, match=r"there is none, but trial_a/result\.json"):
        local.restore()


class Down(Memory):
    """Does not answer."""

    def info(self, path: str, **kwargs: Any) -> Any:
        raise ConnectionError("no route to host")

    find = ls = _open = info


def test_a_storage_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(StorageError, match="no route to host"):
        Tuner.can_restore("/storage/fit", Down())
    with pytest.raises(StorageError, match="no route to host"):
        Tuner.restore("/storage/fit", train, storage_filesystem=Down())


# --- the search space ----------------------------------------------------------------------------


def test_another_search_space_is_refused_with_what_is_different(place: Place) -> None:
    fitted(place, journal=True, param_space=SPACE)
    place.restore(param_space={**SPACE})
    before = place.files()
    other = {"lr": tune.loguniform(1e-3, 0.1), "x": 1}
    with pytest.raises(SearchSpaceChangedError) as caught:
        place.restore(param_space=other)
    assert caught.value.differences == (
        "lr: loguniform(0.0001, 0.1) became loguniform(0.001, 0.1)",
        "removed: epochs",
        "added: x",
    )
    with pytest.raises(SearchSpaceChangedError):
        place.tuner(resume="auto", param_space=other)
    assert place.files() == before


def test_without_a_journal_rays_own_check_stays(local: Place) -> None:
    fitted(local, param_space=SPACE)
    local.restore(param_space={"lr": 1, "epochs": 2})
    with pytest.raises(ValueError, match="Invalid `param_space`"):
        local.restore(param_space={"lr": 1})


def test_references_are_asked_for_by_their_keys_before_anything_starts(
    local: Place, runs: list[dict[str, Any]]
) -> None:
    reference = _ray.ray.ObjectRef.nil()
    space = {"data": {"train": reference}, "model": tune.choice([1, reference]), "lr": 0.1}
    fitted(local, journal=True, param_space=space)
    before = local.files()
    assert not any(name.endswith("space.bin") for name in before)
    tuner = local.restore()
    with pytest.raises(SearchSpaceNeededError) as caught:
        tuner.fit()
    assert caught.value.keys == ("data.train", "model")
    assert local.files() == before
    assert len(runs) == 1
    local.restore(param_space=space).fit()
    assert runs[-1]["config"]["data"] == {"train": reference}


def test_functions_and_objects_are_kept_for_a_restore_that_is_not_given_them(
    place: Place, runs: list[dict[str, Any]]
) -> None:
    fitted(place, param_space={"size": tune.sample_from(lambda config: 7), "x": 1})
    place.restore().fit()
    config = runs[-1]["config"]
    assert config["size"].func({}) == 7
    assert config["x"] == 1
    place.write(".raytrials/space.bin", b"torn")
    with pytest.raises(SearchSpaceNeededError):
        place.restore().fit()
    place.restore(param_space=config).fit()


def test_a_plain_search_space_is_not_kept_twice(local: Place) -> None:
    fitted(local, param_space=SPACE)
    assert not (Path(local.path) / ".raytrials" / "space.bin").exists()


# --- results -------------------------------------------------------------------------------------


def test_the_results_are_those_of_the_newest_whole_state(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    fitted(place)
    newest = place.save_state("a", "b", "c", time="2026-01-02_00-00-00")
    assert len(place.restore().get_results()) == 3
    place.write(newest, place.files()[newest][:-20])
    with caplog.at_level(logging.WARNING):
        assert len(place.restore().get_results()) == 2
    assert newest in caplog.text


def test_no_whole_state_beside_a_journal_is_an_error_where_results_are_asked_for(
    place: Place,
) -> None:
    fitted(place, journal=True)
    torn = place.save_state("a")
    place.write(torn, place.files()[torn][:-20])
    tuner = place.restore()
    with pytest.raises(ExperimentCorruptError) as caught:
        tuner.get_results()
    assert caught.value.path == f"{place.path}/{torn}"


class NeedsRay:
    """Loads where Ray runs, as a reference does."""

    def __reduce__(self) -> Any:
        return _ask_for_ray, ()


def _ask_for_ray() -> None:
    raise RaySystemError("Ray has not been started yet.")


def test_results_that_hold_references_ask_for_ray_and_are_no_damage(local: Place) -> None:
    local.tuner().fit()
    local.save_state("a", config={"reference": NeedsRay()})
    tuner = local.restore()
    with pytest.raises(RaySystemError, match="not been started"):
        tuner.get_results()


class Gone:
    """Its code is gone when it is loaded."""

    def __reduce__(self) -> Any:
        return _look_for_code, ()


def _look_for_code() -> None:
    raise ModuleNotFoundError("No module named 'theirs'")


def test_results_that_need_a_missing_module_say_so(local: Place) -> None:
    local.tuner().fit()
    local.save_state("a", config={"thing": Gone()})
    with pytest.raises(MissingCodeError, match="theirs"):
        local.restore().get_results()
