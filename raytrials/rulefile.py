"""The file that `RAYTRIALS_RULES` names, as plain tables.

What a table means, and whether it is a rule, is `raytrials.core.rule`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raytrials import settings
from raytrials.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEY = "rules"


def read_tables() -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Return the path that `RAYTRIALS_RULES` holds, and the tables in that file; none if empty.

    Raises:
        ConfigurationError: the file cannot be read, or is not a list of tables under `rules`.
    """
    name = settings.RULES.get()
    if not name:
        return name, ()
    path = Path(name).expanduser()
    load = _LOADERS.get(path.suffix.lower())
    if load is None:
        raise _refused(name, "a path that ends in .json or .toml, which decides how it is read")
    try:
        data = load(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise _refused(name, f"a file that can be read ({error})") from error
    except ValueError as error:
        kind = path.suffix[1:].upper()
        raise _refused(name, f"a file in {kind}, as its suffix says ({error})") from error
    return name, _tables_in(name, data)


def _tables_in(name: str, data: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(data, dict):
        raise _refused(name, f"a table with the key {_KEY!r} at the top, not {_kind_of(data)}")
    unknown = sorted(key for key in data if key != _KEY)
    if unknown:
        raise _refused(name, f"no key but {_KEY!r} at the top, not {', '.join(map(repr, unknown))}")
    if _KEY not in data:
        raise _refused(name, f"a key {_KEY!r} at the top; the file has none")
    tables = data[_KEY]
    if not isinstance(tables, list):
        raise _refused(
            name,
            f"a list under {_KEY!r} ([[{_KEY}]] before each rule in TOML), not {_kind_of(tables)}",
        )
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, dict):
            raise _refused(name, f"tables under {_KEY!r}; rule {number} is {table!r}")
    return tables


def _refused(name: str, expected: str) -> ConfigurationError:
    return ConfigurationError("RAYTRIALS_RULES", name, expected)


def _kind_of(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, list) else repr(value)


def _load_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_without_repetition)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} stands twice in {dict(pairs)!r}")
        table[key] = value
    return table


_LOADERS: Mapping[str, Callable[[str], object]] = {".json": _load_json, ".toml": tomllib.loads}
