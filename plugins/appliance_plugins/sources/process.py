"""Runs pip and the GGUF conversion as child processes: output by line, a time limit, no orphan."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

_TICK_SECONDS = 0.25
_KEPT_LINES = 200


class Result(NamedTuple):
    """Exit code (``None``: stopped at the time limit) and the last lines of output."""

    code: int | None
    lines: list[str]

    @property
    def last(self) -> str:
        """The last line that says something."""
        return self.lines[-1] if self.lines else f"exit code {self.code}"


def run(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    tick: Callable[[str], None],
    timeout: float | None = None,
) -> Result:
    """Run ``python -m module arguments`` to its end.

    ``environment`` is added to ours. ``tick`` gets each line of output, and an empty string every quarter
    second. ``timeout`` is in seconds.

    Raises:
        OSError: with errno ENOSPC when the child said that the disk is full.
    """
    tied = Path(__file__).with_name("tied.py")
    command = [sys.executable, "-P", "-u", str(tied), str(os.getpid()), module, *arguments]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    with child:
        try:
            lines, ended = _follow(cast("IO[bytes]", child.stdout), tick, timeout)
        finally:
            if child.poll() is None and not _ends_soon(child):
                child.kill()
    if child.returncode and any("No space left on device" in line for line in lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return Result(child.returncode if ended else None, lines)


def _ends_soon(child: subprocess.Popen[bytes]) -> bool:
    """False unless the child, which has closed its output or is to be stopped, ends by itself at once."""
    try:
        child.wait(_TICK_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _follow(output: IO[bytes], tick: Callable[[str], None], timeout: float | None) -> tuple[list[str], bool]:
    """Read lines until the output ends (True) or time is up (False)."""
    deadline = time.monotonic() + timeout if timeout else None
    lines: list[str] = []
    rest = b""
    while deadline is None or time.monotonic() < deadline:
        if not select.select([output], [], [], _TICK_SECONDS)[0]:
            tick("")
            continue
        data = os.read(output.fileno(), 65536)
        *whole, rest = (rest + data).split(b"\n")
        for line in [*whole, *([rest] if not data else [])]:
            _take(line, lines, tick)
        if not data:
            return lines, True
    return lines, False


def _take(line: bytes, lines: list[str], tick: Callable[[str], None]) -> None:
    text = line.decode("utf-8", "replace").strip()
    if text:
        lines.append(text)
        del lines[:-_KEPT_LINES]
        tick(text)
