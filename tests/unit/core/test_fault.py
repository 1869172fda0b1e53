"""A failure as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raytrials.core.fault import Cause, Charge, ChargedFault, Fault, FaultClass, Phase

GOLDEN = Path(__file__).parents[2] / "golden" / "fault-v1.json"
FAULT = Fault(
    trial_id="4f2a_00001",
    attempt=3,
    fault_class=FaultClass.ACTOR,
    phase=Phase.RUNNING,
    cause=Cause.PREEMPTED,
    node_id="ab12",
    detail="the node was reclaimed",
    time=1700000000.5,
    exceptions=("ValueError",),
    exit_code=3,
)
CHARGED = ChargedFault.book(FAULT, Charge.INFRASTRUCTURE, "preempted, not counted")


def test_a_booked_fault_is_written_as_in_version_1() -> None:
    assert CHARGED.to_json() == json.loads(GOLDEN.read_text())
    assert ChargedFault.from_json(json.loads(GOLDEN.read_text())) == CHARGED


@pytest.mark.parametrize("fault_class", FaultClass)
def test_the_typed_error_of_a_fault_tells_of_that_fault(fault_class: FaultClass) -> None:
    values = {**vars(FAULT), "fault_class": fault_class}
    fault = Fault(**values)
    error = fault.to_error()
    assert error.fault_class == fault_class
    told = Fault.of(error, FAULT.time, exceptions=FAULT.exceptions, exit_code=FAULT.exit_code)
    assert told == fault


def test_words_print_as_their_text() -> None:
    assert f"{Cause.PREEMPTED} {Phase.RUNNING} {Charge.FREE}" == "preempted running free"
