"""Ids and times of stored objects."""

from __future__ import annotations

import secrets
import string
import time

_LETTERS = string.ascii_letters + string.digits


def new_id(prefix: str) -> str:
    """An id that cannot be guessed: the prefix and 24 random letters (142 bits)."""
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(24))


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())
