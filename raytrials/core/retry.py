"""What a failure costs, and whether the trial goes on.

:class:`RetryPolicy` is the one place that knows. It is a pure function of a fault and of the
trial's :class:`History`: no counter lives in the policy, nothing here reads a clock. The table of
costs is in the docstring of :meth:`RetryPolicy.decide` and, for users, in `docs/failures.md`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from raytrials import settings
from raytrials.core.fault import Cause, Charge, Fault, FaultClass
from raytrials.errors import ConfigurationError


@dataclass(frozen=True)
class History:
    """What a trial has spent so far. All counts are 0 or more.

    Attributes:
        max_failures: the trial's limit, from `FailureConfig`; below 0 is no limit, as in Ray.
        failures: failures counted against `max_failures`.
        restore_failures: free failed restores since the last good restore or counted failure.
        infra_failures: free infrastructure failures in a row without progress.
        unavailable: free "actor unavailable" failures in a row without progress.
    """

    max_failures: int = 0
    failures: int = 0
    restore_failures: int = 0
    infra_failures: int = 0
    unavailable: int = 0

    def restored(self) -> History:
        """Return the history after a successful restore."""
        return dataclasses.replace(self, restore_failures=0)

    def progressed(self) -> History:
        """Return the history after a newer checkpoint or iteration than ever before."""
        return dataclasses.replace(self, infra_failures=0, unavailable=0)

    def renewed(self) -> History:
        """Return the history of a trial that is given fresh budgets."""
        return History(max_failures=self.max_failures)


@dataclass(frozen=True)
class Decision:
    """What follows from one fault.

    Attributes:
        retry: True if the trial goes on, False if it ends with the error.
        charge: the account the fault is booked to.
        reason: why, in words.
        history: the trial's history after the fault.
    """

    retry: bool
    charge: Charge
    reason: str
    history: History


@dataclass(frozen=True)
class RetryPolicy:
    """How failures of a trial are charged. Immutable, stateless, deterministic.

    Each argument that is left out is taken from its environment variable when the policy is made
    (see `docs/environment.md`). `FailureConfig.max_failures` stays where it is in Ray: it is the
    trial's limit, not the policy's.

    Args:
        restore_retries: failed restores that are free before one failure is counted; None is no
            limit. Default: `TUNE_RESTORE_RETRY_NUM`, 0.
        max_infra_failures: infrastructure failures in a row without progress that are free; None
            is no limit. Default: `RAYTRIALS_MAX_INFRA_FAILURES`, 16.
        count_preemption: charge announced preemptions to the trial.
            Default: `RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE`, False.
        count_node_loss: charge the loss of a node to the trial.
            Default: `RAYTRIALS_COUNT_NODE_LOSS_AS_FAILURE`, False.
        count_worker_death: charge the death of a worker process on a live node to the trial.
            Default: `RAYTRIALS_COUNT_WORKER_DEATH_AS_FAILURE`, True.

    Raises:
        ConfigurationError: an argument or variable has a value that is not allowed.
    """

    restore_retries: int | None = field(default_factory=settings.RESTORE_RETRY_NUM.get)
    max_infra_failures: int | None = field(default_factory=settings.MAX_INFRA_FAILURES.get)
    count_preemption: bool = field(default_factory=settings.COUNT_PREEMPTION_AS_FAILURE.get)
    count_node_loss: bool = field(default_factory=settings.COUNT_NODE_LOSS_AS_FAILURE.get)
    count_worker_death: bool = field(default_factory=settings.COUNT_WORKER_DEATH_AS_FAILURE.get)

    def __post_init__(self) -> None:
        for name in ("restore_retries", "max_infra_failures"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and value >= 0):
                expected = "a whole number, 0 or more, or None for no limit"
                raise ConfigurationError(f"RetryPolicy({name}=...)", value, expected)
        for name in ("count_preemption", "count_node_loss", "count_worker_death"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigurationError(f"RetryPolicy({name}=...)", value, "True or False")

    def decide(self, fault: Fault, history: History) -> Decision:
        """Return what `fault` costs a trial with this `history`. The first row that fits applies.

        | class | cause | charge |
        |---|---|---|
        | any | preempted, node lost, storage, unless told to count it | infrastructure |
        | any | unschedulable | free |
        | restore | any other | restore |
        | training | any other | failure |
        | actor | out of memory, environment | failure |
        | actor | worker died, hung | failure, or infrastructure if told not to count it |
        | actor | actor unavailable | free once in a row, then as worker died |

        Restore and infrastructure charges are free up to their limit; the next one is a failure,
        and their count starts afresh. A trial ends only by a failure beyond its `max_failures`.
        """
        if self._is_infrastructure(fault):
            return self._infrastructure(fault, history)
        if fault.cause is Cause.UNSCHEDULABLE:
            return Decision(
                retry=True,
                charge=Charge.FREE,
                reason=f"{fault.cause}, not counted: it waits for a place",
                history=history,
            )
        if fault.fault_class is FaultClass.RESTORE:
            return self._restore(history)
        if fault.fault_class is FaultClass.ACTOR:
            return self._actor(fault, history)
        return _failure(history, f"{fault.cause}, counted")

    def _is_infrastructure(self, fault: Fault) -> bool:
        if fault.cause is Cause.PREEMPTED:
            return not self.count_preemption
        if fault.cause is Cause.NODE_LOST:
            return not self.count_node_loss
        return fault.cause is Cause.STORAGE

    def _infrastructure(self, fault: Fault, history: History) -> Decision:
        limit = self.max_infra_failures
        if limit is not None and history.infra_failures >= limit:
            return _failure(
                dataclasses.replace(history, infra_failures=0),
                f"{fault.cause}, counted: {limit} infrastructure failures in a row without "
                "progress were free (RAYTRIALS_MAX_INFRA_FAILURES)",
            )
        count = history.infra_failures + 1
        return Decision(
            retry=True,
            charge=Charge.INFRASTRUCTURE,
            reason=f"{fault.cause}, not counted: {_of('infrastructure failure', count, limit)}",
            history=dataclasses.replace(history, infra_failures=count),
        )

    def _restore(self, history: History) -> Decision:
        limit = self.restore_retries
        if limit is not None and history.restore_failures >= limit:
            return _failure(
                dataclasses.replace(history, restore_failures=0),
                f"counted: TUNE_RESTORE_RETRY_NUM={limit} free retries were used",
            )
        count = history.restore_failures + 1
        shown = "no limit" if limit is None else limit
        return Decision(
            retry=True,
            charge=Charge.RESTORE,
            reason=f"free retry {count}, TUNE_RESTORE_RETRY_NUM={shown}, not counted",
            history=dataclasses.replace(history, restore_failures=count),
        )

    def _actor(self, fault: Fault, history: History) -> Decision:
        if fault.cause is Cause.ACTOR_UNAVAILABLE and history.unavailable == 0:
            return Decision(
                retry=True,
                charge=Charge.FREE,
                reason=f"{fault.cause}, not counted: the first in a row",
                history=dataclasses.replace(history, unavailable=1),
            )
        lenient = {Cause.WORKER_DIED, Cause.HUNG, Cause.ACTOR_UNAVAILABLE}
        if fault.cause in lenient and not self.count_worker_death:
            return self._infrastructure(fault, history)
        return _failure(history, f"{fault.cause}, counted")


def _failure(history: History, reason: str) -> Decision:
    """Count one failure; the trial goes on while its `max_failures` lasts."""
    failures = history.failures + 1
    limit = history.max_failures
    return Decision(
        retry=limit < 0 or failures <= limit,
        charge=Charge.FAILURE,
        reason=f"{reason}; failure {failures}, max_failures={limit}",
        history=dataclasses.replace(history, failures=failures),
    )


def _of(what: str, count: int, limit: int | None) -> str:
    return f"{what} {count} in a row" + ("" if limit is None else f" of {limit}")
