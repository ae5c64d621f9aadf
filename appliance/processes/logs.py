"""Log files of child processes: one per start, the one before it kept, and what their last lines say."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

__all__ = ["last_words", "log_tail", "open_log"]

_TAIL_BYTES = 64 * 1024
_WIDTH = 300
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_ERROR = re.compile(r"\b\w*(Error|Exception|Exit)\b: \S|\b(error|fatal|panic)\b:? \S|cannot start", re.IGNORECASE)
_POINTER = re.compile(r"see .{0,40}(above|root cause)", re.IGNORECASE)


def open_log(path: Path) -> BinaryIO:
    """Open an empty log that only its owner can read; the previous one becomes ``<name>.1``.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_name(path.name + ".1"))
    # Appending lets an operator truncate a running process's log.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)


def last_words(path: Path) -> str:
    """Return in one line why a process says it ended: its last error lines, else its last lines; "" if none."""
    lines = _lines(log_tail(path, _TAIL_BYTES))
    errors = [line for line in lines if _ERROR.search(line) and not _POINTER.search(line)]
    chosen = list(dict.fromkeys(errors or lines))[-2:]
    return " | ".join(line[:_WIDTH] for line in chosen)


def log_tail(path: Path, size: int) -> str:
    """The last ``size`` bytes of a log as text, without reading what is before them; empty where there is no log."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - size))
            return log.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def _lines(text: str) -> list[str]:
    lines = (_CONTROL.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if any(map(str.isalnum, line))]
