"""Text that is kept compressed."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from typing import Any

import pytest

from raytrials.core.event import EVENTS
from raytrials.core.packed import Packer
from raytrials.core.plain import plain_metrics
from raytrials.core.state import CheckpointRecord, TrialRecord
from raytrials.core.story import LENGTH, Story


@pytest.mark.parametrize("text", ["", "a", "a" * 100_000, "ü\ud800\0", "x\n" * 50_000])
def test_a_text_comes_back_whatever_was_packed_before_it(text: str) -> None:
    packer = Packer()
    for before in ("", "something else", text):
        packer.pack(before)
    packed = packer.pack(text)
    assert str(packed) == text
    assert str(pickle.loads(pickle.dumps(packed))) == text
    assert str(copy.deepcopy(packed)) == text


def test_texts_are_equal_when_they_say_the_same_however_they_are_packed() -> None:
    packer = Packer()
    first, second = packer.pack("one" * 100), packer.pack("one" * 100)
    assert first == second == Packer(9).pack("one" * 100)
    assert hash(first) == hash(second)
    assert first != packer.pack("two")


def test_a_text_takes_little_beside_one_that_is_like_it() -> None:
    packer = Packer()
    texts = [
        json.dumps({"one": one, **{f"key {n}": n * n for n in range(100)}}) for one in range(1_200)
    ]
    packed = [packer.pack(text) for text in texts]
    # Another likeness is taken from time to time, and what was packed with the first stays.
    assert [str(one) for one in packed] == texts
    assert max(len(one) for one in packed[1:]) < len(packed[0]) / 4


def test_a_record_gives_what_it_was_given_and_keeps_it_packed() -> None:
    checkpoint = CheckpointRecord(1, 2, 3, {"loss": 0.1, "nested": {"a": [1, None]}})
    assert checkpoint.metrics == {"loss": 0.1, "nested": {"a": [1, None]}}
    assert checkpoint.metrics is not checkpoint.metrics
    assert CheckpointRecord(1, 2, 3, {}).metrics == {}
    trial = TrialRecord("t", 0, resources=[], state="text", analysis={"loss": {"max": 1.0}})
    assert (trial.state, trial.analysis) == ("text", {"loss": {"max": 1.0}})
    trial.state = ""
    assert trial.state == ""
    assert TrialRecord.from_json(json.loads(json.dumps(trial.to_json()))) == trial
    assert copy.deepcopy(trial) == trial


def test_a_record_of_what_is_not_plain_yet_has_it_as_it_is() -> None:
    metrics = {"loss": 0.1, "odd": {object(), 3}}
    assert CheckpointRecord(1, 2, 3, metrics).metrics is metrics
    looped: dict[str, Any] = {}
    looped["self"] = looped
    assert TrialRecord("t", 0, analysis=looped).analysis is looped


def test_records_have_one_name_for_all_metrics_of_a_name() -> None:
    first, second = (plain_metrics({name: 1.0}) for name in ("loss", "LOSS".lower()))
    assert next(iter(first)) is next(iter(second)) is sys.intern("loss")


def test_a_trial_record_takes_little() -> None:
    trial = TrialRecord("t", 0)
    assert not hasattr(trial, "__dict__")
    assert not hasattr(trial.history, "__dict__")
    assert sys.getsizeof(trial) < 500


def test_a_story_has_the_latest_events_in_their_order() -> None:
    story = Story()
    told = [(seq, name) for seq, name in enumerate([*EVENTS] * 2, 10**12)]
    for number, event in enumerate(told, 1):
        story.append(event)
        assert list(story) == told[max(0, number - LENGTH) : number]
        assert story[-1] == event
    assert len(story) == LENGTH
