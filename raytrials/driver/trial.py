"""A trial that decides for itself what a failure costs.

Trials are made in several places of Ray's that cannot be told to use another class, so the
controller *adopts* each one (:func:`adopt`) when it is added or restored. The trial keeps its
account: the history that the policy looks at, the ledger of all its faults, and where its present
attempt is. What has to survive the driver is written into the trial's saved state as plain JSON
under the key `raytrials`, which Ray without us carries along unread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import ray
from ray import exceptions
from ray.tune import Checkpoint

from raytrials import _ray
from raytrials.core.fault import Charge, ChargedFault, Fault, FaultClass, Phase
from raytrials.core.retry import Decision, History, RetryPolicy
from raytrials.driver import probe
from raytrials.driver.classify import classify, is_actor_error
from raytrials.errors import TrialError

logger = logging.getLogger(__name__)

LEDGER_VERSION = 1
_STATE = "raytrials"


@dataclass
class FitContext:
    """What all trials of one `fit()` share.

    Attributes:
        policy: what failures cost.
        trainable_name: the name under which the experiment registered its trainable.
        trainable_cls: that trainable. Kept here because Ray's registry goes by name alone, and
            another experiment of this process may have taken the name since.
    """

    policy: RetryPolicy
    trainable_name: str | None = None
    trainable_cls: type | None = None


@dataclass
class Account:
    """What a trial has to remember over the death of its driver.

    Attributes:
        attempt: number of the latest attempt, 0 before the first.
        history: what was spent.
        high_water: highest `training_iteration` ever reported.
        faults: all faults in the order in which they happened.
    """

    attempt: int = 0
    history: History = field(default_factory=History)
    high_water: int = 0
    faults: list[ChargedFault] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values. `max_failures` and `failures` are in Ray's own fields."""
        return {
            "version": LEDGER_VERSION,
            "attempt": self.attempt,
            "high_water": self.high_water,
            "restore_failures": self.history.restore_failures,
            "infra_failures": self.history.infra_failures,
            "unavailable": self.history.unavailable,
            "faults": [fault.to_json() for fault in self.faults],
        }


def account_of(trial: _ray.Trial) -> Account:
    """Return the account of a trial: ours, restored, or a copy that Ray made to read results."""
    if isinstance(trial, Trial):
        return trial.account
    saved = trial.__dict__.get(_STATE, {})
    return Account(
        attempt=saved.get("attempt", 0),
        history=History(
            max_failures=trial.max_failures,
            failures=trial.run_metadata.num_failures,
            restore_failures=saved.get("restore_failures", 0),
            infra_failures=saved.get("infra_failures", 0),
            unavailable=saved.get("unavailable", 0),
        ),
        high_water=max(
            saved.get("high_water", 0), _iteration(trial.run_metadata.last_result or {})
        ),
        faults=[ChargedFault.from_json(fault) for fault in saved.get("faults", [])],
    )


def adopt(trial: _ray.Trial, context: FitContext) -> Trial:
    """Make `trial` one of ours, in place; its saved account, if it has one, comes with it."""
    if isinstance(trial, Trial):
        return trial
    account = account_of(trial)
    trial.__dict__.pop(_STATE, None)
    trial.__class__ = Trial
    adopted = cast("Trial", trial)
    adopted.account = account
    adopted.context = context
    adopted.invalidate_json_state()
    return adopted


class Trial(_ray.Trial):  # type: ignore[misc]
    """Ray's trial with an account of its own. Made by :func:`adopt` only.

    Attributes:
        account: what has to survive the driver.
        context: what all trials of this `fit()` share.
        phase: where the present attempt is, None between attempts.
    """

    account: Account
    context: FitContext
    phase: Phase | None = None
    _default_result_or_future: Any  # Ray's
    _decision: Decision | None = None
    _probe_key: str | None = None

    # --- attempts --------------------------------------------------------------------------------

    def begin_attempt(self) -> None:
        """An actor was requested. From here to the acknowledged restore the phase is restoring."""
        if self.phase is None:
            self.account.attempt += 1
            self.phase = Phase.RESTORING if self.has_checkpoint() else Phase.STARTING

    def on_start(self) -> None:
        """The actor runs; with no checkpoint to restore, so does the user's code."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING

    def on_stopping(self) -> None:
        """The trial was told to stop."""
        if self.phase is not None:
            self.phase = Phase.STOPPING

    def end_attempt(self) -> None:
        """The attempt is over: failed, stopped or paused."""
        self.phase = None
        self._forget_probe()

    @property
    def is_function(self) -> bool:
        """Whether the trainable is a function, which loads its checkpoint in the user's code."""
        trainable = self.get_trainable_cls()
        return trainable is not None and issubclass(trainable, _ray.FunctionTrainable)

    def watched(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return what to send to the worker instead of `checkpoint`."""
        if not self.is_function:
            return checkpoint
        self._forget_probe()
        watched, self._probe_key = probe.watch(checkpoint)
        return watched

    def on_restore(self) -> None:
        """Ray's restore is done. For a function that only means that its code may begin."""
        super().on_restore()
        if not self.is_function:
            self._on_restored()

    def on_report(self, result: dict[str, Any]) -> None:
        """A report arrived: a pending restore has worked; a new iteration is progress."""
        if self.phase is Phase.RESTORING:
            self._on_restored()
        iteration = _iteration(result)
        if iteration > self.account.high_water:
            self.account.high_water = iteration
            self._set_history(self.account.history.progressed())

    def _on_restored(self) -> None:
        self.phase = Phase.RUNNING
        self._forget_probe()
        self._set_history(self.account.history.restored())

    def _forget_probe(self) -> None:
        if self._probe_key is not None:
            probe.forget(self._probe_key)
            self._probe_key = None

    # --- failures --------------------------------------------------------------------------------

    def typed_error(self, error: BaseException) -> TrialError:
        """Return `error` as one of the three typed errors, by the phase that the attempt is in."""
        if isinstance(error, TrialError):
            return error
        named = getattr(error, "actor_id", None)
        actor_id = _ray.actor_id_of(self.temporary_state.ray_actor) or named
        return classify(
            error,
            trial_id=self.trial_id,
            attempt=self.account.attempt,
            phase=self._phase_of(error),
            node_id=_ray.node_of_actor(actor_id),
        )

    def _phase_of(self, error: BaseException) -> Phase:
        """Return the phase in which `error` struck.

        Once Ray has acknowledged the restore of a function, that function counts as restored when
        the worker said that it left the checkpoint, or when it raised outside of it. It counts as
        restoring when it raised inside, or when it died without having said that it left.
        """
        phase = self.phase or Phase.STOPPING
        if phase is not Phase.RESTORING or self._probe_key is None or self.is_restoring:
            return phase
        stage = probe.read(self._probe_key)
        if stage is probe.Stage.LEFT:
            self._on_restored()
            return Phase.RUNNING
        if stage is probe.Stage.FAILED or is_actor_error(error):
            return Phase.RESTORING
        return Phase.RUNNING

    def handle_error(self, exc: BaseException) -> None:
        """Book a failure of this trial: the one place where its counters are bumped.

        Args:
            exc: the typed error; anything else is typed first.
        """
        error = self.typed_error(exc)
        fault = Fault.of(error, time.time())
        decision = self.context.policy.decide(fault, self.account.history)
        self._decision = decision
        self.account.faults.append(ChargedFault.book(fault, decision.charge, decision.reason))
        self._set_history(decision.history)
        self._write_error_files(error, decision)

    def should_recover(self) -> bool:
        """Return whether the trial goes on, as decided for its latest failure."""
        if self._decision is None:
            return bool(super().should_recover())
        return self._decision.retry

    @property
    def was_charged(self) -> bool:
        """Whether the latest failure counted against `max_failures`."""
        return self._decision is not None and self._decision.charge is Charge.FAILURE

    def renew_budgets(self) -> None:
        """Give an ended trial that is resumed fresh budgets. Its ledger stays."""
        self._decision = None
        self._set_history(self.account.history.renewed())

    def _set_history(self, history: History) -> None:
        if history == self.account.history:
            return
        self.account.history = history
        self.run_metadata.num_failures = history.failures
        self.temporary_state.num_restore_failures = history.restore_failures
        self.invalidate_json_state()

    def _write_error_files(self, error: TrialError, decision: Decision) -> None:
        """Write `error.txt` (text, one entry a failure) and `error.pkl` (Ray's own exception)."""
        if not self.local_path:
            return
        number = sum(
            fault.fault_class == FaultClass(error.fault_class) for fault in self.account.faults
        )
        pickled = _pickled(error.__cause__)
        metadata = self.run_metadata
        metadata.error_filename = _ray.EXPR_ERROR_FILE
        metadata.pickled_error_filename = _ray.EXPR_ERROR_PICKLE_FILE if pickled else None
        try:
            Path(self.local_path).mkdir(parents=True, exist_ok=True)
            with Path(self.error_file).open("a") as file:
                file.write(
                    f"{error.fault_class.capitalize()} failure # {number} ({decision.reason}) "
                    f"(occurred at {_ray.date_str()})\n{error.__cause__ or error}\n"
                )
            if pickled:
                Path(self.pickled_error_file).write_bytes(pickled)
        except OSError:
            # The ledger has the fault; a full disk must not end the other trials.
            logger.warning("Could not write the error files of trial %s.", self, exc_info=True)

    # --- what Ray asks of a trial ----------------------------------------------------------------

    def get_trainable_cls(self) -> type | None:
        """Return this experiment's own trainable, whatever has taken its name meanwhile."""
        if self.trainable_name == self.context.trainable_name:
            return self.context.trainable_cls
        return cast("type | None", super().get_trainable_cls())

    def _get_default_result_or_future(self) -> dict[str, Any] | None:
        """Return what the new actor says of itself, once it has; never wait for it."""
        future = self._default_result_or_future
        if isinstance(future, ray.ObjectRef):
            ready, _ = ray.wait([future], timeout=0)
            if not ready:
                return None
            try:
                return cast("dict[str, Any] | None", super()._get_default_result_or_future())
            except exceptions.RayError:
                self._default_result_or_future = None
                return None
        return cast("dict[str, Any] | None", super()._get_default_result_or_future())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle as Ray's own trial: what is left behind can be read without raytrials."""
        return (object.__new__, (_ray.Trial,), self.__getstate__())

    def __getstate__(self) -> dict[str, Any]:
        """Return Ray's state with the account as plain JSON; nothing in it needs raytrials."""
        state = cast("dict[str, Any]", super().__getstate__())
        for name in ("account", "context", "phase", "_decision", "_probe_key"):
            state.pop(name, None)
        state[_STATE] = self.account.to_json()
        return state


def _iteration(result: dict[str, Any]) -> int:
    iteration = result.get("training_iteration", 0)
    return iteration if isinstance(iteration, int) else 0


def _pickled(error: BaseException | None) -> bytes | None:
    """Return `error` as bytes that are known to load again, None if there are none such."""
    if error is None:
        return None
    with contextlib.suppress(Exception):  # any class of the user's, with any constructor
        data: bytes = _ray.cloudpickle.dumps(error)
        _ray.cloudpickle.loads(data)
        return data
    return None
