"""A rule says what it matches and what follows, and refuses what it could never mean."""

from __future__ import annotations

from typing import Any

import pytest

from raytrials import RetryPolicy, Rule
from raytrials.core.fault import Cause, Fault, FaultClass, Phase
from raytrials.errors import ConfigurationError

FAULT = Fault(
    "trial",
    1,
    FaultClass.TRAINING,
    Phase.RUNNING,
    Cause.USER_CODE,
    None,
    "",
    0.0,
    exceptions=("torch.cuda.OutOfMemoryError", "builtins.RuntimeError"),
)


@pytest.mark.parametrize(
    "name",
    ["torch.cuda.OutOfMemoryError", "OutOfMemoryError", "RuntimeError", "builtins.RuntimeError"],
)
def test_an_exception_matches_by_its_name_and_by_those_of_its_parents(name: str) -> None:
    assert Rule("never", exception=name).matches(FAULT)
    assert not Rule("never", exception=name, fault_class="actor").matches(FAULT)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({}, "at least one condition: fault_class, cause, exception, exit_code"),
        ({"after_s": 60}, "at least one condition"),
        ({"exception": ""}, "not a pattern"),
        ({"exception": "Value.*"}, "not a pattern"),
        ({"exception": "(Value"}, "not a pattern"),
        ({"exception": 3}, "not a pattern"),
        ({"exception": ValueError}, "its name as text: 'ValueError'"),
        ({"exception": "Exception"}, "fault_class='training'"),
        ({"exit_code": -9}, "a whole number from 0 to 255"),
        ({"exit_code": 256}, "a whole number from 0 to 255"),
        ({"exit_code": "7"}, "a whole number from 0 to 255"),
        ({"exit_code": True}, "a whole number from 0 to 255"),
    ],
)
def test_a_rule_that_could_match_nothing_or_everything_is_refused(
    arguments: dict[str, Any], part: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Rule("retry", **arguments)
    assert part in str(caught.value)


def test_a_rule_that_ends_the_trial_has_no_wait() -> None:
    with pytest.raises(ConfigurationError, match="no retry to wait for"):
        Rule("never", after_s=60, exit_code=1)


@pytest.mark.parametrize(
    "rules", ["rules.toml", 3, Rule("never", exit_code=1), {"answer": "never"}, [{"cause": "hung"}]]
)
def test_rules_that_are_none_are_refused_with_a_word_on_the_file(rules: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy(rules=rules)
    assert "a sequence of raytrials.Rule" in str(caught.value)
    assert "RAYTRIALS_RULES" in str(caught.value)
