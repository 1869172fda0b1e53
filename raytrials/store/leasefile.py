"""The files of leases: what is in one, and which of those in a directory counts.

`docs/formats.md` describes them. Reading checks a lease's own digest, and that there is not one
byte more or less than what writing would give. Who may write is :mod:`raytrials.store.lease`.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import xxhash

from raytrials.errors import NewerFormatError
from raytrials.store.disk import Disk
from raytrials.store.process import Process

VERSION = 1

_NAME = re.compile(r"(\d{6,})(?:-([0-9a-f]{16}))?\.(json|lock|partial)")


@dataclass(frozen=True)
class Record:
    """What a lease file says.

    Attributes:
        epoch: the number of the lease; a later one is higher.
        nonce: random, 16 hex digits; no two leases have the same.
        process: of the driver that has it.
        lock: :attr:`raytrials.store.disk.Hold.place` of the lock that the driver has beside it;
            None if the storage has no locks.
        counter: goes up with each renewal.
        held: whether it is the driver's. False while drivers on an object store, who may have
            written at the same time, wait to see who is first.
        released: whether the driver is done with it.
    """

    epoch: int
    nonce: str
    process: Process
    lock: str | None
    counter: int = 0
    held: bool = True
    released: bool = False

    def encode(self) -> bytes:
        """Return the lease as the bytes of its file."""
        body = _dump(
            {
                "v": VERSION,
                "epoch": self.epoch,
                "nonce": self.nonce,
                **asdict(self.process),
                "lock": self.lock,
                "counter": self.counter,
                "held": self.held,
                "released": self.released,
            }
        )
        return body[:-1] + f',"digest":"{digest_of(body)}"}}\n'.encode()


_TYPES: dict[str, tuple[type, ...]] = {
    "epoch": (int,),
    "nonce": (str,),
    "host": (str,),
    "boot_id": (str, type(None)),
    "pid_namespace": (str, type(None)),
    "pid": (int,),
    "started": (int, type(None)),
    "lock": (str, type(None)),
    "counter": (int,),
    "held": (bool,),
    "released": (bool,),
}


def decode(data: bytes) -> Record | None:
    """Return the lease that `data` holds; None if it is not, to the byte, what was written.

    Raises:
        NewerFormatError: it is whole, and of a newer version.
    """
    try:
        fields = json.loads(data)
        expected = fields.pop("digest")
        body = _dump(fields)
        version = fields.pop("v")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    if data != body[:-1] + f',"digest":"{expected}"}}\n'.encode(errors="replace"):
        return None
    if digest_of(body) != expected or type(version) is not int:
        return None
    if version > VERSION:
        raise NewerFormatError(version, VERSION, "lease")
    if fields.keys() != _TYPES.keys():
        return None
    if any(type(fields[name]) not in types for name, types in _TYPES.items()):
        return None
    process = Process(**{name: fields.pop(name) for name in Process.__dataclass_fields__})
    return Record(process=process, **fields)


def digest_of(body: bytes) -> str:
    """Return the xxh64 digest of a lease's body, 16 hex digits."""
    return xxhash.xxh64_hexdigest(body)


def _dump(fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=True).encode()


class Found(NamedTuple):
    """A lease file as it was read.

    Attributes:
        name: of the file.
        epoch: in its name.
        nonce: in its name, "" if it has none.
        data: its bytes.
        record: what they say; None if it is not whole.
    """

    name: str
    epoch: int
    nonce: str
    data: bytes
    record: Record | None


def lease_name(epoch: int, nonce: str = "") -> str:
    """Return the name of a lease file; on object stores those of one epoch differ by the nonce."""
    return f"{epoch:06d}-{nonce}.json" if nonce else f"{epoch:06d}.json"


def lock_name(epoch: int) -> str:
    """Return the name of the file that the driver of an epoch has locked."""
    return f"{epoch:06d}.lock"


def partial_name(epoch: int, nonce: str) -> str:
    """Return the name of a renewed lease before it takes its place."""
    return f"{epoch:06d}-{nonce}.partial"


def epochs_in(names: set[str]) -> dict[str, int]:
    """Return the epochs of the lease files among `names`."""
    return {name: epoch for name, epoch in all_epochs_in(names).items() if name.endswith(".json")}


def all_epochs_in(names: set[str]) -> dict[str, int]:
    """Return the epochs of all files among `names` that belong to leases."""
    matches = {name: _NAME.fullmatch(name) for name in names}
    return {name: int(match.group(1)) for name, match in matches.items() if match}


def read(disk: Disk, directory: str, name: str) -> Found | None:
    """Return a lease file; None if it is gone."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not the name of a lease")
    try:
        data = disk.read(f"{directory}/{name}")
    except FileNotFoundError:
        return None
    epoch, nonce = int(match.group(1)), match.group(2) or ""
    record = decode(data)
    if record is not None and (record.epoch != epoch or nonce not in {"", record.nonce}):
        record = None  # under the name of another
    return Found(name, epoch, nonce, data, record)


def newest(disk: Disk, directory: str) -> tuple[int, Found | None]:
    """Return the highest epoch in a directory, 0 if none, and the lease that counts.

    That is one of the highest epoch whose file is there: on an object store the one that is held,
    else the one with the lowest nonce.

    Raises:
        NewerFormatError: it is of a newer version.
    """
    epochs = epochs_in(disk.list_names(directory))
    for epoch in sorted(set(epochs.values()), reverse=True):
        names = sorted(name for name, found in epochs.items() if found == epoch)
        files = [file for name in names if (file := read(disk, directory, name))]
        if files:
            held = [file for file in files if file.record is not None and file.record.held]
            return max(epochs.values()), (held or files)[0]
    return max(epochs.values(), default=0), None
