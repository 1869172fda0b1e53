"""A disk that can be full."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, size: str = "4m") -> Iterator[Path]:
    """Make `place` a filesystem of its own with so much room, or skip the test."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(path: Path) -> None:
    """Append to a file until there is no room."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def kept_full(path: Path) -> Iterator[None]:
    """Take all room there is, and what others give up, at once."""
    over = threading.Event()

    def take() -> None:
        while not over.is_set():
            fill(path)

    fill(path)
    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        path.unlink()
