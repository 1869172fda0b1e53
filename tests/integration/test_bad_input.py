"""Bad input is an error before any trial starts, which names the value and what is allowed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from raytrials import Tuner
from raytrials.errors import (
    ConfigurationError,
    StorageUnwritableError,
    UnserializableError,
)


def started(config: dict[str, Any]) -> None:
    Path(config["marks"], "started").touch()


def tuner(directory: Path, trainable: Any = started, **kwargs: Any) -> Tuner:
    return Tuner(
        trainable,
        param_space={"marks": str(directory)},
        run_config=tune.RunConfig(name="fit", storage_path=str(directory / "storage"), verbose=0),
        **kwargs,
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TUNE_RESTORE_RETRY_NUM", "many", "a whole number, 0 or more"),
        ("TUNE_RESTORE_RETRY_NUM", "-1", "a whole number, 0 or more"),
        ("RAYTRIALS_MAX_INFRA_FAILURES", "1.5", "a whole number, 0 or more"),
        ("RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE", "yes", "0 or 1"),
        ("RAYTRIALS_COUNT_NODE_LOSS_AS_FAILURE", "2", "0 or 1"),
    ],
)
def test_a_wrong_environment_variable_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        tuner(workspace)
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert expected in str(caught.value)
    assert list(workspace.iterdir()) == []


def test_a_variable_that_turns_wrong_before_the_fit_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tuner(workspace)
    monkeypatch.setenv("TUNE_RESTORE_RETRY_NUM", "many")
    with pytest.raises(ConfigurationError, match="TUNE_RESTORE_RETRY_NUM"):
        built.fit()
    assert not (workspace / "started").exists()


def test_a_variable_that_does_not_exist_is_warned_of(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRIALS_MAX_INFRA_FAILURE", "3")
    with pytest.warns(UserWarning, match="Did you mean RAYTRIALS_MAX_INFRA_FAILURES"):
        tuner(workspace)


def test_a_policy_of_another_type_is_refused(workspace: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'always'; expected a raytrials\.RetryPolicy"):
        tuner(workspace, retry_policy="always")
    with pytest.raises(ConfigurationError, match=r"raytrials\.RetryPolicy"):
        Tuner.restore(str(workspace), started, retry_policy="always")


def test_a_trainable_that_cannot_be_serialized_is_refused(workspace: Path) -> None:
    lock = threading.Lock()

    def locked(config: dict[str, Any]) -> None:
        lock.acquire()

    with pytest.raises(UnserializableError) as caught:
        tuner(workspace, locked)
    assert "locked" in str(caught.value)
    assert "lock" in caught.value.detail
    assert isinstance(caught.value, TypeError)
    assert list(workspace.iterdir()) == []


def test_a_value_that_cannot_be_serialized_is_named(workspace: Path) -> None:
    with pytest.raises(UnserializableError, match=r"param_space\['a'\]"):
        Tuner(started, param_space={"b": 1, "a": threading.Lock()})


@pytest.mark.parametrize("max_failures", ["2", -2, 1.5])
def test_a_wrong_number_of_failures_is_refused(max_failures: Any) -> None:
    failure_config = tune.FailureConfig(max_failures=max_failures)
    with pytest.raises(ConfigurationError, match="max_failures"):
        Tuner(started, run_config=tune.RunConfig(failure_config=failure_config))


def test_a_storage_path_that_cannot_be_written_is_refused(workspace: Path) -> None:
    (workspace / "storage").touch()
    with pytest.raises(StorageUnwritableError) as caught:
        tuner(workspace)
    assert str(workspace / "storage") in str(caught.value)


def test_a_storage_path_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nowhere://bucket"):
        Tuner(started, run_config=tune.RunConfig(name="fit", storage_path="nowhere://bucket"))
    with pytest.raises(StorageUnwritableError, match="absolute path"):
        Tuner(started, run_config=tune.RunConfig(name="fit", storage_path="relative"))


@pytest.mark.usefixtures("ray_local")
def test_storage_that_turns_unwritable_before_the_fit_is_refused(workspace: Path) -> None:
    built = tuner(workspace)
    (workspace / "storage").rename(workspace / "elsewhere")
    (workspace / "storage").touch()
    with pytest.raises(StorageUnwritableError, match="storage"):
        built.fit()
    assert not (workspace / "started").exists()
