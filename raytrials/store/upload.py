"""Uploading a directory whose files are written again and again, such as a driver's state."""

from __future__ import annotations

import contextlib
import functools
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs

from raytrials.errors import StorageError
from raytrials.store.copying import buffer_for, pump
from raytrials.store.disk import Disk, Entry, Reader
from raytrials.store.local import LocalDisk
from raytrials.store.location import disk_of
from raytrials.store.retrying import retry


class Upload:
    """The upload of local directories, again and again; what is there unchanged is left out.

    A file on storage is whole at every moment: the new one takes the place of the old one in one
    step. The files directly in a directory go last, and are durable when they have arrived.

    Args:
        filesystem: where it goes.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem) -> None:
        self._durable = disk_of(filesystem)
        self._quick = disk_of(filesystem, fsync=False)
        self._arrived: dict[str, Entry] = {}

    def run(
        self,
        source: str,
        target: str,
        *,
        retry_s: float,
        writing: contextlib.AbstractContextManager[object],
    ) -> None:
        """Upload what has changed below a local directory.

        Args:
            source: the directory.
            target: where its files go.
            retry_s: how long a storage that fails is tried again, for all files together.
            writing: entered while the files directly in the directory are read; whoever writes
                them holds it, so that no half-written one is taken.

        Raises:
            StorageError: the first failure of those that no retry mended; other files have arrived.
        """
        until_s = time.monotonic() + retry_s
        failures: list[StorageError] = []
        with writing:
            changed = {
                name: entry
                for name, entry in LocalDisk().list_files(source).items()
                if self._arrived.get(f"{target}/{name}") != entry
            }
            read = {name: Path(source, name).read_bytes() for name in changed if "/" not in name}
        for name in sorted(changed, key=lambda name: (name in read, name)):
            path = f"{target}/{name}"
            opener: Callable[[], Any] = functools.partial(LocalDisk().open, f"{source}/{name}")
            if name in read:
                opener = functools.partial(io.BytesIO, read[name])
            disk = self._durable if name in read else self._quick
            try:
                _send(opener, disk, path, until_s - time.monotonic())
            except StorageError as error:
                if Path(source, name).exists():
                    failures.append(error)
            else:
                self._arrived[path] = changed[name]
        if failures:
            raise failures[0]


def _send(
    opener: Callable[[], contextlib.AbstractContextManager[Reader]],
    disk: Disk,
    path: str,
    limit_s: float,
) -> None:
    directory, _, name = path.rpartition("/")
    place = f"{directory}/.{name}.partial" if disk.has_rename else path
    buffer = buffer_for(disk)

    def once() -> None:
        disk.make_directory(directory)
        try:
            with opener() as reader, disk.create(place) as writer:
                pump(reader, buffer, writer)
            if disk.has_rename:
                disk.replace(place, path)
                disk.sync(directory)
        except Exception:
            if disk.has_rename:
                with contextlib.suppress(OSError):
                    disk.delete_file(place)
            raise

    retry(disk, "writing", path, once, limit_s=limit_s)
