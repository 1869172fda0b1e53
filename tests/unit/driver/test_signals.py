"""What signals do to a run, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1, Signals
from typing import Any

import pytest

from raytrials import settings
from raytrials.driver.signals import STOPPING, StopRequest, catching_signals
from raytrials.errors import InterruptedRunError

LIMIT_S = 30.0


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Handlers as Python sets them, whatever started the tests."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Clock:
    """Stands still until it is turned."""

    now_s = 100.0

    def time(self) -> float:
        raise NotImplementedError("it may jump")

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError("nothing here waits")


def handlers() -> dict[Signals, Any]:
    return {number: signal.getsignal(number) for number in STOPPING}


def noting(calls: list[Any], error: BaseException | None = None) -> Callable[..., None]:
    """A handler of the user's."""

    def handler(number: int, frame: object) -> None:
        calls.append((number, frame is not None))
        if error is not None:
            raise error

    return handler


# --- the request ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", STOPPING, ids=lambda number: number.name)
def test_a_signal_asks_for_a_stop_and_the_block_goes_on(number: Signals) -> None:
    before = handlers()
    with catching_signals(StopRequest()) as request:
        assert not request.is_requested
        os.kill(os.getpid(), number)
        assert request.is_requested
        assert request.by_signal is number
        assert not request.hurry
    assert handlers() == before


def test_a_second_signal_hurries_and_a_third_does_nothing_more() -> None:
    clock = Clock()
    with catching_signals(StopRequest(grace_s=10, clock=clock)) as request:
        signal.raise_signal(SIGTERM)
        clock.now_s += 1
        signal.raise_signal(SIGINT)
        seen = (request.by_signal, request.hurry, request.grace_left_s())
        assert seen == (SIGTERM, True, 9)
        signal.raise_signal(SIGTERM)
        assert (request.by_signal, request.hurry, request.grace_left_s()) == seen
    assert request.signals == (SIGTERM, SIGINT)


def test_the_grace_time_runs_from_the_first_signal_however_late_anyone_looks() -> None:
    clock = Clock()
    with catching_signals(StopRequest(grace_s=10, clock=clock)) as request:
        clock.now_s += 50
        assert request.grace_left_s() == 10
        signal.raise_signal(SIGTERM)
        clock.now_s += 4
        signal.raise_signal(SIGTERM)
        clock.now_s += 3
        assert request.grace_left_s() == 3
        clock.now_s += 60
        assert request.grace_left_s() == 0


def test_the_grace_time_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.GRACE_S.name, raising=False)
    assert StopRequest().grace_left_s() == 20
    monkeypatch.setenv(settings.GRACE_S.name, "0.5")
    assert StopRequest().grace_left_s() == 0.5


def test_a_stop_by_method_is_by_no_signal_and_never_hurries_by_itself() -> None:
    clock = Clock()
    request = StopRequest(grace_s=10, clock=clock)
    request.stop()
    clock.now_s += 1
    request.stop()
    assert (request.is_requested, request.by_signal, request.hurry) == (True, None, False)
    assert request.grace_left_s() == 9
    request.note(SIGTERM)
    assert (request.by_signal, request.hurry, request.grace_left_s()) == (None, True, 9)


def test_a_stop_by_method_after_a_signal_does_not_hurry() -> None:
    request = StopRequest()
    request.note(SIGTERM)
    request.stop()
    assert (request.by_signal, request.hurry) == (SIGTERM, False)


# --- how it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("came", [(), (SIGINT,), (SIGINT, SIGINT)])
def test_a_run_without_a_signal_or_with_ctrl_c_returns(came: tuple[Signals, ...]) -> None:
    request = StopRequest()
    request.stop()
    for number in came:
        request.note(number)
    request.raise_if_interrupted("/experiment")


@pytest.mark.parametrize(
    ("came", "named"),
    [((SIGTERM,), SIGTERM), ((SIGINT, SIGHUP), SIGHUP), ((SIGUSR1, SIGTERM), SIGUSR1)],
)
def test_any_other_signal_ends_the_process_whatever_else_came(
    came: tuple[Signals, ...], named: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    request = StopRequest()
    request.stop()
    for number in came:
        request.note(number)
    with pytest.raises(InterruptedRunError) as caught:
        request.raise_if_interrupted("/experiment")
    assert (caught.value.signal_name, caught.value.path) == (named.name, "/experiment")
    assert str(caught.value) in caplog.text


# --- the handlers that were there ----------------------------------------------------------------


def test_the_users_handlers_are_put_back_then_called_once_each_in_order() -> None:
    calls: list[Any] = []

    def handler(number: int, frame: object) -> None:
        calls.append((number, frame is not None, handlers() == before))

    for number in (SIGTERM, SIGUSR1, SIGHUP):
        signal.signal(number, handler)
    before = handlers()
    with catching_signals(StopRequest()):
        for number in (SIGUSR1, SIGTERM, SIGUSR1, SIGINT):
            signal.raise_signal(number)
        assert calls == []
    assert calls == [(SIGUSR1, True, True), (SIGTERM, True, True)]


def test_what_a_users_handler_raises_goes_on_after_all_were_called() -> None:
    calls: list[Any] = []
    first, last = RuntimeError("first"), SystemExit(3)
    signal.signal(SIGTERM, noting(calls, first))
    signal.signal(SIGHUP, noting(calls))
    signal.signal(SIGUSR1, noting(calls, last))
    before = handlers()

    def run() -> None:
        with catching_signals(StopRequest()):
            for number in (SIGTERM, SIGHUP, SIGUSR1):
                signal.raise_signal(number)

    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value is last
    assert last.__context__ is first
    assert [number for number, _ in calls] == [SIGTERM, SIGHUP, SIGUSR1]
    assert handlers() == before


def test_a_block_that_raises_has_its_signals_delivered_and_its_error_goes_on() -> None:
    calls: list[Any] = []
    signal.signal(SIGTERM, noting(calls))
    before = handlers()

    def block() -> None:
        with catching_signals(StopRequest()):
            signal.raise_signal(SIGTERM)
            raise ValueError("the run's")

    with pytest.raises(ValueError, match="the run's"):
        block()
    assert calls == [(SIGTERM, True)]
    assert handlers() == before


class OfRay:
    __module__ = "ray._private.worker"

    def __call__(self, number: int, frame: object) -> None:
        sys.exit(number)


class OfNeighbour:
    __module__ = "rayleigh.worker"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, number: int, frame: object) -> None:
        self.calls.append(number)


def test_handlers_of_ray_and_of_python_are_put_back_and_not_called() -> None:
    neighbour = OfNeighbour()
    signal.signal(SIGTERM, OfRay())
    signal.signal(SIGHUP, neighbour)
    before = handlers()
    with catching_signals(StopRequest()):
        for number in STOPPING:
            signal.raise_signal(number)
    assert handlers() == before
    assert neighbour.calls == [SIGHUP]


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(SIGHUP, signal.SIG_IGN)
    with catching_signals(StopRequest()) as request:
        assert signal.getsignal(SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), SIGHUP)
        signal.raise_signal(SIGTERM)
        assert request.signals == (SIGTERM,)
    assert signal.getsignal(SIGHUP) is signal.SIG_IGN


def test_a_handler_that_is_not_pythons_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign(number: Signals) -> Any:
        return None if number is SIGUSR1 else getsignal(number)

    getsignal = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", foreign)
    with catching_signals(StopRequest()):
        assert getsignal(SIGTERM) is not signal.SIG_DFL
        assert getsignal(SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize("failing", STOPPING, ids=lambda number: number.name)
@pytest.mark.parametrize("entering", [True, False], ids=["entering", "leaving"])
def test_one_handler_that_cannot_be_set_keeps_no_other_from_being_put_back(
    failing: Signals, entering: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: Signals, handler: Any) -> Any:
        if entering:  # the worst: it is set, and the error comes then
            set_handler(number, handler)
        if number is failing and (handler is before[number]) is not entering:
            raise OSError("no")
        return set_handler(number, handler)

    before = handlers()
    set_handler = signal.signal
    monkeypatch.setattr(signal, "signal", fail)
    with pytest.raises(OSError, match="no"), catching_signals(StopRequest()):
        pass
    monkeypatch.undo()
    ours = {number for number in STOPPING if signal.getsignal(number) is not before[number]}
    assert ours == (set() if entering else {failing})


def test_a_signal_that_comes_while_handlers_are_put_back_keeps_none_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last one installed is put back first, and its handler raises out of what follows."""
    signal.signal(SIGUSR1, noting([], RuntimeError("the user's")))
    before = handlers()
    set_handler = signal.signal
    pending = [SIGUSR1]

    def interrupted(number: Signals, handler: Any) -> Any:
        if number is not SIGUSR1 and signal.getsignal(SIGUSR1) is before[SIGUSR1] and pending:
            signal.raise_signal(pending.pop())
        return set_handler(number, handler)

    context = catching_signals(StopRequest())
    context.__enter__()
    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(RuntimeError, match="the user's"):
        context.__exit__(None, None, None)
    assert handlers() == before


def test_in_another_thread_nothing_is_installed_and_the_method_stops() -> None:
    before, seen = handlers(), []

    def run() -> None:
        with catching_signals(StopRequest()) as request:
            seen.append(handlers())
            request.stop()
            seen.append(request.is_requested)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    assert seen == [before, True]
    assert handlers() == before


def test_runs_one_after_another_each_have_their_own_signals() -> None:
    calls: list[Any] = []
    signal.signal(SIGTERM, noting(calls))
    before = handlers()
    for count in (1, 2):
        with catching_signals(StopRequest()) as request:
            assert not request.is_requested
            signal.raise_signal(SIGTERM)
        assert len(calls) == count
        assert handlers() == before


def test_a_run_inside_of_a_run_stops_both_and_the_user_hears_of_it_once_both_are_over() -> None:
    calls: list[Any] = []
    clock = Clock()
    signal.signal(SIGTERM, noting(calls))
    before = handlers()
    with catching_signals(StopRequest(grace_s=10, clock=clock)) as outer:
        outers = handlers()
        with catching_signals(StopRequest()) as inner:
            signal.raise_signal(SIGTERM)
            clock.now_s += 4
        assert inner.by_signal is outer.by_signal is SIGTERM
        assert not outer.hurry
        assert outer.grace_left_s() == 6
        assert handlers() == outers
        assert calls == []
        signal.raise_signal(SIGTERM)
        assert (outer.hurry, inner.hurry) == (True, False)
    assert calls == [(SIGTERM, True)]
    assert handlers() == before


# --- real processes ------------------------------------------------------------------------------

PRELUDE = """
import os, signal, sys, time
from raytrials.driver.signals import STOPPING, StopRequest, catching_signals
"""

DEFAULTS = """
for number in STOPPING:
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""

RUN = (
    PRELUDE
    + DEFAULTS
    + """
with catching_signals(StopRequest()) as request:
    print("ready", flush=True)
    until_s = time.monotonic() + 30
    while not request.is_requested and time.monotonic() < until_s:
        pass
request.raise_if_interrupted("/experiment")
print("returned")
"""
)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(SIGINT, 0, "returned\n"), (SIGTERM, 75, ""), (SIGHUP, 75, ""), (SIGUSR1, 75, "")],
)
def test_the_exit_code_of_a_process_tells_that_it_is_not_done(
    number: Signals, code: int, said: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (code, said)
    assert "Traceback" not in err
    assert ("Tuner.restore('/experiment'" in err) is (code == 75)


UNDER_NOHUP = (
    PRELUDE
    + """
with catching_signals(StopRequest()) as request:
    os.kill(os.getpid(), signal.SIGHUP)
    assert not request.is_requested
"""
)


def test_nohup_keeps_working() -> None:
    subprocess.run(
        ["nohup", sys.executable, "-c", UNDER_NOHUP],
        check=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


# A signal comes between two steps of the interpreter, wherever that is: here the steps are drawn.
STORM = (
    PRELUDE
    + DEFAULTS
    + """
import random, threading

SEED, PATH = int(sys.argv[1]), sys.argv[2]
luck = random.Random(SEED)
due = sorted(luck.sample(range(20_000), 100))
lock = threading.Lock()
steps = sent = under_lock = 0

def trace(frame, event, argument):
    global steps, sent, under_lock
    frame.f_trace_opcodes = True
    if event == "opcode":
        steps += 1
        if sent < len(due) and steps > due[sent]:
            sent += 1
            under_lock += lock.locked()
            signal.raise_signal(luck.choice(STOPPING))
    return trace

def write(number):
    with lock, open(PATH, "r+") as file:
        file.write(f"{number:09}")
        file.flush()
        file.write(f"{number:09}")

def read():
    with lock, open(PATH) as file:
        text = file.read()
    assert text[:9] == text[9:] and len(text) == 18, text
    return int(text[:9])

def body(request):
    number = 0
    while sent < len(due):
        number += 1
        write(number)
        assert read() == number
        request.stop(), request.is_requested, request.hurry, request.signals
        assert request.grace_left_s() <= 20

before = {number: signal.getsignal(number) for number in STOPPING}
open(PATH, "w").close()
with catching_signals(StopRequest()) as request:
    # On Python 3.12 opcodes are traced if a frame wants them when tracing begins, and not later.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    body(request)
    sys.settrace(None)
assert set(request.signals) == set(STOPPING) and request.hurry
assert {number: signal.getsignal(number) for number in STOPPING} == before
assert under_lock > 10, under_lock
"""
)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hundred_signals_at_any_moment_tear_nothing_and_block_nothing(
    seed: int, tmp_path: Path
) -> None:
    arguments = [str(seed), str(tmp_path / "state")]
    subprocess.run([sys.executable, "-c", STORM, *arguments], check=True, timeout=LIMIT_S)
