"""What Ray saved of an experiment's trials, as far as it says whose checkpoints are whose.

Ray writes `experiment_state-<time>.json` beside the trials' directories. It is read as plain JSON:
nothing in it is ever unpickled.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from raytrials.store.disk import Disk
from raytrials.store.manifest import index_of
from raytrials.store.retrying import retry

STATE_FILES = "experiment_state-*.json"

_ACCOUNT = "raytrials"
"""The key of a trial's account; `raytrials.driver.account` writes it."""

_DIGITS_IN_HEX = r"((?:3[0-9]){6,})"
"""The digits of an index inside of what Ray pickled, which stands in the file as hex digits."""


@dataclass(frozen=True)
class SavedTrial:
    """A trial as Ray saved it last.

    Attributes:
        trial_id: the trial.
        ours: whether raytrials ran it.
        unverified: names of its checkpoints that are older than that, and have no manifest.
        next_index: registered checkpoints from this index on were not made by raytrials, which did
            not reserve them; 0 if it reserved none.
        registered: names of the checkpoints that the trial can be restored from.
        bad: names of those that were found not to be whole.
    """

    trial_id: str
    ours: bool
    unverified: frozenset[str]
    next_index: int
    registered: frozenset[str]
    bad: frozenset[str]

    def was_committed(self, name: str) -> bool:
        """Whether a checkpoint must have been whole once, as the saved state speaks of it."""
        return name in self.registered or name in self.bad

    def is_vanilla(self, name: str) -> bool:
        """Whether a checkpoint without a manifest was made by Ray without raytrials."""
        index = index_of(name)
        later = index is not None and 0 < self.next_index <= index and name in self.registered
        return not self.ours or name in self.unverified or later


def is_state_file(name: str) -> bool:
    """Return whether a file in an experiment's directory holds the state of its trials."""
    return fnmatch.fnmatchcase(name, STATE_FILES)


def read_saved(
    disk: Disk, experiment: str, names: Iterable[str], *, retry_s: float
) -> dict[str, SavedTrial]:
    """Return the trials in the newest state file that can be read, by the names of their directory.

    Args:
        disk: where the experiment is.
        experiment: its directory.
        names: what is in it.
        retry_s: how long a storage that fails is tried again.

    Returns:
        Nothing if no state file is whole; trials that never had a directory are left out.
    """
    for name in sorted(filter(is_state_file, names), reverse=True):
        path = posixpath.join(experiment, name)
        try:
            read = functools.partial(_read, disk, path)
            return _parse(retry(disk, "reading", path, read, limit_s=retry_s))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # torn: the one before it
    return {}


def _read(disk: Disk, path: str) -> bytes:
    try:
        return disk.read(path)
    except FileNotFoundError:
        return b""  # replaced by a newer one meanwhile


def _parse(data: bytes) -> dict[str, SavedTrial]:
    trials: dict[str, SavedTrial] = {}
    for text, runtime in json.loads(data)["trial_data"]:
        fields: dict[str, Any] = json.loads(text)
        directory = fields.get("relative_logdir")
        account = fields.get(_ACCOUNT)
        if directory:
            trials[directory] = SavedTrial(
                trial_id=str(fields["trial_id"]),
                ours=account is not None,
                unverified=frozenset((account or {}).get("unverified") or ()),
                next_index=(account or {}).get("next_index", 0),
                registered=_registered(directory, runtime),
                bad=frozenset((account or {}).get("bad") or ()),
            )
    return trials


def _registered(directory: str, runtime: str) -> frozenset[str]:
    """Return the names behind the trial's own directory in what Ray pickled of its checkpoints."""
    before = f"{directory}/checkpoint_".encode().hex()
    found = re.findall(before + _DIGITS_IN_HEX, runtime)
    return frozenset(f"checkpoint_{bytes.fromhex(digits).decode()}" for digits in found)
