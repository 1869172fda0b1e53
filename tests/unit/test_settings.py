"""The table of environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytrials import settings
from raytrials.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


def test_the_page_of_the_docs_is_made_from_the_table() -> None:
    assert (ROOT / "docs" / "environment.md").read_text() == settings.to_markdown()


def test_every_setting_of_the_module_is_in_the_table() -> None:
    defined = [one for one in vars(settings).values() if isinstance(one, settings.Setting)]
    assert set(settings.SETTINGS) == set(defined)


@pytest.mark.parametrize("setting", settings.SETTINGS, ids=lambda setting: setting.name)
def test_a_variable_that_is_unset_or_empty_has_its_default(
    setting: settings.Setting[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(setting.name, raising=False)
    assert setting.get() == setting.default
    monkeypatch.setenv(setting.name, " ")
    assert setting.get() == setting.default


NOT_TEXT = [setting for setting in settings.SETTINGS if setting.kind is not settings.TEXT]


@pytest.mark.parametrize("setting", NOT_TEXT, ids=lambda setting: setting.name)
def test_a_wrong_text_is_an_error_that_names_variable_value_and_what_is_allowed(
    setting: settings.Setting[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.name, "perhaps")
    with pytest.raises(ConfigurationError) as caught:
        settings.validate()
    for part in (setting.name, "'perhaps'", setting.kind.expected):
        assert part in str(caught.value)


def test_a_right_text_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRIALS_MAX_INFRA_FAILURES", " 3 ")
    monkeypatch.setenv("RAYTRIALS_COUNT_WORKER_DEATH_AS_FAILURE", "0")
    assert settings.MAX_INFRA_FAILURES.get() == 3
    assert settings.COUNT_WORKER_DEATH_AS_FAILURE.get() is False
