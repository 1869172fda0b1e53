"""What is remembered of a trial beyond its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raytrials.chaos.oracle.start import Origin


class Attempt(NamedTuple):
    """An attempt of a trial, as it started."""

    number: int
    first_index: int
    epoch: int


@dataclass
class Notes:
    """What the oracle remembers of a trial.

    Attributes:
        origin: what it has to continue from.
        attempts: all, in order.
        configs: all that it has had, the present one last.
        started_config: the one with which its latest attempt started.
        told: iterations that the searcher was told, since the trial last took another's checkpoint.
        reported: the latest attempt that reported, and its latest iteration.
        renewed: how many faults it had when its budgets were renewed.
        took_over: whether it ever continued from another trial's checkpoint.
        imported: its latest attempt when it was imported from an experiment without a journal: of
            what came before, the journal has the outcome alone. None for a trial of its own.
        before: rows up to this iteration are from before the journal.
        failures: how many had been counted by then beyond what its ledger shows.
        reserved: epochs of attempts that may have run though no start of theirs is recorded.
        is_broken: whether an event of it could not follow.
    """

    origin: Origin = field(default_factory=Origin)
    attempts: list[Attempt] = field(default_factory=list)
    configs: list[Mapping[str, Any]] = field(default_factory=list)
    started_config: Mapping[str, Any] | None = None
    told: set[int] = field(default_factory=set)
    reported: tuple[int, int] = (0, 0)
    renewed: int = 0
    took_over: bool = False
    imported: int | None = None
    before: int = 0
    failures: int = 0
    reserved: dict[int, int] = field(default_factory=dict)
    is_broken: bool = False
