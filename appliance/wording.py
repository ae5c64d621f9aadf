"""How messages are worded, wherever they are shown."""

from __future__ import annotations

import math

_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def counted(number: int, noun: str) -> str:
    """``1 document``, ``2 documents``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def time_span(seconds: float) -> str:
    """``1 second``, ``52 minutes 55 seconds``, ``3 days 4 hours``: rounded up, as too early is in vain."""
    exact = max(1, math.ceil(seconds))
    fine = 3_600 if exact >= 86_400 else 60 if exact >= 3_600 else 1
    left = math.ceil(exact / fine) * fine
    told: list[str] = []
    for noun, size in _UNITS:
        number, left = divmod(left, size)
        told += [counted(number, noun)] if number else []
    return " ".join(told)
