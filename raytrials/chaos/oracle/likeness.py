"""Whether two programs that wrote the same value wrote the same value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

AUTOMATIC = frozenset(
    {
        "checkpoint_dir_name",
        "config",
        "date",
        "done",
        "episodes_total",
        "experiment_id",
        "experiment_tag",
        "hostname",
        "iterations_since_restore",
        "node_ip",
        "pid",
        "should_checkpoint",
        "time_since_restore",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "timesteps_since_restore",
        "timesteps_total",
        "training_iteration",
        "trial_id",
        "__duplicate__",
    }
)
"""What Ray puts into a result by itself: it says when and where, and not what came out."""


def reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the user's code reported, of a result."""
    return {name: value for name, value in metrics.items() if name not in AUTOMATIC}


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are the same, as far as their texts tell.

    What JSON has no form for stands there as somebody's text for it, or pickled: such a value is
    like any other of its kind. NaN is NaN.
    """
    if _is_opaque(one) or _is_opaque(other):
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        left = {str(key): value for key, value in one.items()}
        right = {str(key): value for key, value in other.items()}
        return left.keys() == right.keys() and all(alike(left[key], right[key]) for key in left)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if _is_nan(one) or _is_nan(other):
        return _is_nan(one) and _is_nan(other)
    return bool(one == other)


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first key in which two mappings differ, with its values; "" if in none."""
    for key in sorted({*one, *other}, key=str):
        left, right = one.get(key, _MISSING), other.get(key, _MISSING)
        if not alike(left, right):
            return f"{key} is {_shown(left)} and {_shown(right)}"
    return ""


_MISSING: Any = type("_Missing", (), {"__repr__": lambda _: "missing"})()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - of a line


def _is_opaque(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("_type") == "CLOUDPICKLE_FALLBACK"
    return isinstance(value, str) and (value.startswith("<") or " at 0x" in value)


def _is_nan(value: Any) -> bool:
    # Ray's JSON of a NumPy NaN is the text "null".
    return value == "null" or (isinstance(value, float) and math.isnan(value))
