"""Ray sessions for tests: local, small, in a short temporary directory, always shut down."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

# Workers import the trainables of `support` by name.
_TESTS = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([_TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])

import ray  # noqa: E402 - it reads the environment when it is imported


@contextlib.contextmanager
def local_ray(num_cpus: int = 2, **settings: Any) -> Iterator[None]:
    """Run a Ray of our own on this machine."""
    directory = tempfile.mkdtemp(prefix="rt")
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=150_000_000,
            log_to_driver=False,
            _temp_dir=directory,
            **settings,
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)
