"""The manifest of a checkpoint: what belongs to it, to the byte.

A manifest is one JSON object in the file `.raytrials-manifest.json` of a checkpoint's directory,
written last. `docs/formats.md` describes it. Reading checks the manifest's own digest, and that
there is not one byte more or less than what writing would give.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from raytrials.core.plain import plain_metrics
from raytrials.errors import CorruptManifestError, NewerFormatError

MANIFEST = ".raytrials-manifest.json"
VERSION = 1

RAY_METADATA = ".metadata.json"
"""What Ray keeps in a checkpoint, and writes when it likes: no part of what was committed."""

_NAME = re.compile(r"checkpoint_(\d{6,})")


def checkpoint_name(index: int) -> str:
    """Return the name of the directory of the checkpoint with an index, as Ray names it."""
    return f"checkpoint_{index:06d}"


def index_of(name: str) -> int | None:
    """Return the index in a checkpoint's name; None if it is not one."""
    found = _NAME.fullmatch(name)
    return int(found.group(1)) if found else None


def digest_of(data: bytes | memoryview) -> str:
    """Return the xxh3_128 digest of `data`, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


@dataclass(frozen=True)
class FileRecord:
    """A file of a checkpoint.

    Attributes:
        size: in bytes.
        digest: xxh3_128 of its bytes, 32 hex digits.
        omitted: the store took no empty file, so there is none; it is made when the checkpoint is
            loaded.
    """

    size: int
    digest: str
    omitted: bool = False


@dataclass(frozen=True)
class Header:
    """Whose checkpoint it is, and of what moment.

    Attributes:
        experiment: id of the experiment; the same over all its drivers and moves.
        trial: id of the trial.
        attempt: the attempt of the trial that made it, from 1.
        epoch: the lease epoch of its driver, 0 without a lease.
        index: the number in its name.
        iteration: the `training_iteration` that it holds, 0 if none is known.
        time: seconds since the epoch on the worker's clock.
        metrics: the report that it belongs to; plain JSON values, NaN and infinities included.
    """

    experiment: str
    trial: str
    attempt: int
    epoch: int
    index: int
    iteration: int
    time: float
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's header, and its files by their path relative to its directory."""

    header: Header
    files: Mapping[str, FileRecord]

    def encode(self) -> bytes:
        """Return the manifest as the bytes of its file."""
        header = self.header
        fields = {
            "version": VERSION,
            "experiment": header.experiment,
            "trial": header.trial,
            "attempt": header.attempt,
            "epoch": header.epoch,
            "index": header.index,
            "iteration": header.iteration,
            "time": header.time,
            "metrics": plain_metrics(header.metrics),
            "files": [
                {"path": path, "size": record.size, "digest": record.digest}
                | ({"omitted": True} if record.omitted else {})
                for path, record in sorted(self.files.items())
            ],
        }
        body = _dump(fields)
        return body[:-1] + f',"digest":"{digest_of(body)}"}}\n'.encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Return the manifest that `data` holds.

        Raises:
            CorruptManifestError: it is not, to the byte, what :meth:`encode` wrote.
            NewerFormatError: it is whole, and of a newer version.
        """
        try:
            fields = json.loads(data)
            expected = fields.pop("digest")
            version = fields["version"]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CorruptManifestError(f"not a manifest: {error}") from error
        if not isinstance(version, int):
            raise CorruptManifestError(f"its version is {version!r}")
        body = _dump(fields)
        found = digest_of(body)
        if found != expected:
            raise CorruptManifestError(f"its digest is {expected}, its content gives {found}")
        if data != body[:-1] + f',"digest":"{expected}"}}\n'.encode():
            raise CorruptManifestError("it is not written as a manifest is")
        if version > VERSION:
            raise NewerFormatError(version, VERSION)
        try:
            header = Header(**{name: fields[name] for name in Header.__dataclass_fields__})
            files = {
                file["path"]: FileRecord(file["size"], file["digest"], file.get("omitted", False))
                for file in fields["files"]
            }
        except (KeyError, TypeError) as error:
            raise CorruptManifestError(f"a field is missing or wrong: {error}") from error
        for path in files:
            if path.startswith("/") or ".." in path.split("/"):
                raise CorruptManifestError(f"{path!r} is outside of the checkpoint")
        return cls(header, files)

    @property
    def digest(self) -> str:
        """The digest of the whole file, which names this one commit among all."""
        return digest_of(self.encode())


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=True).encode()
