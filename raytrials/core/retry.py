"""What a failure costs, and whether the trial goes on.

:class:`RetryPolicy` is the one place that knows. It is a pure function of a fault and of the
trial's :class:`History`: no counter lives in the policy, nothing here reads a clock. The table of
costs is in the docstring of :meth:`RetryPolicy.decide` and, for users, in `docs/failures.md`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytrials import settings
from raytrials.core.fault import Cause, Charge, Fault, FaultClass
from raytrials.core.rule import Rule, rules_of_environment
from raytrials.core.shape import require
from raytrials.errors import ConfigurationError

FATAL = "raytrials.errors.Fatal"
UNRESTORABLE = {"raytrials.errors.NoCheckpointError", "raytrials.errors.NewerFormatError"}


@dataclass(frozen=True, slots=True)
class History:
    """What a trial has spent so far. All counts are 0 or more.

    Attributes:
        max_failures: the trial's limit, from `FailureConfig`; below 0 is no limit, as in Ray.
        failures: failures counted against `max_failures`.
        restore_failures: free failed restores since the last good restore or counted failure.
        infra_failures: free infrastructure failures in a row without progress.
        unavailable: free "actor unavailable" failures in a row without progress.
        kind: class and cause of the latest failure since the latest progress; "" for none.
        repeats: failures of that kind in a row.
    """

    max_failures: int = 0
    failures: int = 0
    restore_failures: int = 0
    infra_failures: int = 0
    unavailable: int = 0
    kind: str = ""
    repeats: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> History:
        """Return what `dataclasses.asdict` gave. Raises TypeError for anything else."""
        require(cls, data)
        return cls(**data)

    def restored(self) -> History:
        """Return the history after a successful restore."""
        return dataclasses.replace(self, restore_failures=0)

    def progressed(self) -> History:
        """Return the history after a newer checkpoint or iteration than ever before."""
        return dataclasses.replace(self, infra_failures=0, unavailable=0, kind="", repeats=0)

    def repeated(self, fault: Fault) -> History:
        """Return the history with `fault` counted as a repetition of its kind."""
        kind = f"{fault.fault_class} {fault.cause}"
        repeats = self.repeats + 1 if kind == self.kind else 1
        return dataclasses.replace(self, kind=kind, repeats=repeats)

    def renewed(self) -> History:
        """Return the history of a trial that is given fresh budgets."""
        return History(max_failures=self.max_failures)


@dataclass(frozen=True, slots=True)
class Since:
    """What a trial did after a failure and before the next one.

    A charge is decided late, and as of the time of the failure: what came after it must not count
    as if it had come before.

    Attributes:
        restored: whether a restore has worked.
        progressed: whether the trial came further than ever before.
    """

    restored: bool = False
    progressed: bool = False

    def then(self, *, restored: bool, progressed: bool) -> Since:
        """Return this with what came next."""
        return Since(self.restored or restored, self.progressed or progressed)

    def applied_to(self, history: History) -> History:
        """Return the history after it."""
        if self.restored:
            history = history.restored()
        return history.progressed() if self.progressed else history


@dataclass(frozen=True)
class Decision:
    """What follows from one fault.

    Attributes:
        retry: True if the trial goes on, False if it ends with the error.
        charge: the account the fault is booked to.
        reason: why, in words.
        history: the trial's history after the fault.
        delay_s: seconds to wait before the retry.
    """

    retry: bool
    charge: Charge
    reason: str
    history: History
    delay_s: float = 0.0


def backoff_s(repeats: int, initial_s: float, max_s: float, seed: str) -> float:
    """Return how long to wait before a retry, in seconds.

    `min(max_s, initial_s * 2 ** (repeats - 2)) * (1 + u) / 2` from the second failure of a kind on,
    with u in [0, 1) taken from the seed: the first retry comes at once, and trials that failed
    together do not come back together.

    Args:
        repeats: failures of the kind in a row, 1 or more.
        initial_s: the wait before the second retry, without jitter; 0 switches waiting off.
        max_s: the longest wait.
        seed: what the jitter depends on; the same seed gives the same wait.
    """
    if repeats <= 1 or initial_s <= 0:
        return 0.0
    digest = hashlib.sha256(seed.encode()).digest()
    jitter = int.from_bytes(digest[:8], "big") / 2**64
    doubled = initial_s * 2.0 ** min(repeats - 2, 64)
    return min(max_s, doubled) * (1 + jitter) / 2


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
        backoff_initial_s: wait before the second retry of a kind in a row; it doubles from there; 0
            switches waiting off. Default: `RAYTRIALS_BACKOFF_INITIAL_S`, 1.
        backoff_max_s: the longest wait. Default: `RAYTRIALS_BACKOFF_MAX_S`, 60.
        rules: asked first, in order; the first that matches a fault wins over the table of costs.
            An empty sequence is no rules. Default: those of the file that `RAYTRIALS_RULES` names.

    Raises:
        ConfigurationError: an argument or variable has a value that is not allowed.
    """

    restore_retries: int | None = field(default_factory=settings.RESTORE_RETRY_NUM.get)
    max_infra_failures: int | None = field(default_factory=settings.MAX_INFRA_FAILURES.get)
    count_preemption: bool = field(default_factory=settings.COUNT_PREEMPTION_AS_FAILURE.get)
    count_node_loss: bool = field(default_factory=settings.COUNT_NODE_LOSS_AS_FAILURE.get)
    count_worker_death: bool = field(default_factory=settings.COUNT_WORKER_DEATH_AS_FAILURE.get)
    backoff_initial_s: float = field(default_factory=settings.BACKOFF_INITIAL_S.get)
    backoff_max_s: float = field(default_factory=settings.BACKOFF_MAX_S.get)
    rules: Sequence[Rule] | None = None

    def __post_init__(self) -> None:
        given = self.rules
        rules = rules_of_environment() if given is None else _checked(given)
        object.__setattr__(self, "rules", rules)
        for name in ("backoff_initial_s", "backoff_max_s"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 0 <= value < float("inf")):
                raise ConfigurationError(f"RetryPolicy({name}=...)", value, "seconds, 0 or more")
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
        | any | `raytrials.Fatal` was raised | failure, and the trial ends |
        | restore | no whole checkpoint is left | failure, and the trial ends |
        | any | a rule matches | as the rule says |
        | any | preempted, node lost, unless told to count it | infrastructure |
        | any | storage, package missing | infrastructure |
        | any | unschedulable | free |
        | restore | checkpoint corrupt or missing | checkpoint: an older one is used |
        | restore | any other | restore |
        | training | any other | failure |
        | actor | out of memory, environment | failure |
        | actor | worker died, hung | failure, or infrastructure if told not to count it |
        | actor | actor unavailable | free once in a row, then as worker died |

        Restore and infrastructure charges are free up to their limit; the next one is a failure,
        and their count starts afresh. A trial ends only by a failure beyond its `max_failures`, by
        `Fatal` or by a rule. The first retry of a kind comes at once, further ones in a row wait
        (:func:`backoff_s`); out of memory and environment wait from the first.
        """
        decision = self._decide(fault, history.repeated(fault))
        return dataclasses.replace(decision, delay_s=self._delay_s(fault, decision))

    def _delay_s(self, fault: Fault, decision: Decision) -> float:
        if not decision.retry:
            return 0.0
        rule = self._rule_for(fault)
        if rule is not None and rule.after_s is not None:
            return rule.after_s
        repeats = decision.history.repeats
        if fault.cause in {Cause.OUT_OF_MEMORY, Cause.ENVIRONMENT}:
            repeats += 1
        seed = f"{fault.trial_id} {fault.attempt}"
        return backoff_s(repeats, self.backoff_initial_s, self.backoff_max_s, seed)

    def _rule_for(self, fault: Fault) -> Rule | None:
        return next((rule for rule in self.rules or () if rule.matches(fault)), None)

    def rule_delay_s(self, fault: Fault) -> float:
        """Return how long a rule makes the retry after `fault` wait; 0 if none speaks of it."""
        rule = self._rule_for(fault)
        return (rule.after_s or 0.0) if rule is not None else 0.0

    def _decide(self, fault: Fault, history: History) -> Decision:
        if FATAL in fault.exceptions:
            return _end(history, "raytrials.Fatal was raised")
        if not UNRESTORABLE.isdisjoint(fault.exceptions):
            return _end(history, "no checkpoint can be restored")
        rule = self._rule_for(fault)
        if rule is not None:
            number = list(self.rules or ()).index(rule) + 1
            return _by_rule(rule, history, f"{fault.cause}, by rule {number}")
        if self._is_infrastructure(fault):
            return self._infrastructure(fault, history)
        if fault.cause is Cause.UNSCHEDULABLE:
            return Decision(
                retry=True,
                charge=Charge.FREE,
                reason=f"{fault.cause}, not counted: it waits for a place",
                history=history,
            )
        if fault.cause in {Cause.CHECKPOINT_CORRUPT, Cause.CHECKPOINT_MISSING}:
            return Decision(
                retry=True,
                charge=Charge.CHECKPOINT,
                reason=f"{fault.cause}, charged to the checkpoint: an older one is used",
                history=history,
            )
        if fault.fault_class is FaultClass.RESTORE:
            return self._restore(fault, history)
        if fault.fault_class is FaultClass.ACTOR:
            return self._actor(fault, history)
        return _failure(history, self._counted(fault))

    def _counted(self, fault: Fault) -> str:
        """Return that a fault counts, and what asked for it if that is this policy alone."""
        asked = {
            Cause.PREEMPTED: "count_preemption" if self.count_preemption else "",
            Cause.NODE_LOST: "count_node_loss" if self.count_node_loss else "",
        }.get(fault.cause)
        return f"{fault.cause}, counted" + (f" ({asked})" if asked else "")

    def _is_infrastructure(self, fault: Fault) -> bool:
        if fault.cause is Cause.PREEMPTED:
            return not self.count_preemption
        if fault.cause is Cause.NODE_LOST:
            return not self.count_node_loss
        return fault.cause in {Cause.STORAGE, Cause.PACKAGE_MISSING}

    def _infrastructure(self, fault: Fault, history: History) -> Decision:
        limit = self.max_infra_failures
        if limit is not None and history.infra_failures >= limit:
            return _failure(
                dataclasses.replace(history, infra_failures=0),
                f"{fault.cause}, counted: the free infrastructure failures in a row without "
                f"progress are used up (max_infra_failures={limit})",
            )
        count = history.infra_failures + 1
        return Decision(
            retry=True,
            charge=Charge.INFRASTRUCTURE,
            reason=f"{fault.cause}, not counted: {_of('infrastructure failure', count, limit)}",
            history=dataclasses.replace(history, infra_failures=count),
        )

    def _restore(self, fault: Fault, history: History) -> Decision:
        limit = self.restore_retries
        if limit is not None and history.restore_failures >= limit:
            return _failure(
                dataclasses.replace(history, restore_failures=0),
                f"{self._counted(fault)}: the free retries are used up (restore_retries={limit})",
            )
        count = history.restore_failures + 1
        return Decision(
            retry=True,
            charge=Charge.RESTORE,
            reason=f"{fault.cause}, not counted: retry {count} of restore_retries={limit}",
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
        return _failure(history, self._counted(fault))


def _checked(rules: object) -> tuple[Rule, ...]:
    """Return what was given as rules.

    Raises:
        ConfigurationError: it is anything but rules.
    """
    expected = (
        "a sequence of raytrials.Rule; the path of a file with rules belongs into RAYTRIALS_RULES"
    )
    if isinstance(rules, str | bytes | Mapping) or not isinstance(rules, Iterable):
        raise ConfigurationError("RetryPolicy(rules=...)", rules, expected)
    checked = tuple(rules)
    for rule in checked:
        if not isinstance(rule, Rule):
            raise ConfigurationError("RetryPolicy(rules=...)", rule, expected)
    return checked


def _by_rule(rule: Rule, history: History, reason: str) -> Decision:
    if rule.answer == "never":
        return _end(history, reason)
    if rule.answer == "free":
        return Decision(
            retry=True, charge=Charge.FREE, reason=f"{reason}, not counted", history=history
        )
    return _failure(history, f"{reason}, counted")


def _end(history: History, reason: str) -> Decision:
    """Count one failure and end the trial, whatever its budget."""
    decision = _failure(history, f"{reason}, never retried")
    return dataclasses.replace(decision, retry=False)


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
