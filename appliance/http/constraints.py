"""Checks of what an answer is held to: engines compile it to a grammar, which costs memory and time that all share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from appliance.errors import BadRequest

MAX_BYTES = 256 * 1024
"""A constraint as JSON; the largest real schemas have tens of kilobytes."""
MAX_PATTERN = 4096
"""Characters of a regular expression."""
STRUCTURED = (
    "json",
    "regex",
    "choice",
    "grammar",
    "json_object",
    "structural_tag",
    "whitespace_pattern",
    "disable_any_whitespace",
    "disable_additional_properties",
)
"""What ``structured_outputs`` may hold: never which library compiles it."""
_size = msgspec.json.Encoder().encode


def check_constraints(
    response_format: Mapping[str, Any] | None,
    structured: Mapping[str, Any] | None,
    tools: Sequence[Any] | None = None,
    functions: Sequence[Any] | None = None,
) -> None:
    """Refuse what is too large to compile: a tool that must be called is compiled too.

    ``wire.check_depth`` comes first. Raises BadRequest naming the field.
    """
    for name in structured or ():
        if name not in STRUCTURED:
            where = f"structured_outputs.{name[:40]}"
            raise BadRequest(f"{where} is not known; known are {', '.join(STRUCTURED)}", param=where)
    for param, value in (
        ("response_format", response_format),
        ("structured_outputs", structured),
        *((f"tools[{i}]", tool) for i, tool in enumerate(tools or ())),
        *((f"functions[{i}]", function) for i, function in enumerate(functions or ())),
    ):
        if not value:
            continue
        if len(_size(value)) > MAX_BYTES:
            raise BadRequest(f"{param} is over {MAX_BYTES} bytes; send a smaller one", param=param)
        if any(len(text) > MAX_PATTERN for text in _patterns(value)):
            raise BadRequest(f"{param}: a regular expression is over {MAX_PATTERN} characters", param=param)


def _patterns(value: Any) -> Iterator[str]:
    """Every regular expression in a constraint: of a schema, or given by itself."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("pattern", "regex", "whitespace_pattern") and isinstance(item, str):
                yield item
            if key == "patternProperties" and isinstance(item, dict):
                yield from item
            yield from _patterns(item)
    elif isinstance(value, list):
        for item in value:
            yield from _patterns(item)
