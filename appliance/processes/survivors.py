"""Ends what a killed guard left behind. Linux only; elsewhere it finds nobody."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

__all__ = ["MARKER", "kill_survivors"]

MARKER = "APPLIANCE_CHILD"
"""Environment variable, passed down to all descendants, by which they are known."""


def kill_survivors(session: int, marker: str) -> None:
    """SIGKILL every process of a session, and every one that was started with ``marker`` as its ``MARKER`` variable."""
    wanted = f"{MARKER}={marker}".encode()
    for _ in range(10):  # what is killed may have been starting others
        found = [pid for pid in _processes() if _session(pid) == session or wanted in _environment(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    try:
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except FileNotFoundError:
        return []


def _session(pid: int) -> int | None:
    """The session of a living process; None for one that has ended and only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[3]) if fields[0] != b"Z" else None


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
