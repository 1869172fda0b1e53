"""When a retired checkpoint goes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from support.disks import path_of, save

from raytrials.chaos.disk import FakeLocal
from raytrials.driver.retention import Retention, StateSyncer
from raytrials.store.checkpoint import Verdict, inspect

FILES = {"model": b"weights"}


class Syncer:
    """What the retention asks of the real one."""

    written = 0
    durable = 0


class Experiment:
    """A trial with two checkpoints, of which the older one is retired."""

    def __init__(self) -> None:
        self.disk = FakeLocal()
        for index in (0, 1):
            save(self.disk, FILES, index)
        self.syncer = Syncer()
        self.in_use: set[str] = set()
        self.retention = Retention(cast("StateSyncer", self.syncer), lambda: self.in_use)
        self.kept = [path_of(1)]
        self.retention.retire(path_of(0), self.disk, lambda: self.kept)

    def is_there(self) -> bool:
        self.retention.finish(10)
        return inspect(self.disk, path_of(0), full=True).verdict is Verdict.VERIFIED

    def save_state(self, *, arrives: bool = True) -> None:
        self.syncer.written += 1
        if arrives:
            self.syncer.durable = self.syncer.written


@pytest.fixture
def experiment() -> Experiment:
    return Experiment()


def test_it_goes_when_a_state_that_does_not_name_it_has_arrived(experiment: Experiment) -> None:
    assert experiment.is_there()
    experiment.save_state(arrives=False)
    assert experiment.is_there()
    experiment.save_state()
    assert not experiment.is_there()


def test_a_state_that_was_written_while_another_trial_was_on_it_names_it(
    experiment: Experiment,
) -> None:
    experiment.in_use = {path_of(0)}
    experiment.save_state()
    assert experiment.is_there()
    experiment.in_use = set()
    assert experiment.is_there()
    experiment.save_state()
    assert not experiment.is_there()


def test_it_stays_while_no_other_checkpoint_of_its_trial_is_whole(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    experiment.disk.write(f"{path_of(1)}/model", b"damaged")
    experiment.save_state()
    experiment.disk.delete_file(f"{path_of(1)}/model")
    assert experiment.is_there()
    assert "no other checkpoint of its trial is whole" in caplog.text
    save(experiment.disk, FILES, 2)
    experiment.kept.append(path_of(2))
    experiment.save_state()
    assert not experiment.is_there()


def test_a_deletion_that_fails_is_tried_again_after_the_next_state(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(disk: Any, path: str) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patched:
        patched.setattr("raytrials.driver.retention.delete", refuse)
        experiment.save_state()
        assert experiment.is_there()
    assert experiment.is_there()
    experiment.save_state()
    assert not experiment.is_there()
