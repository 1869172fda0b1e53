"""Text that is kept and seldom read: compressed in memory, unpacked on use.

A search has thousands of trials that differ in a few numbers. So what one of them looks like, the
*likeness*, is the dictionary with which the others are compressed (RFC 1950's preset dictionary).
It changes what a text costs, and never what it says.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Any

_WINDOW = 32_768
"""How much of a likeness deflate can look back at."""

_RENEWED = 1_000
"""After how many texts the next likeness is taken: what a search does changes with time."""


class Packed:
    """A text, compressed. Equal to another that says the same. Made by :class:`Packer`.

    Args:
        data: the compressed text.
        likeness: what it was compressed with.
    """

    __slots__ = ("_data", "_likeness")

    def __init__(self, data: bytes, likeness: bytes) -> None:
        self._data = data
        self._likeness = likeness

    def __str__(self) -> str:
        unpacker = zlib.decompressobj(zdict=self._likeness)
        return (unpacker.decompress(self._data) + unpacker.flush()).decode("utf-8", "surrogatepass")

    def __repr__(self) -> str:
        return repr(str(self))

    def __len__(self) -> int:
        """How many bytes it takes."""
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packed) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the likeness of the others."""
        return (pack, (str(self),))


class Packer:
    """Compresses texts of one kind, of which the first is what the others are taken to be like.

    Args:
        level: of zlib, from 1, fast, to 9, small.
    """

    def __init__(self, level: int = 1) -> None:
        self._level = level
        self._likeness = b""
        self._count = 0

    def pack(self, text: str) -> Packed:
        """Return a text, compressed."""
        data = text.encode("utf-8", "surrogatepass")
        likeness = self._likeness
        packer = zlib.compressobj(self._level, zdict=likeness)
        packed = Packed(packer.compress(data) + packer.flush(), likeness)
        if self._count % _RENEWED == 0 and data:
            self._likeness = data[-_WINDOW:]
        self._count += 1
        return packed


def pack(text: str) -> Packed:
    """Return a text, compressed by itself alone."""
    return Packer().pack(text)


class _PackedField:
    """A slot of a class in which a value is kept packed.

    One that is empty, or is not made of plain values yet, is kept as it is.
    """

    def __init__(
        self, slot: Any, packer: Packer, dump: Callable[[Any], str], load: Callable[[str], Any]
    ) -> None:
        self._slot = slot
        self._packer = packer
        self._dump = dump
        self._load = load

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        if owner is None:
            return self
        value = self._slot.__get__(owner)
        return self._load(str(value)) if isinstance(value, Packed) else value

    def __set__(self, owner: object, value: Any) -> None:
        kept = value
        if value:
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                kept = self._packer.pack(self._dump(value))
        self._slot.__set__(owner, kept)


def keep_packed(
    kind: type,
    name: str,
    packer: Packer,
    dump: Callable[[Any], str],
    load: Callable[[str], Any],
) -> None:
    """Keep what is in a slot of a class packed.

    Args:
        kind: a class with slots.
        name: of the slot.
        packer: packs what is in it, of all objects of the class.
        dump: makes a text of it.
        load: makes it of the text again, with each use.
    """
    setattr(kind, name, _PackedField(getattr(kind, name), packer, dump, load))
