"""Ids and times of stored objects."""

from __future__ import annotations

import secrets
import string
import time
from datetime import UTC, datetime, timedelta

_LETTERS = string.ascii_letters + string.digits
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def new_id(prefix: str) -> str:
    """An id that cannot be guessed: the prefix and 24 random letters (142 bits)."""
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(24))


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


def time_text(time_us: int) -> str:
    """Microseconds since 1970 as RFC 3339: ``2026-11-30T09:08:07.123456Z``."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_of(text: str) -> int:
    """A time as RFC 3339, UTC where it names no zone, in microseconds since 1970. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
