"""Drivers that want a lease: a clock turned by hand, machines, processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from raytrials.store.disk import Disk
from raytrials.store.lease import Lease, acquire
from raytrials.store.process import Process

LEASES = "/experiment/.raytrials/lease"

HERE = Process("host", "boot", "pid:[1] time:[1]", 100, 5000)
SIBLING = replace(HERE, pid=101, started=5001)
ELSEWHERE = replace(HERE, host="other", boot_id="other boot")


@dataclass
class Clock:
    """Sleeping takes no time, and lets others do something meanwhile."""

    now_s: float = 1000.0
    wall_s: float = 1e9
    meanwhile: Callable[[], object] = field(default=lambda: None)

    def time(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds
        self.meanwhile()


@dataclass
class Machine:
    """Knows which processes are dead, and how long a driver had to wait."""

    disk: Disk
    clock: Clock = field(default_factory=Clock)
    dead: set[Process] = field(default_factory=set)
    waited_s: float = 0.0

    def start(self, process: Process = SIBLING, *, wait_s: float = 60.0, **rest: Any) -> Lease:
        began_s = self.clock.now_s
        try:
            return acquire(
                rest.pop("disk", self.disk),
                LEASES,
                clock=rest.pop("clock", self.clock),
                identity=process,
                wait_s=wait_s,
                experiment="/experiment",
                gone=self.dead.__contains__,
                **rest,
            )
        finally:
            self.waited_s = self.clock.now_s - began_s
