"""A searcher within Ray's `SearchGenerator`: recorded, seeded, and asked again from the journal.

:class:`RecordedSearcher` takes the searcher's place in the generator. Everything but the calls that
are recorded goes on to the real one, so that Ray and the user see that one in everything.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.search import Searcher

from raytrials.core.event import TrialAdded
from raytrials.driver.pickled import dump, load
from raytrials.driver.seeding import Seeding, draw_lazy_generators, wrapped
from raytrials.driver.suggestion import difference
from raytrials.errors import ConfigurationError

Tell = Callable[[str, str, int, bool], None]
"""Is called with the trial's id, the call, the iteration of the result, and whether it erred."""

NOTHING = "the searcher has no suggestion; the journal has one"


class RecordedSearcher:
    """Stands for a searcher in its generator. Made by :func:`recorded` only.

    It is no subclass of Ray's `Searcher`, whose methods would hide the real ones; `isinstance`
    takes it for the real one's class. A copy or a pickle of it is one of the real searcher.

    Args:
        real: the searcher.
        tell: records what the searcher is about to be told.
        seeding: of the calls into it.
    """

    # No `__dict__`: that of the real one is found instead, also by what looks for attributes.
    __slots__ = ("__real", "__seeding", "__tell")

    def __init__(self, real: Any, tell: Tell, seeding: Seeding) -> None:
        put = functools.partial(object.__setattr__, self)
        put("_RecordedSearcher__real", real)
        put("_RecordedSearcher__tell", tell)
        put("_RecordedSearcher__seeding", seeding)

    @property  # type: ignore[misc]  # as unittest.mock has it, for isinstance
    def __class__(self) -> type:
        return type(self.__real)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__real, name)
        # No methods here, because most searchers have none.
        return functools.partial(self.__told, _CALLS[name]) if name in _CALLS else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__real, name, value)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Ray pickles it where raytrials may not be installed: with a function of Python's own.
        return operator.getitem, ((self.__real,), 0)

    def set_search_properties(self, *args: Any, **kwargs: Any) -> Any:
        """Forward; this is where a searcher may first get its sampler."""
        done = self.__real.set_search_properties(*args, **kwargs)
        draw_lazy_generators(self.__real, self.__seeding)
        return done

    def suggest(self, trial_id: str) -> Any:
        """Ask. What is answered is recorded by whoever makes a trial of it."""
        with self.__seeding.call():
            suggestion = self.__real.suggest(trial_id)
        if is_suggestion(suggestion):
            self.__seeding.number += 1
        return suggestion

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        """Record, and tell."""
        self.__told("result", trial_id, result=result)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:  # noqa: FBT001, FBT002 - Ray's signature
        """Record, and tell."""
        self.__told("complete", trial_id, result=result, error=error)

    def __told(self, call: str, trial_id: str, **arguments: Any) -> None:
        iteration = iteration_in(arguments.get("result"))
        self.__tell(trial_id, call, iteration, bool(arguments.get("error")))
        told(self.__real, self.__seeding, call, trial_id, **arguments)


def recorded(real: Any, tell: Tell, seeding: Seeding) -> Any:
    """Return what stands for the searcher, named as its class is: Ray saves it by that name."""
    return type(type(real).__name__, (RecordedSearcher,), {"__slots__": ()})(real, tell, seeding)


def real_of(searcher: Any) -> Any:
    """Return the searcher that another driver of this process may stand for already."""
    if issubclass(type(searcher), RecordedSearcher):
        return object.__getattribute__(searcher, "_RecordedSearcher__real")
    return searcher


def iteration_in(result: Mapping[str, Any] | None) -> int:
    """Return the iteration of a result, 0 for none."""
    return int((result or {}).get("training_iteration") or 0)


def is_suggestion(suggestion: Any) -> bool:
    """Whether a searcher answered with a config, and not with "none now" or "none any more"."""
    return suggestion is not None and suggestion != Searcher.FINISHED


_METHODS = {"result": "on_trial_result", "pause": "on_pause", "unpause": "on_unpause"}
_CALLS = {"on_pause": "pause", "on_unpause": "unpause"}


def told(target: Any, seeding: Seeding, call: str, trial_id: str, **arguments: Any) -> None:
    """Tell a searcher or search algorithm, seeded. The call counts, also when it raises."""
    try:
        with seeding.call():
            if call == "complete":
                # By name, as Ray calls it: some searchers take the rest as keywords only.
                target.on_trial_complete(trial_id=trial_id, **arguments)
            else:
                getattr(target, _METHODS[call])(trial_id, *arguments.values())
    finally:
        seeding.number += 1


class Generated:
    """Ray's `SearchGenerator`, with its searcher recorded.

    Args:
        algorithm: the generator.
        tell: as for :class:`RecordedSearcher`.
        seeding: of the calls into the searcher.
    """

    def __init__(self, algorithm: Any, tell: Tell, seeding: Seeding) -> None:
        self._algorithm = algorithm
        self._seeding = seeding
        self._real = real_of(algorithm.searcher)
        self._recorded = recorded(self._real, tell, seeding)
        algorithm.searcher = self._recorded
        draw_lazy_generators(self._real, seeding)

    def next_trial(self) -> Any:
        """Ask for a trial; the searcher is seeded by itself."""
        return self._algorithm.next_trial()

    def replay_ask(self, event: TrialAdded) -> str:
        """Ask the searcher as the journal says; return what it answers otherwise."""
        try:
            with self._seeding.call():
                suggestion = self._real.suggest(event.trial_id)
        finally:
            self._seeding.number += 1
            state = self._algorithm.get_state()
            self._algorithm.set_state({**state, "counter": state["counter"] + 1})
        if not is_suggestion(suggestion):
            return NOTHING
        return difference(suggestion, event.config)

    def replay_tell(self, call: str, trial_id: str, result: Any, *, error: bool) -> None:
        """Tell the searcher as the journal says."""
        arguments = {"result": {"result": result}, "complete": {"result": result, "error": error}}
        told(self._real, self._seeding, call, trial_id, **arguments.get(call, {}))

    def dump(self) -> bytes:
        """Return the generator and its searcher, with the experiment."""
        return dump("searcher", self._algorithm, type(self._algorithm).__name__)

    def load(self, data: bytes) -> None:
        """Give the generator, and each searcher in it, the state that was dumped."""
        loaded = load("searcher", data)
        own, other = list(wrapped(self._real)), list(wrapped(loaded.searcher))
        check_kinds("search_alg", [self._algorithm, *own], [loaded, *other])
        take_state(self._algorithm, loaded)
        for mine, theirs in zip(own, other, strict=True):
            take_state(mine, theirs)
        for outer, inner in itertools.pairwise(own):
            outer.searcher = inner
        self._algorithm.searcher = self._recorded


def take_state(own: Any, loaded: Any) -> None:
    """Make `own` another view of what `loaded` is.

    They share their attributes from here on: what within them refers to the loaded object, such as
    a bound method, then means the one that Ray has.
    """
    own.__dict__ = loaded.__dict__


def check_kinds(name: str, own: list[Any], loaded: list[Any]) -> None:
    """Refuse a search algorithm or scheduler that is no such thing as the one that was saved."""
    found, expected = ([type(one) for one in some] for some in (own, loaded))
    if found != expected:
        names = ["(".join(kind.__name__ for kind in kinds) for kinds in (found, expected)]
        raise ConfigurationError(
            name, names[0], f"what the experiment was started with, {names[1]}"
        )
