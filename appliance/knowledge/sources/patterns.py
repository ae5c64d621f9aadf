"""Patterns of paths, as ``docs/**/*.md``: ``**`` is any number of folders; hidden names fit only a dot."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

_MAGIC = frozenset("*?[")


def parts_of(pattern: str) -> tuple[str, ...] | None:
    """A pattern taken apart; ``None`` for a text that is none, as ``**.md``, or that leads out of the folder."""
    parts = tuple(part for part in pattern.split("/") if part not in ("", "."))
    if not parts or ".." in parts or any("**" in part and part != "**" for part in parts):
        return None
    return (*parts, "*") if parts[-1] == "**" else parts


def is_plain(part: str) -> bool:
    """Whether a part is a name and fits nothing else."""
    return not _MAGIC & set(part)


def name_fits(name: str, part: str) -> bool:
    """Whether a part fits the name of a file or folder."""
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a path, as its names, fits a pattern, as its parts."""
    if not parts:
        return not names
    if parts[0] == "**":
        return fits(names, parts[1:]) or (len(names) > 1 and not names[0].startswith(".") and fits(names[1:], parts))
    return bool(names) and name_fits(names[0], parts[0]) and fits(names[1:], parts[1:])
