"""A trial controller, vanilla's or ours, that has run many trials already, and goes on.

All is real but the actors: they answer at once, without Ray's processes. What is left is what a
controller itself costs. Each trial has 10 results of 20 metrics, and 10 checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = "16"

import ray
from journal_scale import RESULTS, result
from ray import tune
from ray.train._internal.session import _TrainingResult  # noqa: TID251 - what a worker returns
from ray.train._internal.storage import StorageContext  # noqa: TID251 - what vanilla is made of
from ray.tune.execution.tune_controller import TuneController  # noqa: TID251 - likewise
from ray.tune.experiment import Experiment, Trial  # noqa: TID251 - likewise
from ray.tune.search import BasicVariantGenerator

from raytrials import RetryPolicy, _ray
from raytrials.driver import controller as our_controller
from raytrials.driver import recording
from raytrials.driver.checkpoints import Checkpoints
from raytrials.driver.cluster import Cluster
from raytrials.driver.controller import Controller
from raytrials.driver.trial import FitContext
from raytrials.driver.trial import Trial as OurTrial
from raytrials.store.holding import holding
from raytrials.store.local import LocalDisk

SLOTS = 8
NAME = "filled"
CHECKPOINTS = tune.CheckpointConfig(checkpoint_frequency=1)
STOP = {"training_iteration": RESULTS}


class Nothing(tune.Trainable):
    """Is never made: the actors here answer for it."""


class Still(Cluster):
    """A cluster in which nothing happens."""

    def look(self, *, at_once: bool = False) -> None:
        """Nothing is asked of Ray."""

    def require_package(self) -> None:
        """All is installed."""


class Handle:
    """Stands for Ray's handle of an actor."""

    _actor_id = b"actor"

    @property
    def get_auto_filled_metrics(self) -> Handle:
        """Is asked for by vanilla when an actor has started."""
        return self

    def remote(self, **_: Any) -> dict[str, Any]:
        """Answer at once."""
        return {}


class Actor:
    """An actor that was requested, and who is told of it."""

    def __init__(self, on: dict[str, Any]) -> None:
        self.on_start, self.on_stop = on.get("on_start"), on.get("on_stop")

    def set_on_stop(self, tell: Any) -> None:
        """Tell another."""
        self.on_stop = tell

    def set_on_error(self, tell: Any) -> None:
        """Nothing fails here."""


class Actors:
    """What a controller uses of an actor manager. `SLOTS` actors run, one answer after another.

    Attributes:
        trial_of: the trial of an actor; set when there is a controller.
        told: how much has happened.
    """

    def __init__(self, **_: Any) -> None:
        self.trial_of: dict[Any, Any] = {}
        self.told = 0
        self._requested: deque[Actor] = deque()
        self._live: dict[Actor, tuple[Handle, None]] = {}
        self._tasks: deque[tuple[Actor, Callable[[], None]]] = deque()

    @property
    def _live_actors_to_ray_actors_resources(self) -> dict[Actor, tuple[Handle, None]]:
        return self._live

    def add_actor(self, **arguments: Any) -> Actor:
        """Request an actor."""
        actor = Actor(arguments)
        self._requested.append(actor)
        return actor

    def schedule_actor_task(
        self,
        tracked_actor: Actor,
        method_name: str,
        on_result: Any = None,
        _return_future: bool = False,  # noqa: FBT001, FBT002 - Ray's signature
        **_: Any,
    ) -> object:
        """Have an actor do something."""
        if on_result is not None:
            answer = functools.partial(self._answer, tracked_actor, method_name, on_result)
            self._tasks.append((tracked_actor, answer))
        return method_name

    def _answer(self, actor: Actor, method: str, on_result: Any) -> None:
        on_result(actor, {"train": report, "save": save}[method](self.trial_of[actor]))

    def remove_actor(self, tracked_actor: Actor, **_: Any) -> bool:
        """End an actor."""
        if tracked_actor not in self._live:
            self._requested.remove(tracked_actor)
            return False
        self._tasks.append((tracked_actor, lambda: tracked_actor.on_stop(tracked_actor)))
        del self._live[tracked_actor]
        return True

    def clear_actor_task_futures(self, tracked_actor: Actor) -> None:
        """Forget what an actor was asked."""
        self._tasks = deque(one for one in self._tasks if one[0] is not tracked_actor)

    def next(self, timeout: float | None = None) -> bool:
        """Let one thing happen."""
        if self._requested and len(self._live) < SLOTS:
            actor = self._requested.popleft()
            self._live[actor] = (Handle(), None)
            actor.on_start(actor)
        elif self._tasks:
            self._tasks.popleft()[1]()
        else:
            time.sleep(0.001)  # for the journal
            return False
        self.told += 1
        return True

    def is_idle(self, actor: Actor) -> bool:
        """Whether an actor has nothing to do."""
        return all(one is not actor for one, _ in self._tasks)

    def is_actor_started(self, tracked_actor: Actor) -> bool:
        """Whether an actor runs."""
        return tracked_actor in self._live

    @property
    def num_pending_actors(self) -> int:
        """How many wait."""
        return len(self._requested)

    @property
    def num_live_actors(self) -> int:
        """How many run."""
        return len(self._live)

    @property
    def num_total_actors(self) -> int:
        """How many there are."""
        return len(self._live) + len(self._requested)

    @property
    def num_actor_tasks(self) -> int:
        """How much they have to do."""
        return len(self._tasks)


def report(trial: Any) -> dict[str, Any]:
    """Return the next report of a trial."""
    return result(trial.trial_id, trial.last_result.get("training_iteration", 0) + 1)


def save(trial: Any) -> Any:
    """Return a checkpoint of where a trial is; there is none on storage."""
    metrics = dict(trial.last_result)
    index = metrics["training_iteration"] - 1
    path = f"{trial.storage.trial_fs_path}/checkpoint_{index:06d}"
    return _TrainingResult(tune.Checkpoint(path), metrics)


@contextlib.contextmanager
def filled(kind: str, trials: int, directory: str) -> Iterator[tuple[Any, Actors]]:
    """Give a controller that has run a number of trials, and will run more when it steps.

    Args:
        kind: `vanilla` or `raytrials`.
        trials: how many.
        directory: where it writes.

    Yields:
        The controller, and its actors.
    """
    logging.disable(logging.CRITICAL)
    StorageContext._get_session_path = lambda _: f"{directory}/session"  # noqa: SLF001 - no Ray runs
    ray.cluster_resources = lambda: {"CPU": SLOTS}
    _ray.node_of_actor = lambda _: None
    tune.register_trainable("nothing", Nothing)
    experiment = Experiment(
        NAME,
        "nothing",
        config={"x": tune.uniform(0, 1), "lr": 1e-3},
        num_samples=10**9,
        storage_path=directory,
        stop=STOP,
        checkpoint_config=CHECKPOINTS,
    )
    search = BasicVariantGenerator()
    arguments = {"search_alg": search, "storage": experiment.storage}
    with contextlib.ExitStack() as stack:
        if kind == "vanilla":
            # What the state costs is measured by itself.
            controller = TuneController(**arguments, checkpoint_period=1e9)
            controller._actor_manager = Actors()  # noqa: SLF001 - as our own is replaced
        else:
            our_controller.ActorManager = Actors
            path = experiment.storage.experiment_fs_path
            lease = stack.enter_context(holding(LocalDisk(), path, retry_s=0))
            context = FitContext(
                RetryPolicy(), Checkpoints(), Still(), trainable_cls=Nothing, lease=lease
            )
            controller = Controller(context, **arguments)
            stack.callback(lambda: context.chronicle.close("measured"))
        search.add_configurations([experiment])
        controller.setup_experiments([experiment], search.total_samples)
        for number in range(trials):
            _run(controller, number, experiment.storage)
        actors = controller._actor_manager  # noqa: SLF001 - likewise
        actors.trial_of = controller._actor_to_trial  # noqa: SLF001 - likewise
        yield controller, actors


def _run(controller: Any, number: int, storage: Any) -> None:
    """Have a trial been run: all that is kept of it is there, and it has ended."""
    config = {"x": number, "lr": 1e-3}
    trial: Any = Trial(
        "nothing",
        config=config,
        evaluated_params=config,
        trial_id=f"aaaaa_{number:05d}",
        storage=storage,
        experiment_tag=f"{number}_x={number}",
        stopping_criterion=STOP,
        checkpoint_config=CHECKPOINTS,
    )
    controller.add_trial(trial)
    trial.init_local_path()
    is_ours = isinstance(trial, OurTrial)
    if is_ours:
        trial.begin_attempt()
        trial.on_start()
        recording.started(trial, None)
    controller._set_trial_status(trial, Trial.RUNNING)  # noqa: SLF001 - as the controller does
    for _ in range(RESULTS):
        reported = report(trial)
        if is_ours:
            trial.on_report(reported)
            recording.reported(trial, reported)
            trial.on_told(reported, "CONTINUE")
        trial.update_last_result(reported)
        trial.on_checkpoint(save(trial))
    controller.stop_trial(trial)
