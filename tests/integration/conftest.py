"""One Ray for all tests here that can share it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.session import local_ray


@pytest.fixture(scope="session")
def ray_local() -> Iterator[None]:
    """A local Ray with two processors, shared by the tests of this run."""
    with local_ray(num_cpus=2):
        yield


@pytest.fixture
def workspace() -> Iterator[Path]:
    """An empty directory with a short path."""
    with tempfile.TemporaryDirectory(prefix="rw") as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine's own reaches a test."""
    for name in list(os.environ):
        if name.startswith("RAYTRIALS_") or name in {
            "TUNE_RESTORE_RETRY_NUM",
            "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE",
            "TUNE_GLOBAL_CHECKPOINT_S",
        }:
            monkeypatch.delenv(name)
