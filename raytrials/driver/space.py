"""The search space as plain JSON: to be read by people, to be compared, and to tell what is in it.

Nothing here depends on the process: an object is described by what it is and says, never by where
it is in memory, and a function by its name.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import ray
from ray.tune.search.sample import Categorical, Domain, Float, Function, Integer

from raytrials.core.plain import plain
from raytrials.store.manifest import digest_of

REFERENCE = "<object reference>"
"""Stands for what ends with its cluster: object references, actors, datasets."""

_GRID = "grid_search"
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+|0x[0-9a-fA-F]{8,}")
_LONG = 200
_FEW = 32
_EXACT = 1e15


def describe(param_space: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a search space as plain JSON values.

    Domains are text as Ray's functions make them, `loguniform(0.0001, 0.1)`; a grid search stays a
    dictionary. Functions and classes are their qualified names, so two lambdas of one place are the
    same. Large arrays and texts are digests. What ends with its cluster is `REFERENCE`.

    Args:
        param_space: as `Tuner` takes it; None for an empty one.
    """
    return {str(key): _describe(value) for key, value in (param_space or {}).items()}


def _describe(value: Any) -> Any:
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if isinstance(value, Mapping):
        return {str(key): _describe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_describe(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_describe(inner) for inner in value), key=_text)
    if isinstance(value, Domain):
        return _describe_domain(value)
    if is_reference(value):
        return REFERENCE
    return _describe_object(value)


def is_reference(value: Any) -> bool:
    """Whether a value ends with its cluster."""
    if isinstance(value, ray.ObjectRef | ray.actor.ActorHandle):
        return True
    data = sys.modules.get("ray.data")
    kinds = tuple(getattr(data, name) for name in ("Dataset", "DataIterator")) if data else ()
    return isinstance(value, kinds)


def _describe_domain(domain: Domain) -> str:
    """Return a domain as the call that makes it."""
    sampler, step = domain.get_sampler(), None
    if hasattr(sampler, "q"):
        sampler, step = sampler.get_sampler(), sampler.q
    how = "" if sampler is None else str(sampler).lower()
    arguments: list[Any]
    if isinstance(domain, Function):
        return f"sample_from({_describe_object(domain.func)})"
    if isinstance(domain, Categorical):
        name = "choice" if how in {"", "uniform", "base"} else f"choice.{how}"
        arguments = [_describe(list(domain.categories))]
    elif how == "normal":
        name, arguments = "randn", [sampler.mean, sampler.sd]
    elif isinstance(domain, Float | Integer):
        name, arguments = how or "uniform", [domain.lower, domain.upper]
        if isinstance(domain, Integer):
            name = {"uniform": "randint", "loguniform": "lograndint"}.get(name, name)
    else:
        name, arguments = type(domain).__qualname__, [_describe(vars(domain))]
    if step is not None:
        name, arguments = f"q{name}", [*arguments, step]
    return f"{name}({', '.join(map(_argument, arguments))})"


def _argument(value: Any) -> str:
    said = plain(value)
    whole = isinstance(said, float) and said.is_integer() and abs(said) < _EXACT
    return str(int(said)) if whole else _text(said)  # uniform(0, 1) is uniform(0.0, 1.0)


def _describe_object(value: Any) -> Any:
    if isinstance(value, functools.partial):
        inner = [_describe(value.func), *map(_describe, value.args)]
        return {"<partial>": inner, **{key: _describe(one) for key, one in value.keywords.items()}}
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"<{value.__module__}.{value.__qualname__}>"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {f"<{name}>": {one.name: _describe(getattr(value, one.name)) for one in fields}}
    if isinstance(value, enum.Enum):
        return f"<{name}.{value.name}>"
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes):
        return f"<bytes {len(value)} {digest_of(value)}>"
    shape = getattr(value, "shape", None)
    if hasattr(value, "tobytes") and hasattr(value, "dtype") and getattr(value, "size", 0) > _FEW:
        return f"<{name} {value.dtype} {list(shape or ())} {digest_of(value.tobytes())}>"
    try:
        said = plain(value)
        text = json.dumps(said)
    except Exception:  # noqa: BLE001 - the user's class may do anything
        return f"<{name}>"
    if _ADDRESS.search(text):
        return f"<{name}>"
    return f"<{name} {digest_of(text.encode())}>" if len(text) > _LONG else said


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# --- what is described --------------------------------------------------------------------------


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return how a described search space differs from another, in words, one for each key.

    Args:
        old: from :func:`describe`, also after it was written and read.
        new: likewise.
    """
    before, after = dict(_leaves(old)), dict(_leaves(new))
    changed = []
    for key, value in before.items():
        if key not in after:
            changed.append(f"removed: {key}")
        elif _text(value) != _text(after[key]):
            changed.append(f"{key}: {_became(value, after[key])}")
    return changed + [f"added: {key}" for key in after if key not in before]


def _became(old: Any, new: Any) -> str:
    plainly = [value if isinstance(value, str) else _text(value) for value in (old, new)]
    return " became ".join(plainly if len(set(plainly)) > 1 else map(_text, (old, new)))


def _leaves(described: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in described.items():
        if isinstance(value, Mapping) and value and set(value) != {_GRID}:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def references_in(described: Mapping[str, Any]) -> list[str]:
    """Return the keys of a described search space whose values end with their cluster."""
    return [key for key, value in _leaves(described) if any(map(_is_one, _texts(value)))]


def _is_one(text: str) -> bool:
    return text == REFERENCE or (text.startswith(("choice(", "choice.")) and REFERENCE in text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
