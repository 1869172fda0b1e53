"""What is in an experiment's directory beside the journal: results, checkpoints, Ray's state."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raytrials import settings
from raytrials.store.checkpoint import Finding, Verdict, inspect
from raytrials.store.disk import Disk
from raytrials.store.manifest import MANIFEST, Header, index_of
from raytrials.store.saved import SavedTrial, is_state_file, read_saved
from raytrials.store.scope import on

OURS = ".raytrials"
RESULTS, PROGRESS, PARAMS = "result.json", "progress.csv", "params.json"


@dataclass(frozen=True)
class Lines:
    """A file with a line for each result.

    Attributes:
        name: of the file.
        rows: the whole ones.
        torn: numbers of the lines that are not whole, from 1.
        is_cut: whether the last line has no end; it counts neither as row nor as torn.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    torn: Sequence[int]
    is_cut: bool

    @property
    def iterations(self) -> list[int | None]:
        """The iterations of the rows, None where there is none."""
        return [_whole(row.get("training_iteration")) for row in self.rows]


@dataclass(frozen=True)
class Stored:
    """A checkpoint on storage.

    Attributes:
        name: of its directory.
        finding: of a full look.
        committed_s: when it was committed, seconds since the Unix epoch on the clock of the worker
            or the storage, whichever says later; 0 for none that was.
    """

    name: str
    finding: Finding
    committed_s: float

    @property
    def is_verified(self) -> bool:
        """Whether it is whole."""
        return self.finding.verdict is Verdict.VERIFIED

    @property
    def header(self) -> Header | None:
        """Whose it is, if that can be read."""
        return self.finding.manifest.header if self.finding.manifest is not None else None


@dataclass(frozen=True)
class TrialDirectory:
    """A trial's directory.

    Attributes:
        name: of the directory.
        params: of `params.json`; None without one that can be read.
        results: of `result.json`, None without one.
        progress: of `progress.csv`, likewise.
        checkpoints: by index, in order.
    """

    name: str
    params: Mapping[str, Any] | None
    results: Lines | None
    progress: Lines | None
    checkpoints: Mapping[int, Stored]

    @property
    def lines(self) -> Iterator[Lines]:
        """Its files of results."""
        return (lines for lines in (self.results, self.progress) if lines is not None)


@dataclass(frozen=True)
class RayTrial:
    """A trial in Ray's saved state."""

    trial_id: str
    directory: str | None
    config: Mapping[str, Any]
    has_parameters: bool
    tag: str
    status: str
    last_result: Mapping[str, Any]


@dataclass(frozen=True)
class Directory:
    """An experiment's directory, as it was found.

    Attributes:
        disk: where it is.
        path: there.
        has_journal_directory: whether raytrials began to keep a journal in it.
        trials: directories of trials, by name.
        ray_trials: of Ray's newest state that is whole, in the order in which they were added as
            far as their tags tell; None without one.
        saved: what that says of checkpoints, by directory.
        torn_states: names of the state files that are not whole.
    """

    disk: Disk
    path: str
    has_journal_directory: bool
    trials: Mapping[str, TrialDirectory]
    ray_trials: list[RayTrial] | None
    saved: Mapping[str, SavedTrial]
    torn_states: list[str] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        """Whether raytrials ran it."""
        return (
            self.has_journal_directory
            or any(trial.ours for trial in self.saved.values())
            or any(
                stored.header is not None
                for trial in self.trials.values()
                for stored in trial.checkpoints.values()
            )
        )

    @classmethod
    def read(cls, disk: Disk, path: str) -> Directory:
        """Read all of it, every byte of the checkpoints included."""
        files = on(disk, "listing", path, lambda: disk.list_files(path))
        directories = on(disk, "listing", path, lambda: disk.list_directories(path))
        tree: dict[str, set[str]] = {}
        for name in (*files, *directories):
            top, _, rest = name.partition("/")
            if rest and not top.startswith("."):
                tree.setdefault(top, set()).add(rest.partition("/")[0])
        states = sorted(filter(is_state_file, files), reverse=True)
        torn, ray_trials = _read_states(disk, path, states)
        return cls(
            disk=disk,
            path=path,
            has_journal_directory=any(name.startswith(f"{OURS}/") for name in files),
            trials={
                name: _read_trial(disk, path, name, tree[name])
                for name in sorted(tree)
                if _is_trial(tree[name])
            },
            ray_trials=ray_trials,
            saved=read_saved(disk, path, states, retry_s=settings.STORAGE_RETRY_S.get()),
            torn_states=torn,
        )


def _is_trial(names: set[str]) -> bool:
    own = {RESULTS, PROGRESS, PARAMS}
    return not own.isdisjoint(names) or any(index_of(name) is not None for name in names)


def _read_trial(disk: Disk, path: str, name: str, names: set[str]) -> TrialDirectory:
    def read(file: str) -> bytes | None:
        if file not in names:
            return None
        return on(disk, "reading", file, lambda: disk.read(f"{path}/{name}/{file}"))

    results, progress = read(RESULTS), read(PROGRESS)
    indices = {index: one for one in sorted(names) if (index := index_of(one)) is not None}
    return TrialDirectory(
        name=name,
        params=_mapping(read(PARAMS)),
        results=None if results is None else _json_lines(results),
        progress=None if progress is None else _csv_lines(progress),
        checkpoints={
            index: _look(disk, f"{path}/{name}", indices[index]) for index in sorted(indices)
        },
    )


def _look(disk: Disk, directory: str, name: str) -> Stored:
    path = f"{directory}/{name}"
    finding = on(disk, "verifying", path, lambda: inspect(disk, path, full=True))
    committed_s = 0.0
    if finding.manifest is not None:
        entries = on(disk, "listing", path, lambda: disk.list_files(path))
        entry = entries.get(MANIFEST)
        committed_s = max(finding.manifest.header.time, entry.modified_s if entry else 0.0)
    return Stored(name, finding, committed_s)


def _mapping(data: bytes | None) -> Mapping[str, Any] | None:
    try:
        found = json.loads(data) if data is not None else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _json_lines(data: bytes) -> Lines:
    *whole, end = data.split(b"\n")
    rows, torn = [], []
    for number, line in enumerate(whole, 1):
        row = _mapping(line)
        if row is None:
            torn.append(number)
        else:
            rows.append(row)
    return Lines(RESULTS, rows, torn, is_cut=bool(end))


def _csv_lines(data: bytes) -> Lines:
    is_cut = bool(data) and not data.endswith(b"\n")
    text = data.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    records = [record for record in _csv_records(text) if record]
    if is_cut:
        del records[-1:]
    header = records[0] if records else []
    rows, torn = [], []
    for number, record in enumerate(records[1:], 2):
        if len(record) == len(header) and "\N{REPLACEMENT CHARACTER}" not in "".join(record):
            rows.append(dict(zip(header, record, strict=True)))
        else:
            torn.append(number)
    return Lines(PROGRESS, rows, torn, is_cut)


def _csv_records(text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text, newline=""))
    except csv.Error:
        yield ["what no reader of CSV takes"]


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _read_states(
    disk: Disk, path: str, names: list[str]
) -> tuple[list[str], list[RayTrial] | None]:
    """Return which states are torn, and what the newest one that is not says."""
    torn: list[str] = []
    newest: list[RayTrial] | None = None
    for name in names:
        data = on(disk, "reading", name, lambda: disk.read(f"{path}/{name}"))  # noqa: B023 - at once
        try:
            pairs = json.loads(data)["trial_data"]
            found = sorted((_ray_trial(*pair) for pair in pairs), key=_place_of)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            torn.append(name)
        else:
            newest = found if newest is None else newest
    return torn, newest


def _place_of(trial: RayTrial) -> tuple[float, str]:
    """Return what trials were added by: Ray saves them in the order of a set.

    Their tags begin with a number that counts up; so do the ids of those that are of one search.
    """
    counter = re.match(r"\d{1,18}", trial.tag)
    return float(counter.group()) if counter else float("inf"), trial.trial_id


def _ray_trial(text: str, runtime: str) -> RayTrial:
    fields: dict[str, Any] = json.loads(text)
    of_run: dict[str, Any] = json.loads(runtime)
    parameters = fields.get("evaluated_params") or fields.get("_Trial__unresolved_config")
    last_result = of_run.get("last_result")
    return RayTrial(
        trial_id=str(fields["trial_id"]),
        directory=fields.get("relative_logdir"),
        config=fields.get("config") or {},
        has_parameters=bool(parameters),
        tag=str(fields.get("experiment_tag") or ""),
        status=str(fields.get("status") or ""),
        last_result=last_result if isinstance(last_result, dict) else {},
    )
