"""Looks for processes by what their command line or environment holds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def processes_with(text: str) -> list[int]:
    """Ids of the living processes, but this one, that hold ``text`` in their command line or environment."""
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _holds(entry, text.encode())
    ]


def workers_at(socket: Path, *words: str) -> list[int]:
    """Ids of the workers at a socket, without their guards, that have ``words`` in their command line too.

    The first is the worker: a child that it is just about to start looks like it for a moment.
    """
    wanted = {b"appliance.knowledge.worker", os.fsencode(socket), *map(str.encode, words)}
    return sorted(pid for pid, line in _command_lines() if wanted <= line and b"--fd" not in line)


def kill_worker_at(socket: Path) -> bool:
    """Kill -9 the worker at a socket, by its own number; whether there was one."""
    for pid in workers_at(socket):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def forget_peak_memory() -> None:
    """Count ``peak_memory`` anew: what an earlier test of this process took would hide what this one takes."""
    Path("/proc/self/clear_refs").write_text("5")  # proc(5)


def peak_memory() -> int:
    """The most bytes that this process has held at a time, since ``forget_peak_memory``."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _command_lines() -> Iterator[tuple[int, set[bytes]]]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # ended since
            if entry.name.isdigit():
                yield int(entry.name), set((entry / "cmdline").read_bytes().split(b"\0"))


def _holds(entry: Path, text: bytes) -> bool:
    if int(entry.name) == os.getpid():
        return False
    try:
        return text in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
    except OSError:
        return False  # gone, or a zombie
