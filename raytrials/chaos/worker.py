"""Workers of a fake cluster, and the work that they do: the truth, whoever sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from raytrials.chaos.clock import FakeClock
from raytrials.chaos.fault import Stopped
from raytrials.chaos.happening import Died, Exit, Raised
from raytrials.chaos.timeline import Timeline, Timer


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Work:
    """What a call does, and how long that takes.

    Attributes:
        takes_s: from its begin to its end. What it sleeps on the clock comes on top.
        run: called at the end. What it returns or raises is the result of the call;
            `raytrials.chaos.fault.Stopped` and `SystemExit` end its worker.
        parts: what is done on the way, each so many seconds after the begin. A worker that dies
            has done those that were due.
    """

    takes_s: float
    run: Callable[[], object] = _nothing
    parts: Sequence[tuple[float, Callable[[], object]]] = ()

    def __post_init__(self) -> None:
        if any(not 0 <= at_s <= self.takes_s for at_s in [self.takes_s, *dict(self.parts)]):
            raise ValueError(f"Work of {self.takes_s} s has a part outside of it.")

    def gaps(self) -> deque[tuple[float, Callable[[], object]]]:
        """Return what is done in order, each with the seconds since the one before."""
        moments = [*sorted(self.parts, key=lambda part: part[0]), (self.takes_s, self.run)]
        before_s = [0.0, *(at_s for at_s, _ in moments)]
        return deque(
            (at_s - before, act) for (at_s, act), before in zip(moments, before_s[:-1], strict=True)
        )


class Question(Enum):
    """What a job is there for."""

    START = "start"
    CALL = "call"
    STOP = "stop"


@dataclass(frozen=True)
class Job:
    """One thing that an actor was asked."""

    number: int
    question: Question
    name: str
    work: Work


@dataclass(frozen=True)
class Returned:
    """A job came to its end."""

    value: object


Outcome = Returned | Raised | Died


@dataclass
class Worker:
    """A process that does one job after another, until it dies.

    Attributes:
        timeline: when.
        clock: what its work may sleep on.
        tell: called with each job that ended, and how; with `Died` if the worker ended with it.
        is_alive: it may be frozen.
        is_doomed: it dies as soon as it can.
    """

    timeline: Timeline
    clock: FakeClock
    tell: Callable[[Job, Outcome], None]
    is_alive: bool = True
    is_frozen: bool = False
    is_doomed: bool = False
    _jobs: deque[Job] = field(default_factory=deque)
    _job: Job | None = None
    _gaps: deque[tuple[float, Callable[[], object]]] = field(default_factory=deque)
    _timer: Timer | None = None
    _paused: tuple[float, Callable[[], object]] | None = None

    def take(self, job: Job) -> None:
        """Do a job when those before it are done."""
        self._jobs.append(job)
        self._begin()

    def drop_queue(self) -> None:
        """Forget the jobs that were not begun."""
        self._jobs.clear()

    def die(self) -> None:
        """Leave everything as it is."""
        self.is_alive = False
        self._jobs.clear()
        self._pause()

    def freeze(self) -> None:
        """Do nothing until :meth:`thaw`."""
        self.is_frozen = True
        self._paused = self._pause()

    def thaw(self) -> None:
        """Go on from where it was."""
        self.is_frozen = False
        if self.is_doomed:
            self.die()
        paused, self._paused = self._paused, None
        if paused is not None:
            self._later(*paused)
        self._begin()

    def _pause(self) -> tuple[float, Callable[[], object]] | None:
        if self._timer is None:
            return None
        self._timer.cancel()
        rest_s = self._timer.at_s - self.timeline.now_s
        act, self._timer = self._timer.act, None
        return rest_s, act

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        # Work may freeze or kill its own worker.
        if self.is_frozen:
            self._paused = seconds, act
        elif self.is_alive:
            self._timer = self.timeline.after(seconds, act)

    def _begin(self) -> None:
        if self._job is None and self._jobs and self.is_alive and not self.is_frozen:
            self._job = self._jobs.popleft()
            self._gaps = self._job.work.gaps()
            self._later(self._gaps[0][0], self._act)

    def _act(self) -> None:
        _, act = self._gaps.popleft()
        self._timer = None
        since_s = self.clock.monotonic()
        outcome = _outcome(act)
        slept_s = self.clock.monotonic() - since_s
        if self._gaps and isinstance(outcome, Returned):
            self._later(slept_s + self._gaps[0][0], self._act)
        elif slept_s or self.is_frozen:
            self._later(slept_s, lambda: self._end(outcome))
        elif self.is_alive:
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        job, self._job, self._timer = self._job, None, None
        if isinstance(outcome, Died):
            self.die()
        if job is not None:
            self.tell(job, outcome)
        self._begin()


def _outcome(act: Callable[[], object]) -> Outcome:
    try:
        return Returned(act())
    except Stopped:
        return Died(Exit.CRASHED)
    except SystemExit as left:
        return Died(Exit.EXITED, exit_code=left.code if isinstance(left.code, int) else 1)
    except Exception as error:  # noqa: BLE001 - whatever the work raises is its result
        return Raised(error)
