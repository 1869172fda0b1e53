"""Whether plain values are of the types that a dataclass says: where JSON comes in, it is asked."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any

_AS_JSON: Mapping[Any, frozenset[type]] = {
    str: frozenset({str}),
    int: frozenset({int}),
    bool: frozenset({bool}),
    float: frozenset({float, int}),
    NoneType: frozenset({NoneType}),
}


class _Shape(typing.NamedTuple):
    """The types that JSON may have for each field; `items` those of what is in a list."""

    types: Mapping[str, frozenset[type]]
    items: Mapping[str, frozenset[type]]


def require(kind: type, data: Mapping[str, Any], names: Iterable[str] | None = None) -> None:
    """Raise TypeError unless plain values are of the types that a dataclass says.

    Args:
        kind: the dataclass.
        data: values for its fields, by name.
        names: of the fields that are looked at; all that are in `data` if left out.
    """
    if type(data) is not dict and not isinstance(data, Mapping):
        raise TypeError(f"{kind.__name__} is made of {type(data).__name__}")
    types, items = shape_of(kind)
    for name in data if names is None else names:
        value = data[name]
        if type(value) not in types.get(name, ()):
            raise TypeError(f"{kind.__name__}.{name} is {type(value).__name__}")
        if name in items:
            require_items(value, items[name], f"{kind.__name__}.{name}")


def require_items(values: Any, types: frozenset[type], what: str) -> None:
    """Raise TypeError unless all that is in a list is of one of the types."""
    for value in values:
        if type(value) not in types:
            raise TypeError(f"{what} has {type(value).__name__} in it")


@functools.cache
def shape_of(kind: type) -> _Shape:
    """Return what JSON may have for each field of a dataclass."""
    hints = typing.get_type_hints(kind)
    items = {name: _types_of(item[0]) for name, hint in hints.items() if (item := _item_of(hint))}
    return _Shape({name: _types_of(hint) for name, hint in hints.items()}, items)


def _types_of(hint: Any) -> frozenset[type]:
    if typing.get_origin(hint) is UnionType:
        return frozenset[type]().union(*map(_types_of, typing.get_args(hint)))
    kind = typing.get_origin(hint) or hint
    if kind in _AS_JSON:
        return _AS_JSON[kind]
    if issubclass(kind, Enum):
        return _AS_JSON[str]
    return frozenset({list if issubclass(kind, Sequence) else dict})


def _item_of(hint: Any) -> tuple[Any, ...]:
    """Return the type of what is in a list, if it is one of which that counts."""
    kind = typing.get_origin(hint)
    is_list = isinstance(kind, type) and issubclass(kind, Sequence)
    return () if not is_list else tuple(one for one in typing.get_args(hint)[:1] if one is not Any)
