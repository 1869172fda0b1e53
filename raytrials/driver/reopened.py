"""An experiment that is taken up again: what is found of it is whole, or a typed error.

A restore only reads. What it found damaged, and had another copy of, is written again when the fit
starts.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ray import exceptions
from ray.tune import ExperimentAnalysis

from raytrials import _ray, settings
from raytrials.driver import space
from raytrials.errors import (
    ExperimentCorruptError,
    JournalCorruptError,
    MissingCodeError,
    NotAnExperimentError,
    RaytrialsError,
    SearchSpaceChangedError,
    SearchSpaceNeededError,
    StorageError,
)
from raytrials.store.disk import Disk
from raytrials.store.location import disk_of, resolve
from raytrials.store.occupant import names_in, occupant_of, whole_states
from raytrials.store.recovery import HOME, JOURNAL, has_journal, recover
from raytrials.store.saved import is_state_file, read_saved
from raytrials.store.tunerfile import (
    SPACE,
    TUNER,
    DamagedCopyError,
    TunerFile,
    decode,
    read,
    read_tuner_file,
    write_tuner_file,
)

logger = logging.getLogger(__name__)


class Reopened:
    """What is found of an experiment that is to go on.

    Args:
        path: of the experiment: a path, a URI, or a path on `filesystem`.
        filesystem: of pyarrow, None if the path tells.

    Attributes:
        path: on its storage.
        disk: where that is.
        results_error: why there are no results to show, None if nothing is wrong with them.
        lost: what the journal says is not exact, by part.

    Raises:
        NotAnExperimentError: nothing was ever started there.
        ExperimentCorruptError: what a restore needs is damaged, and nothing mends it.
        JournalCorruptError, NewerFormatError, IllegalEventError: as
            `raytrials.store.recovery.recover`.
        StorageError: the storage failed for good.
    """

    def __init__(self, path: str, filesystem: Any) -> None:
        self._filesystem, on_it = resolve(path, filesystem)
        self.disk = disk_of(self._filesystem)
        self.path = on_it.rstrip("/")
        self.results_error: Exception | None = None
        self.lost: Mapping[str, str] = {}
        self._retry_s = settings.STORAGE_RETRY_S.get()
        self._described: Mapping[str, Any] | None = None
        self._tuner = self._find()
        if self._tuner.damage:
            logger.warning(
                "%s/%s is damaged: %s. Its copy in %s is used; the file is written again when "
                "fit() starts.",
                self.path,
                TUNER,
                self._tuner.damage,
                HOME,
            )

    def _find(self) -> TunerFile:
        found = read_tuner_file(self.disk, self.path, retry_s=self._retry_s)
        home = f"{self.path}/{HOME}"
        if has_journal(self.disk, home, retry_s=self._retry_s):
            if found is None:
                raise ExperimentCorruptError(f"{self.path}/{TUNER}", "it is missing")
            recovered = recover(self.disk, home, retry_s=self._retry_s)
            self._described = recovered.state.param_space
            self.lost = recovered.state.lost
            return found
        if found is None:
            occupant = occupant_of(self.disk, self.path, retry_s=self._retry_s)
            if not occupant:
                raise NotAnExperimentError(self.path, "nothing was started there")
            raise ExperimentCorruptError(f"{self.path}/{TUNER}", "it is missing")
        self.find_state()
        if _had_journal(self.disk, self.path, self._retry_s):
            # Ray's state alone is older than what was done, and would pass for all there was.
            raise JournalCorruptError(f"{home}/{JOURNAL}", None, "it is gone, and there was one")
        return found

    def find_state(self) -> str:
        """Return the path of the newest state file of Ray's that is whole.

        Raises:
            NotAnExperimentError: nothing was ever started.
            ExperimentCorruptError: there is no whole one.
        """
        first = ""
        for name, problem in self._states():
            if not problem:
                if first:
                    logger.warning("%s. The older %s is used.", first, name)
                return f"{self.path}/{name}"
            if not first:
                newest = name
                first = f"{name} is damaged: {problem}"
        if not first:
            occupant = occupant_of(self.disk, self.path, retry_s=self._retry_s)
            if not occupant:
                raise NotAnExperimentError(self.path, "its tuner was made, and never fitted")
            raise ExperimentCorruptError(
                f"{self.path}/experiment_state-*.json", f"there is none, but {occupant}"
            )
        raise ExperimentCorruptError(f"{self.path}/{newest}", first.partition(": ")[2])

    def _states(self) -> Iterator[tuple[str, str]]:
        return whole_states(self.disk, self.path, retry_s=self._retry_s)

    def state_without(self, mark: str) -> dict[str, Any] | None:
        """Return the newest state of Ray's that is whole, unless its session wrote a mark into it.

        None also if there is no state. Raises StorageError.
        """
        names = names_in(self.disk, self.path, retry_s=self._retry_s)
        for name in sorted(filter(is_state_file, names), reverse=True):
            data = read(self.disk, f"{self.path}/{name}", retry_s=self._retry_s)
            session = name.partition("-")[2].removesuffix(".json")
            if data is None or f'"{mark}": "{session}"'.encode() in data:
                return None
            with contextlib.suppress(ValueError, RecursionError):
                state = json.loads(data)
                if isinstance(state, dict) and state.get("trial_data"):
                    return state
            logger.warning("%s is damaged: what it alone tells is not taken over.", name)
        return None

    # --- what Ray asks for -----------------------------------------------------------------------

    def load(self) -> dict[str, Any]:
        """Return what `tuner.pkl` holds.

        Raises:
            MissingCodeError: it needs a module, or a name in one, that is not found here.
            ExperimentCorruptError: it cannot be unpickled.
        """
        file = f"{self.path}/{TUNER}"
        state = _unpickled(self._tuner.data, file)
        if not isinstance(state, dict):
            raise ExperimentCorruptError(file, f"it holds a {type(state).__name__}, and no tuner")
        return state

    def analyse(
        self, experiment_checkpoint_path: str, *, storage_filesystem: Any, **defaults: Any
    ) -> ExperimentAnalysis:
        """Return the results in the newest state file that they can be read from.

        Args:
            experiment_checkpoint_path: Ray's; the place is known.
            storage_filesystem: likewise.
            **defaults: as Ray's.

        Raises:
            ValueError: there is no state file.
            RaytrialsError: none can be read; it is kept as `results_error`, as Ray drops it.
            RayError: likewise, where Ray has to be started first.
        """
        del experiment_checkpoint_path, storage_filesystem
        for name, found in self._states():
            path, problem = f"{self.path}/{name}", found
            if not problem:
                try:
                    return ExperimentAnalysis(path, storage_filesystem=self._filesystem, **defaults)
                except exceptions.RayError as error:
                    # References in it are read only where Ray runs, and are no damage.
                    self.results_error = error
                    raise
                except (ImportError, AttributeError) as error:
                    self.results_error = MissingCodeError(path, str(error))
                    raise self.results_error from error
                except Exception as error:  # noqa: BLE001 - whatever the pickles in it make of it
                    problem = f"{type(error).__name__}: {error}"
            self.results_error = self.results_error or ExperimentCorruptError(path, problem)
            logger.warning("No results are read from %s: %s.", path, problem)
        raise self.results_error or ValueError("no state file")

    # --- ours ------------------------------------------------------------------------------------

    @property
    def has_journal(self) -> bool:
        """Whether the experiment's own search space is known."""
        return self._described is not None

    def check_space(self, param_space: dict[str, Any]) -> None:
        """Compare a search space with the experiment's.

        Raises:
            SearchSpaceChangedError: it is another.
        """
        differences = space.difference(self._described or {}, space.describe(param_space))
        if differences:
            raise SearchSpaceChangedError(self.path, tuple(differences))

    def complete_space(self, param_space: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the search space that a fit goes on with: the given one, or what is saved of it.

        None if Ray's own files hold enough of it.

        Raises:
            SearchSpaceNeededError: none is given, and the saved one does not do.
        """
        if param_space is not None:
            return param_space
        described = self._described or {}
        lost = space.references_in(described)
        if lost:
            raise SearchSpaceNeededError(self.path, tuple(lost))
        file = f"{self.path}/{HOME}/{SPACE}"
        data = read(self.disk, file, retry_s=self._retry_s)
        if data is None:
            return None
        try:
            kept: dict[str, Any] = _unpickled(decode(data, "search space"), file)
        except (DamagedCopyError, ExperimentCorruptError, MissingCodeError) as error:
            keys = tuple(described) or ("all keys",)
            raise SearchSpaceNeededError(self.path, keys) from error
        return kept

    def mend(self) -> None:
        """Write again what was damaged, and the copy if there was none. Raises StorageError."""
        write_tuner_file(self.disk, self.path, self._tuner.data, retry_s=self._retry_s)


def _unpickled(data: bytes, file: str) -> Any:
    try:
        return _ray.cloudpickle.loads(data)
    except exceptions.RayError:
        raise  # it holds references, which are read only where Ray runs
    except (ImportError, AttributeError) as error:
        raise MissingCodeError(file, str(error)) from error
    except Exception as error:
        detail = f"it cannot be unpickled: {type(error).__name__}: {error}"
        raise ExperimentCorruptError(file, detail) from error


def is_restorable(path: str, filesystem: Any) -> bool:
    """Return whether a restore would find an experiment at a path, and find it whole.

    Raises:
        StorageError: the storage does not answer.
    """
    retry_s = settings.STORAGE_RETRY_S.get()
    try:
        resolved, on_it = resolve(path, filesystem)
        return _is_whole(disk_of(resolved), on_it.rstrip("/"), retry_s)
    except StorageError as error:
        # Such as a name that no file can have, or a bucket that is not there.
        if error.kind == "refused" and isinstance(error.__cause__, OSError | ValueError):
            return False
        raise
    except (RaytrialsError, ImportError, TypeError, ValueError):
        return False


def _is_whole(disk: Disk, path: str, retry_s: float) -> bool:
    if read_tuner_file(disk, path, retry_s=retry_s) is None:
        return False
    if has_journal(disk, f"{path}/{HOME}", retry_s=retry_s):
        recover(disk, f"{path}/{HOME}", retry_s=retry_s)
        return True
    if _had_journal(disk, path, retry_s):
        return False
    return any(not problem for _, problem in whole_states(disk, path, retry_s=retry_s))


def _had_journal(disk: Disk, path: str, retry_s: float) -> bool:
    """Whether Ray's state was written by raytrials, which makes the journal durable before."""
    names = names_in(disk, path, retry_s=retry_s)
    return any(one.ours for one in read_saved(disk, path, names, retry_s=retry_s).values())
