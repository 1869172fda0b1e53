"""The latest events of a trial, for the error that has to tell them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from raytrials.core.event import EVENTS

LENGTH = 12
"""How many events a trial's story goes back."""

_NAMES = tuple(EVENTS)
_NUMBERS = {name: number for number, name in enumerate(_NAMES)}


class Story:
    """The latest events of a trial, as seq and name; small, for every trial has one."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest = array("Q")

    def append(self, event: tuple[int, str]) -> None:
        """Add an event; the oldest goes when there are too many."""
        seq, name = event
        if len(self._latest) == LENGTH:
            del self._latest[0]
        self._latest.append(seq * len(_NAMES) + _NUMBERS[name])

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for one in self._latest:
            seq, number = divmod(one, len(_NAMES))
            yield seq, _NAMES[number]

    def __len__(self) -> int:
        return len(self._latest)

    def __getitem__(self, index: int) -> tuple[int, str]:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Story) and self._latest == other._latest

    __hash__ = None  # type: ignore[assignment]  # it changes
