"""What the events of an experiment come to: data, and its form in a snapshot.

`raytrials.core.fold` alone changes it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raytrials.core.fault import ChargedFault
from raytrials.core.packed import Packer, keep_packed
from raytrials.core.plain import interned
from raytrials.core.retry import History, Since
from raytrials.core.shape import require, require_items
from raytrials.core.status import Status
from raytrials.core.story import Story


class Row(NamedTuple):
    """A result in a trial's history."""

    iteration: int
    attempt: int
    time: float
    metrics: Mapping[str, Any]


def withdraw(rows: list[Row], after: int) -> None:
    """Take the rows of later iterations off a history."""
    while rows and rows[-1].iteration > after:
        rows.pop()


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint that was committed, and is neither bad nor deleted.

    Its metrics are kept packed: each use makes them anew.
    """

    attempt: int
    index: int
    iteration: int
    metrics: Mapping[str, Any]

    def to_json(self) -> list[Any]:
        """Return plain JSON values."""
        return [self.attempt, self.index, self.iteration, self.metrics]


@dataclass(slots=True)
class TrialRecord:
    """What is known of a trial. `state` and `analysis` are kept packed: each use makes them anew.

    Attributes:
        trial_id: the trial.
        number: its place among all trials, from 0.
        config: of :class:`raytrials.core.event.TrialAdded`, or as last changed.
        tag: likewise.
        resources: likewise.
        state: likewise.
        status: where it is in its life.
        runner: what it is bound to, None if nothing.
        attempt: number of the latest attempt, 0 before the first.
        reserved: number that an attempt may have whose start was not recorded; 0 for none.
        assigned_seq: number of the event that bound it, 0 if nothing did.
        node_id: where that runs or ran.
        pid: its process there.
        from_iteration: what that attempt continued from.
        restored_from: the checkpoint that it stands on, as in
            :class:`raytrials.core.event.AttemptStarted`; None if it began at the beginning.
        restored_metrics: the report of that checkpoint, if it is another trial's.
        is_restoring: whether that is not loaded yet.
        adopts_from: its own checkpoints of earlier attempts than this are not what it goes on from:
            an exploit, or a start anew, has replaced what they stood for.
        first_index: the latest attempt numbers its checkpoints from here on.
        next_index: every index from here on is free.
        iteration: of the latest row of its history, 0 for none.
        high_water: highest iteration ever reported.
        result_seq: number of the event that brought the latest row, 0 for none.
        last_result: the metrics of the latest row.
        checkpoints: those that can be used, by index, in the order of their commits.
        bad: those that are not whole, by name, and what is wrong.
        rejected: what was known of those of its own, should they be mended.
        faults: its ledger.
        undecided: numbers of the faults whose charge is open, and what the trial did after each.
        history: what it has spent.
        decision: the latest decision on one of its results, None before the first.
        decided_iteration: of that result.
        is_decision_open: whether the decision is to stop or pause, and not carried out yet.
        told_iteration: of the latest result that the searcher was told, 0 for none.
        told_complete: whether the searcher was told of its end.
        reason: of its end, in words.
        analysis: of its metrics, as in :class:`raytrials.core.event.TrialFinished`; empty before.
        unverified: names of checkpoints that vanilla Ray made, which have no manifest.
        started_s: when its first attempt started, seconds since the Unix epoch; None before.
        ended_s: when it ended, likewise.
        rows: its history, None where it is not kept.
        story: its latest events, as seq and name; not saved.
    """

    trial_id: str
    number: int
    config: Mapping[str, Any] = field(default_factory=dict)
    tag: str = ""
    resources: Sequence[Mapping[str, float]] = ()
    state: str = ""
    status: Status = Status.PENDING
    runner: str | None = None
    attempt: int = 0
    reserved: int = 0
    assigned_seq: int = 0
    node_id: str | None = None
    pid: int | None = None
    from_iteration: int = 0
    restored_from: str | None = None
    restored_metrics: Mapping[str, Any] = field(default_factory=dict)
    is_restoring: bool = False
    adopts_from: int = 0
    first_index: int = 0
    next_index: int = 0
    iteration: int = 0
    high_water: int = 0
    result_seq: int = 0
    last_result: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointRecord] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    rejected: dict[int, CheckpointRecord] = field(default_factory=dict)
    faults: list[ChargedFault] = field(default_factory=list)
    undecided: dict[int, Since] = field(default_factory=dict)
    history: History = field(default_factory=History)
    decision: str | None = None
    decided_iteration: int = 0
    is_decision_open: bool = False
    told_iteration: int = 0
    told_complete: bool = False
    reason: str = ""
    analysis: Mapping[str, Any] = field(default_factory=dict)
    unverified: list[str] = field(default_factory=list)
    started_s: float | None = None
    ended_s: float | None = None
    rows: list[Row] | None = None
    story: Story = field(default_factory=Story, compare=False, repr=False)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return self.status in Status.FINISHED

    @property
    def stands_on_another(self) -> bool:
        """Whether it continues from another trial's checkpoint, having none of its own since."""
        return self.restored_from is not None and "/" in self.restored_from and not self.own_indices

    @property
    def own_indices(self) -> set[int]:
        """The checkpoints of its own that it can go on from."""
        return {i for i, one in self.checkpoints.items() if one.attempt >= self.adopts_from}

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: everything but rows and story."""
        values = {name: getattr(self, name) for name in _PLAIN}
        return {
            **values,
            "status": str(self.status),
            "checkpoints": [one.to_json() for one in self.checkpoints.values()],
            "rejected": [one.to_json() for one in self.rejected.values()],
            "bad": dict(self.bad),
            "faults": [fault.to_json() for fault in self.faults],
            "undecided": [
                [number, since.restored, since.progressed]
                for number, since in self.undecided.items()
            ],
            "history": dataclasses.asdict(self.history),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrialRecord:
        """Return what :meth:`to_json` gave, as JSON brings it.

        Raises KeyError, TypeError or ValueError for anything else.
        """
        require(cls, data, _PLAIN)
        checkpoints = [_checkpoint(*values) for values in data["checkpoints"]]
        rejected = [_checkpoint(*values) for values in data["rejected"]]
        faults = [ChargedFault.from_json(fault) for fault in data["faults"]]
        undecided = [_undecided(*values) for values in data["undecided"]]
        if any(not 0 < number <= len(faults) for number, _ in undecided):
            raise ValueError("a fault is undecided that is none of its own")
        return cls(
            **{
                **{name: data[name] for name in _PLAIN},
                "config": interned(data["config"]),
                "last_result": interned(data["last_result"]),
            },
            status=Status(data["status"]),
            checkpoints={one.index: one for one in checkpoints},
            rejected={one.index: one for one in rejected},
            bad=dict(data["bad"]),
            faults=faults,
            undecided=dict(undecided),
            history=History.from_json(data["history"]),
        )


_dump = json.JSONEncoder(separators=(",", ":")).encode
keep_packed(TrialRecord, "state", Packer(), str, str)
keep_packed(TrialRecord, "analysis", Packer(), _dump, json.loads)
keep_packed(CheckpointRecord, "metrics", Packer(), _dump, json.loads)


def _checkpoint(attempt: int, index: int, iteration: int, metrics: Any) -> CheckpointRecord:
    require_items((attempt, index, iteration), _INT, "a checkpoint")
    require_items((metrics,), frozenset({dict}), "a checkpoint")
    return CheckpointRecord(attempt, index, iteration, metrics)


def _undecided(number: int, restored: bool, progressed: bool) -> tuple[int, Since]:  # noqa: FBT001
    require_items((number,), _INT, "undecided")
    require_items((restored, progressed), frozenset({bool}), "undecided")
    return number, Since(restored, progressed)


_INT = frozenset({int})
_OWN_FORM = {"status", "checkpoints", "rejected", "bad", "faults", "undecided", "history"}
_NOT_SAVED = {"rows", "story"}
_PLAIN = tuple(
    one.name for one in dataclasses.fields(TrialRecord) if one.name not in _OWN_FORM | _NOT_SAVED
)


@dataclass
class ExperimentState:
    """What is known of an experiment.

    Attributes:
        seq: of the latest event; 0 before the first.
        epoch: of the driver that wrote it.
        time: when it was written.
        experiment: id of the experiment; "" before it was created.
        name: as in `RunConfig`.
        seed: of the experiment.
        param_space: to be read.
        is_attached: whether a driver is at work.
        drivers: how many there have been.
        num_samples: how many trials there are to be, as the latest driver said; None if unknown.
        max_concurrent: how many may run at once, likewise; None for no limit.
        metric: what is optimised, likewise.
        mode: `min` or `max`, likewise.
        mirrored_seq: the trials' files on storage are as after this event, or later.
        lost: parts whose state is not exact any more, and what happened to them.
        reason: why the latest driver went, "" if it did not say.
        ignored: how many events of drivers were ignored that had been replaced.
        trials: in the order in which they were added.
        running: ids of the trials that are running.
        keeps_rows: whether the trials' whole histories are kept.
    """

    seq: int = 0
    epoch: int = 0
    time: float = 0.0
    experiment: str = ""
    name: str = ""
    seed: int = 0
    param_space: Mapping[str, Any] = field(default_factory=dict)
    is_attached: bool = False
    drivers: int = 0
    num_samples: int | None = None
    max_concurrent: int | None = None
    metric: str | None = None
    mode: str | None = None
    mirrored_seq: int = 0
    lost: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    ignored: int = 0
    trials: dict[str, TrialRecord] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    keeps_rows: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values of the experiment itself; its trials are saved one by one."""
        return {**{name: getattr(self, name) for name in _OF_EXPERIMENT}, "lost": dict(self.lost)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], trials: Sequence[TrialRecord]) -> ExperimentState:
        """Return what :meth:`to_json` gave, with the trials in their order.

        Raises KeyError, TypeError or ValueError for anything else.
        """
        require(cls, data, _OF_EXPERIMENT)
        return cls(
            **{**{name: data[name] for name in _OF_EXPERIMENT}, "lost": dict(data["lost"])},
            trials={trial.trial_id: trial for trial in trials},
            running={trial.trial_id for trial in trials if trial.status is Status.RUNNING},
        )


_OF_EXPERIMENT = tuple(
    one.name
    for one in dataclasses.fields(ExperimentState)
    if one.name not in {"trials", "running", "keeps_rows"}
)
