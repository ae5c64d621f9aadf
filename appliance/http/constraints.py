"""Checks of what an answer is held to: engines compile it to a grammar, which costs memory and time that all share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from appliance.errors import BadRequest

MAX_BYTES = 256 * 1024
"""A constraint as JSON; the largest real schemas have tens of kilobytes."""
MAX_PATTERN = 4096
"""Characters of a regular expression."""
MAX_EXPANDED = 50_000
"""Characters of a regular expression whose counts are written out, as automata have it: ``(a{9}){9}`` are 81."""
_ENDLESS = 10**9
"""More is counted as this, so that counting costs the same whatever the numbers."""
_TOKEN = re.compile(r"\\.|\(\?(?:#|[a-zA-Z-]*x)|\{[\s0-9,]*\}|.", re.DOTALL)
"""Of an escape, the begin of a comment or of free spacing, a count however it is spelled, or a character."""
_CLASSES = ((False, False), (True, False), (True, True))
"""How ECMAScript, Python and Rust read ``[``: whether a ``]`` right behind it is a character, and classes nest."""
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
            raise BadRequest(
                f"structured_outputs: {name[:40]!r} is not known; known are {', '.join(STRUCTURED)}",
                param=f"structured_outputs.{name[:40]}",
            )
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
        for text in _patterns(value):
            if len(text) > MAX_PATTERN:
                raise BadRequest(f"{param}: a regular expression is over {MAX_PATTERN} characters", param=param)
            if _has_comments(text):
                raise BadRequest(
                    f"{param}: a regular expression has a comment or the flag x; write it without", param=param
                )
            if expanded(text) > MAX_EXPANDED:
                raise BadRequest(
                    f"{param}: a regular expression is over {MAX_EXPANDED} characters with its counts multiplied; use "
                    "smaller ones, or * and +",
                    param=param,
                )


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


def _has_comments(pattern: str) -> bool:
    """Whether part of it is not read, and may hide brackets. ECMAScript, which JSON Schema goes by, has no comments."""
    return "(?" in pattern and any(part.startswith("(?") for part in _TOKEN.findall(pattern))


def expanded(pattern: str) -> int:
    """How long a regular expression is with its counts written out, in the dialect in which it is longest.

    What is not well-formed counts as it stands.
    """
    if "{" not in pattern:
        return len(pattern)
    parts: list[str] = _TOKEN.findall(pattern)
    if "[" not in pattern:
        return _written_out(parts)
    return max(_written_out(_with_classes_as_one(parts, *dialect)) for dialect in _CLASSES)


def _with_classes_as_one(parts: list[str], first_is_literal: bool, nested: bool) -> list[str]:
    """The parts with ``[`` for each class; if one does not end, all parts, so that it hides nothing."""
    found: list[str] = []
    depth, begun = 0, ""
    for part in parts:
        if not depth:
            found.append(part)
            depth, begun = int(part == "["), ""
            continue
        if part == "]" and not (first_is_literal and begun in ("", "^")):
            depth -= 1
        opens = part == "[" and nested
        depth, begun = depth + opens, "" if opens else (begun + part)[:2]
    return parts if depth else found


def _written_out(parts: list[str]) -> int:
    groups, last = [0], 0
    for part in parts:
        if part[0] == "{" and len(part) > 1:
            times = _times(part)
            groups[-1] += last * (times - 1)
            last = min(last * times, _ENDLESS)
        elif part == "(":
            groups.append(0)
        elif part == ")" and len(groups) > 1:
            last = min(groups.pop(), _ENDLESS)
            groups[-1] += last
        else:
            groups[-1] += 1
            last = last if part in "*+?" else 1  # a count behind these repeats what they do: (a{9})?{9}
    return sum(groups)


def _times(count: str) -> int:
    """The larger number of a count. Engines differ in where they take blanks, and whether a minimum may be left out."""
    return max(1, *(_number(digits) for digits in "".join(count[1:-1].split()).split(",")))


def _number(digits: str) -> int:
    return int(digits.lstrip("0")[:9] or 0)
