"""A script that answers as a model of OpenAI's would: calls tools, keeps to schemas, stops where it is told to.

What it says is made from the request alone, so that tests know every byte of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from appliance.plugin import Call, ChatRequest, message_text
from appliance.testing import CallTool, Emit, Finish
from appliance.testing.scripted import Step, last_user_text

_NUMBER = re.compile(r"-?\d+")
_QUOTED = re.compile(r"'([^']+)'")


def act(call: Call) -> Sequence[Step]:
    """A tool call where one is asked for, JSON where a format is, else ``You said: ...``."""
    request, text = call.request, last_user_text(call)
    if isinstance(request, ChatRequest):
        if name := _wanted_tool(request):
            return _tool_call(name, _parameters(request, name), text)
        if (schema := _format(request, text)) is not None:
            return _pieces(json.dumps(fill(schema, text), ensure_ascii=False))
    thoughts = (
        [Emit(piece, part="reasoning_content") for piece in ("Let me ", "see.")] if "think" in text.lower() else []
    )
    return [*thoughts, *_said(call, f"You said: {text}")]


def _said(call: Call, text: str) -> Sequence[Step]:
    stops = [call.request.stop] if isinstance(call.request.stop, str) else call.request.stop or []
    cut = min((text.index(stop) for stop in stops if stop in text), default=len(text))
    words = re.findall(r"\S+\s*", text[:cut])
    most = getattr(call.request, "max_completion_tokens", None) or call.request.max_tokens or len(words)
    return [*map(Emit, words[:most]), *([Finish("length")] if most < len(words) else [])]


def _wanted_tool(request: ChatRequest) -> str | None:
    """The tool to call: the one that is demanded, or the first if a person asked and none was called yet."""
    names = [tool["function"]["name"] for tool in request.tools or []]
    if not names or request.tool_choice == "none":
        return None
    if isinstance(request.tool_choice, Mapping):
        return str(request.tool_choice["function"]["name"])
    asked = request.messages[-1].role == "user" and "?" in message_text(request.messages[-1])
    return names[0] if asked or request.tool_choice == "required" else None


def _parameters(request: ChatRequest, name: str) -> Mapping[str, Any]:
    functions = (tool["function"] for tool in request.tools or [])
    return next(function.get("parameters") or {} for function in functions if function["name"] == name)


def _tool_call(name: str, schema: Mapping[str, Any], text: str) -> Sequence[Step]:
    arguments = json.dumps(fill(schema, text), ensure_ascii=False)
    middle = len(arguments) // 2
    return [CallTool(arguments[:middle], name=name), CallTool(arguments[middle:], name=name)]


def _pieces(text: str) -> Sequence[Step]:
    return [Emit(text[i : i + 8]) for i in range(0, len(text), 8)]


def _format(request: ChatRequest, text: str) -> Mapping[str, Any] | None:
    wanted = request.response_format or {}
    if wanted.get("type") == "json_schema":
        schema: Mapping[str, Any] = wanted["json_schema"]["schema"]
        return schema
    if wanted.get("type") == "json_object":
        # The person names the keys in the text.
        return {"type": "object", "properties": {key: {"type": "string"} for key in _QUOTED.findall(text)}}
    return None


def fill(schema: Mapping[str, Any], text: str) -> Any:
    """A value of this schema: the text's numbers in their order, its quoted words or all of it as strings."""
    numbers = iter([int(number) for number in _NUMBER.findall(text)])

    def value(part: Mapping[str, Any]) -> Any:
        if "$ref" in part:
            return value(schema["$defs"][part["$ref"].rpartition("/")[2]])
        if "const" in part:
            return part["const"]
        if "enum" in part:
            return part["enum"][0]
        if choices := part.get("anyOf") or part.get("oneOf"):
            return value(choices[0])
        kind = part.get("type", "object")
        if kind == "object":
            return {name: value(inner) for name, inner in part.get("properties", {}).items()}
        if kind == "array":
            return [value(part["items"])]
        if kind in ("integer", "number"):
            return next(numbers, 0)
        return {"string": (_QUOTED.findall(text) or [text])[0], "boolean": True, "null": None}[kind]

    return value(schema)
