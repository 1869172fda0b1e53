"""The file of `RAYTRIALS_RULES`: what it holds becomes rules, what is wrong with it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytrials import RetryPolicy, Rule
from raytrials.errors import ConfigurationError

NEVER = Rule("never", exit_code=7)
TOML = '[[rules]]\nanswer = "never"\nexit_code = 7\n'
JSON = '{"rules": [{"answer": "never", "exit_code": 7}]}'


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | bytes
) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (directory / name).write_bytes(data)
    monkeypatch.setenv("RAYTRIALS_RULES", str(directory / name))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rules.toml", TOML),
        ("RULES.TOML", TOML),
        ("rules.json", JSON),
        ("rules.JSON", JSON),
        ("rules.toml", "\ufeff" + TOML),
        ("rules.json", "\ufeff" + JSON),
    ],
)
def test_a_policy_takes_its_rules_from_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    write(directory, monkeypatch, name, content)
    assert RetryPolicy().rules == (NEVER,)
    assert RetryPolicy(restore_retries=3).rules == (NEVER,)
    assert RetryPolicy(rules=None).rules == (NEVER,)


def test_rules_of_its_own_and_none_at_all_win_over_the_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(directory, monkeypatch, "rules.toml", "not read")
    own = Rule("free", cause="hung")
    assert RetryPolicy(rules=[own]).rules == (own,)
    assert RetryPolicy(rules=[]).rules == ()


def test_a_path_may_begin_at_home(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(directory, monkeypatch, "rules.toml", TOML)
    monkeypatch.setenv("RAYTRIALS_RULES", "~/rules.toml")
    assert RetryPolicy().rules == (NEVER,)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("rules", TOML, "ends in .json or .toml"),
        ("rules.yaml", TOML, "ends in .json or .toml"),
        ("rules.json", TOML, "in JSON, as its suffix says"),
        ("rules.toml", JSON, "in TOML, as its suffix says"),
        ("rules.toml", b"\xff\xfe", "in TOML, as its suffix says"),
        ("rules.toml", "", "a key 'rules'"),
        ("rules.toml", TOML.replace("rules", "rule"), "not 'rule'"),
        ("rules.json", JSON[:-1] + ', "max_failures": 3}', "not 'max_failures'"),
        ("rules.json", '[{"answer": "never"}]', "not a list"),
        ("rules.json", '{"rules": {"answer": "never"}}', "[[rules]]"),
        ("rules.json", '{"rules": ["never"]}', "rule 1 is 'never'"),
        ("rules.json", '{"rules": [], "rules": []}', "the key 'rules' stands twice"),
        (
            "rules.json",
            '{"rules": [{"answer": "retry", "answer": "never", "exit_code": 7}]}',
            "the key 'answer' stands twice",
        ),
    ],
)
def test_a_file_that_is_none_is_an_error_that_says_why(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | bytes, part: str
) -> None:
    write(directory, monkeypatch, name, content)
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy()
    assert f"RAYTRIALS_RULES is '{directory / name}'" in str(caught.value)
    assert part in str(caught.value)


@pytest.mark.parametrize("name", ["missing.toml", "directory.toml"])
def test_what_cannot_be_read_is_an_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (directory / "directory.toml").mkdir()
    monkeypatch.setenv("RAYTRIALS_RULES", str(directory / name))
    with pytest.raises(ConfigurationError, match="a file that can be read"):
        RetryPolicy()


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ('{"answer": "never", "cause": "oom"}', ("Rule(cause=...)", "'oom'", "out_of_memory")),
        ('{"answer": "never", "exitcode": 7}', ("key", "'exitcode'", "exit_code")),
        ('{"exit_code": 7}', ("{'exit_code': 7}", "a key 'answer'")),
        ('{"answer": "never"}', ("at least one condition",)),
    ],
)
def test_a_wrong_rule_is_named_with_its_file_number_and_key(
    directory: Path, monkeypatch: pytest.MonkeyPatch, rule: str, parts: tuple[str, ...]
) -> None:
    good = '{"answer": "never", "exit_code": 7}'
    write(directory, monkeypatch, "rules.json", f'{{"rules": [{good}, {rule}]}}')
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy()
    for part in (*parts, f"rule 2 of {directory / 'rules.json'}"):
        assert part in str(caught.value)
