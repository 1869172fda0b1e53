"""Experiments of ours on storage, made from a script of events, without Ray.

What is left out in a call is as it should be; what a test says instead is what it plants. Time goes
on by ten seconds with each event, from now: commits have the time of the event before them.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
import time
from collections.abc import Mapping
from typing import Any

import pyarrow.fs

from raytrials.core.event import (
    AttemptStarted,
    CheckpointCommitted,
    CheckpointDeleted,
    DecisionMade,
    DriverAttached,
    DriverDetached,
    Event,
    ExperimentCreated,
    FaultRecorded,
    ResultReported,
    RunnerAssigned,
    SearcherTold,
    TrialAdded,
    TrialFinished,
)
from raytrials.core.fault import Cause, Charge, ChargedFault, FaultClass, Phase
from raytrials.core.fold import apply
from raytrials.core.retry import History
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status
from raytrials.errors import IllegalEventError
from raytrials.store.commit import commit
from raytrials.store.journal import Journal, open_journal
from raytrials.store.location import disk_of
from raytrials.store.manifest import Header, checkpoint_name
from raytrials.store.objects import ObjectDisk

NAME = "experiment_state-2026-01-01_00-00-00.json"


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def metrics(iteration: int, **more: Any) -> dict[str, Any]:
    """What a trial reports, with some of what Ray adds."""
    return {"loss": 1 / iteration, "training_iteration": iteration, "pid": 7, **more}


def directory_of(trial_id: str) -> str:
    return f"train_{trial_id}"


class Script:
    """An experiment as its drivers write it, event by event.

    Attributes:
        state: what its events come to.
        disk: where it is.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, path: str) -> None:
        self.disk = disk_of(filesystem, fsync=False)
        self.path = path
        self.clock = Clock()
        self.state = ExperimentState(keeps_rows=True)
        self.epoch = 0
        self._seq = 0
        self._journal: Journal | None = None

    def at(self, *names: str) -> str:
        return posixpath.join(self.path, *names)

    def write(self, data: bytes, *names: str) -> None:
        self.disk.make_directory(posixpath.dirname(self.at(*names)))
        self.disk.write(self.at(*names), data)

    # --- drivers ---------------------------------------------------------------------------------

    def attach(self, **fields: Any) -> None:
        """Begin the next driver's epoch."""
        self._open(self.epoch + 1)
        if self._seq == 0:
            self.tell(ExperimentCreated("exp", "name", 1))
        self.tell(DriverAttached("host", 1, **fields))

    def _open(self, epoch: int) -> None:
        if self._journal is not None:
            self._journal.sync()
            self._journal.close()
        self.epoch = epoch
        self._journal = open_journal(
            self.disk,
            self.at(".raytrials", "journal"),
            epoch=epoch,
            seq=self._seq,
            clock=self.clock,
        )

    def tell(self, event: Event) -> None:
        """Add any event; one that cannot follow too."""
        assert self._journal is not None
        self.clock.sleep(10)
        record = self._journal.append(event)
        self._seq = record.seq
        try:
            apply(self.state, record)
        except IllegalEventError:
            self.state.seq = record.seq

    def detach(self, reason: str = "done") -> None:
        """End in order, with all files as they should be."""
        self.tell(DriverDetached(reason))
        self.save()

    def save(self) -> None:
        """Make the journal durable, and write the trials' files and Ray's state."""
        assert self._journal is not None
        self._journal.sync()
        for trial in self.state.trials.values():
            self._save_files(trial)
        self.save_state(*self.state.trials)

    # --- trials ----------------------------------------------------------------------------------

    def add(self, trial_id: str, **config: Any) -> None:
        self.tell(TrialAdded(trial_id, config or {"x": 1}, f"tag-{trial_id}"))

    def start(self, trial_id: str, **planted: Any) -> None:
        """Start the next attempt, from the newest checkpoint."""
        trial = self.state.trials[trial_id]
        self.tell(RunnerAssigned(trial_id, "node"))
        newest = max(trial.checkpoints, default=None)
        known: dict[str, Any] = {"attempt": trial.attempt + 1, "first_index": trial.next_index}
        if newest is not None:
            known["checkpoint"] = checkpoint_name(newest)
            known["from_iteration"] = trial.checkpoints[newest].iteration
        self.tell(AttemptStarted(trial_id, **{**known, **planted}))

    def run(self, trial_id: str, last: int) -> None:
        """Report, decide, tell and commit, iteration by iteration."""
        for iteration in range(self.state.trials[trial_id].iteration + 1, last + 1):
            self.report(trial_id, iteration)
            self.commit(trial_id)

    def report(self, trial_id: str, iteration: int) -> None:
        attempt = self.state.trials[trial_id].attempt
        self.tell(ResultReported(trial_id, attempt, iteration, metrics(iteration)))
        self.tell(DecisionMade(trial_id, iteration, "CONTINUE"))
        self.tell(SearcherTold(trial_id, "result", iteration))

    def commit(self, trial_id: str) -> None:
        """Commit a checkpoint of the latest iteration, and note it."""
        trial = self.state.trials[trial_id]
        index = trial.next_index
        self.put(trial_id, index, trial.iteration)
        self.tell(CheckpointCommitted(trial_id, trial.attempt, index, trial.iteration))

    def put(self, trial_id: str, index: int, iteration: int, **planted: Any) -> None:
        """Commit a checkpoint that no event tells of."""
        trial = self.state.trials[trial_id]
        source = ObjectDisk(pyarrow.fs._MockFileSystem())
        source.write("source/weights.bin", bytes(100))
        header = {
            "experiment": "exp",
            "trial": trial_id,
            "attempt": trial.attempt,
            "epoch": self.epoch,
            "index": index,
            "iteration": iteration,
            "time": self.clock.now_s,
            **planted,
        }
        place = self.at(directory_of(trial_id))
        commit(self.disk, place, Header(**header), (source, "source"), retry_s=0)

    def delete(self, trial_id: str, index: int) -> None:
        """Delete a checkpoint, on storage and in the journal."""
        self.tell(CheckpointDeleted(trial_id, index))
        self.disk.delete_tree(self.at(directory_of(trial_id), checkpoint_name(index)))

    def fail(
        self,
        trial_id: str,
        cause: Cause,
        charge: Charge = Charge.INFRASTRUCTURE,
        reason: str = "not counted",
        **planted: Any,
    ) -> None:
        """Record a fault that ends the attempt."""
        trial = self.state.trials[trial_id]
        failures = trial.history.failures + (charge is Charge.FAILURE)
        fault = ChargedFault(
            trial_id,
            trial.attempt,
            FaultClass.ACTOR,
            Phase.RUNNING,
            cause,
            "node",
            "as Ray says it",
            self.clock.now_s,
            charge=charge,
            reason=reason,
        )
        history = History(max_failures=0, failures=failures)
        number = len(trial.faults) + 1
        known = {"number": number, "fault": fault, "history": history}
        self.tell(FaultRecorded(trial_id, **{**known, **planted}))

    def finish(self, trial_id: str, status: Status = Status.SUCCEEDED) -> None:
        """End a trial, and tell the searcher."""
        self.tell(TrialFinished(trial_id, status, "it came to its end"))
        iteration = self.state.trials[trial_id].iteration
        self.tell(SearcherTold(trial_id, "complete", iteration, error=status is Status.FAILED))

    # --- what Ray writes -------------------------------------------------------------------------

    def _save_files(self, trial: TrialRecord) -> None:
        directory = directory_of(trial.trial_id)
        rows = [dict(row.metrics) for row in trial.rows or ()]
        self.write(json.dumps(trial.config).encode(), directory, "params.json")
        self.write(as_json(*rows), directory, "result.json")
        self.write(as_csv(*rows), directory, "progress.csv")

    def save_state(self, *trial_ids: str) -> None:
        """Write Ray's state file, of some trials."""
        trials = [self.state.trials[trial_id] for trial_id in trial_ids]
        save_ray_state(self, [saved(one.trial_id, one.config) for one in trials])


def as_json(*rows: Mapping[str, Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def as_csv(*rows: Mapping[str, Any]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [])
    if rows:
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()


def saved(
    trial_id: str,
    config: Mapping[str, Any],
    *,
    checkpoints: tuple[str, ...] = (),
    last_result: Mapping[str, Any] | None = None,
    **fields: Any,
) -> list[str]:
    """A trial as Ray saves it."""
    directory = directory_of(trial_id)
    known = {
        "trial_id": trial_id,
        "relative_logdir": directory,
        "config": config,
        "evaluated_params": config,
        "experiment_tag": f"tag-{trial_id}",
        "status": "TERMINATED",
    }
    pickled = "".join(f"{directory}/{name}.".encode().hex() for name in checkpoints)
    runtime = {"last_result": last_result or {}, "checkpoint_manager": pickled}
    return [json.dumps({**known, **fields}), json.dumps(runtime)]


def save_ray_state(script: Script, trials: list[list[str]], name: str = NAME) -> None:
    script.write(json.dumps({"trial_data": trials, "stats": {}}).encode(), name)
