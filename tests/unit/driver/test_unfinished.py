"""Which trial is next, and whether all have ended, is what a look at all of them would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raytrials import _ray
from raytrials.driver.unfinished import Unfinished

STATUSES = ("PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR")
MANY = 12


@given(st.lists(st.tuples(st.integers(0, MANY - 1), st.sampled_from(STATUSES)), max_size=80))
def test_it_has_what_a_look_at_all_trials_finds(changes: list[tuple[int, str]]) -> None:
    trials: list[_ray.Trial] = []
    unfinished = Unfinished()
    for number, status in changes:
        if number >= len(trials):
            trials.append(_ray.Trial("nothing", stub=True, trial_id=str(len(trials))))
        trial = trials[min(number, len(trials) - 1)]
        trial.set_status(status)
        unfinished.note(trial)
        for waiting in ("PENDING", "PAUSED"):
            found = next((one for one in trials if one.status == waiting), None)
            assert unfinished.first(waiting) is found
        assert list(unfinished) == [one for one in trials if not one.is_finished()]
        assert bool(unfinished) is not all(one.is_finished() for one in trials)


def test_trials_that_wait_again_and_again_are_kept_once() -> None:
    unfinished = Unfinished()
    first, other = (_ray.Trial("nothing", stub=True, trial_id=one) for one in "ab")
    unfinished.note(first)
    for _ in range(100):
        for status in ("PENDING", "RUNNING"):
            other.set_status(status)
            unfinished.note(other)
    assert len(unfinished._lines["PENDING"]) == 2
