"""Which process it is, on which machine, and whether it is surely gone.

A lease names its holder so that a start after a crash need not wait. A host name and a pid are not
enough: a container that restarts has both again, and pids are used again. Nothing here touches an
experiment.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_HIGHEST_PID = 2**31 - 1


@dataclass(frozen=True)
class Process:
    """A process, told from every other that ever was; as far as the system tells.

    Attributes:
        host: the machine's name for itself; for people only, many have the same.
        boot_id: of this run of the machine's kernel.
        pid_namespace: in which `pid` means this process. With the namespace of times, which
            `started` depends on.
        pid: its number.
        started: when it started, in clock ticks since the machine did.
    """

    host: str
    boot_id: str | None
    pid_namespace: str | None
    pid: int
    started: int | None


def this_process() -> Process:
    """Return the process that calls."""
    pid = os.getpid()
    stat = _stat(pid)
    namespaces = [found for kind in ("pid", "time") if (found := _link(_PROC / "self/ns" / kind))]
    return Process(
        host=socket.gethostname(),
        boot_id=_text(_PROC / "sys/kernel/random/boot_id").strip() or None,
        pid_namespace=" ".join(namespaces) or None,
        pid=pid,
        started=stat.started if stat else None,
    )


def is_gone(process: Process) -> bool:
    """Return whether a process surely does nothing any more; False if that cannot be told."""
    if not 0 < process.pid <= _HIGHEST_PID:
        return False  # what the system takes for a group, or for no number at all
    here = this_process()
    place = (process.boot_id, process.pid_namespace)
    if None in place or place != (here.boot_id, here.pid_namespace):
        return False
    try:
        # Not /proc alone: it may hide the processes of other users.
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    stat = _stat(process.pid)
    if stat is None:
        return False
    return stat.ended or (process.started is not None and stat.started != process.started)


class _Stat(NamedTuple):
    started: int
    ended: bool


def _stat(pid: int) -> _Stat | None:
    """Return what the system tells of a process here; None if nothing."""
    if _link(_PROC / "self") != str(os.getpid()):
        return None  # no /proc, or that of another namespace of pids
    # The name, which comes before, may hold spaces and parentheses.
    fields = _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    try:
        state, threads, started = fields[0], int(fields[17]), int(fields[19])
    except (IndexError, ValueError):
        return None
    # What waits for its parent to take note is dead, unless it has threads that still end.
    return _Stat(started, ended=state in {"Z", "X"} and threads <= 1)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
