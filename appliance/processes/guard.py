"""Runs one command and takes it down, with everything it started, when the appliance is gone.

    python -I -S guard.py --fd N [--grace SECONDS] -- COMMAND...

``N`` is the read end of a pipe whose write end only the appliance holds. When the pipe ends (the appliance closed it,
or died, by kill -9 too) or on SIGTERM, the command's process group gets SIGTERM, then after the grace everything still
alive below the guard gets SIGKILL, whatever session it moved to. The same follows when the command ends by itself.
The exit code is the command's; 128 + n when signal n ended it; 127 when it could not be started.

This file imports nothing but the standard library, so that the guard stays small and starts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 5.0
"""How long to wait for killed processes to go; one that hangs in the kernel must not hold the guard for ever."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command named by ``arguments`` until it, the pipe or a SIGTERM ends it; return the exit code."""
    options = _parse(arguments)
    os.set_inheritable(options.fd, False)
    prctl = _prctl()
    # Orphans below become the guard's children, so that none leaves its sight by a double fork.
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with _signals() as (wake_fd, asked_to_stop):
        command = _Command(options.command, prctl)
        _watch(command, options.fd, wake_fd, asked_to_stop)
        _end(command, options.grace, wake_fd)
    return command.exit_code


class _Command:
    """The command's main process, and what is known of its end."""

    def __init__(self, command: Sequence[str], prctl: Callable[[int, int], None]) -> None:
        self.exited = False
        self.exit_code = 128 + signal.SIGKILL
        guard = os.getpid()
        started, starting = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _exec(command, guard, prctl)
        os.close(starting)
        os.read(started, 1)  # ends when the command runs: before that, a signal to it would be lost
        os.close(started)

    def reap(self) -> None:
        """Collect every ended child: the command, and orphans that came to the guard."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self.exited = True
                    code = os.waitstatus_to_exitcode(ended[1])
                    self.exit_code = code if code >= 0 else 128 - code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="guard.py", description="Run a command that ends with its parent.")
    parser.add_argument("--fd", type=int, required=True, help="read end of the parent's pipe")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND", help="the command and its arguments")
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Cut here and not by argparse, which would also take away a "--" among the command's own arguments.
    at = words.index("--") if "--" in words else len(words)
    options = parser.parse_args([*words[:at], *words[at + 1 : at + 2]])
    options.command += words[at + 2 :]
    return options


def _prctl() -> Callable[[int, int], None]:
    """Return the C library's prctl, or something that does nothing where there is none."""
    try:
        function = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return lambda option, value: None
    return lambda option, value: function(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


@contextlib.contextmanager
def _signals() -> Iterator[tuple[int, list[int]]]:
    """Have signals wake a poll: gives the file descriptor to poll and the list of stop signals that have come."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    stops: list[int] = []
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    # Ctrl-C reaches the appliance, which stops its children in its own order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield read_fd, stops


def _exec(command: Sequence[str], guard: int, prctl: Callable[[int, int], None]) -> None:
    """Become the command: own process group, killed when the guard is, default signal handling."""
    try:
        # A guard that leads its session shares it: whoever started the guard then finds the command by the guard's id.
        if os.getsid(0) == guard:
            os.setpgid(0, 0)
        else:
            os.setsid()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died before the line above took effect
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _watch(command: _Command, parent_fd: int, wake_fd: int, asked_to_stop: list[int]) -> None:
    """Return when the command has ended, the parent is gone or a stop signal came."""
    poll = select.poll()
    poll.register(parent_fd, select.POLLIN)
    poll.register(wake_fd, select.POLLIN)
    while not command.exited and not asked_to_stop:
        ready = [fd for fd, _ in poll.poll()]
        _drain(wake_fd)
        command.reap()
        if parent_fd in ready and not os.read(parent_fd, 4096):
            return


def _end(command: _Command, grace: float, wake_fd: int) -> None:
    """SIGTERM to the group, up to ``grace`` seconds, then SIGKILL to all that is left below the guard."""
    _signal_all(command, signal.SIGTERM)
    _wait_until_alone(command, grace, wake_fd)
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := _descendants()) and time.monotonic() < deadline:
        _signal_all(command, signal.SIGKILL)
        for pid in left:
            _send(pid, signal.SIGKILL)
        _wait_until_alone(command, 0.02, wake_fd)
    if not command.exited:  # without /proc nobody is seen; the group is all there is to kill
        _signal_all(command, signal.SIGKILL)
        _wait_until_alone(command, _KILL_SECONDS, wake_fd)


def _wait_until_alone(command: _Command, seconds: float, wake_fd: int) -> None:
    poll = select.poll()
    poll.register(wake_fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    command.reap()
    # A grandchild that ends tells its own parent, not the guard: hence the short poll beside the wake-up.
    while (not command.exited or _descendants()) and (left := deadline - time.monotonic()) > 0:
        poll.poll(min(left, 0.05) * 1000)
        _drain(wake_fd)
        command.reap()


def _drain(wake_fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(wake_fd, 512):
            pass


def _signal_all(command: _Command, number: signal.Signals) -> None:
    """Signal the command's group; its id may be another's once it is reaped, so then each process by itself."""
    if command.exited:
        for pid in _descendants():
            _send(pid, number)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(command.pid, number)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants() -> list[int]:
    """Process ids of everything below the guard, children first."""
    children = _children_by_parent()
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _children_by_parent() -> dict[int, list[int]]:
    table: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:
        return table
    for name in filter(str.isdigit, names):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            # The command name, in parentheses, may hold spaces; the parent's id is the second field after it.
            parent = int(stat.read().rpartition(b")")[2].split()[1])
            table.setdefault(parent, []).append(int(name))
    return table


if __name__ == "__main__":
    sys.exit(main())
