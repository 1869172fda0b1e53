"""Committing a checkpoint: all of it, or none."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence

from raytrials.errors import SourceChangedError, StorageError
from raytrials.store.checkpoint import STAGING
from raytrials.store.copying import buffer_for, in_parallel, pump, shares_of
from raytrials.store.disk import Disk, Entry
from raytrials.store.manifest import (
    MANIFEST,
    RAY_METADATA,
    FileRecord,
    Header,
    Manifest,
    checkpoint_name,
    digest_of,
)
from raytrials.store.retrying import retry

DISPENSABLE_RETRY_S = 0.5
"""How long an empty file is tried again on an object store, which may take none at all."""


def commit(
    disk: Disk,
    directory: str,
    header: Header,
    source: tuple[Disk, str],
    *,
    retry_s: float,
) -> Manifest:
    """Copy a directory to storage as a checkpoint, and return its manifest.

    Each byte is read once: digests are taken of what is written. A manifest in the source, of the
    checkpoint that it was a copy of, is left out.

    Args:
        disk: where it goes.
        directory: the trial's directory there; the checkpoint's name is added.
        header: names it. Nothing may stand under that name yet.
        source: where it comes from, and the path of the directory there.
        retry_s: how long a storage that fails is tried again.

    Raises:
        StorageError: the storage failed for good. Nothing is committed, unless the answer to the
            very last step was lost; leftovers may stay.
        SourceChangedError: the source's files changed meanwhile, or it is not there.
    """
    name = checkpoint_name(header.index)
    final = f"{directory}/{name}"
    place = (
        f"{directory}/{STAGING}{header.index:06d}-{header.attempt}" if disk.has_rename else final
    )
    copy = _Copy(disk, place, *source, retry_s)
    copy.check_source_exists()
    copy.refuse_existing(final)
    try:
        copy.make_directories()
        manifest = Manifest(header, copy.copy_files())
        copy.check_source()
    except Exception:
        # Nothing is committed yet, and nobody else writes here. Who dies here leaves it to a sweep.
        with contextlib.suppress(Exception):
            disk.delete_tree(place)
        raise
    copy.write_manifest(manifest)
    if disk.has_rename:
        copy.rename(final, manifest)
    return manifest


class _Copy:
    """One copy on its way from a source to its place on storage."""

    def __init__(
        self, disk: Disk, place: str, source: Disk, source_path: str, retry_s: float
    ) -> None:
        self._disk = disk
        self._place = place
        self._source = source
        self._source_path = source_path
        self._retry_s = retry_s
        self._directories: list[str] = []
        self._entries = self._list_source()

    def _list_source(self) -> dict[str, Entry]:
        entries = retry(
            self._source,
            "listing",
            self._source_path,
            lambda: self._source.list_files(self._source_path),
            limit_s=self._retry_s,
        )
        entries.pop(MANIFEST, None)
        return entries

    def _do(self, what: str, path: str, operation: Callable[[], None]) -> None:
        retry(self._disk, what, path, operation, limit_s=self._retry_s)

    def check_source_exists(self) -> None:
        if self._entries:
            return
        above, _, name = self._source_path.rstrip("/").rpartition("/")
        if name not in self._source.list_names(above or "/"):
            raise SourceChangedError(self._source_path, "there is no such directory")

    def refuse_existing(self, final: str) -> None:
        names = retry(
            self._disk,
            "listing",
            final,
            lambda: self._disk.list_names(final),
            limit_s=self._retry_s,
        )
        if names:
            detail = f"it holds {len(names)} files of another commit"
            raise StorageError("commit", final, "refused", detail)

    def make_directories(self) -> None:
        self._directories = retry(
            self._source,
            "listing",
            self._source_path,
            lambda: self._source.list_directories(self._source_path),
            limit_s=self._retry_s,
        )
        if self._disk.has_rename:
            # What a failed commit of the same name left would be taken for part of this one.
            self._do("clearing", self._place, lambda: self._disk.delete_tree(self._place))
        for below in ("", *self._directories):
            path = f"{self._place}/{below}".rstrip("/")
            self._do("making a directory", path, functools.partial(self._disk.make_directory, path))

    def copy_files(self) -> dict[str, FileRecord]:
        sizes = {name: entry.size for name, entry in self._entries.items()}
        records: dict[str, FileRecord] = {}

        def copy_share(share: Sequence[str]) -> None:
            buffer = buffer_for(self._source, self._disk)
            for name in share:
                records[name] = self._copy_file(name, buffer)

        in_parallel(copy_share, shares_of(list(sizes), sizes, self._disk))
        records.pop(RAY_METADATA, None)
        return records

    def _copy_file(self, name: str, buffer: memoryview) -> FileRecord:
        target = f"{self._place}/{name}"

        def once() -> FileRecord:
            with (
                self._source.open(f"{self._source_path}/{name}") as reader,
                self._disk.create(target) as writer,
            ):
                return pump(reader, buffer, writer, expected)

        expected = self._entries[name].size
        dispensable = expected == 0 and not self._disk.has_rename
        limit_s = min(DISPENSABLE_RETRY_S, self._retry_s) if dispensable else self._retry_s
        try:
            record = retry(self._disk, "writing", target, once, limit_s=limit_s)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError) and name not in self._list_source():
                raise SourceChangedError(self._source_path, f"{name} was deleted") from error
            if not dispensable or error.kind in {"full", "forbidden"}:
                raise
            # Some stores take no empty files: the manifest alone tells of this one.
            record = FileRecord(0, digest_of(b""), omitted=True)
        if record.size != expected:
            detail = f"{name} had {expected} bytes, then {record.size}"
            raise SourceChangedError(self._source_path, detail)
        return record

    def check_source(self) -> None:
        now = self._list_source()
        changed = sorted(
            (now.keys() | self._entries.keys())
            - {name for name, entry in now.items() if self._entries.get(name) == entry}
        )
        if changed:
            raise SourceChangedError(self._source_path, f"{', '.join(changed[:3])} changed")

    def write_manifest(self, manifest: Manifest) -> None:
        # The names of the files are durable before the manifest says that they are there.
        for below in reversed(("", *self._directories)):
            path = f"{self._place}/{below}".rstrip("/")
            self._do("syncing", path, functools.partial(self._disk.sync, path))
        path = f"{self._place}/{MANIFEST}"
        data = manifest.encode()
        self._do("writing", path, lambda: self._disk.write(path, data))

    def rename(self, final: str, manifest: Manifest) -> None:
        def once() -> None:
            try:
                self._disk.rename(self._place, final)
            except OSError:
                if not is_done():
                    raise

        def is_done() -> bool:
            """Whether it worked, and only the answer was lost."""
            with contextlib.suppress(FileNotFoundError):
                return self._disk.read(f"{final}/{MANIFEST}") == manifest.encode()
            return False

        parent = os.path.dirname(final)  # noqa: PTH120 - a path on the store, not here
        self._do("syncing", self._place, lambda: self._disk.sync(self._place))
        self._do("renaming", final, once)
        self._do("syncing", parent, lambda: self._disk.sync(parent))
