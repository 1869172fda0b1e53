"""What a trial remembers: over the death of its driver, and while a charge is open.

The account goes into the trial's saved state as plain JSON under the key `raytrials`, which Ray
without us carries along unread.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raytrials import _ray
from raytrials.core.fault import Cause, Charge, ChargedFault, Fault
from raytrials.core.retry import History, Since
from raytrials.errors import TrialError

LEDGER_VERSION = 1
STATE = "raytrials"
NOT_DECIDED = "not decided yet"

CONFIG = "config"
"""A result's own copy of the trial's config, which the trial has already."""


@dataclass
class Account:
    """What a trial has to remember over the death of its driver.

    Attributes:
        attempt: number of the latest attempt, 0 before the first.
        history: what was spent.
        high_water: highest `training_iteration` ever reported.
        faults: all faults in the order in which they happened.
        experiment: id of the experiment, the same over all its drivers and moves.
        next_index: every index of a checkpoint from here on is free.
        ended_cleanly: whether no worker can have saved more than the driver knows.
        adopts_from: checkpoints of earlier attempts than this are not taken over: an exploit has
            replaced what they stood for.
        bad: checkpoints that are not whole: name, or path below the experiment if another trial's,
            and what is wrong.
        unverified: names of checkpoints that vanilla Ray made, which have no manifest.
        may_be_alive: whether the worker of some attempt may still be at work, unseen.
        restarted: whether the trial was started anew because none of its checkpoints was whole.
        undecided: of a trial whose driver died while charges were open: what it did after each of
            these, oldest first. Their faults are the last in `faults`.
    """

    attempt: int = 0
    history: History = field(default_factory=History)
    high_water: int = 0
    faults: list[ChargedFault] = field(default_factory=list)
    experiment: str = ""
    next_index: int = 0
    ended_cleanly: bool = True
    adopts_from: int = 0
    bad: dict[str, str] = field(default_factory=dict)
    unverified: list[str] = field(default_factory=list)
    may_be_alive: bool = False
    restarted: bool = False
    undecided: list[Since] = field(default_factory=list)

    def booked(self, charged: ChargedFault) -> None:
        """Add a fault to the ledger, which is kept in the order of time."""
        self.faults.append(charged)
        self.faults.sort(key=lambda fault: fault.time)

    def take_undecided(self) -> list[tuple[Fault, Since]]:
        """Take the faults that a driver before has left undecided off the ledger, oldest first."""
        count = len(self.undecided)
        taken = list(zip(self.faults[-count:], self.undecided, strict=True)) if count else []
        self.faults = self.faults[: len(self.faults) - count]
        self.undecided = []
        return [(charged.unbooked(), since) for charged, since in taken]

    def to_json(self, open_charges: tuple[OpenCharge, ...] = ()) -> dict[str, Any]:
        """Return plain JSON values. `max_failures` and `failures` are in Ray's own fields.

        Args:
            open_charges: those of the trial; they come last in the ledger, as not decided yet.
        """
        undecided = [ChargedFault.book(one.fault, Charge.FREE, NOT_DECIDED) for one in open_charges]
        since = [*self.undecided, *(one.since for one in open_charges)]
        return {
            "version": LEDGER_VERSION,
            "attempt": self.attempt,
            "high_water": self.high_water,
            "restore_failures": self.history.restore_failures,
            "infra_failures": self.history.infra_failures,
            "unavailable": self.history.unavailable,
            "kind": self.history.kind,
            "repeats": self.history.repeats,
            "faults": [fault.to_json() for fault in (*self.faults, *undecided)],
            "undecided": [dataclasses.asdict(one) for one in since],
            **{name: getattr(self, name) for name in _PLAIN},
        }


_PLAIN = (
    "experiment",
    "next_index",
    "ended_cleanly",
    "adopts_from",
    "bad",
    "unverified",
    "may_be_alive",
    "restarted",
)
"""Fields that are plain JSON as they are, and stand under their own names."""


@dataclass(frozen=True)
class OpenCharge:
    """A fault whose charge waits for the cluster to know what became of the node.

    Attributes:
        fault: the fault, with the cause as it looked.
        error: the typed error.
        node_id: the node in question.
        causes: what it may turn out to be; one alone waits only for those before it.
        until_s: when it is decided at the latest, on the monotonic clock.
        since: what the trial did after it.
    """

    fault: Fault
    error: TrialError
    node_id: str | None
    causes: tuple[Cause, ...]
    until_s: float
    since: Since = field(default_factory=Since)

    def may_be(self) -> tuple[Fault, ...]:
        """Return the fault as all that it may turn out to be, as it looked first."""
        return tuple(dataclasses.replace(self.fault, cause=cause) for cause in self.causes)

    def __str__(self) -> str:
        if len(self.causes) == 1:
            return f"{self.fault.cause}, charged after the failure before it"
        left_s = max(0.0, self.until_s - time.monotonic())
        return f"{self.fault.cause} as it looks, decided in {left_s:.0f} s at most"


def account_of(trial: _ray.Trial) -> Account:
    """Return the account of a trial: ours, restored, or a copy that Ray made to read results."""
    own = trial.__dict__.get("account")
    if isinstance(own, Account):
        return own
    saved = trial.__dict__.get(STATE, {})
    if not saved and trial.has_checkpoint():
        saved = {"unverified": _names_of_checkpoints(trial)}
    return Account(
        attempt=saved.get("attempt", 0),
        history=History(
            max_failures=trial.max_failures,
            failures=trial.run_metadata.num_failures,
            restore_failures=saved.get("restore_failures", 0),
            infra_failures=saved.get("infra_failures", 0),
            unavailable=saved.get("unavailable", 0),
            kind=saved.get("kind", ""),
            repeats=saved.get("repeats", 0),
        ),
        high_water=max(
            saved.get("high_water", 0), iteration_of(trial.run_metadata.last_result or {})
        ),
        faults=[ChargedFault.from_json(fault) for fault in saved.get("faults", [])],
        undecided=[Since(**since) for since in saved.get("undecided", [])],
        **{name: saved[name] for name in _PLAIN if name in saved},
    )


def _names_of_checkpoints(trial: _ray.Trial) -> list[str]:
    results = [*_ray.registered_checkpoints(trial), trial.latest_checkpoint_result]
    return sorted({result.checkpoint.path.rpartition("/")[2] for result in results})


def without_config(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without its own copy of the trial's config, which JSON may not take."""
    return {name: value for name, value in result.items() if name != CONFIG}


def iteration_of(result: dict[str, Any]) -> int:
    """Return the `training_iteration` of a result, 0 if it has none."""
    iteration = result.get("training_iteration", 0)
    return iteration if isinstance(iteration, int) else 0
