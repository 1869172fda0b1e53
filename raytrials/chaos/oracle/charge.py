"""Whether a charge is one that the policy could have made, by what was booked (I5)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from raytrials.core.fault import Cause, Charge, ChargedFault
from raytrials.core.state import TrialRecord
from raytrials.core.status import Status

INFRASTRUCTURE = frozenset({Cause.PREEMPTED, Cause.NODE_LOST, Cause.STORAGE, Cause.PACKAGE_MISSING})
_ORDERED = re.compile(r"by rule \d|never retried")
_ASKED = {Cause.PREEMPTED: "(count_preemption)", Cause.NODE_LOST: "(count_node_loss)"}
_USED_UP = re.compile(r"\(max_infra_failures=(\d+)\)")


def may_wait(trial: TrialRecord) -> bool:
    """Return whether others may go before a trial, since it waits for its retry."""
    if trial.status is not Status.PENDING or not trial.faults:
        return False
    latest = trial.faults[-1]
    waits_at_once = latest.cause in {Cause.OUT_OF_MEMORY, Cause.ENVIRONMENT}
    by_rule = "by rule" in latest.reason
    return bool(trial.history.repeats > 1 or trial.undecided or waits_at_once or by_rule)


def may_count(fault: ChargedFault, earlier: Sequence[ChargedFault]) -> bool:
    """Return whether somebody asked for infrastructure to be charged to the trial."""
    used_up = _USED_UP.search(fault.reason)
    if used_up:
        in_a_row = 0
        for one in reversed(earlier):
            if one.charge is Charge.FAILURE and one.cause in INFRASTRUCTURE:
                break
            in_a_row += one.charge is Charge.INFRASTRUCTURE
        return in_a_row >= int(used_up.group(1))
    asked = _ASKED.get(fault.cause)
    return bool(_ORDERED.search(fault.reason)) or (asked is not None and asked in fault.reason)
