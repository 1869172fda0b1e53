"""What a trial remembers: over the death of its driver, and while a charge is open.

The account goes into the trial's saved state as plain JSON under the key `raytrials`, which Ray
without us carries along unread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raytrials import _ray
from raytrials.core.fault import ChargedFault, Fault
from raytrials.core.retry import History
from raytrials.errors import TrialError

LEDGER_VERSION = 1
STATE = "raytrials"


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

    def booked(self, charged: ChargedFault) -> None:
        """Add a fault to the ledger, which is kept in the order of time."""
        self.faults.append(charged)
        self.faults.sort(key=lambda fault: fault.time)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values. `max_failures` and `failures` are in Ray's own fields."""
        return {
            "version": LEDGER_VERSION,
            "attempt": self.attempt,
            "high_water": self.high_water,
            "restore_failures": self.history.restore_failures,
            "infra_failures": self.history.infra_failures,
            "unavailable": self.history.unavailable,
            "kind": self.history.kind,
            "repeats": self.history.repeats,
            "faults": [fault.to_json() for fault in self.faults],
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
        until_s: when it is decided at the latest, on the monotonic clock.
        high_water: the trial's high-water mark when it failed.
    """

    fault: Fault
    error: TrialError
    node_id: str | None
    until_s: float
    high_water: int


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
        **{name: saved[name] for name in _PLAIN if name in saved},
    )


def _names_of_checkpoints(trial: _ray.Trial) -> list[str]:
    results = [*_ray.registered_checkpoints(trial), trial.latest_checkpoint_result]
    return sorted({result.checkpoint.path.rpartition("/")[2] for result in results})


def iteration_of(result: dict[str, Any]) -> int:
    """Return the `training_iteration` of a result, 0 if it has none."""
    iteration = result.get("training_iteration", 0)
    return iteration if isinstance(iteration, int) else 0
