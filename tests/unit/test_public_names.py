"""What users may import, and that reading results never imports Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

import raytrials

PUBLIC = {
    "ActorError",
    "Cause",
    "ChargedFault",
    "Fatal",
    "RaytrialsError",
    "RestoreError",
    "RetryPolicy",
    "Rule",
    "TrainingError",
    "Tuner",
    "refreshing_filesystem",
    "verify",
}


def test_the_public_names_are_these() -> None:
    assert set(raytrials.__all__) == PUBLIC
    assert set(dir(raytrials)) > PUBLIC
    for name in PUBLIC:
        assert getattr(raytrials, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        raytrials.NoSuchName  # noqa: B018


READ_SIDE = """
import sys
import raytrials
for name in set(raytrials.__all__) - {"Tuner"}:
    getattr(raytrials, name)
import raytrials.core.retry, raytrials.cli, raytrials.settings
import raytrials.store.checkpoint, raytrials.chaos.conformance, raytrials.chaos.fault
raytrials.RetryPolicy()
assert not [name for name in sys.modules if name.split(".")[0] in {"ray", "pytest"}]
"""


def test_the_read_side_imports_no_ray() -> None:
    subprocess.run([sys.executable, "-c", READ_SIDE], check=True)
