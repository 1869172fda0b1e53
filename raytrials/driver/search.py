"""The search algorithm of an experiment over the death of its driver.

Each suggestion is asked for once and told of once, and the next one is what it would have been:
what the algorithm is told is recorded before, each call into it has seeds of its own, and the next
driver loads the state and repeats the calls after it. Nothing here writes; the journal is handed in
as `record`, and the events of the tail come from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray.tune.search import BasicVariantGenerator
from ray.tune.search.search_generator import SearchGenerator

from raytrials.core.event import Event, Record, SearcherTold, TrialAdded
from raytrials.driver.pickled import dump, load
from raytrials.driver.results import NOTHING_ADDED, Additions, Results
from raytrials.driver.searcher import Generated, iteration_in
from raytrials.driver.seeding import Seeding
from raytrials.driver.variants import Variants, Whole
from raytrials.errors import NewerFormatError

logger = logging.getLogger(__name__)

VERSION = 1
"""Of what is dumped."""


class Search:
    """The search algorithm of an experiment, recorded.

    Args:
        algorithm: of the controller. It stays the object that it is; the searcher within a
            `SearchGenerator` is recorded from here on.
        seed: of the experiment.
        record: writes an event into the journal.
    """

    def __init__(self, algorithm: Any, seed: int, record: Callable[[Event], object]) -> None:
        self._record = record
        self.seed = seed
        self._seeding = Seeding("search", seed)
        self._kind: Generated | Whole
        if isinstance(algorithm, SearchGenerator):
            self._kind = Generated(algorithm, self._tell, self._seeding)
        elif isinstance(algorithm, BasicVariantGenerator):
            self._kind = Variants(algorithm, self._seeding)
        else:
            self._kind = Whole(algorithm, self._seeding)

    def _tell(self, trial_id: str, call: str, iteration: int, error: bool) -> None:  # noqa: FBT001 - one place
        self._record(SearcherTold(trial_id, call, iteration, error))

    def next_trial(self) -> Any:
        """Ask for a trial, None for none now. The caller records it as `TrialAdded`."""
        return self._kind.next_trial()

    def on_complete(self, trial_id: str, *, error: bool) -> None:
        """Record that an algorithm without a searcher is about to be told of a trial's end.

        Does nothing for a `SearchGenerator`, whose searcher is recorded by itself.
        """
        if isinstance(self._kind, Whole):
            self._tell(trial_id, "complete", 0, error)
            self._seeding.number += 1

    @property
    def is_listed(self) -> bool:
        """Whether what is suggested does not depend on results: grid and random search."""
        return isinstance(self._kind, Variants)

    def dump(self) -> bytes:
        """Return all that :meth:`load` needs, as of now.

        Raises:
            UnpicklableStateError: it has no such form.
        """
        return dump(
            "search algorithm", (VERSION, self._seeding.number, self._kind.dump()), "search"
        )

    def load(self, data: bytes) -> None:
        """Make the algorithm what it was at the dump, its experiment and search space included.

        Raises:
            ConfigurationError: it is another kind of algorithm.
            NewerFormatError: a newer release made the dump.
            UnpicklableStateError: a class in it is gone or changed.
        """
        version, *rest = load("search algorithm", data)
        if version > VERSION:
            raise NewerFormatError(version, VERSION, "searcher's state")
        self._seeding.number, state = rest
        self._kind.load(state)

    def replay(
        self,
        records: Iterable[Record],
        results: Mapping[str, Mapping[str, Any]],
        added: Additions = NOTHING_ADDED,
    ) -> list[tuple[str, str]]:
        """Repeat the calls that came after the dump. Nothing is recorded.

        Args:
            records: the events after the dump, in order; those of no concern are passed over.
            results: the latest result of each trial at the dump.
            added: what the scheduler writes into results before the algorithm is told of them.

        Returns:
            Each trial of which the algorithm answers, or is told, something else than at first, and
            what it is. The journal is right; the algorithm's later suggestions may differ.
        """
        known = Results(results, added)
        wrong = []
        for record in records:
            event = record.event
            known.add(event)
            if not isinstance(event, TrialAdded | SearcherTold):
                continue
            try:
                if isinstance(event, TrialAdded):
                    found = self._kind.replay_ask(event)
                else:
                    found = self._replay_tell(event, known)
            except Exception as error:  # a searcher may raise anything, and may have at first
                logger.warning("Event %d, %s, raised.", record.seq, event, exc_info=True)
                # At first it was told of this all the same; a trial was made of what it answered.
                found = f"it raises {error!r}" if isinstance(event, TrialAdded) else ""
            if found:
                wrong.append((event.trial_id, found))
        return wrong

    def _replay_tell(self, event: SearcherTold, known: Results) -> str:
        trial_id, iteration = event.trial_id, event.iteration
        if isinstance(self._kind, Whole) and not event.error:
            # Recorded without an iteration, because Ray's code makes the call.
            iteration = known.latest(trial_id)
        result = known.get(trial_id, iteration)
        self._kind.replay_tell(event.call, trial_id, result, error=event.error)
        if result is None or iteration == iteration_in(result):
            return ""
        return f"the result of iteration {iteration} is not known, and was told as another"
