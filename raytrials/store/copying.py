"""Copying and reading the files of a directory, several at a time, with digests on the way."""

from __future__ import annotations

import heapq
import mmap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

from raytrials.store.disk import Disk, Reader, Writer
from raytrials.store.manifest import FileRecord

THREADS = 16
"""The most threads that work on a checkpoint."""

FILE_BYTES = 64 * 1024
"""What opening a file costs, in bytes that could be copied meanwhile."""


def buffer_for(*disks: Disk) -> memoryview:
    """Return a buffer for copying between disks; its memory is taken as it is used."""
    return memoryview(mmap.mmap(-1, max(disk.chunk_bytes for disk in disks), mmap.MAP_PRIVATE))


def shares_of(names: Sequence[str], sizes: Mapping[str, int], disk: Disk) -> list[list[str]]:
    """Divide files among threads, the largest first, so that all have about the same to do."""
    count = min(THREADS, len(names), disk.threads([sizes[name] for name in names]))
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]  # a heap, the lightest first
    for name in sorted(names, key=sizes.__getitem__, reverse=True):
        load, number = loads[0]
        shares[number].append(name)
        heapq.heapreplace(loads, (load + sizes[name] + FILE_BYTES, number))
    return shares


def in_parallel(work: Callable[[Sequence[str]], None], shares: list[list[str]]) -> None:
    """Run `work` on each share in a thread of its own; raise the first error."""
    if len(shares) <= 1:
        for share in shares:
            work(share)
        return
    with ThreadPoolExecutor(len(shares), thread_name_prefix="raytrials-copy") as pool:
        for future in [pool.submit(work, share) for share in shares]:
            future.result()


def pump(
    reader: Reader, buffer: memoryview, writer: Writer | None, until: int | None = None
) -> FileRecord:
    """Read a file to its end, write it if there is a writer, and return what it is.

    With `until` it stops once so many bytes are read, or more: someone may be writing on, and a
    last read that finds nothing is saved.
    """
    digest = xxhash.xxh3_128()
    size = 0
    while until is None or size < until:
        count = reader.readinto(buffer)
        if not count:
            break
        chunk = buffer[:count]
        digest.update(chunk)
        if writer is not None:
            writer.write(chunk)
        size += count
    return FileRecord(size, digest.hexdigest())
