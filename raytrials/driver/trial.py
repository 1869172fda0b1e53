"""A trial that decides for itself what a failure costs.

Trials are made in several places of Ray's that cannot be told to use another class, so the
controller *adopts* each one (:func:`adopt`) when it is added or restored. The trial keeps its
account: the history that the policy looks at, the ledger of all its faults, and where its present
attempt is. What has to survive the driver is written into the trial's saved state as plain JSON
under the key `raytrials`, which Ray without us carries along unread.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import ray
from ray import exceptions

from raytrials import _ray
from raytrials.core.fault import Cause, Charge, ChargedFault, Fault, Phase
from raytrials.core.retry import Decision, History, RetryPolicy, Since
from raytrials.core.status import Status
from raytrials.driver import errorfile, probe, recording
from raytrials.driver.account import (
    NOT_DECIDED,
    STATE,
    Account,
    OpenCharge,
    account_of,
    iteration_of,
)
from raytrials.driver.classify import classify, describe, is_actor_error, may_be, unwrap
from raytrials.driver.cluster import Cluster
from raytrials.driver.signals import StopRequest
from raytrials.driver.storage import Attempt, TrialStorage
from raytrials.errors import TrialError
from raytrials.store.manifest import index_of

if TYPE_CHECKING:
    from raytrials.driver.checkpoints import Checkpoints
    from raytrials.driver.chronicle import Chronicle
    from raytrials.driver.retention import Retention
    from raytrials.store.tenure import Lease

logger = logging.getLogger(__name__)

_TRIAL_ID = "trial_id"

_WORKER_UNSEEN = {Cause.NODE_LOST, Cause.PREEMPTED, Cause.ACTOR_UNAVAILABLE, Cause.HUNG}
"""Causes after which nobody knows that the worker is gone."""

DEATH_DECISION_S = 3.0
"""How long the charge of a worker's death stays open, in which its node may turn out dead too."""


@dataclass
class FitContext:
    """What all trials of one `fit()` share.

    Attributes:
        policy: what failures cost.
        cluster: what is known of the nodes.
        charge_decision_s: how long the charge of a silent actor stays open at most.
        trainable_name: the name under which the experiment registered its trainable.
        trainable_cls: that trainable. Kept here because Ray's registry goes by name alone, and
            another experiment of this process may have taken the name since.
        checkpoints: names, chooses and takes over the trials' checkpoints.
        retention: deletes those that are put out; set when the controller has its storage.
        chronicle: where all that happens is recorded; set when the controller has its storage.
        param_space: the search space as plain values, to be read and compared.
        lease: the right to write the experiment; None where none is written.
        stop: whether the fit is asked to stop.
        experiment: id of the experiment; the same over all its drivers and moves.
        reconfigured: trials that a scheduler gave another configuration in its latest call.
    """

    policy: RetryPolicy
    checkpoints: Checkpoints
    cluster: Cluster = field(default_factory=Cluster)
    charge_decision_s: float = 30.0
    trainable_name: str | None = None
    trainable_cls: type | None = None
    retention: Retention | None = None
    chronicle: Chronicle | None = None
    param_space: Mapping[str, Any] = field(default_factory=dict)
    lease: Lease | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    experiment: str = ""
    reconfigured: list[Trial] = field(default_factory=list)


def adopt(trial: _ray.Trial, context: FitContext) -> Trial:
    """Make `trial` one of ours, in place; its saved account, if it has one, comes with it."""
    if isinstance(trial, Trial):
        return trial
    account = account_of(trial)
    trial.__dict__.pop(STATE, None)
    trial.__class__ = Trial
    adopted = cast("Trial", trial)
    adopted.account = account
    adopted.context = context
    context.experiment = context.experiment or account.experiment or uuid.uuid4().hex
    account.experiment = context.experiment
    adopted.storage = TrialStorage.of(trial.storage)
    adopted.sign_attempt()
    adopted.invalidate_json_state()
    return adopted


class Trial(_ray.Trial):  # type: ignore[misc]
    """Ray's trial with an account of its own. Made by :func:`adopt` only.

    Attributes:
        account: what has to survive the driver.
        context: what all trials of this `fit()` share.
        phase: where the present attempt is, None between attempts.
        open_charges: faults that are not decided yet, oldest first.
        told_iteration: the latest iteration that searcher and scheduler were told, 0 before.
        rerun_until: iterations up to this one are run again and not told again, 0 for none.
        told_decision: what the scheduler decided then; None once it has been acted on.
        first_index: the first index that the present attempt may give to a checkpoint.
        assigned_seq: number of the event that has to be durable before an actor is requested.
        takes_over: the attempt whose unseen checkpoint is being taken over, 0 for none.
        told_searcher_until: iterations up to this one the searcher knows, though nobody has decided
            on them; 0 for none.
        latest_error: the typed error of the latest failure that was booked by this driver.
    """

    account: Account
    context: FitContext
    storage: TrialStorage
    phase: Phase | None = None
    open_charges: tuple[OpenCharge, ...] = ()
    told_iteration: int = 0
    rerun_until: int = 0
    told_decision: str | None = None
    first_index: int = 0
    assigned_seq: int = 0
    takes_over: int = 0
    told_searcher_until: int = 0
    latest_error: TrialError | None = None
    _failed_s: float = 0.0
    _suspects: tuple[tuple[str, float], ...] = ()
    _default_result_or_future: Any  # Ray's
    _decision: Decision | None = None
    _probe_key: str | None = None

    # --- attempts --------------------------------------------------------------------------------

    def begin_attempt(self) -> None:
        """An actor was requested. From here to the acknowledged restore the phase is restoring."""
        if self.phase is None:
            self.account.attempt += 1
            self.phase = Phase.RESTORING if self.has_checkpoint() else Phase.STARTING
            if self._is_new_clone():
                # Nothing is run again: all of it is new.
                self.told_iteration = iteration_of(self.latest_checkpoint_result.metrics)
                self.account.adopts_from = self.account.attempt
            self.rerun_until = self.told_iteration
            self.context.checkpoints.name_attempt(self)
            self.sweep_leftovers()
            self.invalidate_json_state()
            self.assigned_seq = recording.assigned(self)

    def sign_attempt(self) -> None:
        """Have the worker sign its checkpoints with what the attempt is now."""
        epoch = self.context.lease.epoch if self.context.lease is not None else 0
        account = self.account
        self.storage.attempt = Attempt(account.experiment, self.trial_id, account.attempt, epoch)

    def sweep_leftovers(self) -> None:
        """Delete what earlier attempts left half done, as far as none of them can be at work."""
        if self.account.attempt > 1 and self.context.retention is not None:
            self.context.retention.sweep(self.context.checkpoints.leftovers(self))

    def _is_new_clone(self) -> bool:
        """Whether no attempt has started yet from another trial's checkpoint (an exploit)."""
        record = recording.known(self)
        return self.exploits() and (record is None or record.adopts_from > record.attempt)

    def exploits(self) -> bool:
        """Whether the trial goes on from the checkpoint of another one."""
        checkpoint = self.checkpoint
        return checkpoint is not None and not checkpoint.path.startswith(f"{self.path}/")

    def on_start(self) -> None:
        """The actor runs; with no checkpoint to restore, so does the user's code."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING

    def on_restoring(self) -> None:
        """What happens to the attempt from here on happens to its restore."""
        self.phase = Phase.RESTORING
        self._forget_probe()

    def on_stopping(self) -> None:
        """The trial was told to stop."""
        if self.phase is not None:
            self.phase = Phase.STOPPING

    def end_attempt(self, *, cleanly: bool) -> None:
        """The attempt is over: failed, stopped or paused.

        Args:
            cleanly: whether its worker had nothing left to do that the driver does not know of.
        """
        self.phase = None
        self.account.ended_cleanly = cleanly
        self._forget_probe()

    def begin_anew(self) -> None:
        """The attempt starts from the beginning after all: none of its checkpoints is whole."""
        self.phase = Phase.RUNNING

    @property
    def is_function(self) -> bool:
        """Whether the trainable is a function, which loads its checkpoint in the user's code."""
        trainable = self.get_trainable_cls()
        return trainable is not None and issubclass(trainable, _ray.FunctionTrainable)

    def handed_out(self, result: Any) -> Any:
        """Return a result with a checkpoint as it is sent to the worker."""
        self._forget_probe()
        checkpoint, self._probe_key = probe.hand_out(
            result.checkpoint,
            iteration_of(result.metrics),
            f"{self.account.experiment}/{self.trial_id}",
            self.account.attempt,
            watched=self.is_function,
        )
        return _ray.TrainingResult(checkpoint=checkpoint, metrics=result.metrics)

    def on_checkpoint(self, checkpoint_result: Any) -> None:
        """A committed checkpoint arrived; those that it puts out go when nothing needs them."""
        index = index_of(checkpoint_result.checkpoint.path.rpartition("/")[2])
        if index is not None:
            recording.committed(self, index, checkpoint_result)
            if self.context.retention is not None:
                self.context.retention.committed(checkpoint_result.checkpoint.path)
            self.storage.current_checkpoint_index = index
            self.account.next_index = max(self.account.next_index, index + 1)
        for path in _ray.register_checkpoint(self, checkpoint_result):
            if path.startswith(f"{self.path}/"):
                self.retire(path)
        self.invalidate_json_state()
        self.run_metadata.invalidate_cache()

    def retire(self, path: str) -> None:
        """Have a checkpoint of the trial deleted when nothing asks for it any more."""
        if self.context.retention is not None:
            index = index_of(path.rpartition("/")[2])
            forget = functools.partial(recording.deleted, self, -1 if index is None else index)
            self.context.retention.retire(path, self.storage.disk, self.kept_paths, forget)

    def kept_paths(self) -> list[str]:
        """Return the paths of the trial's checkpoints, the latest one last."""
        if hasattr(type(self.run_metadata), "kept_paths"):  # it has ended, and is packed
            return list(self.run_metadata.kept_paths())
        results = [*_ray.registered_checkpoints(self), self.latest_checkpoint_result]
        return [result.checkpoint.path for result in results if result is not None]

    def on_restore(self) -> None:
        """Ray's restore is done. For a function that only means that its code may begin."""
        super().on_restore()
        if not self.is_function:
            self._on_restored()

    def on_report(self, result: dict[str, Any]) -> None:
        """A report arrived: a pending restore has worked; a new iteration is progress."""
        if self.phase is Phase.RESTORING:
            self._on_restored()
        iteration = iteration_of(result)
        if iteration > self.account.high_water:
            self.account.high_water = iteration
            self._came(progressed=True)

    def _on_restored(self) -> None:
        recording.restored(self)
        self.phase = Phase.RUNNING
        self._forget_probe()
        self._came(restored=True)

    def _came(self, *, restored: bool = False, progressed: bool = False) -> None:
        """Note a restore that has worked or progress: behind the latest open charge, if any."""
        latest = self.open_charges[-1].since if self.open_charges else Since()
        since = latest.then(restored=restored, progressed=progressed)
        if self.open_charges:
            *before, last = self.open_charges
            self.open_charges = (*before, dataclasses.replace(last, since=since))
            self.invalidate_json_state()
        else:
            self._set_history(since.applied_to(self.account.history))

    def _forget_probe(self) -> None:
        if self._probe_key is not None:
            probe.forget(self._probe_key)
            self._probe_key = None

    # --- iterations that are run again -----------------------------------------------------------

    def is_rerun(self, result: dict[str, Any]) -> bool:
        """Whether searcher and scheduler were told this iteration in an earlier attempt."""
        return 0 < iteration_of(result) <= self.rerun_until

    def on_told(self, result: dict[str, Any], decision: str | None) -> None:
        """Searcher and scheduler were told a new iteration, and decided."""
        if iteration_of(result):
            self.rerun_until = self.told_searcher_until = 0
            self.told_iteration = iteration_of(result)
            self.told_decision = decision

    def on_paused(self) -> None:
        """The decision to pause was acted on; what comes after the pause is new."""
        recording.paused(self)
        self.told_decision = None

    def set_config(self, config: dict[str, Any]) -> None:
        """Take another config, as a scheduler gives it."""
        super().set_config(config)
        recording.config_changed(self)
        self.context.reconfigured.append(self)

    def update_resources(self, resources: Any) -> None:
        """Take other resources, as a scheduler gives them."""
        super().update_resources(resources)
        recording.config_changed(self)

    # --- failures --------------------------------------------------------------------------------

    def typed_error(self, error: BaseException) -> TrialError:
        """Return `error` as one of the three typed errors, by the phase that the attempt is in."""
        if isinstance(error, TrialError):
            return error
        return classify(
            error,
            trial_id=self.trial_id,
            attempt=self.account.attempt,
            phase=self._phase_of(error),
            node_id=_ray.node_of_actor(self._actor_id(error)),
        )

    def _actor_id(self, error: BaseException) -> str | None:
        return _ray.actor_id_of(self.temporary_state.ray_actor) or getattr(error, "actor_id", None)

    def _phase_of(self, error: BaseException) -> Phase:
        """Return the phase in which `error` struck.

        Once Ray has acknowledged the restore of a function, that function counts as restored when
        the worker said that it left the checkpoint, or when it raised outside of it. It counts as
        restoring when it raised inside, or when it died without having said that it left. An
        exception inside that the user's code took, and that was followed by another, is outside.
        """
        phase = self.phase or Phase.STOPPING
        if phase is not Phase.RESTORING or self._probe_key is None or self.is_restoring:
            return phase
        word = probe.read(self._probe_key)
        if word is not None and word.stage is probe.Stage.LEFT:
            self._on_restored()
            return Phase.RUNNING
        raised_inside = word is not None and word.exception and may_be(error, word.exception)
        return Phase.RESTORING if raised_inside or is_actor_error(error) else Phase.RUNNING

    def handle_error(self, exc: BaseException) -> None:
        """Book a failure of this trial: the one place where its counters are bumped.

        The charge of an actor that went away stays open until the cluster knows its node's fate.

        Args:
            exc: the typed error; anything else is typed first.
        """
        error = self.typed_error(exc)
        exceptions, exit_code = describe(error.__cause__ or error)
        fault = Fault.of(error, time.time(), exceptions=exceptions, exit_code=exit_code)
        self._failed_s = time.monotonic()
        if fault.cause in {Cause.CHECKPOINT_CORRUPT, Cause.CHECKPOINT_MISSING}:
            self.context.checkpoints.mark(self, fault.detail)
        if error.node_id is not None:
            self._suspects += ((error.node_id, self._failed_s),)
        # The actor that went away may be one that the trial called, on another node.
        inner = unwrap(error.__cause__ or error)
        node_id = _ray.node_of_actor(getattr(inner, "actor_id", None)) or error.node_id
        cause, certain = self.context.cluster.verdict(fault.cause, node_id)
        if certain and not self.open_charges:
            self._book(fault, cause, error)
            if not self.should_recover():
                recording.finished(self, Status.FAILED, self.account.faults[-1].reason)
            return
        limit_s = self.context.charge_decision_s
        if fault.cause is Cause.WORKER_DIED:
            limit_s = min(limit_s, DEATH_DECISION_S)
        causes = (cause,) if certain else (cause, Cause.NODE_LOST, Cause.PREEMPTED)
        fault = dataclasses.replace(fault, cause=cause)
        self.open_charges += (OpenCharge(fault, error, node_id, causes, self._failed_s + limit_s),)
        self._decision = Decision(
            retry=True,
            charge=Charge.FREE,
            reason=NOT_DECIDED,
            history=self.account.history,
            delay_s=self._delay_while_open_s(),
        )
        undecided = ChargedFault.book(fault, Charge.FREE, NOT_DECIDED)
        recording.fault(self, undecided, self.account.history, decided=False)
        self.invalidate_json_state()

    def settle(self, *, at_once: bool = False) -> tuple[ChargedFault, ...]:
        """Book the open charges whose time has come, oldest first.

        Args:
            at_once: decide with what is known now.

        Returns:
            What was booked.
        """
        booked = []
        while self.open_charges:
            charge = self.open_charges[0]
            cause, certain = self.context.cluster.verdict(charge.fault.cause, charge.node_id)
            if not certain and not at_once and time.monotonic() < charge.until_s:
                break
            self.open_charges = self.open_charges[1:]
            booked.append(self._book(charge.fault, cause, charge.error, charge.since))
        return tuple(booked)

    def settle_undecided(self) -> tuple[ChargedFault, ...]:
        """Book the charges that were open when a driver before this one died, oldest first.

        Each is what it looked like then, unless the node table knows of its node by now.

        Returns:
            What was booked.
        """
        booked = []
        for fault, since in self.account.take_undecided():
            self.context.cluster.look()
            cause, _ = self.context.cluster.verdict(fault.cause, fault.node_id)
            booked.append(self._book(fault, cause, fault.to_error(), since))
        return tuple(booked)

    def _delay_while_open_s(self) -> float:
        """Return how long to wait before the retry while charges are open.

        As the policy says if they are what they look like; longer if a rule says so for something
        else that the latest may turn out to be.
        """
        history, delay_s = self.account.history, 0.0
        for charge in self.open_charges:
            decision = self.context.policy.decide(charge.fault, history)
            history, delay_s = charge.since.applied_to(decision.history), decision.delay_s
        latest = self.open_charges[-1].may_be()
        return max(delay_s, *(self.context.policy.rule_delay_s(fault) for fault in latest))

    def might_end(self) -> bool:
        """Whether the open charges, decided as badly as they can be, would end the trial."""
        history = self.account.history
        for charge in self.open_charges:
            decisions = [self.context.policy.decide(fault, history) for fault in charge.may_be()]
            if not all(decision.retry for decision in decisions):
                return True
            history = max((one.history for one in decisions), key=lambda one: one.failures)
            history = charge.since.applied_to(history)
        return False

    def _book(
        self, fault: Fault, cause: Cause, error: TrialError, since: Since | None = None
    ) -> ChargedFault:
        """Book a fault; `since` is what came after it, if its charge was open."""
        fault = dataclasses.replace(fault, cause=cause)
        error = _with_cause(error, cause)
        self.account.may_be_alive |= cause in _WORKER_UNSEEN
        decision = self.context.policy.decide(fault, self.account.history)
        self._decision = decision
        charged = ChargedFault.book(fault, decision.charge, decision.reason)
        history = (since or Since()).applied_to(decision.history)
        recording.fault(self, charged, history, settles=since is not None)
        self.account.booked(charged)
        self._set_history(history)
        self.latest_error = error
        self.invalidate_json_state()
        if self.local_path:
            number = sum(one.fault_class == charged.fault_class for one in self.account.faults)
            errorfile.write(self, error, charged, number)
        return charged

    def book_free(self, fault: Fault, charge: Charge, reason: str) -> None:
        """Book a fault that ends no attempt and spends no budget."""
        charged = ChargedFault.book(fault, charge, reason)
        recording.fault(self, charged, self.account.history, ends_attempt=False)
        self.account.booked(charged)
        self.invalidate_json_state()

    def should_recover(self) -> bool:
        """Return whether the trial goes on, as decided for its latest failure."""
        if self._decision is None:
            return bool(super().should_recover())
        return self._decision.retry

    @property
    def retry_delay_s(self) -> float:
        """Seconds from the latest failure to the next attempt, as decided for it."""
        return 0.0 if self._decision is None else self._decision.delay_s

    @property
    def retry_due_s(self) -> float:
        """When the next attempt is due, on the monotonic clock."""
        return self._failed_s + self.retry_delay_s

    @property
    def was_charged(self) -> bool:
        """Whether the latest failure counted against `max_failures`."""
        return self._decision is not None and self._decision.charge is Charge.FAILURE

    def suspects(self, for_s: float) -> tuple[str, ...]:
        """Return the nodes on which this trial failed in the last `for_s` seconds.

        In the order of the latest failure on each, oldest first.
        """
        since_s = time.monotonic() - for_s
        self._suspects = tuple(one for one in self._suspects if one[1] > since_s)
        newest_first = dict.fromkeys(node_id for node_id, _ in reversed(self._suspects))
        return tuple(reversed(newest_first))

    def forget_suspects(self) -> None:
        """Let the trial run on any node again."""
        self._suspects = ()

    def limit_failures(self, max_failures: int) -> None:
        """Take another limit of failures from here on."""
        self.max_failures = max_failures
        self.account.history = dataclasses.replace(self.account.history, max_failures=max_failures)
        self.invalidate_json_state()

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

    # --- what Ray asks of a trial ----------------------------------------------------------------

    def get_trainable_cls(self) -> type | None:
        """Return this experiment's own trainable, whatever has taken its name meanwhile."""
        if self.trainable_name == self.context.trainable_name:
            return self.context.trainable_cls
        return cast("type | None", super().get_trainable_cls())

    @property
    def last_result(self) -> dict[str, Any]:
        """Return the latest result; before the first, what the actor said of itself, if it has.

        Never waits for the actor: a frozen one would hold the whole loop.
        """
        result = cast("dict[str, Any]", self.run_metadata.last_result)
        future = self._default_result_or_future
        if set(result) <= {_TRIAL_ID} and isinstance(future, ray.ObjectRef):
            ready, _ = ray.wait([future], timeout=0)
            if not ready:
                result.setdefault(_TRIAL_ID, self.trial_id)
                return result
        return cast("dict[str, Any]", super().last_result)

    def _get_default_result_or_future(self) -> dict[str, Any] | None:
        """Return what the actor said of itself; None if it died before it could."""
        try:
            return cast("dict[str, Any] | None", super()._get_default_result_or_future())
        except exceptions.RayError:
            self._default_result_or_future = None
            return None

    def forget_passing(self) -> None:
        """Let go of what can be made again, or matters while the trial runs alone."""
        self.invalidate_json_state()
        if set(self.run_metadata.last_result) - {_TRIAL_ID}:
            self._default_result_or_future = None
        held = vars(self)
        # A new one: the old one has grown beyond what is in it.
        self.__dict__ = {
            name: value
            for name, value in held.items()
            if name not in _DEFAULTS or value != _DEFAULTS[name]
        }

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle as Ray's own trial: what is left behind can be read without raytrials."""
        return (object.__new__, (_ray.Trial,), self.__getstate__())

    def __getstate__(self) -> dict[str, Any]:
        """Return Ray's state with the account as plain JSON; nothing in it needs raytrials."""
        state = cast("dict[str, Any]", super().__getstate__())
        for name in _IN_MEMORY:
            state.pop(name, None)
        state["storage"] = self.storage.plain()
        state[STATE] = self.account.to_json(self.open_charges)
        return state


_IN_MEMORY = (
    "account",
    "context",
    "phase",
    "open_charges",
    "told_iteration",
    "rerun_until",
    "told_decision",
    "first_index",
    "assigned_seq",
    "takes_over",
    "told_searcher_until",
    "latest_error",
    "_failed_s",
    "_suspects",
    "_decision",
    "_probe_key",
)

_DEFAULTS = {name: getattr(Trial, name) for name in _IN_MEMORY if hasattr(Trial, name)}


def _with_cause(error: TrialError, cause: Cause) -> TrialError:
    """Return `error` with the cause that the cluster knows by now."""
    if error.cause == cause:
        return error
    typed = type(error)(
        error.trial_id, error.attempt, error.phase, cause, error.node_id, error.detail
    )
    typed.__cause__ = error.__cause__
    return typed
