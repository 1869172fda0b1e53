"""What committing and verifying a checkpoint costs, as ratios of medians of one interleaved run.

A commit copies a directory to storage with digests and a manifest. It is compared with what Ray
does in `report()` (`StorageContext.persist_current_checkpoint`), with the same followed by an fsync
of every file and directory, and with `cp -r`; on S3 (a moto server on loopback) with Ray's alone.
A full verification is compared with plainly reading the same files with as many threads. Each round
runs all contenders, in another order each time, into a fresh target; between them the disk is
synced, so that none pays for another's dirty pages. The source and what is verified are in the page
cache for all. Beside the medians stand the best rounds and the processor's time, which tell more
where others use the machine.

Exit code 1 if a target is missed: without fsync at most 1.10 of vanilla, with fsync at most 1.10 of
vanilla with fsync, verifying at 0.60 of the speed of reading or more. `--quick` is a few small
rounds, which only show that the benchmark runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import pyarrow.fs
from ray.train import Checkpoint
from ray.train._internal.storage import StorageContext  # noqa: TID251 - what we compare with

from raytrials.store.checkpoint import Verdict, inspect
from raytrials.store.commit import commit
from raytrials.store.copying import in_parallel, shares_of
from raytrials.store.disk import CHUNK_BYTES
from raytrials.store.local import LocalDisk
from raytrials.store.location import disk_at, disk_of
from raytrials.store.manifest import Header, checkpoint_name

KIB, MIB = 1 << 10, 1 << 20
MOST = {"ours / vanilla": 1.10, "ours+fsync / vanilla+fsync": 1.10, "verify / read": 1 / 0.60}
"""The highest that a ratio of times may be."""

Contender = Callable[[str, str], None]
"""Writes what is in its first argument, a directory, to its second; only this is timed."""


@dataclass(frozen=True)
class Case:
    """A checkpoint to write."""

    name: str
    files: int
    file_bytes: int
    s3: bool = False
    verify: bool = False

    @property
    def is_small(self) -> bool:
        """Whether all its copies can stay until its end."""
        return self.files * self.file_bytes < 100 * MIB


# The many files go first: for minutes after a file was deleted ext4 searches past its inode, which
# costs the creation of a file several times its price.
FULL = [
    Case("2,000 files", 2000, 16 * KIB),
    Case("256 MiB", 4, 64 * MIB, s3=True),
    Case("1 GiB", 4, 256 * MIB, verify=True),
]
QUICK = [
    Case("100 files", 100, 16 * KIB),
    Case("8 MiB", 4, 2 * MIB, s3=True),
    Case("64 MiB", 4, 16 * MIB, verify=True),
]


# --- contenders ----------------------------------------------------------------------------------


def ours(filesystem: pyarrow.fs.FileSystem, *, fsync: bool = True) -> Contender:
    """Return our commit to a filesystem."""
    target_disk = disk_of(filesystem, fsync=fsync)
    header = Header("experiment", "trial", 1, 0, 0, 1, 0.0, {"loss": 0.5})

    def contender(source: str, target: str) -> None:
        commit(target_disk, f"{target}/trial", header, disk_at(source), retry_s=60.0)

    return contender


def vanilla(filesystem: pyarrow.fs.FileSystem, *, fsync: bool = False) -> Contender:
    """Return Ray's way to a filesystem."""

    def persist(source: str, target: str) -> None:
        storage = storages.pop(target)
        storage.persist_current_checkpoint(Checkpoint.from_directory(source))
        if fsync:
            for path, _, names in os.walk(storage.checkpoint_fs_path):
                for name in names:
                    sync(f"{path}/{name}")
                sync(path)

    storages: dict[str, StorageContext] = {}

    def prepare(target: str) -> None:
        storages[target] = StorageContext(
            target, "fit", storage_filesystem=filesystem, trial_dir_name="trial"
        )
        storages[target].current_checkpoint_index = 0

    persist.prepare = prepare  # type: ignore[attr-defined]
    return persist


def cp(source: str, target: str) -> None:
    """Copy with the system's own tool."""
    subprocess.run(["cp", "-r", source, f"{target}/checkpoint"], check=True)


def sync(path: str) -> None:
    """Force a file or a directory's names to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- rounds --------------------------------------------------------------------------------------


def in_turns(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Yield the names in an order for each round: each is first as often, after each as often."""
    for number in range(rounds):
        start = number % len(names)
        order = [*names[start:], *names[:start]]
        yield order[::-1] if number % 2 else order


@dataclass
class Times:
    """What the rounds of one contender took, in seconds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Time a block, and what it runs in other processes."""
        wall, cpu = time.perf_counter(), cpu_s()
        yield
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(cpu_s() - cpu)

    def figures(self) -> dict[str, float]:
        """Return what is printed of them, without the first: it loads libraries and connects."""
        wall, cpu = self.wall[1:], self.cpu[1:]
        return {"median": statistics.median(wall), "best": min(wall), "cpu": statistics.median(cpu)}


def cpu_s() -> float:
    """Return the processor time of this process and of those that it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def commits(
    contenders: dict[str, Contender], source: str, place: Place, rounds: int, *, keep: bool = False
) -> dict[str, Times]:
    """Return what each contender takes from source to a new target."""
    seen = {name: Times() for name in contenders}
    for order in in_turns(list(contenders), rounds + 1):
        for name in order:
            contender = contenders[name]
            target = place.make()
            getattr(contender, "prepare", lambda target: None)(target)
            os.sync()
            with seen[name].one():
                contender(source, target)
            if not keep:
                place.delete(target)
    return seen


class Place:
    """Where the targets of one case go, each under a name of its own."""

    def __init__(self, filesystem: pyarrow.fs.FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._count = 0

    def make(self) -> str:
        """Make a new target and return its path."""
        self._count += 1
        target = f"{self._path}/{self._count}"
        self._filesystem.create_dir(target)
        return target

    def delete(self, target: str) -> None:
        """Delete a target with all in it."""
        self._filesystem.delete_dir(target)


def verifications(source: str, place: str, rounds: int) -> dict[str, Times]:
    """Return what verifying a checkpoint takes, and reading its files."""
    local = LocalDisk()
    header = Header("experiment", "trial", 1, 0, 0, 1, 0.0, {})
    manifest = commit(local, place, header, disk_at(source), retry_s=60.0)
    path = f"{place}/{checkpoint_name(0)}"
    sizes = {name: record.size for name, record in manifest.files.items()}

    def read_share(share: Sequence[str]) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        for name in share:
            with Path(f"{path}/{name}").open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

    def read() -> None:
        in_parallel(read_share, shares_of(list(sizes), sizes, local))

    def verify() -> None:
        finding = inspect(local, path, full=True)
        if finding.verdict is not Verdict.VERIFIED:
            raise RuntimeError(finding.problem)

    ways = {"verify": verify, "read": read}
    seen = {name: Times() for name in ways}
    for order in in_turns(list(ways), rounds + 1):
        for name in order:
            with seen[name].one():
                ways[name]()
    shutil.rmtree(place)
    return seen


@contextmanager
def s3_server(directory: str) -> Iterator[pyarrow.fs.FileSystem]:
    """Run an S3 server on loopback in a process of its own; yield a filesystem on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Path(directory, "s3.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(port)
        yield pyarrow.fs.S3FileSystem(
            access_key="test",
            secret_key="test",  # the server takes any
            region="us-east-1",
            endpoint_override=f"http://127.0.0.1:{port}",
            allow_bucket_creation=True,
        )
    finally:
        server.terminate()
        server.wait()


def wait_for(port: int, limit_s: float = 60.0) -> None:
    """Return when somebody listens on a port of loopback."""
    until_s = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
        else:
            return


# --- the run -------------------------------------------------------------------------------------


def write_source(case: Case, directory: str) -> str:
    """Write a checkpoint of random bytes, and return its path."""
    source = Path(directory, "source")
    source.mkdir()
    block = os.urandom(case.file_bytes)
    for number in range(case.files):
        # Files of the same bytes would do as well, were it not for clever disks.
        (source / f"{number:05d}.bin").write_bytes(number.to_bytes(8, "big") + block[8:])
    return str(source)


def run(case: Case, directory: str, rounds: int) -> dict[str, dict[str, Times]]:
    """Run one case in all its forms and return {form: {contender: times}}."""
    source = write_source(case, directory)
    local = pyarrow.fs.LocalFileSystem()
    contenders = {
        "ours": ours(local, fsync=False),
        "vanilla": vanilla(local),
        "ours+fsync": ours(local),
        "vanilla+fsync": vanilla(local, fsync=True),
        "cp -r": cp,
    }
    place = Place(local, f"{directory}/to")
    figures = {case.name: commits(contenders, source, place, rounds, keep=case.is_small)}
    if case.verify:
        figures[f"{case.name}, verify"] = verifications(source, f"{directory}/verify", rounds)
    if case.s3:
        with s3_server(directory) as store:
            contenders = {"ours": ours(store), "vanilla": vanilla(store)}
            figures[f"{case.name}, S3"] = commits(
                contenders, source, Place(store, "bucket"), rounds
            )
    shutil.rmtree(source)
    return figures


def ratios_of(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the ratios that have a target, and ours to `cp -r`, of each figure."""
    pairs = [name.split(" / ") for name in [*MOST, "ours / cp -r", "ours+fsync / cp -r"]]
    return {
        f"{one} / {other}": {
            figure: figures[one][figure] / figures[other][figure] for figure in figures[one]
        }
        for one, other in pairs
        if one in figures and other in figures
    }


def main() -> int:
    """Run the rounds, print the medians, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", help="only the one with this name")
    parser.add_argument("--dir", help="where to write, 6 GB or more; a temporary one by default")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)  # Ray tells of each checkpoint
    rounds = 3 if arguments.quick else arguments.rounds
    cases = QUICK if arguments.quick else FULL
    results: dict[str, Any] = {}
    missed = []
    for case in cases:
        if arguments.case not in {None, case.name}:
            continue
        with tempfile.TemporaryDirectory(prefix="commit", dir=arguments.dir) as directory:
            forms = run(case, directory, rounds)
        for name, seen in forms.items():
            figures = {contender: times.figures() for contender, times in seen.items()}
            ratios = ratios_of(figures)
            results[name] = {"seconds": figures, "ratios": ratios}
            print(f"{name:33} {'median':>9} {'best':>9} {'cpu':>9}")
            for contender, row in figures.items():
                cells = " ".join(f"{1000 * seconds:9.1f}" for seconds in row.values())
                print(f"  {contender:31} {cells}  ms")
            for pair, row in ratios.items():
                cells = " ".join(f"{ratio:9.3f}" for ratio in row.values())
                target = f"  at most {MOST[pair]:.2f}" if pair in MOST else ""
                print(f"  {pair:31} {cells}{target}", flush=True)
                if row["median"] > MOST.get(pair, math.inf):
                    missed.append(f"{name}: {pair} {row['median']:.3f}")
    print(json.dumps({"rounds": rounds, "cases": results, "missed": missed}))
    return 1 if missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
