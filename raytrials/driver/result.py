"""What a fit returns: Ray's results, with typed errors and each trial's faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ray.tune import Result, ResultGrid

from raytrials import _ray
from raytrials.core.fault import ChargedFault
from raytrials.driver.account import account_of
from raytrials.errors import TrialError


@dataclass
class TrialResult(Result):  # type: ignore[misc]
    """Ray's `Result` of a trial with all failures that the trial went through.

    Attributes:
        faults: every failure in the order in which they happened, with class, cause, charge and
            reason; also for a trial that recovered. Empty for an undisturbed trial.
        error: the typed error that ended the trial (`raytrials.errors.TrialError`), with Ray's own
            exception as its `__cause__`; None for a trial that did not end with an error.
    """

    faults: tuple[ChargedFault, ...] = ()


class TrialResultGrid(ResultGrid):  # type: ignore[misc]
    """Ray's `ResultGrid` of :class:`TrialResult`.

    Args:
        analysis: Ray's.
        lost: see :attr:`lost`.
    """

    def __init__(self, analysis: Any, lost: Mapping[str, str] | None = None) -> None:
        super().__init__(analysis)
        self._lost = dict(lost or {})

    @property
    def lost(self) -> Mapping[str, str]:
        """What is not exactly what it was, or would not be after a restore, and why.

        By part: `searcher`, `scheduler`, `stopper`, `callbacks`, or `trials`, which vanilla Ray ran
        between. Empty when everything is exact, and for an experiment that raytrials never ran.
        """
        return MappingProxyType(self._lost)

    @staticmethod
    def _populate_exception(trial: _ray.Trial) -> Exception | None:
        if trial.status != _ray.Trial.ERROR:
            return None
        faults = account_of(trial).faults
        origin = _origin(trial)
        if not faults:
            # The trial ended under vanilla Ray.
            return origin
        error: TrialError = faults[-1].to_error()
        error.__cause__ = origin
        return error

    def _trial_to_result(self, trial: _ray.Trial) -> TrialResult:
        plain = super()._trial_to_result(trial)
        values: dict[str, Any] = {
            field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)
        }
        if not plain.config:
            # Ray takes it from the latest report, and a trial that failed before has made none.
            values["metrics"] = {**(plain.metrics or {}), "config": trial.config}
        return TrialResult(**values, faults=tuple(account_of(trial).faults))


def _origin(trial: _ray.Trial) -> Exception | None:
    """Return Ray's own exception as it was saved; as its text if its class does not load here."""
    saved: Exception | None
    try:
        saved = trial.get_pickled_error()
    except Exception as unreadable:  # noqa: BLE001 - the user's exception class may do anything
        saved = RuntimeError(f"{trial.get_error()}\n(The exception does not load: {unreadable!r})")
    if saved is None:
        text = trial.get_error()
        saved = None if text is None else RuntimeError(text)
    return saved
