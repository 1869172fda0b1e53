"""The watched checkpoint: what it tells, and what becomes of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow.fs
import pytest
from fsspec.implementations.local import LocalFileSystem
from ray import cloudpickle
from ray.tune import Checkpoint

from raytrials import _ray
from raytrials.driver import probe
from raytrials.driver.probe import Stage, WatchedCheckpoint, Word


class Store(dict[str, str]):
    """The cluster's key-value store, here."""

    told: list[str]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    fake = Store()
    fake.told = []

    def put(key: str, value: str) -> None:
        fake[key] = value
        fake.told.append(value)

    monkeypatch.setattr(_ray, "kv_put", put)
    monkeypatch.setattr(_ray, "kv_get", fake.get)
    monkeypatch.setattr(_ray, "kv_del", lambda key: fake.pop(key, None))
    return fake


class OwnCheckpoint(Checkpoint):
    """A user's own."""


@pytest.fixture(params=[Checkpoint, OwnCheckpoint])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    (tmp_path / "file").write_text("content")
    made: Checkpoint = request.param.from_directory(str(tmp_path))
    return made


def watch(checkpoint: Checkpoint) -> tuple[WatchedCheckpoint, str]:
    watched, key = probe.hand_out(checkpoint, 7, "exp/trial", 1, watched=True)
    assert key is not None
    return watched, key


def test_the_worker_tells_when_it_enters_and_leaves(store: Store, checkpoint: Checkpoint) -> None:
    watched, key = watch(checkpoint)
    assert probe.read(key) is None
    with watched.as_directory() as path:
        assert probe.read(key) == Word(Stage.ENTERED)
        assert Path(path, "file").read_text() == "content"
    assert probe.read(key) == Word(Stage.LEFT)
    probe.forget(key)
    assert store == {}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_worker_tells_of_an_exception_inside(
    store: Store, checkpoint: Checkpoint, error: type[BaseException]
) -> None:
    watched, key = watch(checkpoint)
    with pytest.raises(error), watched.as_directory():
        raise error
    assert probe.read(key) == Word(Stage.FAILED, error.__name__)


def test_a_copy_counts_as_a_load(store: Store, checkpoint: Checkpoint, tmp_path: Path) -> None:
    watched, key = watch(checkpoint)
    watched.to_directory(tmp_path / "copy")
    assert store.told == [Stage.ENTERED.value, Stage.LEFT.value]
    watched, key = watch(type(checkpoint)(str(tmp_path / "gone"), pyarrow.fs.LocalFileSystem()))
    with pytest.raises(FileNotFoundError):
        watched.to_directory(tmp_path / "copy")
    assert probe.read(key) == Word(Stage.FAILED, "FileNotFoundError")


def test_a_copy_inside_the_block_does_not_end_it(
    store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    watched, key = watch(checkpoint)
    with watched.as_directory():
        watched.to_directory(tmp_path / "copy")
        assert probe.read(key) == Word(Stage.ENTERED)
    assert store.told == [Stage.ENTERED.value, Stage.LEFT.value]


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_the_watch_travels_to_the_worker(
    store: Store, checkpoint: Checkpoint, pickler: object
) -> None:
    watched, key = watch(checkpoint)
    assert isinstance(watched, type(checkpoint))
    copy = pickler.loads(pickler.dumps(watched))  # type: ignore[attr-defined]
    assert isinstance(copy, type(checkpoint))
    with copy.as_directory():
        assert probe.read(key) == Word(Stage.ENTERED)


def test_a_watched_checkpoint_that_is_saved_again_is_a_plain_one(
    store: Store, checkpoint: Checkpoint
) -> None:
    watched, _ = watch(checkpoint)
    saved = type(watched)(path=checkpoint.path, filesystem=checkpoint.filesystem)
    with saved.as_directory():
        assert store.told == []
    copy = pickle.loads(pickle.dumps(saved))
    assert type(copy) is type(checkpoint)
    assert b"raytrials" not in pickle.dumps(saved) or type(checkpoint) is OwnCheckpoint


def test_watching_twice_gives_one_watch(store: Store, checkpoint: Checkpoint) -> None:
    once, _ = watch(checkpoint)
    twice, key = watch(once)
    assert type(twice) is type(once)
    with twice.as_directory():
        assert probe.read(key) == Word(Stage.ENTERED)


def test_a_cluster_that_does_not_listen_does_not_break_the_users_code(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: str) -> None:
        raise RuntimeError("no answer")

    for name in ("kv_put", "kv_get", "kv_del"):
        monkeypatch.setattr(_ray, name, silent)
    watched, key = watch(checkpoint)
    with watched.as_directory():
        pass
    assert isinstance(watched, WatchedCheckpoint)
    assert probe.read(key) is None
    probe.forget(key)


def test_a_checkpoint_that_is_not_watched_tells_nothing_and_brings_its_iteration(
    store: Store, checkpoint: Checkpoint
) -> None:
    handed_out, key = probe.hand_out(checkpoint, 7, "exp/trial", 1, watched=False)
    assert key is None
    copy = pickle.loads(pickle.dumps(handed_out))
    assert copy.start_iteration == 7
    with copy.as_directory():
        assert store.told == []


def test_files_that_were_downloaded_when_they_were_checked_are_given_out_once(
    store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    # What fsspec wraps is no local disk for Ray: it downloads to a directory of the checkpoint's.
    remote = type(checkpoint)(
        checkpoint.path, pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(LocalFileSystem()))
    )
    watched, _ = watch(remote)
    Path(watched.download_path).mkdir()
    Path(watched.download_path, "file").write_text("checked")
    watched.downloaded_mark.touch()
    copy = watched.to_directory(tmp_path / "copy")
    assert Path(copy, "file").read_text() == "checked"
    with watched.as_directory() as path:
        assert Path(path, "file").read_text() == "checked"
    with watched.as_directory() as path:
        assert Path(path, "file").read_text() == "content"
    assert not Path(watched.download_path).exists()
    assert not watched.downloaded_mark.exists()


def test_what_earlier_attempts_of_a_trial_downloaded_is_removed_and_no_one_elses(
    checkpoint: Checkpoint,
) -> None:
    made = [
        probe.hand_out(checkpoint, 1, owner, attempt, watched=False)[0]
        for owner, attempt in (("exp/a", 1), ("exp/a", 2), ("exp/b", 1))
    ]
    for one in made:
        Path(one.download_path).mkdir()
        one.downloaded_mark.touch()
    made[1].remove_earlier_downloads()
    assert [Path(one.download_path).exists() for one in made] == [False, False, True]
    assert [one.downloaded_mark.exists() for one in made] == [False, False, True]
    made[2].remove_earlier_downloads()
