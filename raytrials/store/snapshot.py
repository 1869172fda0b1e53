"""Snapshots: what the journal came to up to some event, so that a recovery need not start at 1.

A snapshot is one file, written whole under a name of its own: a line that lists its parts with
their digests, then the parts. The part `state` is what `raytrials.core.fold` made of the events, as
lines of JSON; the others are as opaque here as they came (searcher, scheduler), and are only handed
on: nothing here unpickles.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raytrials.core.state import ExperimentState, TrialRecord
from raytrials.errors import NewerFormatError
from raytrials.store.disk import Disk
from raytrials.store.manifest import digest_of
from raytrials.store.retrying import retry
from raytrials.store.segment import JOURNAL, PARTIAL, Segment, replaced_at, segments_among

VERSION = 1
KEPT = 2
STATE = "state"

EVENTS = 2_000
"""How many events there are from one snapshot to the next at least."""

SECONDS = 60.0
"""How much time, likewise."""

SHARE = 0.05
"""Which share of the driver's time they may take at most."""

_NAME = re.compile(r"(\d{6,})-(\d{12,})\.snapshot")
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class SnapshotName(NamedTuple):
    """Which snapshot: the epoch of its driver, and the last event that is in it."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch:06d}-{self.seq:012d}.snapshot"

    def is_replaced(self, segments: Iterable[Segment]) -> bool:
        """Return whether its driver wrote it after another had taken over before its last event."""
        limit = replaced_at(segments, self.epoch)
        return limit is not None and limit <= self.seq


class DamagedSnapshotError(ValueError):
    """A snapshot is not as it was written. An older one, or the journal alone, has to do."""


@dataclass(frozen=True)
class Snapshot:
    """What there was after some event.

    Attributes:
        state: what the events came to.
        parts: more that belongs to this moment, by name.
    """

    state: ExperimentState
    parts: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> SnapshotName:
        """Its name."""
        return SnapshotName(self.state.epoch, self.state.seq)

    def encode(self) -> bytes:
        """Return it as the bytes of its file."""
        parts = {STATE: _encode_state(self.state), **self.parts}
        fields = {
            "version": VERSION,
            "epoch": self.state.epoch,
            "seq": self.state.seq,
            "parts": [
                {"name": name, "size": len(data), "digest": digest_of(data)}
                for name, data in parts.items()
            ],
        }
        body = _ENCODE(fields).encode()
        header = body[:-1] + f',"digest":"{digest_of(body)}"}}\n'.encode()
        return b"".join((header, *parts.values()))

    @classmethod
    def decode(cls, data: bytes) -> Snapshot:
        """Return the snapshot that `data` holds.

        Raises:
            DamagedSnapshotError: it is not whole, to the byte.
            NewerFormatError: it is whole, and of a newer version.
        """
        header, _, rest = data.partition(b"\n")
        listed = _decode_header(header)
        parts = {}
        at = 0
        for part in listed:
            content = rest[at : at + part["size"]]
            at += part["size"]
            if len(content) != part["size"] or digest_of(content) != part["digest"]:
                raise DamagedSnapshotError(f"its part {part['name']!r} is damaged")
            parts[part["name"]] = content
        if at != len(rest) or STATE not in parts:
            raise DamagedSnapshotError("its parts are not those that it lists")
        try:
            return cls(_decode_state(parts.pop(STATE)), parts)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedSnapshotError(f"its state is none of this format: {error!r}") from error


def _decode_header(header: bytes) -> list[dict[str, Any]]:
    head, _, tail = header.rpartition(b',"digest":"')
    if tail != digest_of(head + b"}").encode() + b'"}':
        raise DamagedSnapshotError("its first line is damaged")
    fields = json.loads(head + b"}")
    if fields["version"] > VERSION:
        raise NewerFormatError(fields["version"], VERSION, "snapshot")
    parts: list[dict[str, Any]] = fields["parts"]
    return parts


def _encode_state(state: ExperimentState) -> bytes:
    lines = [_ENCODE(state.to_json()), *(_ENCODE(one.to_json()) for one in state.trials.values())]
    return "\n".join(lines).encode()


def _decode_state(data: bytes) -> ExperimentState:
    first, *rest = data.decode().split("\n")
    return ExperimentState.from_json(
        json.loads(first), [TrialRecord.from_json(json.loads(line)) for line in rest]
    )


def is_due(events: int, seconds: float, cost_s: float) -> bool:
    """Return whether it is time for the next snapshot.

    Args:
        events: how many came since the last one.
        seconds: how long that is ago.
        cost_s: how long the driver was busy with it.
    """
    return events >= EVENTS and seconds >= SECONDS and cost_s <= SHARE * seconds


def names_in(disk: Disk, directory: str, *, retry_s: float) -> list[SnapshotName]:
    """Return the snapshots in a directory, the newest first."""
    return _names_among(_list(disk, directory, retry_s))


def _names_among(names: Iterable[str]) -> list[SnapshotName]:
    found = (_NAME.fullmatch(name) for name in names)
    return sorted(
        (SnapshotName(int(one.group(1)), int(one.group(2))) for one in found if one), reverse=True
    )


def _list(disk: Disk, directory: str, retry_s: float) -> set[str]:
    return retry(disk, "listing", directory, lambda: disk.list_names(directory), limit_s=retry_s)


def read(disk: Disk, directory: str, name: SnapshotName, *, retry_s: float) -> Snapshot:
    """Return a snapshot.

    Raises:
        DamagedSnapshotError: it is not whole, or another than its name says.
        NewerFormatError: it is of a newer version.
        StorageError: the storage failed for good.
    """
    path = f"{directory}/{name}"
    snapshot = Snapshot.decode(
        retry(disk, "reading", path, functools.partial(disk.read, path), limit_s=retry_s)
    )
    if snapshot.name != name:
        raise DamagedSnapshotError(f"it is {snapshot.name} under another name")
    return snapshot


def write(disk: Disk, directory: str, name: SnapshotName, data: bytes, *, retry_s: float) -> None:
    """Write a snapshot, and delete those before the last two that count.

    Every event in it is durable already: what it says must not come before what it was made of.

    Args:
        disk: where it goes.
        directory: of the snapshots, beside that of the journal; made if it is not there.
        name: of :attr:`Snapshot.name`.
        data: of :meth:`Snapshot.encode`.
        retry_s: how long a storage that fails is tried again.

    Raises:
        StorageError: the storage failed for good; the snapshots before are as they were.
    """
    path = f"{directory}/{name}"

    def once() -> None:
        disk.make_directory(directory)
        if not disk.has_rename:
            disk.write(path, data)
            return
        disk.sync(directory.rpartition("/")[0])
        disk.write(f"{path}{PARTIAL}", data)
        disk.replace(f"{path}{PARTIAL}", path)
        disk.sync(directory)

    retry(disk, "writing", path, once, limit_s=retry_s)
    journal = f"{directory.rpartition('/')[0]}/{JOURNAL}"
    segments = segments_among(_list(disk, journal, retry_s))
    names = _list(disk, directory, retry_s)
    found = _names_among(names)
    kept = [one for one in found if not one.is_replaced(segments)][:KEPT]
    old = [str(one) for one in found if one < name and one not in kept]
    for left in sorted(one for one in names if one.endswith(PARTIAL)):
        old += [left for one in _names_among([left.removesuffix(PARTIAL)]) if one < name]
    for one in old:
        delete = functools.partial(disk.delete_file, f"{directory}/{one}")
        retry(disk, "deleting", f"{directory}/{one}", delete, limit_s=retry_s)
