"""Which nodes a request stays off."""

from __future__ import annotations

import pytest
from support.trials import Table

ONE = [{"CPU": 1}]


@pytest.mark.parametrize(
    ("suspects", "avoided"),
    [
        ((), set()),
        (("a",), {"a"}),
        (("a", "b"), {"a", "b"}),
        (("a", "b", "c"), {"b", "c"}),
        (("c", "gone", "a", "b"), {"a", "b"}),
    ],
)
def test_if_not_all_suspects_can_be_avoided_the_first_is_taken(
    suspects: tuple[str, ...], avoided: set[str]
) -> None:
    assert Table("a", "b", "c").avoidable(suspects, ONE) == avoided


def test_nothing_is_avoided_if_nothing_else_is_large_enough() -> None:
    assert Table("a", "b").avoidable(("a",), [{"CPU": 2}]) == set()
    assert Table("a").avoidable(("a",), ONE) == set()
