"""Journals and snapshots of every released format stay readable."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest

from raytrials.core import event as events
from raytrials.core.event import EVENTS, Record
from raytrials.core.fault import Cause, Charge, ChargedFault, FaultClass, Phase
from raytrials.core.fold import fold
from raytrials.core.invariant import check
from raytrials.core.retry import History
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status
from raytrials.errors import NewerFormatError
from raytrials.store.local import LocalDisk
from raytrials.store.manifest import digest_of
from raytrials.store.record import encode
from raytrials.store.recovery import JOURNAL, SNAPSHOTS, recover
from raytrials.store.segment import Reading
from raytrials.store.snapshot import Snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "journal-v1"
FORMATS = Path(__file__).parents[3] / "docs" / "formats.md"
DISK = LocalDisk(fsync=False)

FAULT = ChargedFault(
    trial_id="t0",
    attempt=1,
    fault_class=FaultClass.ACTOR,
    phase=Phase.RUNNING,
    cause=Cause.NODE_LOST,
    node_id="a" * 8,
    detail="größe\n",
    time=1700000005.5,
    exceptions=("ray.exceptions.ActorDiedError",),
    exit_code=None,
    charge=Charge.INFRASTRUCTURE,
    reason="a machine's death is free",
)
OPEN = ChargedFault.book(FAULT.unbooked(), Charge.FREE, "not decided yet")
RESOURCES = [{"CPU": 1.0}]

FIRST_DRIVER = [
    events.ExperimentCreated("5f0c4e8d", "golden", 2**63 + 1, {"lr": "loguniform(0.1, 1)"}),
    events.DriverAttached("host", 12, 2, 1, "loss", "min", {"ray": "2.60.0"}, []),
    events.TrialAdded("t0", {"lr": 0.1, "name": "größe"}, "0_lr=0.1", RESOURCES, '{"stub": 1}'),
    events.RunnerAssigned("t0", "any"),
    events.AttemptStarted("t0", 1, "a" * 8, 34),
    events.ResultReported("t0", 1, 1, {"loss": 0.5, "worst": math.inf, "nested": {"a": [1, None]}}),
    events.DecisionMade("t0", 1, "CONTINUE"),
    events.SearcherTold("t0", "result", 1),
    events.CheckpointCommitted("t0", 1, 0, 1),
    events.ResultReported("t0", 1, 2, {"loss": math.nan, "done": False}),
    events.FaultRecorded("t0", 1, OPEN, History(max_failures=3), decided=False),
]
SECOND_DRIVER = [
    events.DriverAttached(
        "other", 13, 2, damage=[{"file": "x", "offset": 7, "size": 1, "problem": "torn"}]
    ),
    events.FaultRecorded("t0", 1, FAULT, History(max_failures=3, infra_failures=1)),
    events.RunnerAssigned("t0", "node-b"),
    events.AttemptStarted("t0", 2, "b" * 8, 35, 1, 2, "checkpoint_000000"),
    events.AttemptRestored("t0", 2),
    events.ResultReported("t0", 2, 2, {"loss": 0.25}),
    events.CheckpointCommitted("t0", 2, 2, 2, {"loss": 0.25}),
    events.CheckpointMarkedBad("t0", "checkpoint_000002", "weights.bin is damaged"),
    events.SchedulerCalled("result", "t0", {"t0": "RUNNING saving"}),
    events.SchedulerActed("resolve", "t0", ["t0/checkpoint_000001", 7]),
    events.DecisionMade("t0", 2, "PAUSE"),
    events.TrialPaused("t0"),
    events.TrialConfigChanged(
        "t0", {"lr": 0.2}, "0_lr=0.2", RESOURCES, "{}", "t1/checkpoint_000009", {"loss": 0.125}
    ),
    events.CheckpointDeleted("t0", 0),
    events.TrialFinished("t0", Status.FAILED, "its error was final", {"loss": {"max": 0.5}}),
    events.StateLost("searcher", "a lock cannot be pickled"),
    events.FilesMirrored(20),
    events.TrialImported("t1", TrialRecord("t1", 1, status=Status.PAUSED).to_json()),
    events.SearcherTold("t0", "complete", 2, error=True),
    events.TrialResumed("t0", anew=True),
    events.DriverDetached("stopped by SIGTERM"),
]
RECORDS = [
    Record(seq, 1 if seq <= len(FIRST_DRIVER) else 2, 1700000000.25 + seq, event)
    for seq, event in enumerate([*FIRST_DRIVER, *SECOND_DRIVER], 1)
]
IN_SNAPSHOT = len(FIRST_DRIVER) + 4
PARTS = {"searcher": b"\x80opaque\n\x00", "scheduler": b""}


def text_of(state: ExperimentState) -> str:
    """The whole state as text, in which NaN equals NaN."""
    return json.dumps([state.to_json(), *(one.to_json() for one in state.trials.values())])


def files() -> dict[str, bytes]:
    """What writing gives today."""
    of_first, of_second = RECORDS[: len(FIRST_DRIVER)], RECORDS[len(FIRST_DRIVER) :]
    snapshot = Snapshot(fold(RECORDS[:IN_SNAPSHOT]), PARTS)
    return {
        f"{JOURNAL}/000001-000000000001.jsonl": b"".join(map(encode, of_first)),
        f"{JOURNAL}/000002-000000000012.jsonl": b"".join(map(encode, of_second)),
        f"{SNAPSHOTS}/{snapshot.name}": snapshot.encode(),
    }


def test_every_event_is_in_the_golden_journal() -> None:
    assert {type(record.event).__name__ for record in RECORDS} == set(EVENTS)


def test_a_journal_of_version_1_says_what_was_written() -> None:
    read = list(Reading(DISK, str(GOLDEN / JOURNAL)))
    assert [encode(record) for record in read] == [encode(record) for record in RECORDS]


def test_the_same_events_are_written_as_in_version_1() -> None:
    found = {
        path.relative_to(GOLDEN).as_posix(): path.read_bytes()
        for path in GOLDEN.rglob("*")
        if path.is_file()
    }
    assert files() == found


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_an_experiment_of_version_1_is_recovered(tmp_path: Path, with_snapshot: bool) -> None:
    home = tmp_path / "home"
    shutil.copytree(GOLDEN, home)
    if not with_snapshot:
        shutil.rmtree(home / SNAPSHOTS)
    recovered = recover(DISK, str(home))
    check(recovered.state)
    assert text_of(recovered.state) == text_of(fold(RECORDS))
    assert recovered.parts == (PARTS if with_snapshot else {})
    assert recovered.parts_seq == (IN_SNAPSHOT if with_snapshot else 0)
    assert [one.seq for one in recovered.tail] == list(
        range(recovered.parts_seq + 1, len(RECORDS) + 1)
    )
    assert recovered.damage == ()


def test_a_snapshot_of_version_2_is_refused_clearly(tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(GOLDEN, home)
    (path,) = (home / SNAPSHOTS).iterdir()
    header, _, rest = path.read_bytes().partition(b"\n")
    body = header[: header.rindex(b',"digest"')].replace(b'"version":1', b'"version":2') + b"}"
    sealed = body[:-1] + f',"digest":"{digest_of(body)}"}}\n'.encode()
    path.write_bytes(sealed + rest)
    with pytest.raises(NewerFormatError, match="snapshot has version 2"):
        recover(DISK, str(home))


def test_the_docs_name_every_event_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\| (.*?) ?\|$", FORMATS.read_text(), re.MULTILINE))
    for name, kind in EVENTS.items():
        named = set(re.findall(r"`(\w+)`", rows[name])) - {"trial_id"}
        assert named == set(kind.__dataclass_fields__) - {"trial_id"}, name
