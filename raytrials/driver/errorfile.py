"""The files in a trial's directory that tell of its failures, under Ray's own names."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from raytrials import _ray
from raytrials.core.fault import ChargedFault
from raytrials.errors import TrialError

logger = logging.getLogger(__name__)


def write(trial: _ray.Trial, error: TrialError, charged: ChargedFault, number: int) -> None:
    """Write `error.txt` (text, one entry a failure) and `error.pkl` (Ray's own exception).

    Args:
        trial: it has a local directory.
        error: the typed error.
        charged: its fault, as booked.
        number: how many failures of its class the trial has had, this one included.
    """
    failed_at = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(charged.time))  # as in Ray
    pickled = _pickled(error.__cause__)
    metadata = trial.run_metadata
    metadata.error_filename = _ray.EXPR_ERROR_FILE
    metadata.pickled_error_filename = _ray.EXPR_ERROR_PICKLE_FILE if pickled else None
    try:
        Path(trial.local_path).mkdir(parents=True, exist_ok=True)
        with Path(trial.error_file).open("a") as file:
            file.write(
                f"{error.fault_class.capitalize()} failure # {number} ({charged.reason}) "
                f"(occurred at {failed_at})\n{error.__cause__ or error}\n"
            )
        if pickled:
            Path(trial.pickled_error_file).write_bytes(pickled)
    except OSError:
        # The ledger has the fault; a full disk must not end the other trials.
        logger.warning("Could not write the error files of trial %s.", trial, exc_info=True)


def restore(trial: _ray.Trial, faults: Sequence[ChargedFault]) -> None:
    """Write `error.txt` again, of a trial whose files went with its driver's disk.

    Args:
        trial: it has a local directory.
        faults: its ledger.
    """
    counts: Counter[str] = Counter()
    for charged in faults:
        counts[charged.fault_class] += 1
        write(trial, charged.to_error(), charged, counts[charged.fault_class])


def _pickled(error: BaseException | None) -> bytes | None:
    """Return `error` as bytes that are known to load again, None if there are none such."""
    if error is None:
        return None
    with contextlib.suppress(Exception):  # any class of the user's, with any constructor
        data: bytes = _ray.cloudpickle.dumps(error)
        _ray.cloudpickle.loads(data)
        return data
    return None
