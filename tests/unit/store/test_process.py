"""A process is told from every other, and said to be gone only when it surely is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raytrials.store import process
from raytrials.store.process import Process, is_gone, this_process

TELLS = "from raytrials.store.process import *; print(this_process(), flush=True); input()"

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the system does not tell"
)


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[bytes], Process]]:
    with subprocess.Popen(
        [sys.executable, "-c", TELLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        yield child, eval(child.stdout.readline())
        child.kill()


def test_this_process_is_known_and_not_gone() -> None:
    here = this_process()
    assert here.pid == os.getpid()
    assert here == this_process()
    assert None not in {here.boot_id, here.pid_namespace, here.started}
    assert not is_gone(here)


def test_a_process_is_gone_when_it_was_killed_also_before_its_parent_knows(
    child: tuple[subprocess.Popen[bytes], Process],
) -> None:
    running, known = child
    assert known.pid == running.pid
    assert not is_gone(known)
    running.kill()
    os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{running.pid}").exists()
    assert is_gone(known)
    running.wait()
    assert is_gone(known)


def test_another_process_with_the_same_number_is_another() -> None:
    here = this_process()
    assert here.started is not None
    assert is_gone(replace(here, started=here.started - 1))


@pytest.mark.parametrize("pid", [0, -1, -(2**40), 2**31, 2**64])
def test_a_number_that_no_process_has_is_not_asked_for(
    pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal to a group"))
    assert not is_gone(replace(this_process(), pid=pid))


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "other"},
        {"boot_id": None},
        {"pid_namespace": "pid:[1]"},
        {"pid_namespace": None},
    ],
)
def test_of_a_process_elsewhere_nothing_is_told(
    change: dict[str, str | None], child: tuple[subprocess.Popen[bytes], Process]
) -> None:
    running, known = child
    running.kill()
    running.wait()
    assert not is_gone(replace(known, **change))  # type: ignore[arg-type]


def test_a_process_of_another_user_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(process.os, "kill", refuse)
    assert not is_gone(this_process())
    # Where /proc hides what belongs to others.
    monkeypatch.setattr(process, "_stat", lambda _: None)
    assert not is_gone(replace(this_process(), started=1))


@pytest.mark.parametrize(
    ("stat", "started", "ended"),
    [
        ("7 (a b) S 1 " + "0 " * 15 + "3 0 4711 0", 4711, False),
        ("7 (a) Z (x) S 1 " + "0 " * 15 + "1 0 4711 0", 4711, False),
        ("7 (a) Z 1 " + "0 " * 15 + "1 0 4711 0", 4711, True),
        ("7 (a) Z 1 " + "0 " * 15 + "2 0 4711 0", 4711, False),  # threads of it still end
        ("7 (a) T 1 " + "0 " * 15 + "1 0 4711 0", 4711, False),
    ],
)
def test_what_the_system_tells_is_read(
    stat: str, started: int, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(stat)
    monkeypatch.setattr(process, "_PROC", tmp_path)
    assert process._stat(7) == (started, ended)


@pytest.mark.parametrize("text", ["", "7 (a) S", "7 (a) S 1 " + "x " * 30, "garbage"])
def test_what_the_system_does_not_tell_is_not_known(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PROC", tmp_path)
    assert this_process() == Process(this_process().host, None, None, os.getpid(), None)
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(text)
    assert process._stat(7) is None


def test_the_processes_of_another_namespace_are_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").symlink_to("7")
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "stat").write_text("7 (a) S 1 " + "0 " * 15 + "1 0 4711 0")
    monkeypatch.setattr(process, "_PROC", tmp_path)
    assert this_process().started is None
