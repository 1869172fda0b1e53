"""The file that `RAYTRIALS_RULES` names, as rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from raytrials import settings
from raytrials.core.rule import Rule
from raytrials.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_WANTED = "a readable .json or .toml file with a list of tables under the key 'rules'"


def read_rules() -> tuple[Rule, ...]:
    """Return the rules of the file that `RAYTRIALS_RULES` names; none if it names none.

    Raises:
        ConfigurationError: the file cannot be read, or a rule in it is wrong.
    """
    name = settings.RULES.get()
    if not name:
        return ()
    try:
        text = Path(name).read_text(encoding="utf-8")
        data: Any = tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
        tables = data["rules"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError("RAYTRIALS_RULES", name, f"{_WANTED} ({error!r})") from error
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigurationError("RAYTRIALS_RULES", name, _WANTED)
    return tuple(Rule.from_mapping(table) for table in tables)
