"""Input items: checked and given ids as they come in, and turned into the messages of a chat.

Items are kept as plain JSON objects, as clients send them and get them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from appliance.errors import BadRequest
from appliance.storage.ids import new_id
from appliance.wire import ContentPart, FunctionCall, ImageUrl, Message, ToolCall, check_depth

MAX_ITEMS = 4096
MAX_PARTS = 2048
MAX_ALL_PARTS = 16_384
"""Of all new items, as of all messages of a chat."""
MAX_ID = 64
"""Characters of an item's id, which clients may choose."""
_ROLES = ("user", "assistant", "system", "developer")
_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}
_SEARCHES = "file_search_call"


def read_input(raw: str | Sequence[Any] | None, where: str = "input") -> list[dict[str, Any]]:
    """The new items of a request, each with an id and a type. Raises BadRequest naming the item's field."""
    if raw is None:
        return []
    if isinstance(raw, str):
        raw = [{"role": "user", "content": raw}]
    if len(raw) > MAX_ITEMS:
        raise BadRequest(f"{where} holds more than {MAX_ITEMS} items; send less", param=where)
    contents = (item.get("content") for item in raw if isinstance(item, dict))
    if sum(len(content) for content in contents if isinstance(content, list)) > MAX_ALL_PARTS:
        raise BadRequest(f"{where} holds more than {MAX_ALL_PARTS} parts together; join them", param=where)
    items = [_item(item, f"{where}[{i}]") for i, item in enumerate(raw)]
    _check_ids(items, where)
    return items


def _check_ids(items: Sequence[Mapping[str, Any]], where: str) -> None:
    """An id names one item; several references may name the same."""
    seen: set[str] = set()
    for i, item in enumerate(items):
        if not 0 < len(item["id"]) <= MAX_ID:
            raise BadRequest(f"{where}[{i}].id must have 1 to {MAX_ID} characters", param=f"{where}[{i}].id")
        if item["type"] == "item_reference":
            continue
        if item["id"] in seen:
            raise BadRequest(f"{where}[{i}].id is that of another item; give each its own", param=f"{where}[{i}].id")
        seen.add(item["id"])


def _item(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise BadRequest(f"{where} must be an object", param=where, code="invalid_type")
    check_depth(raw, where)
    kind = raw.get("type") or "message"
    if kind in (_SEARCHES, "item_reference"):
        _text(raw, "id", where)
        return raw
    if not isinstance(kind, str) or kind not in _PREFIXES:
        raise BadRequest(
            f"{where}.type: {str(kind)[:40]!r} is not served here; known are {', '.join(_PREFIXES)}",
            param=f"{where}.type",
        )
    _CHECKS[kind](raw, where)
    item = {**raw, "type": kind, "id": _id_of(raw) or new_id(_PREFIXES[kind])}
    if kind == "message":
        item["content"] = _content(raw["content"], raw["role"], where)
    if kind != "reasoning":
        item.setdefault("status", "completed")
    return item


def _id_of(raw: Mapping[str, Any]) -> str | None:
    given = raw.get("id")
    return given if isinstance(given, str) else None


def _check_message(raw: Mapping[str, Any], where: str) -> None:
    if raw.get("role") not in _ROLES:
        raise BadRequest(f"{where}.role must be one of {', '.join(_ROLES)}", param=f"{where}.role")
    if not isinstance(raw.get("content"), str | list):
        raise BadRequest(f"{where}.content must be a text or a list of parts", param=f"{where}.content")


def _check_call(raw: Mapping[str, Any], where: str) -> None:
    for name in ("call_id", "name", "arguments"):
        _text(raw, name, where)


def _check_call_output(raw: Mapping[str, Any], where: str) -> None:
    _text(raw, "call_id", where)
    if not raw["call_id"]:
        raise BadRequest(f"{where}.call_id must not be empty", param=f"{where}.call_id")
    if not isinstance(raw.get("output"), str | list):
        raise BadRequest(f"{where}.output must be a text or a list of parts", param=f"{where}.output")


def _check_reasoning(raw: Mapping[str, Any], where: str) -> None:
    for name in ("summary", "content"):
        parts = raw.get(name) or []
        if not isinstance(parts, list):
            raise BadRequest(f"{where}.{name} must be a list", param=f"{where}.{name}")
        for i, part in enumerate(parts):
            if not (isinstance(part, dict) and isinstance(part.get("text", ""), str)):
                raise BadRequest(f"{where}.{name}[{i}] must be an object with a text", param=f"{where}.{name}[{i}]")


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], str], None]] = {
    "message": _check_message,
    "function_call": _check_call,
    "function_call_output": _check_call_output,
    "reasoning": _check_reasoning,
}


def _text(raw: Mapping[str, Any], name: str, where: str) -> None:
    if not isinstance(raw.get(name), str):
        raise BadRequest(f"{where}.{name} must be a text", param=f"{where}.{name}", code="invalid_type")


def _content(raw: str | list[Any], role: str, where: str) -> list[dict[str, Any]]:
    """The parts of a message; a text becomes one part of the kind that its role has."""
    if isinstance(raw, str):
        return [_output_text(raw)] if role == "assistant" else [{"type": "input_text", "text": raw}]
    if len(raw) > MAX_PARTS:
        raise BadRequest(f"{where}.content holds more than {MAX_PARTS} parts; join them", param=f"{where}.content")
    for i, part in enumerate(raw):
        _check_part(part, f"{where}.content[{i}]")
    return raw


def parts_of(items: Sequence[Mapping[str, Any]], where: str = "input") -> Iterator[tuple[str, str]]:
    """The place and type of each part of the messages among some items."""
    for i, item in enumerate(items):
        for j, part in enumerate(item["content"] if item["type"] == "message" else ()):
            yield f"{where}[{i}].content[{j}]", part["type"]


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def _check_part(part: Any, where: str) -> None:
    if not isinstance(part, dict):
        raise BadRequest(f"{where} must be an object", param=where, code="invalid_type")
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        _text(part, "text", where)
    elif kind == "refusal":
        _text(part, "refusal", where)
    elif kind == "input_image":
        if not isinstance(part.get("image_url"), str):
            raise BadRequest(
                f"{where}.image_url is required; images by file_id are not served", param=f"{where}.image_url"
            )
    elif kind == "input_audio":
        if not isinstance(part.get("input_audio"), dict):
            raise BadRequest(f"{where}.input_audio must be an object", param=f"{where}.input_audio")
    elif kind == "input_file":
        if not isinstance(part.get("file_data"), str):
            raise BadRequest(
                f"{where}.file_data is required; for files by id or URL use a vector store and file_search",
                param=f"{where}.file_data",
            )
    else:
        raise BadRequest(
            f"{where}.type: {str(kind)[:40]!r} is not served here; known are input_text, output_text, refusal, "
            "input_image, input_audio, input_file",
            param=f"{where}.type",
        )


# -- messages --------------------------------------------------------------------------------------------


def messages_of(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages of a chat: calls join the assistant's turn before them, reasoning the turn after it."""
    messages: list[Message] = []
    reasoning = ""
    for item in items:
        kind = item["type"]
        if kind == "message":
            messages.append(_message(item, reasoning))
            reasoning = ""
        elif kind == "function_call":
            _add_call(messages, item, reasoning)
            reasoning = ""
        elif kind == "function_call_output":
            messages.append(Message(role="tool", tool_call_id=item["call_id"], content=_output_of(item["output"])))
        elif kind == "reasoning":
            reasoning = "".join(part.get("text", "") for part in item.get("content") or [] if isinstance(part, dict))
    return messages


def _message(item: Mapping[str, Any], reasoning: str) -> Message:
    refusal = "".join(part["refusal"] for part in item["content"] if part["type"] == "refusal") or None
    parts = [_part(part) for part in item["content"] if part["type"] != "refusal"]
    plain = all(part.type == "text" for part in parts)
    content = "\n".join(part.text or "" for part in parts) if plain else parts
    return Message(
        role=item["role"],
        content=None if refusal and not parts else content,
        refusal=refusal,
        reasoning_content=reasoning or None,
    )


def _part(part: Mapping[str, Any]) -> ContentPart:
    if part["type"] == "input_image":
        detail = part.get("detail")
        return ContentPart(
            type="image_url",
            image_url=ImageUrl(url=part["image_url"], detail=detail if isinstance(detail, str) else None),
        )
    if part["type"] == "input_audio":
        return ContentPart(type="input_audio", input_audio=part["input_audio"])
    if part["type"] == "input_file":
        given = {name: part[name] for name in ("filename", "file_data") if isinstance(part.get(name), str)}
        return ContentPart(type="file", file=given)
    return ContentPart(type="text", text=part["text"])


def _add_call(messages: list[Message], item: Mapping[str, Any], reasoning: str) -> None:
    call = ToolCall(id=item["call_id"], function=FunctionCall(name=item["name"], arguments=item["arguments"]))
    if messages and messages[-1].role == "assistant":
        messages[-1].tool_calls = [*(messages[-1].tool_calls or []), call]
    else:
        messages.append(Message(role="assistant", tool_calls=[call], reasoning_content=reasoning or None))


def _output_of(output: str | list[Any]) -> str:
    if isinstance(output, str):
        return output
    return "\n".join(part["text"] for part in output if isinstance(part, dict) and isinstance(part.get("text"), str))
