"""Enumerations that are their own text."""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """An enumeration whose members are, print as and compare as their text."""

    def __str__(self) -> str:
        return str(self.value)
