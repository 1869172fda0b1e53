"""A suggestion, compared with what the journal has of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raytrials.core.plain import plain


def leaves(config: Any, path: str = "") -> dict[str, Any]:
    """Return the innermost values of a config by their paths, as in `a/b/0`."""
    if isinstance(config, Mapping):
        inner = config.items()
    elif isinstance(config, list | tuple):
        inner = dict(enumerate(config)).items()
    else:
        return {path: config}
    found = {}
    for key, value in inner:
        found.update(leaves(value, f"{path}/{key}" if path else str(key)))
    return found


def difference(suggestion: Any, journalled: Mapping[str, Any]) -> str:
    """Return in words what a suggestion has otherwise than the journal, "" for nothing.

    What has no plain form, and stands in the journal as its `repr`, is not compared.

    Args:
        suggestion: of the searcher; it may lack what the search space has beside.
        journalled: the config of a trial, as :class:`raytrials.core.event.TrialAdded` has it.
    """
    known = leaves(journalled)
    wrong = []
    for path, value in leaves(suggestion).items():
        form = plain(value)
        if isinstance(form, list | dict) or (isinstance(form, str) and not isinstance(value, str)):
            continue
        if path not in known:
            wrong.append(f"{path} is {form!r}, and not in the journal")
        elif not _same(form, known[path]):
            wrong.append(f"{path} is {form!r} instead of {known[path]!r}")
    return "; ".join(wrong)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN is NaN
