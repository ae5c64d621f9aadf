"""The guard, run as the appliance runs it: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.processes import guard

GUARD = str(Path(guard.__file__))

# A command with a child, a grandchild in a session of its own that ignores SIGTERM, and an orphan by double fork.
FAMILY = """
import os, signal, sys, time
def note():
    with open(sys.argv[1] + "/" + str(os.getpid()), "w"):
        pass
def sleeper(own_session):
    if os.fork() == 0:
        if own_session:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            note()
            time.sleep(600)
        if own_session:
            os._exit(0)
        note()
        time.sleep(600)
sleeper(False)
sleeper(True)
note()
while len(os.listdir(sys.argv[1])) < 4:
    time.sleep(0.01)
if sys.argv[2:] == ["crash"]:
    os._exit(5)
time.sleep(600)
"""
FAMILY_SIZE = 4

# A parent that starts the guard, as the appliance does, and then does nothing.
PARENT = """
import os, subprocess, sys, time
read, write = os.pipe()
command = [sys.executable, "-I", "-S", sys.argv[1], "--fd", str(read), "--grace", "0.2", "--", *sys.argv[2:]]
subprocess.Popen(command, pass_fds=[read], start_new_session=True)
os.close(read)
time.sleep(600)
"""


def until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def family(folder: Path) -> list[int]:
    assert until(lambda: len(os.listdir(folder)) == FAMILY_SIZE)
    return [int(name) for name in os.listdir(folder)]


class Guarded:
    """A guard whose pipe this test holds."""

    def __init__(self, *command: str, grace: float = 5.0) -> None:
        read, self.write = os.pipe()
        arguments = ["--fd", str(read), "--grace", str(grace), "--", *command]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", GUARD, *arguments],
            pass_fds=[read],
            start_new_session=True,
            stderr=subprocess.PIPE,
        )
        os.close(read)

    def let_go(self) -> None:
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def result(self) -> tuple[int, bytes]:
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


Start = Callable[..., Guarded]


@pytest.fixture
def start() -> Iterator[Start]:
    guards: list[Guarded] = []

    def run(*command: str, grace: float = 5.0) -> Guarded:
        guards.append(Guarded(*command, grace=grace))
        return guards[-1]

    yield run
    for one in guards:
        one.let_go()
        one.process.communicate(timeout=30)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_command_s(start: Start, code: int) -> None:
    assert start("sh", "-c", f"exit {code}").result() == (code, b"")


def test_a_signal_that_ended_the_command_shows_in_the_exit_code(start: Start) -> None:
    assert start("sh", "-c", "kill -9 $$").result()[0] == 128 + signal.SIGKILL


def test_a_command_that_cannot_be_started_is_named(start: Start) -> None:
    assert start("/no/such/program").result() == (127, b"cannot start /no/such/program: No such file or directory\n")


def test_the_command_has_a_process_group_of_its_own_in_the_guard_s_session(start: Start) -> None:
    code = "import os, sys; sys.exit(os.getsid(0) != os.getppid() or os.getpgrp() != os.getpid())"
    assert start(sys.executable, "-c", code).result() == (0, b"")


def test_the_command_s_own_double_dashes_reach_it(start: Start) -> None:
    code = "import sys; sys.exit(sys.argv[1:] != ['--', '--fd', '--'])"
    assert start(sys.executable, "-c", code, "--", "--fd", "--").result() == (0, b"")


def test_the_command_does_not_get_the_guard_s_pipe(start: Start) -> None:
    code = "import os, sys; sys.exit(os.listdir('/proc/self/fd') != ['0', '1', '2', '3'])"  # 3 is the listing itself
    assert start(sys.executable, "-c", code).result() == (0, b"")


def test_the_end_of_the_pipe_stops_the_command_politely(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    guarded = start("sh", "-c", f"trap 'exit 7' TERM; touch {ready}; while :; do sleep 0.02; done")
    assert until(ready.exists)
    guarded.let_go()
    assert guarded.result()[0] == 7


def test_sigterm_stops_the_whole_family(start: Start, tmp_path: Path) -> None:
    guarded = start(sys.executable, "-c", FAMILY, str(tmp_path), grace=0.2)
    pids = family(tmp_path)
    guarded.process.terminate()
    assert guarded.result()[0] == 128 + signal.SIGTERM
    assert not any(map(alive, pids))


def test_the_grace_is_bounded(start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    guarded = start("sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 0.02; done", grace=0.3)
    assert until(ready.exists)
    began = time.monotonic()
    guarded.let_go()
    assert guarded.result()[0] == 128 + signal.SIGKILL  # the command itself would go on for ever
    assert time.monotonic() - began >= 0.3


def test_what_a_crashed_command_leaves_behind_is_ended(start: Start, tmp_path: Path) -> None:
    guarded = start(sys.executable, "-c", FAMILY, str(tmp_path), "crash", grace=0.2)
    assert guarded.result()[0] == 5
    assert not any(map(alive, family(tmp_path)))


def test_the_command_dies_with_a_killed_guard(start: Start, tmp_path: Path) -> None:
    guarded = start(sys.executable, "-c", f"open('{tmp_path}/' + str(__import__('os').getpid()), 'w'); input()")
    assert until(lambda: bool(os.listdir(tmp_path)))
    pid = int(os.listdir(tmp_path)[0])
    guarded.process.kill()
    assert until(lambda: not alive(pid))


def test_a_guard_without_prctl_still_works(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code = f"""
import runpy, sys, ctypes
ctypes.CDLL = lambda *a, **k: object()
sys.argv = ["guard.py", *sys.argv[1:]]
runpy.run_path({GUARD!r}, run_name="__main__")
"""
    read, write = os.pipe()
    command = [sys.executable, "-c", code, "--fd", str(read), "--", "sh", "-c", "exit 4"]
    result = subprocess.run(command, pass_fds=[read], timeout=30, check=False)
    os.close(read)
    os.close(write)
    assert (result.returncode, capfd.readouterr().err) == (4, "")


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(20))
def test_nothing_outlives_a_parent_that_was_killed(tmp_path: Path, attempt: int) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, GUARD, sys.executable, "-c", FAMILY, str(tmp_path)])
    pids = family(tmp_path)
    parent.kill()
    parent.wait(timeout=30)
    assert until(lambda: not any(map(alive, pids)))
