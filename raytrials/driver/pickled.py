"""The state of a searcher or scheduler as bytes, and the reason in words when it has none."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from raytrials import _ray
from raytrials.errors import UnpicklableStateError

_DEPTH = 6


Refer = Callable[[Any], Any]
"""Gives what stands for an object in the bytes; None for one that is pickled itself."""


def _nothing(_: Any) -> None:
    """Refer to no object."""


class _Pickler(_ray.cloudpickle.CloudPickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, refer: Refer) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._refer = refer

    def persistent_id(self, value: Any) -> Any:
        return self._refer(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._find = find

    def persistent_load(self, reference: Any) -> Any:
        return self._find(reference)


def _dumps(value: Any, refer: Refer) -> bytes:
    file = io.BytesIO()
    _Pickler(file, refer).dump(value)
    return file.getvalue()


def dump(part: str, value: Any, name: str, refer: Refer = _nothing) -> bytes:
    """Return `value` as cloudpickle has it.

    Args:
        part: what it belongs to, for the error.
        value: anything.
        name: what to call it.
        refer: names objects that are not part of it.

    Raises:
        UnpicklableStateError: it cannot be pickled; names the attribute that is the reason.
    """
    try:
        return _dumps(value, refer)
    except Exception as error:  # whatever a class's own methods raise
        path, cause = _culprit(value, name, error, refer)
        raise UnpicklableStateError(part, f"{path}: {cause}") from error


def load(part: str, data: bytes, find: Callable[[Any], Any] = _nothing) -> Any:
    """Return what :func:`dump` was given.

    Args:
        part: as there.
        data: what it returned.
        find: gives the object for a reference.

    Raises:
        UnpicklableStateError: it cannot be made again here, for a class that is gone or changed.
    """
    try:
        return _Unpickler(io.BytesIO(data), find).load()
    except Exception as error:  # likewise
        raise UnpicklableStateError(part, repr(error)) from error


def _culprit(value: Any, path: str, error: Exception, refer: Refer) -> tuple[str, Exception]:
    """Return the innermost place within `value` that cannot be pickled, and what is said of it."""
    for _ in range(_DEPTH):
        for step, inner in _within(value):
            try:
                _dumps(inner, refer)
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
