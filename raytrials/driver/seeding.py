"""Randomness that is the same again: each call into a searcher or scheduler has seeds of its own.

What else draws from `random` and `numpy.random` in the driver, and how much, then does not matter:
not before the death of the driver, and not after it. The user's own stream is as if nobody had
drawn from it. (Another thread that draws during a call draws from the seeded stream.)
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from ray.tune.search import Searcher

_LAZY_MODULE = "optuna.samplers._lazy_random_state"


class Seeding:
    """Seeds of the calls into one object.

    Args:
        name: of the object, so that no two share their seeds.
        seed: of the experiment.

    Attributes:
        number: of the next call. Whoever makes the call counts it; it is part of what is saved.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._prefix = f"{name}/{seed}"
        self.number = 0

    @contextlib.contextmanager
    def call(self, number: int | str | None = None) -> Iterator[None]:
        """Within this block both global generators are seeded for a call, the next one if not said.

        They are put back afterwards, also when it raises.
        """
        # NumPy's legacy generator is the one that searchers and search spaces draw from.
        state = random.getstate()
        numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - see above
        text = f"{self._prefix}/{self.number if number is None else number}"
        digest = hashlib.blake2b(text.encode(), digest_size=32).digest()
        # Halves of their own: from the same words the two would draw the same numbers.
        random.seed(int.from_bytes(digest[:16], "little"))
        with contextlib.suppress(TypeError):  # the user has put in a generator that takes no seed
            np.random.seed(np.frombuffer(digest[16:], np.uint32))  # noqa: NPY002 - see above
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)  # noqa: NPY002 - see above


def draw_lazy_generators(searcher: Any, seeding: Seeding) -> None:
    """Seed the generators of Optuna's samplers that are not there until they are first used.

    Without a seed they start from the machine's entropy at their first use, which a searcher that
    is replayed would have anew. One that has a state already keeps it.

    Args:
        searcher: of any kind, with what it wraps; without Optuna nothing happens.
        seeding: of the calls into it; no call is counted.
    """
    lazy = getattr(sys.modules.get(_LAZY_MODULE), "LazyRandomState", None)
    if lazy is None:
        return
    with seeding.call("start"):
        for one in _found(searcher, lazy):
            if vars(one).get("_rng") is None:
                one.rng.seed(np.random.randint(2**32, dtype=np.uint32))  # noqa: NPY002 - as the samplers' own


def _found(root: Any, kind: type) -> Iterator[Any]:
    """Yield the objects of a kind that belong to a searcher, in an order that is always the same.

    Followed are the searchers themselves, plain containers, and objects of Optuna's.
    """
    searchers = list(wrapped(root))
    waiting, seen = list(reversed(searchers)), set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, kind):
            yield one
        elif isinstance(one, dict):
            waiting.extend(reversed(one.values()))
        elif isinstance(one, list | tuple):
            waiting.extend(reversed(one))
        elif type(one).__module__.startswith("optuna.") or any(one is own for own in searchers):
            waiting.extend(reversed(getattr(one, "__dict__", {}).values()))


def wrapped(searcher: Any) -> Iterator[Any]:
    """Yield a searcher, and those that it wraps, from the outermost to the innermost."""
    while isinstance(searcher, Searcher):
        yield searcher
        searcher = getattr(searcher, "searcher", None)
