"""A configuration fit to be shown: what looks like a secret is replaced by ``***``."""

from __future__ import annotations

import re
from typing import Any

_SECRET = re.compile(r"key|secret|token|pass(?!_fields)|credential|authorization|bearer", re.IGNORECASE)
_PASSWORD = re.compile(r"//([^:/@\s]*):[^@/\s]+@")


def masked(value: Any, key: str = "") -> Any:
    """The same plain values without secrets: by their key, by an argument's name, or as the password in a URL."""
    if isinstance(value, dict):
        return {name: masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, _argument(before) or key) for before, item in zip(["", *value], value, strict=False)]
    if not isinstance(value, str) or not value:
        return value
    if _SECRET.search(key):
        return "***"
    name, equals, _ = value.partition("=")
    if equals and _SECRET.search(_argument(name)):
        return f"{name}=***"
    return _PASSWORD.sub(r"//\1:***@", value)


def _argument(value: Any) -> str:
    """A command-line option's name, whose value may follow it; else nothing."""
    return value if isinstance(value, str) and value.startswith("--") and "=" not in value else ""
