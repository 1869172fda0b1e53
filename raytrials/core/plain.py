"""Any value as plain JSON: what is written and read again is equal to what was written."""

from __future__ import annotations

import base64
import json
import numbers
import sys
from collections.abc import Iterable, Mapping
from typing import Any

_AS_THEY_ARE = {bool, float, str, type(None)}
_intern = sys.intern
_LARGE = 2**63  # from some size on Python writes no integer as text


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as plain JSON values; one that cannot be made such becomes its class's name.

    Any object may be a metric, and none may keep a checkpoint from being saved. What is plain
    already stays as it is, in a dictionary of its own.
    """
    found = {}
    for name, value in metrics.items():
        kind = type(value)
        if kind in _AS_THEY_ARE or (kind is int and -_LARGE < value < _LARGE):
            # Interned: each report brings the same names in objects of its own.
            found[_intern(name) if type(name) is str else str(name)] = value
            continue
        try:
            found[str(name)] = plain(value)
            json.dumps(found[str(name)])
        except Exception:  # noqa: BLE001 - the user's class may do anything
            found[str(name)] = f"<{type(value).__name__}>"
    return found


def interned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON gave, with names that are shared with all that have the same."""
    return {_intern(name): value for name, value in values.items()}


def plain_list(values: Iterable[Any]) -> list[Any]:
    """Return what is in a list as :func:`plain_metrics` does what is in metrics."""
    return [_safe(value, 0) for value in values]


def plain_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """As :func:`plain_metrics`, for what has metrics somewhere in it: the rest stays what it is."""
    return {str(name): _safe(value, 3) for name, value in record.items()}


def _safe(value: Any, depth: int) -> Any:
    """Return a value as plain JSON, whatever it is.

    What has no such form becomes its class's name: of lists and mappings what is in them, so deep.
    """
    try:
        found = plain(value)
        json.dumps(found)
    except Exception:  # noqa: BLE001 - the user's class may do anything
        if depth and isinstance(value, Mapping):
            return {str(name): _safe(inner, depth - 1) for name, inner in value.items()}
        if depth and isinstance(value, list | tuple):
            return [_safe(inner, depth - 1) for inner in value]
        return f"<{type(value).__name__}>"
    return found


def plain(value: Any) -> Any:
    """Return `value` as plain JSON values.

    NumPy's scalars and arrays become numbers and lists, bytes become base64, sets and tuples
    become lists, keys become text; what has no such form becomes its `repr`.
    """
    if value is None or type(value) in {bool, int, str}:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return {
            _intern(key) if type(key) is str else str(key): plain(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist") and not isinstance(value, type):
        listed = value.tolist()
        if type(listed) is not type(value):  # as for numbers that Python has none for
            return plain(listed)
    return repr(value)
