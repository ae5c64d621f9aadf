"""How messages are worded, wherever they are shown."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``1 document``, ``2 documents``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
