"""`tuner.pkl`, which every restore needs: written whole, and kept twice.

Ray writes it into the experiment's directory, in place and once. Here it is replaced in one step,
and a copy with its digest is kept in `.raytrials/tuner.bin`, which says whether Ray's file is what
was written, and takes its place if not. `docs/formats.md` describes it. Nothing here unpickles.
"""

from __future__ import annotations

import functools
import json
import pickletools
from dataclasses import dataclass
from typing import Any

from raytrials.errors import ExperimentCorruptError, NewerFormatError, StorageError
from raytrials.store.disk import Disk
from raytrials.store.manifest import digest_of
from raytrials.store.recovery import HOME
from raytrials.store.retrying import retry

VERSION = 1
TUNER = "tuner.pkl"
COPY = "tuner.bin"
SPACE = "space.bin"
"""The search space, in the same form; only where Ray's files do not hold enough of it."""

_SEPARATOR = b',"digest":"'


class DamagedCopyError(ValueError):
    """A file with a digest is not as it was written."""


def encode(data: bytes) -> bytes:
    """Return `data` as the bytes of a file with a digest: a line of JSON, then `data`."""
    fields = {"version": VERSION, "size": len(data), "content": digest_of(data)}
    body = json.dumps(fields, separators=(",", ":")).encode()
    return body[:-1] + _SEPARATOR + digest_of(body).encode() + b'"}\n' + data


def decode(file: bytes, what: str = "copy of tuner.pkl") -> bytes:
    """Return what :func:`encode` was given.

    Args:
        file: the bytes of the file.
        what: it is, for messages.

    Raises:
        DamagedCopyError: it is not whole, to the byte.
        NewerFormatError: it is of a newer version.
    """
    fields = _header_of(file, what)
    data = file.partition(b"\n")[2]
    if len(data) != fields["size"]:
        raise DamagedCopyError(f"it holds {len(data)} bytes of {fields['size']}")
    if digest_of(data) != fields["content"]:
        raise DamagedCopyError("its content is damaged")
    return data


def _header_of(file: bytes, what: str) -> dict[str, Any]:
    """Return what the first line says of the rest. Raises as :func:`decode`."""
    head, _, tail = file.partition(b"\n")[0].rpartition(_SEPARATOR)
    if tail != digest_of(head + b"}").encode() + b'"}':
        raise DamagedCopyError("its first line is damaged" if file else "it is empty")
    fields: dict[str, Any] = json.loads(head + b"}")
    if fields["version"] > VERSION:
        raise NewerFormatError(fields["version"], VERSION, what)
    return fields


def is_of(file: bytes, data: bytes) -> bool:
    """Whether `data` is what a file was made of by :func:`encode`; its first line alone decides.

    True as well when that line is damaged, and nobody can tell.
    """
    try:
        return bool(_header_of(file, "copy of tuner.pkl")["content"] == digest_of(data))
    except DamagedCopyError:
        return True


@dataclass(frozen=True)
class TunerFile:
    """What an experiment is restored with.

    Attributes:
        data: the pickle, as it was written where there is a whole copy.
        damage: what is wrong with Ray's file, in words; "" if it is whole, as far as can be told.
        copy: whether there is a whole copy.
        copy_damage: what is wrong with the copy, in words; "" if nothing, or there is none.
    """

    data: bytes
    damage: str = ""
    copy: bool = False
    copy_damage: str = ""


def read_tuner_file(disk: Disk, experiment: str, *, retry_s: float) -> TunerFile | None:
    """Return what an experiment is restored with; None if neither file is there.

    Args:
        disk: where the experiment is.
        experiment: its directory.
        retry_s: how long a storage that fails is tried again.

    Raises:
        ExperimentCorruptError: Ray's file is missing or not whole, and so is the copy.
        NewerFormatError: the copy is of a newer version.
        StorageError: the storage failed for good.
    """
    own = read(disk, f"{experiment}/{TUNER}", retry_s=retry_s)
    file = read(disk, f"{experiment}/{HOME}/{COPY}", retry_s=retry_s)
    if own is None and file is None:
        return None
    kept, problem = None, ""
    if file is not None:
        try:
            kept = decode(file)
        except DamagedCopyError as error:
            problem = str(error)
    if kept is not None:
        return TunerFile(kept, damage=_difference(own, kept), copy=True)
    damage = _damage_of(own)
    if own and file is not None and not damage and not is_of(file, own):
        damage = "its bytes are not those that were written"
    if damage or own is None:
        beside = f", and its copy {HOME}/{COPY} is damaged: {problem}" if problem else ""
        raise ExperimentCorruptError(f"{experiment}/{TUNER}", f"{damage}{beside}")
    return TunerFile(own, copy_damage=problem)


def _difference(own: bytes | None, kept: bytes) -> str:
    if own is None:
        return "it is missing"
    if not own:
        return "it is empty"
    if len(own) != len(kept):
        return f"it has {len(own)} bytes, and {len(kept)} were written"
    return "" if own == kept else "its bytes are not those that were written"


def _damage_of(data: bytes | None) -> str:
    """Return what is wrong with a pickle that there is no digest of; "" if it has its end."""
    if data is None:
        return "it is missing"
    if not data:
        return "it is empty"
    try:
        for _ in pickletools.genops(data):
            pass
    except Exception as error:  # noqa: BLE001 - whatever the bytes make of it
        return f"it is no whole pickle: {error}"
    return ""


def read(disk: Disk, path: str, *, retry_s: float) -> bytes | None:
    """Return a file's bytes; None if there is none.

    Raises:
        StorageError: the storage failed for good.
    """
    try:
        return retry(disk, "reading", path, functools.partial(disk.read, path), limit_s=retry_s)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def write(disk: Disk, path: str, data: bytes, *, retry_s: float) -> None:
    """Put a file in its place in one step, durable on return. Its directory is made.

    Raises:
        StorageError: the storage failed for good; what was there before stays.
    """
    directory, _, name = path.rpartition("/")
    partial = f"{directory}/.{name}.partial"

    def once() -> None:
        disk.make_directory(directory)
        if not disk.has_rename:
            disk.write(path, data)
            return
        disk.write(partial, data)
        disk.replace(partial, path)
        disk.sync(directory)
        disk.sync(directory.rpartition("/")[0] or "/")

    retry(disk, "writing", path, once, limit_s=retry_s)


def write_tuner_file(disk: Disk, experiment: str, data: bytes, *, retry_s: float) -> None:
    """Write what an experiment is restored with: the copy, then Ray's file.

    What is there already is not written again.

    Raises:
        StorageError: the storage failed for good.
    """
    for path, content in (
        (f"{experiment}/{HOME}/{COPY}", encode(data)),
        (f"{experiment}/{TUNER}", data),
    ):
        if read(disk, path, retry_s=retry_s) != content:
            write(disk, path, content, retry_s=retry_s)
