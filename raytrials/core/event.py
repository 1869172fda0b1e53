"""What can happen in an experiment: the events of its journal.

An event is a fact in the past tense, with nothing in it but plain JSON values: what is written and
read again is equal to it. A :class:`Record` is an event in its place. What events come to is
`raytrials.core.fold`; how they are written is `raytrials.store.record`. A release that changes a
field here changes `VERSION`, keeps reading the older ones, and adds a golden file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Self

from raytrials.core.fault import ChargedFault
from raytrials.core.plain import plain_list, plain_metrics, plain_record
from raytrials.core.retry import History
from raytrials.core.shape import require
from raytrials.core.status import Status

VERSION = 1
"""Of all events together."""


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Mappings and sequences in it are made plain, and copied; what users give may be anything.
    """

    def to_data(self) -> dict[str, Any]:
        """Return its fields as plain JSON values."""
        return dict(self.__dict__)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_data` gave, as JSON brings it.

        Raises TypeError or ValueError for anything else.
        """
        require(cls, data)
        return cls(**data)


@dataclass(frozen=True)
class Record:
    """An event in its place in the journal.

    Attributes:
        seq: from 1, without gaps.
        epoch: of the lease of the driver that wrote it.
        time: seconds since the Unix epoch on that driver's clock; it may jump.
        event: what happened.
    """

    seq: int
    epoch: int
    time: float
    event: Event


# --- the experiment ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ExperimentCreated(Event):
    """The first event of every journal.

    Attributes:
        experiment: id of the experiment, the same over all its drivers and moves.
        name: as in `RunConfig`.
        seed: of the experiment, which all randomness of searcher and scheduler comes from.
        param_space: the search space, to be read by people and to be compared.
    """

    experiment: str
    name: str
    seed: int
    param_space: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _make_ints(self, "seed")
        _make_plain(self, "param_space")


@dataclass(frozen=True)
class DriverAttached(Event):
    """A driver took over. What was running is interrupted, and its epoch is the only one valid.

    Attributes:
        host: its machine.
        pid: its process there.
        num_samples: how many trials there are to be, None if nobody can say.
        max_concurrent: how many may run at once, None for no limit.
        metric: what is optimised, None if nothing is said.
        mode: `min` or `max`, None likewise.
        versions: of Python, Ray and raytrials.
        damage: what it found damaged and put aside, an object for each place.
    """

    host: str
    pid: int
    num_samples: int | None = None
    max_concurrent: int | None = None
    metric: str | None = None
    mode: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    damage: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        _make_plain(self, "versions")
        object.__setattr__(self, "damage", [plain_metrics(one) for one in self.damage])


@dataclass(frozen=True)
class DriverDetached(Event):
    """The driver ended in order. What was running is interrupted.

    Attributes:
        reason: in words.
    """

    reason: str


@dataclass(frozen=True)
class SchedulerCalled(Event):
    """The scheduler is about to be called. What comes of it is known when the call is repeated.

    Calls that it causes itself, such as the removal of a trial that it stops, are not recorded.

    Attributes:
        call: `add`, `error`, `result`, `complete`, `remove` or `choose`.
        trial_id: the trial that the call is about, None for `choose`.
        statuses: of the trials that are something else than at the call before: Ray's status by
            trial, with ` saving` behind it while a save is on its way.
    """

    call: str
    trial_id: str | None = None
    statuses: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _make_plain(self, "statuses")


@dataclass(frozen=True)
class SchedulerActed(Event):
    """The scheduler was told, in or for a call, what a repeated call cannot find out.

    Attributes:
        call: what it is about: `resolve`, in a call, for what came of a trial's save; before a call
            `cluster` for the size of the cluster, and `absent` for a trial that is not waited for.
        trial_id: the trial, None for `cluster`.
        arguments: of `resolve` the path of the checkpoint below the experiment, and its iteration,
            or nothing if nothing was saved; of `cluster` its processors and GPUs.
    """

    call: str
    trial_id: str | None = None
    arguments: Sequence[Any] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", plain_list(self.arguments))


@dataclass(frozen=True)
class StateLost(Event):
    """The state of a part cannot be saved, or did not come back as it was: no more exact.

    Attributes:
        part: `searcher`, `scheduler`, `stopper` or `callbacks`.
        detail: what happened.
    """

    part: str
    detail: str


@dataclass(frozen=True)
class FilesMirrored(Event):
    """The files that the driver keeps of the trials are on storage, as they were after an event.

    Attributes:
        seq: number of that event.
    """

    seq: int


# --- a trial -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialEvent(Event):
    """An event of one trial.

    Attributes:
        trial_id: the trial.
    """

    trial_id: str


@dataclass(frozen=True)
class TrialAdded(TrialEvent):
    """The searcher was asked, and gave a trial.

    Attributes:
        config: to be read by people; what has no plain form in it is its `repr`.
        tag: the experiment tag.
        resources: of its placement group, bundle by bundle.
        state: what Ray makes the trial of again; opaque.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    tag: str = ""
    resources: Sequence[Mapping[str, float]] = ()
    state: str = ""

    def __post_init__(self) -> None:
        _make_plain(self, "config")
        object.__setattr__(self, "resources", [plain_metrics(one) for one in self.resources])


@dataclass(frozen=True)
class TrialImported(TrialEvent):
    """Vanilla Ray ran the trial: before there was a journal, or further than the journal knows.

    Attributes:
        record: what is known of it, as :meth:`raytrials.core.state.TrialRecord.to_json` gives it.
    """

    record: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "record", plain_record(self.record))


@dataclass(frozen=True)
class RunnerAssigned(TrialEvent):
    """The trial was bound to a place to run, and its actor is about to be requested.

    Attributes:
        runner: id of the runner, or the word for one that is bound late.
        attempt: the number that the next attempt has, whether or not its start is ever recorded; 0
            if none is reserved.
    """

    runner: str
    attempt: int = 0


@dataclass(frozen=True)
class AttemptStarted(TrialEvent):
    """The trial's actor is there. Rows after `from_iteration` are withdrawn from its history.

    Attributes:
        attempt: from 1, over all drivers.
        node_id: where it runs.
        pid: its process there, None if not known.
        from_iteration: what it continues from, 0 for the beginning.
        first_index: its checkpoints are numbered from here on.
        checkpoint: what it is restored from: a checkpoint's name, or its path below the experiment
            if another trial's; None for none.
        metrics: the report that it continues from; None if that is the checkpoint's.
    """

    attempt: int
    node_id: str | None = None
    pid: int | None = None
    from_iteration: int = 0
    first_index: int = 0
    checkpoint: str | None = None
    metrics: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _make_ints(self, "attempt", "from_iteration", "first_index")
        if self.metrics is not None:
            _make_plain(self, "metrics")


@dataclass(frozen=True)
class AttemptRestored(TrialEvent):
    """The attempt has loaded its checkpoint.

    Attributes:
        attempt: which.
    """

    attempt: int


@dataclass(frozen=True)
class ResultReported(TrialEvent):
    """A report arrived.

    Attributes:
        attempt: the attempt that reported.
        iteration: its `training_iteration`.
        metrics: of the report.
    """

    attempt: int
    iteration: int
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.attempt) is not int or type(self.iteration) is not int:
            _make_ints(self, "attempt", "iteration")
        _make_plain(self, "metrics")


@dataclass(frozen=True)
class CheckpointCommitted(TrialEvent):
    """A checkpoint of the trial is on storage, whole.

    Attributes:
        attempt: the attempt that made it.
        index: the number in its name.
        iteration: what it holds.
        metrics: the report that it belongs to; None if that is the latest one.
    """

    attempt: int
    index: int
    iteration: int
    metrics: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _make_ints(self, "attempt", "index", "iteration")
        if self.metrics is not None:
            _make_plain(self, "metrics")


@dataclass(frozen=True)
class CheckpointMarkedBad(TrialEvent):
    """A checkpoint is not whole, and is used no more.

    Attributes:
        checkpoint: its name, or its path below the experiment if another trial's.
        problem: what is wrong with it; empty for one that was found whole again.
    """

    checkpoint: str
    problem: str


@dataclass(frozen=True)
class CheckpointDeleted(TrialEvent):
    """A checkpoint is about to be deleted: nobody may use it any more.

    Attributes:
        index: the number in its name.
    """

    index: int


@dataclass(frozen=True)
class FaultRecorded(TrialEvent):
    """A failure of the trial, with what it cost.

    While the charge is open it is recorded with `decided` False, and again when it is decided.

    Attributes:
        number: of the fault in the trial's ledger, from 1.
        fault: the fault as booked.
        history: what the trial has spent after it.
        decided: whether the charge is final.
        ends_attempt: whether the attempt that it struck is over.
    """

    number: int
    fault: ChargedFault
    history: History
    decided: bool = True
    ends_attempt: bool = True

    def to_data(self) -> dict[str, Any]:
        """See :meth:`Event.to_data`."""
        history = dataclasses.asdict(self.history)
        return {**self.__dict__, "fault": self.fault.to_json(), "history": history}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> FaultRecorded:
        """See :meth:`Event.from_data`."""
        require(cls, data)
        fault, history = ChargedFault.from_json(data["fault"]), History.from_json(data["history"])
        return cls(**{**data, "fault": fault, "history": history})


@dataclass(frozen=True)
class TrialPaused(TrialEvent):
    """The trial waits for its scheduler, without an actor."""


@dataclass(frozen=True)
class TrialConfigChanged(TrialEvent):
    """The scheduler gave the trial another config or other resources.

    Attributes:
        config: as in :class:`TrialAdded`.
        tag: likewise.
        resources: likewise.
        state: likewise.
        checkpoint: what it continues from now if it is another trial's: the path below the
            experiment; None if it goes on from its own.
        metrics: the report that belongs to that checkpoint; None without one.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    tag: str = ""
    resources: Sequence[Mapping[str, float]] = ()
    state: str = ""
    checkpoint: str | None = None
    metrics: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _make_plain(self, "config")
        object.__setattr__(self, "resources", [plain_metrics(one) for one in self.resources])
        if self.metrics is not None:
            _make_plain(self, "metrics")


@dataclass(frozen=True)
class DecisionMade(TrialEvent):
    """Scheduler or stopper decided on a result; it is carried out only after this.

    Attributes:
        iteration: of the result.
        decision: Ray's word: CONTINUE, PAUSE, STOP or NOOP.
    """

    iteration: int
    decision: str

    def __post_init__(self) -> None:
        _make_ints(self, "iteration")


@dataclass(frozen=True)
class SearcherTold(TrialEvent):
    """The searcher is told something of the trial.

    Attributes:
        call: `result`, `complete`, `pause` or `unpause`.
        iteration: of the result that it is given, 0 if it is given none.
        error: whether it ended with an error.
    """

    call: str
    iteration: int
    error: bool = False

    def __post_init__(self) -> None:
        _make_ints(self, "iteration")


@dataclass(frozen=True)
class TrialFinished(TrialEvent):
    """The trial came to a real end: it was stopped, or failed for good.

    Attributes:
        status: which end.
        reason: in words.
        analysis: of its metrics over all results: by metric, then `max`, `min`, `avg` and so on.
    """

    status: Status
    reason: str = ""
    analysis: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))
        object.__setattr__(self, "analysis", plain_record(self.analysis))

    def to_data(self) -> dict[str, Any]:
        """See :meth:`Event.to_data`."""
        return {**self.__dict__, "status": str(self.status)}


@dataclass(frozen=True)
class TrialResumed(TrialEvent):
    """A finished trial is to run again, by the user's order.

    Attributes:
        anew: from the beginning, instead of from its newest checkpoint.
    """

    anew: bool = False


EVENTS: Mapping[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        ExperimentCreated,
        DriverAttached,
        DriverDetached,
        SchedulerCalled,
        SchedulerActed,
        StateLost,
        FilesMirrored,
        TrialAdded,
        TrialImported,
        RunnerAssigned,
        AttemptStarted,
        AttemptRestored,
        ResultReported,
        CheckpointCommitted,
        CheckpointMarkedBad,
        CheckpointDeleted,
        FaultRecorded,
        TrialPaused,
        TrialConfigChanged,
        DecisionMade,
        SearcherTold,
        TrialFinished,
        TrialResumed,
    )
}
"""Every event by its name in the journal."""


def _make_ints(event: Event, *names: str) -> None:
    """Make NumPy's integers Python's; `training_iteration` is the user's, and may be one."""
    for name in names:
        value = getattr(event, name)
        if type(value) is not int:
            object.__setattr__(event, name, int(value))


def _make_plain(event: Event, name: str) -> None:
    object.__setattr__(event, name, plain_metrics(getattr(event, name)))
