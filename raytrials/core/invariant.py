"""What has to hold in every state of an experiment."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from raytrials.core.fault import Charge
from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.core.status import Status
from raytrials.errors import InvariantError


def check(state: ExperimentState) -> None:
    """Assert what has to hold in every state.

    Raises:
        InvariantError: with all that does not.
    """
    wrong = list(_wrong_in_experiment(state))
    for trial in state.trials.values():
        wrong += [f"{trial.trial_id}: {one}" for one in _wrong_in_trial(trial)]
    if wrong:
        raise InvariantError(tuple(wrong))


def _wrong_in_experiment(state: ExperimentState) -> Iterable[str]:
    trials = list(state.trials.values())
    running = {trial.trial_id for trial in trials if trial.status is Status.RUNNING}
    if [trial.number for trial in trials] != list(range(len(trials))):
        yield "trials are not numbered in their order"
    if state.num_samples is not None and len(trials) > state.num_samples:
        yield f"{len(trials)} trials of {state.num_samples}"
    if running != state.running:
        yield f"running are {running}, noted are {state.running}"
    if running and not state.is_attached:
        yield f"{running} run without a driver"
    if state.max_concurrent is not None and len(running) > state.max_concurrent:
        yield f"{len(running)} run at once, {state.max_concurrent} may"


def _wrong_in_trial(trial: TrialRecord) -> Iterable[str]:
    if not trial.from_iteration <= trial.high_water >= trial.iteration:
        yield f"iteration {trial.iteration} is above the highest, {trial.high_water}"
    charged = sum(fault.charge is Charge.FAILURE for fault in trial.faults)
    if trial.history.failures > charged:
        yield f"{trial.history.failures} failures are counted, {charged} were charged"
    if trial.is_finished and trial.is_decision_open:
        yield "it has ended, and a decision is open"
    if trial.status is Status.FAILED and not trial.faults:
        yield "it failed without a fault"
    if trial.is_finished is (trial.ended_s is None):
        yield "its end and its status do not agree"
    yield from _wrong_in_checkpoints(trial)
    if trial.rows is not None:
        iterations = [row.iteration for row in trial.rows]
        if any(after <= before for before, after in pairwise(iterations)):
            yield f"rows are not one for each iteration: {iterations}"


def _wrong_in_checkpoints(trial: TrialRecord) -> Iterable[str]:
    last = max(trial.attempt, trial.reserved)
    if any(not 0 < one.attempt <= last for one in trial.checkpoints.values()):
        yield "a checkpoint is of no attempt"
    if any(index >= trial.next_index for index in trial.checkpoints):
        yield f"a checkpoint is above {trial.next_index}, which is to be free"
    if any(f"checkpoint_{index:06d}" in trial.bad for index in trial.checkpoints):
        yield "a bad checkpoint may be used"
