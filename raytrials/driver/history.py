"""The history of a trial in its files: one row for each iteration, whatever died.

Ray's loggers append to files on the driver's disk, which may be gone with it, and go on with
whatever they find on storage. So before an attempt logs anything, :class:`History` brings the
trial's files to the rows up to what the attempt continues from. How a file is read and mended is
`raytrials.driver.logfile`; which results the loggers are told is the controller's.
"""

from __future__ import annotations

import functools
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback

from raytrials import _ray
from raytrials.core.state import Row
from raytrials.driver import logfile
from raytrials.driver.checkpoints import DRIVER_RETRY_S
from raytrials.driver.logfile import (
    ITERATION,
    CsvFile,
    JsonFile,
    LogFile,
    Result,
    iteration_of,
)
from raytrials.errors import StorageError
from raytrials.store.copying import buffer_for, pump
from raytrials.store.location import disk_of
from raytrials.store.retrying import retry

logger = logging.getLogger(__name__)

Rows = Callable[[], Iterable[Row | Mapping[str, Any]]]
"""What the journal has of a trial's history; of two rows of an iteration the later counts."""

_LOGGERS: tuple[tuple[LogFile, Any], ...] = (
    (JsonFile(), JsonLoggerCallback),
    (CsvFile(), CSVLoggerCallback),
)


class History:
    """The files of the trials of one `fit()`. Only those that some logger writes are touched.

    From its making on the loggers do not fetch from storage what was restored here, continue a
    table in the columns that it has, and have TensorBoard forget the steps that are run again.

    Args:
        callbacks: Ray's `CallbackList`, set up.
    """

    def __init__(self, callbacks: Any) -> None:
        self._callbacks = callbacks
        # With the gaps that nobody could fill, which then are the user's own.
        self._restored: dict[tuple[str, str], set[logfile.Gap]] = {}
        self._purge_steps: dict[str, int] = {}
        self._writers: _ray.Writers = {}
        _ray.keep_longer_logs(callbacks, self._restored)
        _ray.continue_tables(callbacks)
        _ray.purge_steps(callbacks, self._purge_steps, self._writers)

    def release(self, trial: _ray.Trial) -> None:
        """Close the files of a trial that has ended, and forget it."""
        _ray.release_logs(self._callbacks, trial, self._writers)
        for file, _ in _LOGGERS:
            self._restored.pop((trial.trial_id, file.name), None)
        self._purge_steps.pop(trial.local_path, None)

    def close(self) -> None:
        """Close all files, and leave the loggers as they were."""
        _ray.close_logs(self._callbacks)
        for writers in self._writers.values():
            _ray.close_writers(writers)
        _ray.leave_loggers(self._callbacks)

    def restore(
        self,
        trial: _ray.Trial,
        from_iteration: int,
        rows: Rows = tuple,
        report: Mapping[str, Any] | None = None,
    ) -> None:
        """Bring a trial's files to exactly its rows up to an iteration.

        To be called whenever the trial goes back, or goes on under another driver, before it logs
        anything more; best before `on_trial_start`, but a logger that has a file open opens it
        again. Nothing is written where the files are right. No error: what fails is logged.

        Args:
            trial: its local path is set.
            from_iteration: what it continues from, 0 for the beginning. If it continues from
                another trial's checkpoint, no more than its own latest iteration.
            rows: asked only when rows are missing here and on storage; it may raise.
            report: the report of `from_iteration` with Ray's own values, None if that is not known.
        """
        journal = functools.cache(lambda: list(_asked(trial, rows)))
        found: list[Result] = []
        for file, kind in _LOGGERS:
            loggers = [one for one in self._callbacks if isinstance(one, kind)]
            if not loggers:
                continue
            # The table has the rows that the other file has, should its own be lost.
            others: logfile.Source = functools.partial(list, found)
            try:
                found = logfile.restore(
                    file,
                    Path(trial.local_path),
                    from_iteration,
                    functools.partial(_copy, trial, file),
                    [others, journal],
                    report=report,
                    gaps=self._restored.get((trial.trial_id, file.name), ()),
                    before_writing=functools.partial(_close, loggers, kind, trial),
                )
                self._note(trial, file, found, from_iteration)
            except Exception:
                # Also what a user's own logger raises: a table is not worth a fit.
                logger.warning(
                    "Could not bring %s of %s to iteration %d.",
                    file.name,
                    trial,
                    from_iteration,
                    exc_info=True,
                )

    def _note(
        self, trial: _ray.Trial, file: LogFile, found: list[Result], from_iteration: int
    ) -> None:
        gaps = logfile.gaps_in(map(iteration_of, found))
        self._restored[trial.trial_id, file.name] = gaps
        last = found[-1] if found else {}
        if from_iteration and iteration_of(last) != from_iteration:
            logger.warning(
                "%s of %s lacks the row of iteration %d, which is nowhere to be found.",
                file.name,
                trial,
                from_iteration,
            )
        # TensorBoard's steps are these.
        step = last.get("timesteps_total") or iteration_of(last) or from_iteration
        self._purge_steps[trial.local_path] = int(float(step)) + 1


def _close(loggers: Sequence[Any], kind: Any, trial: _ray.Trial) -> None:
    """Have loggers close a trial's file; they open it again by themselves."""
    for one in loggers:
        # Not the user's override of it: the trial does not end.
        kind.log_trial_end(one, trial)


def _asked(trial: _ray.Trial, rows: Rows) -> Iterator[Result]:
    """Yield what the journal gives, until it fails."""
    try:
        for row in rows():
            yield {**row.metrics, ITERATION: row.iteration} if isinstance(row, Row) else row
    except Exception:
        logger.warning("Could not read the history of %s in the journal.", trial, exc_info=True)


def _copy(trial: _ray.Trial, file: LogFile) -> list[Result]:
    """Return the rows of a file as it was uploaded; none if it was not, or cannot be read."""
    path = f"{trial.path}/{file.name}"
    disk = disk_of(trial.storage.storage_filesystem)

    def once() -> bytes:
        data = io.BytesIO()
        with disk.open(path) as reader:
            pump(reader, buffer_for(disk), data)
        return data.getvalue()

    try:
        return file.parse(retry(disk, "reading", path, once, limit_s=DRIVER_RETRY_S)).rows
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            logger.warning("Could not read %s of %s.", file.name, trial, exc_info=True)
        return []
