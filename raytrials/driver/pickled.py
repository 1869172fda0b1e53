"""The state of a searcher or scheduler as bytes, and the reason in words when it has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from raytrials import _ray
from raytrials.errors import UnpicklableStateError

_DEPTH = 6


def dump(part: str, value: Any, name: str) -> bytes:
    """Return `value` as cloudpickle has it.

    Args:
        part: what it belongs to, for the error.
        value: anything.
        name: what to call it.

    Raises:
        UnpicklableStateError: it cannot be pickled; names the attribute that is the reason.
    """
    try:
        return cast("bytes", _ray.cloudpickle.dumps(value))
    except Exception as error:  # whatever a class's own methods raise
        path, cause = _culprit(value, name, error)
        raise UnpicklableStateError(part, f"{path}: {cause}") from error


def load(part: str, data: bytes) -> Any:
    """Return what :func:`dump` was given.

    Raises:
        UnpicklableStateError: it cannot be made again here, for a class that is gone or changed.
    """
    try:
        return _ray.cloudpickle.loads(data)
    except Exception as error:  # likewise
        raise UnpicklableStateError(part, repr(error)) from error


def _culprit(value: Any, path: str, error: Exception) -> tuple[str, Exception]:
    """Return the innermost place within `value` that cannot be pickled, and what is said of it."""
    for _ in range(_DEPTH):
        for step, inner in _within(value):
            try:
                _ray.cloudpickle.dumps(inner)
            except Exception as cause:  # noqa: BLE001 - it is what is looked for
                value, path, error = inner, f"{path}{step}", cause
                break
        else:
            break
    return path, error


def _within(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif not isinstance(value, type):
        yield from ((f".{key}", inner) for key, inner in getattr(value, "__dict__", {}).items())
