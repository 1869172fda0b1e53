"""Ray's trial controller with a chronicle: it records what happens, and goes on from it.

Here is what an experiment is over its drivers: how it begins, what is taken over from a driver
before, what a trial waits for, and how it ends. What failures cost is in
`raytrials.driver.controller`, which is made of this.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import ray

from raytrials import _ray
from raytrials.core.event import (
    DriverAttached,
    ExperimentCreated,
    StateLost,
)
from raytrials.core.status import Status
from raytrials.driver import recording
from raytrials.driver.announcing import Announcer
from raytrials.driver.chronicle import CLOSE_S, Chronicle
from raytrials.driver.raystate import RayState
from raytrials.driver.scheduled import SCHEDULER, ScheduledController
from raytrials.driver.search import Search
from raytrials.driver.trial import FitContext, Trial, adopt
from raytrials.errors import (
    ExperimentExistsError,
    UnpicklableStateError,
)
from raytrials.store.location import disk_of
from raytrials.store.segment import Damage
from raytrials.store.tenure import Lease

logger = logging.getLogger(__name__)

SEARCHER, STOPPER = "searcher", "stopper"

LEAST_PATIENCE_S = 5.0
"""How long the storage may take at least for each thing written at the end, however late it is."""

WRITTEN_BY = "raytrials_session"
"""In Ray's state: which session of ours wrote it. Vanilla Ray carries it along unread, under a
session of its own."""

_OURS = (
    "_announcer",
    "_chronicle",
    "_context",
    "_disk",
    "_ending_s",
    "_lost",
    "_resumed_first",
    "_search",
    "_stopped",
    "_waiting",
)


class RecordedController(ScheduledController):
    """Ray's trial controller, with a chronicle.

    Args:
        context: what all trials of this `fit()` share.
        **kwargs: as Ray's.
    """

    # Ray's
    _callbacks: Any
    _checkpoint_manager: Any
    _checkpoint_period: Any
    _search_alg: Any
    _session_str: str
    _stopper: Any

    def __init__(self, context: FitContext, **kwargs: Any) -> None:
        self._context = context
        self._search: Search | None = None
        self._waiting: dict[Trial, Callable[[Trial], None]] = {}
        self._resumed_first: set[Trial] = set()
        self._lost: dict[str, str] = {}
        self._ending_s: float | None = None  # when the fit began to end
        self._stopped: list[Trial] = []  # since the end of the step before
        super().__init__(**kwargs)
        self._disk = disk_of(self._storage.storage_filesystem)
        self._chronicle = context.chronicle = Chronicle(
            self._disk, self._storage.experiment_fs_path, self._lease
        )
        self._announcer = Announcer(self._callbacks, self._chronicle)
        self._callbacks = self._announcer

    @property
    def _lease(self) -> Lease:
        if self._context.lease is None:
            raise RuntimeError("A controller writes the experiment, and has no lease.")
        return self._context.lease

    def __getstate__(self) -> dict[str, Any]:
        """Return what Ray saves of a controller: nothing of ours."""
        state: dict[str, Any] = super().__getstate__()
        for name in _OURS:
            state.pop(name, None)
        return {**state, WRITTEN_BY: self._session_str}

    def setup_experiments(self, experiments: list[Any], total_num_samples: int) -> None:
        """Set up the callbacks; a new experiment's journal begins here."""
        if not self._chronicle.is_open:
            self._begin(total_num_samples)
        super().setup_experiments(experiments, total_num_samples)

    def _begin(self, total_num_samples: int) -> None:
        """Begin the journal of a new experiment."""
        if self._chronicle.has_events():
            raise ExperimentExistsError(self._storage.experiment_fs_path, "a journal")
        self._context.experiment = self._context.experiment or uuid.uuid4().hex
        search = self._search = self._new_search()
        self._record_scheduler(search.seed, self._chronicle.record)
        # Before the first event: whoever finds a journal finds the searcher that it began with.
        self._chronicle.write_first(self._parts())
        self._create(search.seed, total_num_samples)
        for part, detail in self._lost.items():
            self._chronicle.record(StateLost(part, detail))
        # Before Ray's own state can be: with that alone the experiment would not be continued
        # from the journal.
        self._chronicle.require_durable()

    def _new_search(self) -> Search:
        # From the user's own source of randomness: what they seeded decides here too.
        seed = int(np.random.randint(0, 2**31 - 1))  # noqa: NPY002 - the global one is meant
        return Search(self._search_alg, seed, self._chronicle.record)

    def _create(self, seed: int, total_num_samples: int | None) -> None:
        """Open the journal and record that there is an experiment."""
        self._chronicle.open()
        self._chronicle.record(
            ExperimentCreated(
                self._context.experiment,
                self._storage.experiment_dir_name,
                seed,
                self._context.param_space,
            )
        )
        self._attach(total_num_samples, ())

    def _attach(self, total_num_samples: int | None, damage: tuple[Damage, ...]) -> None:
        samples = total_num_samples if total_num_samples and total_num_samples > 0 else None
        versions = {
            "python": sys.version.split()[0],
            "ray": ray.__version__,
            "raytrials": version("raytrials"),
        }
        self._chronicle.record(
            DriverAttached(
                socket.gethostname(),
                os.getpid(),
                samples,
                _ray.max_concurrent_of(self._search_alg),
                self._metric,
                getattr(self._search_alg, "mode", None),
                versions,
                tuple(one.to_json() for one in damage),
            )
        )

    def _parts(self) -> Mapping[str, bytes]:
        """Return what belongs into a snapshot beside the state."""
        parts = {}
        makers: dict[str, Callable[[], bytes]] = {
            STOPPER: lambda: bytes(_ray.cloudpickle.dumps(self._stopper))
        }
        if self._search is not None:
            makers[SEARCHER] = self._search.dump
        if self._scheduling is not None and not self._scheduling.is_stateless:
            makers[SCHEDULER] = self._scheduling.dump
        for name, dump in makers.items():
            try:
                parts[name] = dump()
            except UnpicklableStateError as error:
                self._note_lost(name, str(error))
            except Exception as error:  # noqa: BLE001 - the user's class may do anything
                self._note_lost(name, f"it cannot be pickled: {error}")
        return parts

    def _note_lost(self, part: str, detail: str) -> None:
        """Surface that a part's state is not kept, once: at once, and in the result."""
        if part not in self._lost:
            self._lost[part] = detail
            self._chronicle.record(StateLost(part, detail))
            logger.error(
                "The state of the %s is not saved: %s. Trials are; a restored run will not "
                "continue the %s exactly.",
                part,
                detail,
                part,
            )

    # --- trials ----------------------------------------------------------------------------------

    def add_trial(self, trial: _ray.Trial) -> None:
        """Add a trial, whichever searcher made it, as one of ours; a new one is recorded first."""
        trial = adopt(trial, self._context)
        # The searcher's own record of the experiment may be older than where that is now.
        trial.storage.storage_filesystem = self._storage.storage_filesystem
        trial.storage.storage_fs_path = self._storage.storage_fs_path
        trial.storage.experiment_dir_name = self._storage.experiment_dir_name
        _ray.keep_staging_directory(trial.storage, self._storage)
        if self._chronicle.is_open and recording.known(trial) is None:
            if self._placeholder_resolvers:
                trial.resolve_config_placeholders(self._placeholder_resolvers)
            trial.create_placement_group_factory()
            trial.init_local_path()
            recording.added(trial)
        # Ray's state has the trials in this order, whichever is saved first.
        self._trial_metadata.setdefault(trial.trial_id, ("", ""))
        super().add_trial(trial)

    def _update_trial_queue(self, blocking: bool = False, timeout: int = 600) -> bool:  # noqa: ARG002, FBT001, FBT002 - Ray's signature
        # Ray's waits in here when nothing runs; the loop comes again by itself.
        trial = self._search.next_trial() if self._search is not None else None
        if trial and trial.trial_id in self._chronicle.state.trials:
            # Vanilla Ray had it suggest this, and it did not learn so.
            self._note_lost(SEARCHER, f"it suggested {trial.trial_id}, which was there, again")
        elif trial:
            self.add_trial(trial)
        return bool(trial)

    def _maybe_update_trial_queue(self) -> None:
        """Sample trials as Ray does, when all that were there before have started."""
        if self._context.stop.is_requested:
            return
        if not self._resumed_first:
            super()._maybe_update_trial_queue()

    def _set_trial_status(self, trial: Trial, status: str) -> None:
        super()._set_trial_status(trial, status)
        if status != Trial.PENDING:
            self._resumed_first.discard(trial)

    def _is_cleared(self, trial: Trial, start: Callable[[Trial], None]) -> bool:
        """Whether an actor may be requested for a trial; otherwise `start` is called when it may.

        There is room for it, the number of its attempt is durable, and nobody asked for a stop.
        """
        if self._has_room():
            trial.init_local_path()  # the attempt's names are looked for in its directory
            trial.begin_attempt()
            if self._chronicle.is_durable(trial.assigned_seq):
                self._waiting.pop(trial, None)
                self._resumed_first.discard(trial)
                return True
            self._chronicle.await_durable(trial.assigned_seq)
        self._waiting[trial] = start
        return False

    def _has_room(self) -> bool:
        """Whether one more trial may have an actor."""
        if self._context.stop.is_requested:
            return False
        limit = self._chronicle.state.max_concurrent
        return limit is None or len(self._trial_to_actor) < limit

    def _start_waiting(self) -> None:
        """Request actors for the trials that may have them by now, in their order."""
        for trial, start in list(self._waiting.items()) if self._has_room() else ():
            if trial.status != Trial.PENDING or trial in self._trial_to_actor:
                self._waiting.pop(trial, None)
            else:
                start(trial)

    def on_step_begin(self) -> None:
        """Go on with what waited for the journal."""
        super().on_step_begin()
        self._chronicle.tick(self._parts)
        self._start_waiting()

    # --- ends ------------------------------------------------------------------------------------

    def stop_trial(self, trial: Trial) -> None:
        """Stop a trial as Ray does; that it ended is recorded before anybody is told."""
        if not trial.is_finished():
            recording.finished(trial, Status.SUCCEEDED, "it came to its end, or was stopped")
            if self._search is not None:
                self._search.on_complete(trial.trial_id, error=False)
        super().stop_trial(trial)

    def _stop_experiment_if_needed(self) -> None:
        self._stopped.clear()
        super()._stop_experiment_if_needed()
        # After `fail_fast` they are interrupted, not ended: a resume goes on with them.
        if not (self._fail_fast and self._has_errored) and not self._should_stop_experiment:
            for trial in self._stopped:
                if trial.status == Trial.TERMINATED:
                    recording.finished(trial, Status.ABORTED, "the whole experiment was stopped")

    def _schedule_trial_stop(self, trial: Trial, exception: Exception | None = None) -> None:
        super()._schedule_trial_stop(trial, exception=exception)
        self._stopped.append(trial)

    def _create_checkpoint_manager(self) -> Any:
        # The journal makes up for what Ray's own state does not know yet.
        if os.environ.get("TUNE_GLOBAL_CHECKPOINT_S"):
            return _ray.ExperimentCheckpointManager(
                storage=self._storage, checkpoint_period=self._checkpoint_period
            )
        return RayState(self._storage, self._has_news)

    def _has_news(self) -> bool:
        """Whether Ray's state on storage lacks something; that it has arrived is recorded too."""
        state = self._chronicle.state
        return state.seq > state.mirrored_seq + 1

    def _patience_s(self) -> float:
        """Return how long the storage may still take for all that is written at the end."""
        stop = self._context.stop
        if stop.is_requested:
            left_s = stop.grace_left_s()
        else:
            self._ending_s = self._ending_s or time.monotonic()
            left_s = self._ending_s + CLOSE_S - time.monotonic()
        return max(LEAST_PATIENCE_S, left_s)

    def settle(self) -> None:
        """Wait until everything recorded so far is durable, and go on with what waited for it."""
        self._chronicle.settle(self._patience_s())
        self._chronicle.tick(dict)

    def cleanup(self) -> None:
        """Clean up as Ray does; what is done to trials from here on is no end of theirs."""
        if self._lease.is_lost:
            # The other driver tells what comes of the trials; their actors are in its way.
            self._chronicle.close("")
        else:
            self.settle()
            if self._chronicle.close(self._reason(), self._patience_s()):
                self._announcer.flush()
        super().cleanup()

    def _reason(self) -> str:
        """Return in words why the driver goes."""
        stop = self._context.stop
        if self.is_finished():
            return "done"
        if stop.is_requested:
            return stop.by_signal.name if stop.by_signal is not None else "stop()"
        return "stopped before all trials had ended"

    def _remove_actor(self, tracked_actor: Any) -> None:
        if self._lease.is_lost:
            self._actor_manager.remove_actor(tracked_actor, kill=True)
        else:
            super()._remove_actor(tracked_actor)
