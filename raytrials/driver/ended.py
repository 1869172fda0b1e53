"""What the driver still holds of a trial that has ended: what is asked for, and the rest packed.

Ray keeps all of every trial until the fit is over: the latest values of each metric, the reports of
its checkpoints, and its saved state as text. An ended trial is read seldom and changes hardly ever.
So its metadata is kept as the text that Ray saves, with the objects of it behind that; whoever asks
for one gets it, and whoever changes one has Ray's own metadata again.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ray.tune import Checkpoint

from raytrials import _ray
from raytrials.core.packed import Packed, Packer
from raytrials.driver.account import CONFIG
from raytrials.driver.trial import Trial

logger = logging.getLogger(__name__)

STEP_S = 0.005
"""How long trials are packed at each step of the loop, after the first."""

AGAIN_S = 60.0
"""How often it is looked for trials that somebody has unpacked."""

_STEPS = "metric_n_steps"  # of which nobody but Ray's own code for the next result makes use
_ANALYSIS = "metric_analysis"
_MANAGER = "checkpoint_manager"
_OBJECTS = (_ANALYSIS, _MANAGER)
_PACKED = "_packed"
_TEXT = "_cached_json"

_NUMBERS = (bool, int, float)
_SCALARS = (bool, int, float, str, type(None))
_CONTAINERS = (bytes, tuple, list, dict, set, frozenset, deque)
_RAY = (_ray.CheckpointManager, _ray.TrainingResult, Checkpoint)
_COPIED = frozenset((*_SCALARS, *_CONTAINERS, *_RAY))
"""Exact types whose objects are packed. All others stay the objects that they are."""


class _Contents:
    """Ray's text of a trial's metadata, and what cannot be made of that again as it was.

    One compressed stream: they say much the same, so the second costs little.

    Args:
        text: Ray's.
        objects: the analysis of its metrics, and its checkpoints.
        latest_path: of its latest checkpoint.
    """

    __slots__ = ("_kept", "_packed", "latest_path")
    _packer = Packer(6)

    def __init__(self, text: str, objects: dict[str, Any], latest_path: str | None) -> None:
        self.latest_path = latest_path
        self._kept: list[Any] = []
        if _is_json(objects[_ANALYSIS]):
            objects = {name: one for name, one in objects.items() if name != _ANALYSIS}
        data = io.BytesIO()
        _Pickler(data, self._kept).dump(objects)
        self._packed: Packed = self._packer.pack(f"{text}\0{data.getvalue().hex()}")

    @property
    def text(self) -> str:
        """Ray's text."""
        return str(self._packed).partition("\0")[0]

    def objects(self) -> dict[str, Any]:
        """Return analysis and checkpoints, made anew."""
        text, _, data = str(self._packed).rpartition("\0")
        found: dict[str, Any] = _Unpickler(io.BytesIO(bytes.fromhex(data)), self._kept).load()
        if _ANALYSIS not in found:
            found[_ANALYSIS] = json.loads(text)[_ANALYSIS]
        return found

    def steps(self) -> Any:
        """Return the latest values of each metric, made anew."""
        return _ray.TrainingRunMetadata.from_json_state(self.text).metric_n_steps


def _is_json(analysis: dict[str, dict[str, Any]]) -> bool:
    """Whether JSON brings the analysis of metrics as it is."""
    return all(
        type(name) is str and all(type(value) in _NUMBERS for value in one.values())
        for name, one in analysis.items()
    )


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file, 5)
        self._kept = kept
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if type(value) in _COPIED:
            return None
        number = self._numbers.setdefault(id(value), len(self._kept))
        if number == len(self._kept):
            self._kept.append(value)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, number: Any) -> Any:
        return self._kept[number]


class EndedMetadata(_ray.TrainingRunMetadata):  # type: ignore[misc]
    """Ray's metadata of a trial that has ended. Made by :func:`pack` only.

    What is asked for is unpacked. What is set makes Ray's own metadata of it first.
    """

    def __getattr__(self, name: str) -> Any:
        """Unpack what is asked for; Python asks for what is not there alone."""
        contents = self.__dict__.get(_PACKED)
        if contents is None or name not in {_STEPS, *_OBJECTS}:
            raise AttributeError(name)
        self._take({_STEPS: contents.steps()} if name == _STEPS else contents.objects())
        return self.__dict__[name]

    def _take(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.__dict__.setdefault(name, value)

    def kept_paths(self) -> list[str]:
        """Return the paths of the trial's checkpoints, the latest one last; unpacks nothing."""
        manager = self.__dict__.get(_MANAGER) or self.__dict__[_PACKED].objects()[_MANAGER]
        results = [*_ray.checkpoints_in(manager), manager.latest_checkpoint_result]
        return [result.checkpoint.path for result in results if result is not None]

    def unpack(self) -> None:
        """Become Ray's own metadata again."""
        contents = self.__dict__.pop(_PACKED)
        self._take({**contents.objects(), _STEPS: contents.steps()})
        self.__dict__[_TEXT] = None
        self.__class__ = _ray.TrainingRunMetadata

    def invalidate_cache(self) -> None:
        """Something is another now."""
        self.unpack()

    def get_json_state(self) -> str:
        """Return Ray's text."""
        if not self.is_packed:  # somebody may have changed what was unpacked
            self.unpack()
            return str(self.get_json_state())
        text: str = self.__dict__[_PACKED].text
        return text

    @property
    def is_packed(self) -> bool:
        """Whether nothing of it was asked for."""
        return not any(name in self.__dict__ for name in _OBJECTS)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle as Ray's own metadata."""
        contents = self.__dict__[_PACKED]
        made = {**contents.objects(), _STEPS: contents.steps()}
        state = {**made, **self.__dict__, _TEXT: None}
        del state[_PACKED]
        return (object.__new__, (_ray.TrainingRunMetadata,), state)


class PackedState(list[str]):
    """The two texts of a trial in Ray's saved state, unpacked one by one as they are written.

    Ray writes the texts of all trials at once. Its JSON encoder takes a list for what iterating it
    gives.
    """

    __slots__ = ("_metadata", "_state")
    _packer = Packer(6)

    def __init__(self, state: str, metadata: EndedMetadata) -> None:
        super().__init__()
        self._state = self._packer.pack(state)
        self._metadata = metadata

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        yield str(self._state)
        yield self._metadata.get_json_state()


def pack(trial: Trial) -> PackedState:
    """Let go of what a trial that has ended holds, as far as nobody can tell.

    Args:
        trial: nothing happens to it any more, as far as one knows.

    Returns:
        What Ray saves of it.
    """
    metadata = trial.run_metadata
    if isinstance(metadata, EndedMetadata) and not metadata.is_packed:
        metadata.unpack()
    _share(trial)
    state, text = trial.get_json_state()
    trial.forget_passing()
    if not isinstance(metadata, EndedMetadata):
        own: dict[str, Any] = metadata.__dict__
        objects = {name: own[name] for name in _OBJECTS}
        contents = _Contents(text, objects, latest_path(trial))
        for name in (*_OBJECTS, _STEPS, _TEXT):
            own.pop(name, None)
        own[_PACKED] = contents
        # Not by assignment: for Ray's class that is a change of what it says.
        object.__setattr__(metadata, "__class__", EndedMetadata)
    return PackedState(state, metadata)


def latest_path(trial: Trial) -> str | None:
    """Return the path of a trial's latest checkpoint, None if it has none; unpacks nothing."""
    contents = trial.run_metadata.__dict__.get(_PACKED)
    if contents is not None:
        return contents.latest_path  # type: ignore[no-any-return]
    checkpoint = trial.checkpoint
    return None if checkpoint is None else checkpoint.path


def _share(trial: Trial) -> None:
    """Let equal parts be one object."""
    if not isinstance(trial.run_metadata, EndedMetadata):
        filesystem = trial.storage.storage_filesystem
        for result in (*_ray.registered_checkpoints(trial), trial.latest_checkpoint_result):
            if result is not None:
                _intern_names(result.metrics)
                if _is_same_filesystem(result.checkpoint.filesystem, filesystem):
                    result.checkpoint.filesystem = filesystem
    last = trial.run_metadata.last_result
    _intern_names(last)
    if CONFIG in last and _is_alike(last[CONFIG], trial.config):
        last[CONFIG] = trial.config


def _intern_names(metrics: dict[str, Any]) -> None:
    if type(metrics) is dict and all(type(name) is str for name in metrics):
        items = [(sys.intern(name), value) for name, value in metrics.items()]
        metrics.clear()
        metrics.update(items)


def _is_same_filesystem(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one.equals(other))
    except Exception:  # noqa: BLE001 - the user's class may do anything
        return False


def _is_alike(one: Any, other: Any) -> bool:
    """Whether two values are the same plain ones, whatever objects they are."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return one.keys() == other.keys() and all(_is_alike(one[key], other[key]) for key in one)
    if kind in {list, tuple}:
        return len(one) == len(other) and all(map(_is_alike, one, other))
    return kind in _SCALARS and one == other


class Ended:
    """The trials that have ended in a controller.

    Args:
        may_pack: whether a trial that has ended is done with.
        keep: takes what Ray saves of one.
        release: lets go of what others hold of one: open files, and what is noted of it.
    """

    def __init__(
        self,
        may_pack: Callable[[Trial], bool],
        keep: Callable[[Trial, PackedState], None],
        release: Callable[[Trial], None],
    ) -> None:
        self._may_pack = may_pack
        self._keep = keep
        self._release = release
        self._waiting: dict[Trial, None] = {}
        self._factories: dict[Any, Any] = {}
        self._next_s = time.monotonic() + AGAIN_S

    def note(self, trial: Trial) -> None:
        """A trial is about to end."""
        self._waiting[trial] = None

    def tick(self, trials: Iterable[Trial]) -> None:
        """Pack some of those that have ended.

        Args:
            trials: all of them.
        """
        begun_s = time.monotonic()
        if begun_s >= self._next_s:
            self._next_s = begun_s + AGAIN_S
            self._waiting |= dict.fromkeys(one for one in trials if _is_unpacked(one))
        for trial in list(self._waiting):
            if not trial.is_finished():
                del self._waiting[trial]  # it is paused, or goes on after all
            elif self._may_pack(trial):
                del self._waiting[trial]
                self._pack(trial)
                if time.monotonic() - begun_s > STEP_S:
                    break

    def _pack(self, trial: Trial) -> None:
        factory = trial.placement_group_factory
        try:
            trial.placement_group_factory = self._factories.setdefault(factory, factory)
            if _is_unpacked(trial):
                self._release(trial)
            self._keep(trial, pack(trial))
        except Exception:
            # A user's class may do anything when it is pickled; Ray's own save will say so.
            logger.debug("%s stays as it is in memory.", trial, exc_info=True)
        _ray.forget_encoded()


def _is_unpacked(trial: Trial) -> bool:
    if not trial.is_finished():
        return False
    metadata = trial.run_metadata
    return not (isinstance(metadata, EndedMetadata) and metadata.is_packed)
