"""Where a new experiment is to be: from the making of its tuner to the start of its fit.

Nothing that an experiment holds is ever written over. A tuner that is made looks whether its path
is free; a fit looks again, as others may have been faster.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import posixpath
from typing import Any

from raytrials import _ray, settings
from raytrials.driver import space
from raytrials.driver.storage import TrialStorage
from raytrials.errors import ExperimentExistsError
from raytrials.store.disk import Disk
from raytrials.store.fence import FencedDisk
from raytrials.store.location import disk_of, resolve
from raytrials.store.occupant import names_in, occupant_of, remove
from raytrials.store.recovery import HOME, has_journal
from raytrials.store.retrying import retry
from raytrials.store.tenure import Lease
from raytrials.store.tunerfile import SPACE, TUNER, encode, write, write_tuner_file

logger = logging.getLogger(__name__)


class Beginning:
    """A new experiment's place.

    Stands for Ray's `StorageContext`, and for the filesystem in it, where Ray makes its internal
    tuner (`raytrials._ray.initialise_internal`): Ray resolves the path and hands over the bytes of
    `tuner.pkl`, and writes nothing.

    Args:
        run_config: of the tuner.
        overwrite: whether an experiment that is there goes when the new one starts.

    Attributes:
        path: of the experiment, on its storage; "" before Ray has resolved it.
        disk: where that is.
    """

    def __init__(self, run_config: Any, *, overwrite: bool) -> None:
        self.path = ""
        self._run_config = run_config
        self._overwrite = overwrite
        self._retry_s = settings.STORAGE_RETRY_S.get()
        self.disk: Disk
        self._occupied = False
        self._data = b""

    # --- what Ray asks for -----------------------------------------------------------------------

    def get_experiment_dir_name(self, trainable: Any) -> str:
        """Return a name that no directory has yet; Ray's own is the same for a whole second."""
        config = self._run_config
        filesystem, root = _ray.filesystem_and_path(config.storage_path, config.storage_filesystem)
        disk = disk_of(filesystem)
        fresh = name = _ray.fresh_name(trainable)
        number = 1
        while names_in(disk, posixpath.join(root, name), retry_s=self._retry_s):
            number += 1
            name = f"{fresh}_{number}"
        return name

    def __call__(
        self, storage_path: Any, experiment_dir_name: str, storage_filesystem: Any
    ) -> Beginning:
        """Resolve the path, and make the directory unless there is an experiment.

        Raises:
            ExperimentExistsError: there is one, and it is to stay; nothing was written.
        """
        filesystem, root = _ray.filesystem_and_path(storage_path, storage_filesystem)
        self.disk = disk_of(filesystem)
        self.path = posixpath.join(root, experiment_dir_name)
        self._occupied = self._look()
        if not self._occupied:
            TrialStorage(
                storage_path=storage_path,
                experiment_dir_name=experiment_dir_name,
                storage_filesystem=storage_filesystem,
            )
        return self

    @property
    def storage_filesystem(self) -> Beginning:
        """This, which takes what Ray writes."""
        return self

    @property
    def experiment_fs_path(self) -> str:
        """The path, as Ray names it."""
        return self.path

    def create_dir(self, path: str) -> None:
        """Nothing: the directory is there, or is not to be touched."""

    def open_output_stream(self, path: str) -> contextlib.AbstractContextManager[Beginning]:
        """Return what keeps the one file that Ray writes."""
        if posixpath.basename(path) != TUNER:
            raise NotImplementedError(f"Ray writes {path} too")
        return contextlib.nullcontext(self)

    def write(self, data: bytes) -> None:
        """Keep `tuner.pkl`."""
        self._data = data

    # --- ours ------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write `tuner.pkl`, as Ray does when a tuner is made; nothing over an experiment.

        Raises:
            StorageError: the storage failed for good.
        """
        if not self._occupied:
            write(self.disk, f"{self.path}/{TUNER}", self._data, retry_s=self._retry_s)

    def require_free(self) -> None:
        """Refuse what vanilla Ray began here meanwhile, before a lease is written beside it.

        One that raytrials began may have a driver: the wait for its lease names that.

        Raises:
            ExperimentExistsError: there is an experiment, and it is to stay.
        """
        if not has_journal(self.disk, f"{self.path}/{HOME}", retry_s=self._retry_s):
            self._look()

    def start(self, param_space: dict[str, Any] | None, lease: Lease) -> None:
        """Make way for the new experiment, and write what it will be restored with.

        Args:
            param_space: of the tuner.
            lease: of the experiment.

        Raises:
            ExperimentExistsError: another was started here meanwhile, or by this tuner.
            StorageError: the storage failed for good.
        """
        if self._look():
            remove(FencedDisk(self.disk, lease.check), self.path, retry_s=self._retry_s)
            logger.warning("The experiment that was at %s is removed.", self.path)
            self._occupied = False
        write_tuner_file(self.disk, self.path, self._data, retry_s=self._retry_s)
        self._keep_space(param_space)

    def _look(self) -> bool:
        """Whether there is an experiment. Raises ExperimentExistsError if it is to stay."""
        found = occupant_of(self.disk, self.path, retry_s=self._retry_s)
        if found and not self._overwrite:
            raise ExperimentExistsError(self.path, found)
        return bool(found)

    def _keep_space(self, param_space: dict[str, Any] | None) -> None:
        """Keep the functions and objects of a search space, of which Ray saves placeholders."""
        path = f"{self.path}/{HOME}/{SPACE}"
        data = None
        if _ray.placeholder_keys(param_space) and not space.references_in(
            space.describe(param_space)
        ):
            try:
                data = _ray.cloudpickle.dumps(param_space)
            except Exception:
                logger.warning(
                    "The param_space cannot be saved: a restore has to be given it.", exc_info=True
                )
        if data is not None:
            write(self.disk, path, encode(data), retry_s=self._retry_s)
        else:
            # Of one that was begun here before, and had come to nothing yet.
            delete = functools.partial(self.disk.delete_file, path)
            retry(self.disk, "deleting", path, delete, limit_s=self._retry_s)


def experiment_at(storage_path: str, name: str) -> str:
    """Return the path or URI of an experiment."""
    if "://" not in storage_path:
        return posixpath.join(storage_path, name)
    above, mark, query = storage_path.partition("?")
    return f"{above.rstrip('/')}/{name}{mark}{query}"


def is_free(path: str, filesystem: Any) -> bool:
    """Whether a path or URI holds no experiment. Raises StorageError."""
    resolved, on_it = resolve(path, filesystem)
    found = occupant_of(disk_of(resolved), on_it, retry_s=settings.STORAGE_RETRY_S.get())
    return not found
