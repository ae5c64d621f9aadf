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
_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_TOKEN = re.compile(r"\\.|\{\d+(?:,\d*)?\}|.", re.DOTALL)
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
        for text in _patterns(value):
            if len(text) > MAX_PATTERN:
                raise BadRequest(f"{param}: a regular expression is over {MAX_PATTERN} characters", param=param)
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


def expanded(pattern: str) -> int:
    """How long a regular expression is with its counts written out; what is not well-formed counts as it stands."""
    if "{" not in pattern:
        return len(pattern)
    groups, last, in_class = [0], 0, False
    for part in _TOKEN.findall(pattern):
        count = None if in_class else _COUNT.fullmatch(part)
        if count:
            times = max(_number(count[1]), _number(count[2] or "1"))
            groups[-1] += last * (times - 1)
            last = min(last * times, _ENDLESS)
        elif part == "(" and not in_class:
            groups.append(0)
        elif part == ")" and not in_class and len(groups) > 1:
            last = min(groups.pop(), _ENDLESS)
            groups[-1] += last
        else:
            in_class = (in_class or part == "[") and part != "]"
            if not in_class:
                groups[-1] += 1
                last = 1
    return sum(groups)


def _number(digits: str) -> int:
    return int(digits[:9])
