"""The progress table takes little of the time, and the last one always comes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from raytrials.driver.pace import REST, paced


def test_a_report_is_left_out_as_long_as_the_one_before_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    told: list[tuple[Any, float]] = []

    def report(controller: Any, reporter: Any, done: bool = False) -> None:
        nonlocal now_s
        told.append((done, now_s))
        now_s += 2.0

    for name in ("monotonic", "thread_time"):
        monkeypatch.setattr(time, name, lambda: now_s)
    tell = paced(report)
    for _ in range(100):
        tell("controller", "reporter")
        now_s += 1.0
    assert [at for _, at in told] == [0.0, 2.0 * REST + 2, 4.0 * REST + 4]
    tell("controller", "reporter", done=True)
    tell("controller", "reporter", done=True)
    assert [done for done, _ in told] == [False] * 3 + [True] * 2
