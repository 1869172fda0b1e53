"""What holds for all tests."""

import pytest

# Asserts of the conformance tests say what they compared, as those of tests do.
pytest.register_assert_rewrite("raytrials.chaos.conformance")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests on a cluster last: those before them must do without Ray."""
    items.sort(key=lambda item: "tests/integration/" in item.nodeid)
