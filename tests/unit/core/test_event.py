"""An event is plain, and the same after it was written and read."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from support.events import fault

from raytrials.core.event import (
    EVENTS,
    AttemptRestored,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointMarkedBad,
    DecisionMade,
    DriverAttached,
    DriverDetached,
    Event,
    ExperimentCreated,
    FaultRecorded,
    FilesMirrored,
    ResultReported,
    RunnerAssigned,
    SchedulerActed,
    SchedulerCalled,
    SearcherTold,
    StateLost,
    TrialAdded,
    TrialConfigChanged,
    TrialFinished,
    TrialImported,
    TrialPaused,
    TrialResumed,
)
from raytrials.core.retry import History
from raytrials.core.status import Status

VALUES: dict[str, Any] = {
    "x": np.float32(0.5),
    "n": np.int64(3),
    "array": np.array([1, 2]),
    "tuple": (1, ("a", None)),
    "call": len,
    "nested": {"list": [np.bool_(True)], 7: "seven"},
    "text": "ü\u2028\0\ud800",
}
"""As users give them."""

BUNDLES = ({"CPU": np.int64(1)}, {"GPU": 0.5})

EXAMPLES: list[Event] = [
    ExperimentCreated("id", "name", 7, VALUES),
    DriverAttached("host", 1, 4, 2, "loss", "min", {"ray": "2.60"}, ({"file": "f", "offset": 3},)),
    DriverDetached("SIGTERM"),
    SchedulerCalled("result", "t", {"t": "RUNNING", "u": "PAUSED saving"}),
    SchedulerActed("pause", "t", (1, np.int64(2), ("x",), {"a": (1,)})),
    StateLost("searcher", "a lock cannot be pickled"),
    FilesMirrored(7),
    TrialAdded("t", VALUES, "tag", BUNDLES, "state"),
    TrialImported("t", VALUES),
    RunnerAssigned("t", "ANY", 2),
    AttemptStarted("t", 2, "node", 7, 3, 5, "o/checkpoint_000001", VALUES),
    AttemptRestored("t", 2),
    ResultReported("t", 2, 4, VALUES),
    CheckpointCommitted("t", 2, 5, 4, VALUES),
    CheckpointMarkedBad("t", "checkpoint_000005", "its digest is wrong"),
    CheckpointDeleted("t", 5),
    FaultRecorded("t", 1, fault("t"), History(3, 1, 2, 3, 4, "kind", 5), False, False),
    TrialPaused("t"),
    TrialConfigChanged("t", VALUES, "tag", BUNDLES, "state", "o/checkpoint_000001", VALUES),
    DecisionMade("t", 4, "STOP"),
    SearcherTold("t", "complete", 4, True),
    TrialFinished("t", Status.FAILED, "why", {"loss": {"max": np.float32(0.5)}}),
    TrialResumed("t", True),
]


def test_every_event_has_an_example_that_fills_all_fields() -> None:
    assert [type(example) for example in EXAMPLES] == list(EVENTS.values())
    for example in EXAMPLES:
        for field in dataclasses.fields(example):
            if field.default is not dataclasses.MISSING:
                assert getattr(example, field.name) != field.default, field.name


def test_every_class_of_event_is_in_the_table_by_its_name() -> None:
    def leaves(kind: type[Event]) -> set[type[Event]]:
        below = {leaf for one in kind.__subclasses__() for leaf in leaves(one)}
        return below or {kind}

    assert set(EVENTS.values()) == leaves(Event)
    assert all(name == kind.__name__ for name, kind in EVENTS.items())


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_that_is_written_and_read_is_equal(event: Event) -> None:
    text = json.dumps(event.to_data())
    found = type(event).from_data(json.loads(text))
    assert found == event
    assert type(found) is type(event)
    assert json.dumps(found.to_data()) == text


@pytest.mark.parametrize("kind", EVENTS.values(), ids=EVENTS)
def test_an_event_with_its_defaults_is_equal_too(kind: type[Event]) -> None:
    [example] = [one for one in EXAMPLES if type(one) is kind]
    needed = {
        field.name: getattr(example, field.name)
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    event = kind(**needed)
    assert kind.from_data(json.loads(json.dumps(event.to_data()))) == event


def test_values_become_plain_as_people_read_them() -> None:
    config = TrialAdded("t", VALUES, resources=BUNDLES).config
    assert config == {
        "x": 0.5,
        "n": 3,
        "array": [1, 2],
        "tuple": [1, ["a", None]],
        "call": repr(len),
        "nested": {"list": [True], "7": "seven"},
        "text": VALUES["text"],
    }
    assert type(config["n"]) is int
    assert type(config["x"]) is float


def test_nan_and_infinities_come_back() -> None:
    metrics = {"a": float("nan"), "b": np.float64("inf"), "c": [-np.inf, np.float32("nan")]}
    event = ResultReported("t", 1, 1, metrics)
    text = json.dumps(event.to_data())
    assert json.dumps(ResultReported.from_data(json.loads(text)).to_data()) == text
    assert event.metrics["a"] != event.metrics["a"]
    assert event.metrics["c"][0] == float("-inf")


MUTABLE: list[tuple[type[Event], dict[str, Any], str]] = [
    (ExperimentCreated, {"experiment": "e", "name": "n", "seed": 1}, "param_space"),
    (DriverAttached, {"host": "h", "pid": 1}, "versions"),
    (TrialAdded, {"trial_id": "t"}, "config"),
    (TrialConfigChanged, {"trial_id": "t"}, "config"),
    (AttemptStarted, {"trial_id": "t", "attempt": 1}, "metrics"),
    (ResultReported, {"trial_id": "t", "attempt": 1, "iteration": 1}, "metrics"),
    (CheckpointCommitted, {"trial_id": "t", "attempt": 1, "index": 0, "iteration": 1}, "metrics"),
]


@pytest.mark.parametrize(("kind", "needed", "name"), MUTABLE)
def test_what_the_caller_does_to_a_mapping_later_changes_no_event(
    kind: type[Event], needed: dict[str, Any], name: str
) -> None:
    given: dict[str, Any] = {"a": 1, "deep": {"list": [1]}}
    event = kind(**needed, **{name: given})
    given["a"] = 2
    given["deep"]["list"].append(2)
    assert getattr(event, name) == {"a": 1, "deep": {"list": [1]}}


@pytest.mark.parametrize(
    ("kind", "needed", "name"),
    [
        (DriverAttached, {"host": "h", "pid": 1}, "damage"),
        (TrialAdded, {"trial_id": "t"}, "resources"),
        (TrialConfigChanged, {"trial_id": "t"}, "resources"),
        (SchedulerActed, {"call": "c"}, "arguments"),
    ],
)
def test_what_the_caller_does_to_a_list_later_changes_no_event(
    kind: type[Event], needed: dict[str, Any], name: str
) -> None:
    given: list[dict[str, Any]] = [{"a": 1}]
    event = kind(**needed, **{name: given})
    given[0]["a"] = 2
    given.append({})
    assert getattr(event, name) == [{"a": 1}]


class Awkward:
    """What users have, and nobody can write."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


def circular() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


AWKWARD: dict[str, Any] = {"huge": 10**5000, "circular": circular(), "object": Awkward(), "n": 1}
NAMED = {"huge": "<int>", "circular": "<list>", "object": "<Awkward>", "n": 1}


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (SchedulerActed("c", None, list(AWKWARD.values())), {"arguments": list(NAMED.values())}),
        (DriverAttached("h", 1, damage=[AWKWARD]), {"damage": [NAMED]}),
        (TrialAdded("t", AWKWARD, resources=[AWKWARD]), {"config": NAMED, "resources": [NAMED]}),
        (TrialConfigChanged("t", resources=[AWKWARD]), {"resources": [NAMED]}),
        (TrialFinished("t", Status.FAILED, analysis={"a": 1}), {"analysis": {"a": 1}}),
    ],
)
def test_what_cannot_be_written_becomes_the_name_of_its_class(
    event: Event, expected: dict[str, Any]
) -> None:
    data = json.loads(json.dumps(event.to_data()))
    assert data | expected == data
    assert type(event).from_data(data) == event


def test_what_is_beside_it_in_a_record_or_an_analysis_stays() -> None:
    objects = {"object": Awkward(), "n": 1}
    named = {"object": "<Awkward>", "n": 1}
    finished = TrialFinished("t", Status.FAILED, analysis={"a": objects, "b": {"max": 2}})
    assert finished.analysis == {"a": named, "b": {"max": 2}}
    given = {"config": objects, "checkpoints": [[1, 0, 1, objects]], "tag": "x"}
    assert TrialImported("t", given).record == {
        "config": named,
        "checkpoints": [[1, 0, 1, named]],
        "tag": "x",
    }
    json.dumps(TrialImported("t", {"config": AWKWARD}).record)


@pytest.mark.parametrize(
    "event",
    [
        ExperimentCreated("e", "n", np.int64(1)),  # type: ignore[arg-type]
        AttemptStarted("t", np.int64(1), None, None, np.int32(3), np.int64(5)),  # type: ignore[arg-type]
        ResultReported("t", np.int64(1), 2),  # type: ignore[arg-type]
        ResultReported("t", 1, np.int64(2)),  # type: ignore[arg-type]
        CheckpointCommitted("t", np.int64(1), np.int64(2), np.int64(3)),  # type: ignore[arg-type]
        DecisionMade("t", np.int64(1), "STOP"),  # type: ignore[arg-type]
        SearcherTold("t", "result", np.int64(1)),  # type: ignore[arg-type]
    ],
)
def test_numbers_of_numpy_become_numbers(event: Event) -> None:
    assert type(event).from_data(json.loads(json.dumps(event.to_data()))) == event


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda event: type(event).__name__)
def test_a_field_of_another_type_is_no_event(example: Event) -> None:
    data = json.loads(json.dumps(example.to_data()))
    for name in data:
        for wrong in ([[]], {"a": 1}, 1.5, 7, "x", None, True):
            if type(wrong) is type(data[name]) or (name, wrong) == ("time", 7):
                continue
            changed = {**data, name: wrong}
            try:
                found = type(example).from_data(changed)
            except (TypeError, ValueError, KeyError):
                continue
            optional = "None" in str(type(example).__annotations__[name])
            assert (wrong, optional, getattr(found, name)) == (None, True, None)


@pytest.mark.parametrize("data", [{}, {"trial_id": "t", "what": 1}, {"trial_id": "t", "status": 1}])
def test_anything_else_is_no_event(data: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        TrialFinished.from_data(data)
