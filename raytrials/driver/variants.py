"""Search algorithms without a searcher of Ray's: asked for trials whole, seeded and replayed.

Ray's `BasicVariantGenerator` keeps what it has not handed out yet. For a grid of more than a
million points it makes them one by one instead, with a Python generator that nothing can save:
such a one is saved as it was before the first ask, and made to hand out as many again.
"""

from __future__ import annotations

from typing import Any

from raytrials import _ray
from raytrials.core.event import TrialAdded
from raytrials.driver.pickled import dump, load
from raytrials.driver.searcher import NOTHING, check_kinds, take_state, told
from raytrials.driver.seeding import Seeding
from raytrials.driver.suggestion import difference
from raytrials.errors import UnpicklableStateError

_PART = "search algorithm"


class Whole:
    """A search algorithm of any kind.

    Args:
        algorithm: it.
        seeding: of the calls into it.
    """

    def __init__(self, algorithm: Any, seeding: Seeding) -> None:
        self._algorithm = algorithm
        self._seeding = seeding

    def next_trial(self) -> Any:
        """Ask for a trial, seeded; the call counts if there is one."""
        with self._seeding.call():
            trial = self._algorithm.next_trial()
        if trial is not None:
            self._seeding.number += 1
        return trial

    def replay_ask(self, event: TrialAdded) -> str:
        """Ask for the trial of the journal; return what differs in the one that comes."""
        number = self._seeding.number
        try:
            trial = self.next_trial()
        finally:
            self._seeding.number = number + 1
        if trial is None:
            return NOTHING
        wrong = [difference(trial.evaluated_params or {}, event.config)]
        if trial.trial_id != event.trial_id:
            self._rename(trial.trial_id, event.trial_id)
            wrong.insert(0, f"its id is {trial.trial_id}")
        return "; ".join(filter(None, wrong))

    def _rename(self, answered: str, journalled: str) -> None:
        """Make the algorithm know a trial by the id that it has."""

    def replay_tell(self, call: str, trial_id: str, result: Any, *, error: bool) -> None:
        """Tell of the end of a trial."""
        told(self._algorithm, self._seeding, call, trial_id, result=result, error=error)

    def dump(self) -> bytes:
        """Return the algorithm."""
        return dump(_PART, self._algorithm, type(self._algorithm).__name__)

    def load(self, data: bytes) -> None:
        """Give the algorithm the state that was dumped."""
        loaded = load(_PART, data)
        check_kinds("search_alg", [self._algorithm], [loaded])
        take_state(self._algorithm, loaded)


class Variants(Whole):
    """Ray's `BasicVariantGenerator`, and its subclasses."""

    def __init__(self, algorithm: Any, seeding: Seeding) -> None:
        super().__init__(algorithm, seeding)
        self._asks: list[int] = []  # numbers of the asks of a lazy one
        self._start: bytes | UnpicklableStateError | None = None  # it as it was before those

    def next_trial(self) -> Any:
        """See :meth:`Whole.next_trial`."""
        number = self._seeding.number
        is_lazy = _ray.is_lazy(self._algorithm)
        if is_lazy and self._start is None:
            self._start = self._dump_start()
        trial = super().next_trial()
        if is_lazy and trial is not None:
            self._asks.append(number)
        return trial

    def _dump_start(self) -> bytes | UnpicklableStateError:
        try:
            return self._dump(_ray.variants_state(self._algorithm))
        except UnpicklableStateError as error:
            return error  # for whoever wants a dump

    def _rename(self, answered: str, journalled: str) -> None:
        _ray.rename_variant(self._algorithm, answered, journalled)

    def _dump(self, state: Any) -> bytes:
        return dump(_PART, state, type(self._algorithm).__name__)

    def dump(self) -> bytes:
        """Return what is left to hand out; or what there was first, and how far it has come."""
        state = _ray.variants_state(self._algorithm)
        start = self._start if _ray.is_lazy(self._algorithm) else None
        if isinstance(start, UnpicklableStateError):
            raise start
        if start is not None:
            state = {one: value for one, value in state.items() if one not in _ray.VARIANTS_MADE}
        return dump(_PART, (self._dump(state), start, tuple(self._asks)), "dump")

    def load(self, data: bytes) -> None:
        """See :meth:`Whole.load`. A lazy one takes about as long as its asks took."""
        dumped, start, asks = load(_PART, data)
        state = load(_PART, dumped)
        if start is None:
            self._algorithm.set_state(state)
            return
        self._start, self._asks = start, list(asks)
        self._algorithm.set_state(load(_PART, start))
        self._algorithm.max_concurrent = 0
        for number in asks:
            with self._seeding.call(number):
                self._algorithm.next_trial()
        self._algorithm.__dict__.update(state)
