"""Asserts of the conformance tests say what they compared, as those of tests do."""

import pytest

pytest.register_assert_rewrite("raytrials.chaos.conformance")
