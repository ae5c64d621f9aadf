"""Checks of what an answer is held to: engines compile it to a grammar, which costs memory and time that all share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from appliance.errors import BadRequest
from appliance.wire import check_depth

MAX_BYTES = 256 * 1024
"""A constraint as JSON; the largest real schemas have tens of kilobytes."""
MAX_PATTERN = 4096
"""Characters of a regular expression."""
MAX_PATTERNS = 64 * 1024
"""Characters of all regular expressions of a request: looking at 7 MB of them would hold up everybody for 5 seconds."""
MAX_EXPANDED = 50_000
"""Characters of a regular expression whose counts are written out, as automata have it: ``(a{9}){9}`` are 81."""
MAX_EMPTY = 48
"""Parts of a regular expression that may match nothing, as ``a?``, ``a*`` and ``(a|)``.

Where they follow each other, automata go on from each to all behind it: xgrammar 0.2 took 5 seconds for 64 such parts
with a vocabulary of 49,000 tokens, and minutes for 128. Time grows with the cube, so cubes are added up where there
are several expressions.
"""
MAX_PROPERTIES = 512
"""Of one object in a schema. xgrammar took 0.2 s for 500 that may be left out, and more than 20 for 1,000."""
MAX_COUNTED = 400_000
"""For all objects whose properties are counted, the square of their number times how far they are: about 2 seconds."""
_ENDLESS = 10**9
"""More is counted as this, so that counting costs the same whatever the numbers."""
_TOKEN = re.compile(r"\\.|\(\?(?:#|[a-zA-Z-]*x)|\{[\s0-9,]*\}|.", re.DOTALL)
"""Of an escape, the begin of a comment or of free spacing, a count however it is spelled, or a character."""
_CLASSES = ((False, False), (True, False), (True, True))
"""How ECMAScript, Python and Rust read ``[``: whether a ``]`` right behind it is a character, and classes nest."""
_BEHIND = ("(", "?", "*", "+", "{")
_BEFORE_NOTHING = ("(", "|", ":", ">")
"""What an alternative begins behind: ``(|a)``, ``(?:|a)``, ``(?<name>|a)``."""
_AS_TEXT = ("json", "structural_tag")
"""Which of ``STRUCTURED`` may be JSON in a text."""
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
    characters = 0
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
        objects = list(_objects(_read(value) if param == "structured_outputs" else value))
        _check_properties(objects, param)
        patterns = list(_patterns(objects))
        characters += sum(map(len, patterns))
        if characters > MAX_PATTERNS:
            raise BadRequest(
                f"{param}: the regular expressions of the request are over {MAX_PATTERNS} characters", param=param
            )
        _check_patterns(patterns, param)


def _read(structured: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with JSON that is given as a text as what it says: so engines take it too. Raises BadRequest."""
    return {name: _parsed(value) if name in _AS_TEXT else value for name, value in structured.items()}


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        value = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        told = "structured_outputs: json and structural_tag must be JSON where they are texts"
        raise BadRequest(told, param="structured_outputs") from None
    check_depth(value, "structured_outputs")
    return value


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in a constraint."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)


def _check_properties(objects: Iterable[Mapping[str, Any]], param: str) -> None:
    counted = 0
    for found in objects:
        properties = found.get("properties")
        number = len(properties) if isinstance(properties, dict) else 0
        if number > MAX_PROPERTIES:
            raise BadRequest(f"{param}: an object has more than {MAX_PROPERTIES} properties", param=param)
        bounds = [found.get(name) for name in ("minProperties", "maxProperties")]
        furthest = max((bound for bound in bounds if isinstance(bound, int | float)), default=0)
        counted += number**2 * int(min(max(furthest, 0), number))
    if counted > MAX_COUNTED:
        raise BadRequest(
            f"{param}: minProperties and maxProperties stand beside too many properties; leave them out", param=param
        )


def _patterns(objects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Every regular expression in a constraint: of a schema, or given by itself."""
    for found in objects:
        for key in ("pattern", "regex", "whitespace_pattern"):
            if isinstance(found.get(key), str):
                yield found[key]
        named = found.get("patternProperties")
        if isinstance(named, dict):
            yield from named


def _check_patterns(patterns: Sequence[str], param: str) -> None:
    for text in patterns:
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
    if sum(may_be_empty(text) ** 3 for text in patterns) > MAX_EMPTY**3:
        raise BadRequest(
            f"{param}: too many parts of regular expressions may match nothing, as a? and a* do; use at most "
            f"{MAX_EMPTY} in one, and fewer in several",
            param=param,
        )


def may_be_empty(pattern: str) -> int:
    """How many parts of a regular expression may match nothing; rather too many than too few."""
    if not any(sign in pattern for sign in "?*{|"):
        return 0
    return max(map(_empties, _readings(pattern)))


def _empties(parts: Sequence[str]) -> int:
    found, before = 0, "("
    for part in (*parts, ")"):
        if part[0] == "{" and len(part) > 1:
            found += _number("".join(part[1:-1].partition(",")[0].split())) == 0
        elif part in ("?", "*"):
            found += before[0] not in _BEHIND  # (?:a), and a+?, which is as empty as a+
        elif part in ("|", ")"):
            found += before in _BEFORE_NOTHING
        before = part
    return found


def _has_comments(pattern: str) -> bool:
    """Whether part of it is not read, and may hide brackets. ECMAScript, which JSON Schema goes by, has no comments."""
    return "(?" in pattern and any(part.startswith("(?") for part in _TOKEN.findall(pattern))


def expanded(pattern: str) -> int:
    """How long a regular expression is with its counts written out, in the dialect in which it is longest.

    What is not well-formed counts as it stands.
    """
    if "{" not in pattern:
        return len(pattern)
    return max(map(_written_out, _readings(pattern)))


def _readings(pattern: str) -> list[list[str]]:
    """The parts of a regular expression, once for each dialect in which they may differ."""
    parts: list[str] = _TOKEN.findall(pattern)
    return [_with_classes_as_one(parts, *dialect) for dialect in _CLASSES] if "[" in pattern else [parts]


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
