"""When Ray's own state of an experiment is written.

It is for readers without raytrials: a restore reads the journal. And it is written whole, all
trials of it, so it must not take the driver's time from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytrials import _ray

LEAST_S = 60.0
"""How long it is from the end of one write to the next at least."""

REST = 20
"""How often as long as a write took it is from its end to the next: they take 5 % of the time."""


class RayState(_ray.ExperimentCheckpointManager):  # type: ignore[misc]
    """What writes and uploads Ray's state, in a pace that what it costs decides.

    Ray's own also forces an upload whenever a trial has saved `num_to_keep` checkpoints.

    Args:
        storage: of the experiment.
        has_news: whether something has happened that is not in the state on storage. What is forced
            is written anyway.
    """

    def __init__(self, storage: Any, has_news: Callable[[], bool]) -> None:
        super().__init__(storage=storage, checkpoint_period=LEAST_S)
        self._has_news = has_news

    def sync_up_experiment_state(
        self,
        save_fn: Callable[[], None],
        force: bool = False,  # noqa: FBT001, FBT002 - Ray's signature
        wait: bool = False,  # noqa: FBT001, FBT002 - likewise
    ) -> None:
        """Write and upload the state, if it is time and there is something new, or `force`."""
        if force or self._has_news():
            super().sync_up_experiment_state(save_fn, force=force, wait=wait)

    def _update_auto_checkpoint_time(self, time_taken: float) -> None:
        # Ray's name for the pace; it calls this after each write.
        self._checkpoint_period = max(LEAST_S, REST * time_taken)
