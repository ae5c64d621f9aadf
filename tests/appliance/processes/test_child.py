"""Supervision of real child processes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from eventually import until

from appliance.processes.backoff import Backoff
from appliance.processes.child import Child, ChildFailed, State

ON_BOTH_LOOPS = True

ENV = {"PATH": os.environ["PATH"]}

# The main process, a child, and a grandchild in another session that ignores SIGTERM. Each notes its process id.
FAMILY = """
import os, signal, sys, time
folder = sys.argv[1]
def note():
    open(f"{folder}/{os.getpid()}", "w").close()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note()
    time.sleep(600)
note()
time.sleep(600)
"""

# An appliance in small: one child with a family, and nothing more.
PARENT = """
import asyncio, os, sys
from pathlib import Path
from appliance.processes.child import Child
folder = Path(sys.argv[1])
async def ready():
    return len(os.listdir(folder)) == 3
async def main():
    command = [sys.executable, "-c", sys.argv[2], str(folder)]
    child = Child("engine", command, env={}, log_path=folder.parent / "log", ready=ready, stop_timeout=0.2)
    await child.start()
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def own_children() -> list[str]:
    """Process ids of this process's children, ended and not yet reaped ones too."""
    pairs = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            pairs.append((name, Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]))
        except OSError:
            continue
    return [pid for pid, parent in pairs if parent == str(os.getpid())]


class Nursery:
    """Makes children for one test and stops them after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids = folder / "pids"
        self.pids.mkdir()
        self.log = folder / "logs" / "engine.log"
        self.states: list[State] = []
        self.children: list[Child] = []

    async def is_ready(self) -> bool:
        try:
            return alive(int((self.folder / "ready").read_text()))
        except (FileNotFoundError, ValueError):
            return False

    def child(self, *command: str, **given: Any) -> Child:
        options: dict[str, Any] = {
            "backoff": Backoff(first=0.05, cap=0.2),
            "ready": self.is_ready,
            "stop_timeout": 20.0,
        } | given
        child = Child("engine", command, env=ENV, log_path=self.log, on_state_change=self.states.append, **options)
        self.children.append(child)
        return child

    def shell(self, script: str, **options: Any) -> Child:
        """A child that runs ``script``; its process id is noted, and ``$F`` is the test's folder."""
        return self.child("sh", "-c", f"F={self.folder}; touch $F/pids/$$; {script}", **options)

    def family(self, **options: Any) -> Child:
        async def ready() -> bool:
            return sum(map(alive, self.known())) >= 3

        return self.child(sys.executable, "-c", FAMILY, str(self.pids), ready=ready, **options)

    def known(self) -> list[int]:
        return [int(name) for name in os.listdir(self.pids)]

    def nobody_lives(self) -> bool:
        return not any(map(alive, self.known()))


SERVE = "echo $$ > $F/ready; exec sleep 600"


@pytest.fixture
async def nursery(tmp_path: Path) -> AsyncIterator[Nursery]:
    before = own_children()
    nursery = Nursery(tmp_path)
    yield nursery
    for child in nursery.children:
        await child.stop()
    assert nursery.nobody_lives()
    assert set(own_children()) <= set(before)


def never(answer: bool = False) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return answer

    return probe


async def test_start_returns_when_the_process_is_ready(nursery: Nursery) -> None:
    child = nursery.shell("sleep 0.1; " + SERVE)
    await child.start()
    assert child.state == "ready"
    assert nursery.states == ["starting", "ready"]
    assert not nursery.nobody_lives()
    await child.wait_ready(0)


async def test_a_running_child_is_not_started_twice(nursery: Nursery) -> None:
    child = nursery.shell(SERVE)
    await child.start()
    with pytest.raises(RuntimeError, match="engine is running already"):
        await child.start()


async def test_an_end_before_readiness_is_told_with_the_last_words_of_the_process(nursery: Nursery) -> None:
    child = nursery.shell("echo loading; echo 'ValueError: no such model: x' >&2; exit 3")
    with pytest.raises(ChildFailed) as caught:
        await child.start()
    assert str(caught.value) == f"engine exited with code 3: ValueError: no such model: x. Log: {nursery.log}."
    assert (child.state, child.restarts) == ("stopped", 0)


async def test_a_signal_before_readiness_is_named(nursery: Nursery) -> None:
    with pytest.raises(ChildFailed, match=r"engine was killed by SIGKILL \(often: out of memory\)\. Log: "):
        await nursery.shell("kill -9 $$").start()


async def test_a_process_that_is_not_ready_in_time_is_ended(nursery: Nursery) -> None:
    child = nursery.shell("echo loading weights; exec sleep 600", start_timeout=2)
    with pytest.raises(ChildFailed, match=r"engine was not ready within 2 s: loading weights\. Log: "):
        await child.start()
    assert nursery.nobody_lives()


async def test_the_reason_of_the_last_failed_check_is_told(nursery: Nursery) -> None:
    async def ready() -> bool:
        raise ConnectionRefusedError("nobody listens")

    child = nursery.shell("exec sleep 600", ready=ready, start_timeout=1)
    with pytest.raises(ChildFailed, match="the last check said: nobody listens"):
        await child.start()


async def test_a_check_that_hangs_does_not_hold_the_start(nursery: Nursery) -> None:
    async def ready() -> bool:
        await asyncio.sleep(600)
        return True

    child = nursery.shell("exec sleep 600", ready=ready, start_timeout=1, probe_timeout=0.1)
    with pytest.raises(ChildFailed, match="the last check took too long"):
        await asyncio.wait_for(child.start(), 20)


async def test_a_program_that_is_not_there_is_named(nursery: Nursery) -> None:
    with pytest.raises(ChildFailed, match=r"exited with code 127: cannot start /no/such/engine: No such file"):
        await nursery.child("/no/such/engine").start()


async def test_a_log_that_cannot_be_written_is_named(nursery: Nursery) -> None:
    (nursery.folder / "logs").touch()
    with pytest.raises(ChildFailed, match=r"engine could not be started: .*logs"):
        await nursery.shell(SERVE).start()


async def test_the_environment_is_what_was_given(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    await nursery.shell("env > $F/env; " + SERVE).start()
    names = {line.partition("=")[0] for line in (nursery.folder / "env").read_text().splitlines()}
    assert names - {"PWD", "_", "F", "SHLVL", "OLDPWD", "LC_CTYPE", "APPLIANCE_CHILD"} == {"PATH"}


async def test_a_crash_is_followed_by_a_restart_and_the_log_of_the_crash_is_kept(nursery: Nursery) -> None:
    child = nursery.shell('echo "run of $$"; ' + SERVE)
    await child.start()
    (first,) = nursery.known()
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.restarts == 1 and child.state == "ready")
    assert nursery.states == ["starting", "ready", "restarting", "ready"]
    assert child.last_failure.startswith("engine was killed by SIGKILL")
    second = next(pid for pid in nursery.known() if pid != first)
    assert nursery.log.read_text() == f"run of {second}\n"
    assert nursery.log.with_name("engine.log.1").read_text() == f"run of {first}\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in nursery.log.parent.iterdir()} == {0o600}


async def test_requests_can_wait_for_the_restart(nursery: Nursery) -> None:
    child = nursery.shell(SERVE)
    await child.start()
    os.kill(nursery.known()[0], signal.SIGKILL)
    await until(lambda: child.state == "restarting")
    await child.wait_ready(10)
    assert child.state == "ready"


async def test_waiting_for_readiness_is_bounded(nursery: Nursery) -> None:
    child = nursery.shell(SERVE, backoff=Backoff(first=60))
    await child.start()
    os.kill(nursery.known()[0], signal.SIGKILL)
    await until(lambda: child.state == "restarting")
    with pytest.raises(ChildFailed, match=r"engine is not ready \(restarting\)\. engine was killed by SIGKILL"):
        await child.wait_ready(0.05)


async def test_a_process_that_keeps_crashing_is_called_failed_and_still_tried(nursery: Nursery) -> None:
    crash = "test -e $F/ready && test ! -e $F/repaired && echo 'Error: broken' && exit 3; "
    child = nursery.shell(crash + SERVE, backoff=Backoff(first=0.01, cap=0.05, max_crashes=2))
    await child.start()
    os.kill(nursery.known()[0], signal.SIGKILL)
    await until(lambda: child.state == "failed")
    with pytest.raises(ChildFailed, match="exited with code 3: Error: broken"):
        await child.wait_ready(60)
    restarts = child.restarts
    await until(lambda: child.restarts > restarts)
    assert nursery.states == ["starting", "ready", "restarting", "failed"]
    (nursery.folder / "repaired").touch()
    await until(lambda: child.state == "ready")


async def test_a_process_that_no_longer_answers_is_killed_and_restarted(nursery: Nursery) -> None:
    answers = iter([True, False, False, True, False, False, False])

    async def answering() -> bool:
        return next(answers, True)

    child = nursery.shell(SERVE, alive=answering, alive_interval=0.02)
    await child.start()
    await until(lambda: child.restarts == 1 and child.state == "ready")
    assert child.last_failure.startswith("engine no longer answers (3 checks in a row failed)")
    assert sum(map(alive, nursery.known())) == 1


async def test_a_check_that_hangs_counts_as_no_answer(nursery: Nursery) -> None:
    hang = asyncio.Event()

    async def answering() -> bool:
        await hang.wait()
        return True

    child = nursery.shell(SERVE, alive=answering, alive_interval=0.01, probe_timeout=0.02)
    await child.start()
    await until(lambda: child.restarts >= 1)


async def test_stop_leaves_nobody_and_may_be_called_again(nursery: Nursery) -> None:
    child = nursery.family(stop_timeout=0.2)
    await child.start()
    await asyncio.gather(child.stop(), child.stop())
    assert nursery.nobody_lives()
    await child.stop()
    assert nursery.states == ["starting", "ready", "stopped"]
    with pytest.raises(ChildFailed, match="stopped"):
        await child.wait_ready(60)


async def test_stop_is_polite_first(nursery: Nursery) -> None:
    child = nursery.shell("trap 'touch $F/bye; exit' TERM; echo $$ > $F/ready; while :; do sleep 0.02; done")
    await child.start()
    await child.stop()
    assert (nursery.folder / "bye").exists()


async def test_stop_does_not_wait_for_ever(nursery: Nursery) -> None:
    child = nursery.shell("trap '' TERM; echo $$ > $F/ready; while :; do sleep 0.02; done", stop_timeout=0.2)
    await child.start()
    await asyncio.wait_for(child.stop(), 20)


async def test_a_child_that_was_never_started_can_be_stopped(nursery: Nursery) -> None:
    await nursery.shell(SERVE).stop()


async def test_a_stopped_child_can_be_started_again(nursery: Nursery) -> None:
    child = nursery.shell(SERVE)
    await child.start()
    await child.stop()
    await child.start()
    assert child.state == "ready"


async def test_stop_during_the_start_ends_both(nursery: Nursery) -> None:
    child = nursery.shell("exec sleep 600", ready=never())
    starting = asyncio.create_task(child.start())
    await until(lambda: bool(nursery.known()))
    await child.stop()
    with pytest.raises(ChildFailed, match="stopped while it started"):
        await starting
    assert nursery.nobody_lives()


async def test_a_stop_in_the_same_moment_as_the_start_ends_both(nursery: Nursery) -> None:
    child = nursery.shell("exec sleep 600", ready=never())
    starting, stopping = asyncio.create_task(child.start()), asyncio.create_task(child.stop())
    await asyncio.wait_for(stopping, 20)
    with pytest.raises(ChildFailed, match="stopped while it started"):
        await asyncio.wait_for(starting, 20)
    assert child.state == "stopped"


async def test_a_cancelled_start_leaves_nobody(nursery: Nursery) -> None:
    child = nursery.shell("exec sleep 600", ready=never())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(child.start(), 0.3)
    assert nursery.nobody_lives()
    assert child.state == "stopped"


async def test_stop_during_the_back_off_is_at_once(nursery: Nursery) -> None:
    child = nursery.shell(SERVE, backoff=Backoff(first=60))
    await child.start()
    os.kill(nursery.known()[0], signal.SIGKILL)
    await until(lambda: child.state == "restarting")
    await asyncio.wait_for(child.stop(), 20)


async def test_the_death_of_the_guard_takes_the_whole_family_along_and_brings_a_new_one(nursery: Nursery) -> None:
    child = nursery.family(stop_timeout=0.2)
    before = set(own_children())
    await child.start()
    family = nursery.known()
    (guard,) = set(own_children()) - before
    os.kill(int(guard), signal.SIGKILL)
    await until(lambda: not any(map(alive, family)))
    await until(lambda: child.restarts == 1 and child.state == "ready")
    assert child.last_failure.startswith("engine lost its guard process to SIGKILL")


async def test_a_listener_that_fails_does_not_end_the_supervision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def listen(state: State) -> None:
        raise ZeroDivisionError

    child = Child(
        "engine", ["sleep", "600"], env=ENV, log_path=tmp_path / "log", ready=never(True), on_state_change=listen
    )
    with caplog.at_level(logging.ERROR):
        await child.start()
    assert child.state == "ready"
    await child.stop()
    assert "a listener of its state failed" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
def test_r04_nothing_outlives_an_appliance_that_was_killed(tmp_path: Path, attempt: int) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    command = [sys.executable, "-c", PARENT, str(folder), FAMILY]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
    pids = [int(name) for name in os.listdir(folder)]
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, pids))
