"""The body of ``POST /v1/messages``, and the chat that answers it.

Blocks become messages and parts; thinking goes back to the engine as reasoning. What a chat cannot do is refused by
name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from appliance.errors import BadRequest
from appliance.wire import (
    ChatRequest,
    ContentPart,
    Count,
    FunctionCall,
    ImageUrl,
    Message,
    Probability,
    StreamOptions,
    ToolCall,
    check_depth,
)

MAX_BLOCKS = 2048
OWN_NAMES = {
    "messages": "messages",
    "response_format": "output_config.format",
    "max_completion_tokens": "max_tokens",
    "user": "metadata.user_id",
    "parallel_tool_calls": "tool_choice",
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
}
"""The fields here by those of a chat that they become, where they have another name."""
Blocks = str | list[dict[str, Any]]


class Turn(msgspec.Struct, kw_only=True):
    """One entry of ``messages``."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class CallerMetadata(msgspec.Struct, kw_only=True):
    """``metadata`` of a request."""

    user_id: str | None = None


class MessagesRequest(msgspec.Struct, kw_only=True):
    """``POST /v1/messages``; without ``max_tokens`` also ``/v1/messages/count_tokens``."""

    model: str
    messages: list[Turn]
    max_tokens: Count | None = None
    system: Blocks | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Probability | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    top_p: Probability | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    metadata: CallerMetadata | None = None
    service_tier: str | None = None


def chat_of(request: MessagesRequest) -> ChatRequest:
    """The chat for a request. Raises BadRequest naming the field."""
    if not request.messages:
        raise BadRequest("messages must hold at least one message", param="messages")
    messages = [message for i, turn in enumerate(request.messages) for message in _turn(turn, f"messages[{i}]")]
    if request.system is not None:
        messages.insert(0, Message(role="system", content=_text(request.system, "system")))
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or [])]
    choice = request.tool_choice or {}
    return ChatRequest(
        model=request.model,
        messages=messages,
        stream=request.stream,
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
        max_completion_tokens=request.max_tokens,
        stop=request.stop_sequences,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        tools=tools or None,
        tool_choice=_choice(choice) if tools and choice else None,
        parallel_tool_calls=False if tools and choice.get("disable_parallel_tool_use") is True else None,
        response_format=_format(request.output_config),
        reasoning_effort=_effort(request.output_config),
        user=request.metadata.user_id if request.metadata else None,
    )


def parts_of(request: MessagesRequest) -> Iterator[tuple[str, str]]:
    """The place and type of each block; that of a document that is text is ``text``. ``chat_of`` has checked them."""
    for i, turn in enumerate(request.messages):
        for j, block in enumerate(turn.content if isinstance(turn.content, list) else ()):
            is_text = block.get("type") == "document" and block["source"]["type"] == "text"
            yield f"messages[{i}].content[{j}]", "text" if is_text else block["type"]


def _turn(turn: Turn, where: str) -> Iterator[Message]:
    """A user's turn may hold results of tools, each of which is a message of its own, before what the user says."""
    if isinstance(turn.content, str):
        yield Message(role=turn.role, content=turn.content)
        return
    if len(turn.content) > MAX_BLOCKS:
        raise BadRequest(f"{where}.content holds more than {MAX_BLOCKS} blocks; join them", param=f"{where}.content")
    blocks = [(block, f"{where}.content[{i}]") for i, block in enumerate(turn.content)]
    for block, place in blocks:
        check_depth(block, place)
    if turn.role == "assistant":
        yield _assistant(blocks)
        return
    yield from (_tool_result(block, place) for block, place in blocks if block.get("type") == "tool_result")
    parts = [_part(block, place) for block, place in blocks if block.get("type") != "tool_result"]
    if parts:
        yield Message(role=turn.role, content=_joined(parts))


def _assistant(blocks: Sequence[tuple[dict[str, Any], str]]) -> Message:
    texts: list[ContentPart] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for block, place in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(_tool_use(block, place))
        elif kind == "thinking":
            thoughts.append(_field(block, "thinking", place))
        elif kind != "redacted_thinking":
            texts.append(_part(block, place))
    return Message(
        role="assistant",
        content=_joined(texts) if texts or not calls else None,
        tool_calls=calls or None,
        reasoning_content="".join(thoughts) or None,
    )


def _joined(parts: list[ContentPart]) -> str | list[ContentPart]:
    if all(part.type == "text" for part in parts):
        return "\n".join(part.text or "" for part in parts)
    return parts


def _part(block: Mapping[str, Any], where: str) -> ContentPart:
    kind = block.get("type")
    if kind == "text":
        return ContentPart(type="text", text=_field(block, "text", where))
    if kind == "image":
        return ContentPart(type="image_url", image_url=ImageUrl(url=_image(block.get("source"), where)))
    if kind == "document":
        return _document(block, where)
    raise BadRequest(
        f"{where}.type: {str(kind)[:40]!r} is not served here; known are text, image, document, tool_use, tool_result "
        "and thinking",
        param=f"{where}.type",
    )


def _image(source: object, where: str) -> str:
    if isinstance(source, dict) and source.get("type") == "url":
        return _field(source, "url", f"{where}.source")
    if isinstance(source, dict) and source.get("type") == "base64":
        media = _field(source, "media_type", f"{where}.source")
        return f"data:{media};base64,{_field(source, 'data', f'{where}.source')}"
    raise BadRequest(f"{where}.source must be of type url or base64", param=f"{where}.source")


def _document(block: Mapping[str, Any], where: str) -> ContentPart:
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") not in ("text", "base64"):
        raise BadRequest(
            f"{where}.source must be of type text or base64; put other documents into a vector store",
            param=f"{where}.source",
        )
    title = block.get("title")
    named = isinstance(title, str) and bool(title)
    data = _field(source, "data", f"{where}.source")
    if source["type"] == "text":
        return ContentPart(type="text", text=f"{title}\n\n{data}" if named else data)
    media = _field(source, "media_type", f"{where}.source")
    filename = {"filename": title} if named else {}
    return ContentPart(type="file", file={"file_data": f"data:{media};base64,{data}", **filename})


def _tool_use(block: Mapping[str, Any], where: str) -> ToolCall:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise BadRequest(f"{where}.input must be an object", param=f"{where}.input", code="invalid_type")
    function = FunctionCall(name=_field(block, "name", where), arguments=msgspec.json.encode(arguments).decode())
    return ToolCall(id=_field(block, "id", where), function=function)


def _tool_result(block: Mapping[str, Any], where: str) -> Message:
    content = block.get("content")
    text = "" if content is None else _text(content, f"{where}.content")
    call_id = _field(block, "tool_use_id", where)
    if not call_id:
        raise BadRequest(f"{where}.tool_use_id must not be empty", param=f"{where}.tool_use_id")
    return Message(role="tool", tool_call_id=call_id, content=text)


def _text(content: object, where: str) -> str:
    """A text, or text blocks joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{where} must be a text or a list of blocks", param=where, code="invalid_type")
    parts = []
    for i, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise BadRequest(f"{where}[{i}] must be a text block", param=f"{where}[{i}]")
        parts.append(_field(block, "text", f"{where}[{i}]"))
    return "\n".join(parts)


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") == "file_search":  # ours: Anthropic has no search in the caller's own stores
        return dict(tool)
    if tool.get("type") not in (None, "custom"):
        raise BadRequest(
            f"{where}.type: {str(tool['type'])[:40]!r} is not served here; custom tools and file_search are",
            param=f"{where}.type",
        )
    function: dict[str, Any] = {"name": _field(tool, "name", where)}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise BadRequest(f"{where}.input_schema must be an object", param=f"{where}.input_schema")
    return {"type": "function", "function": {**function, "parameters": schema}}


def _choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": _field(choice, "name", "tool_choice")}}
    known = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in known:
        raise BadRequest("tool_choice.type must be auto, any, tool or none", param="tool_choice.type")
    return known[kind]


def _format(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    wanted = (config or {}).get("format")
    if wanted is None:
        return None
    if (
        not isinstance(wanted, dict)
        or wanted.get("type") != "json_schema"
        or not isinstance(wanted.get("schema"), dict)
    ):
        raise BadRequest(
            "output_config.format must be of type json_schema, with a schema", param="output_config.format"
        )
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted["schema"], "strict": True}}


def _effort(config: Mapping[str, Any] | None) -> str | None:
    wanted = (config or {}).get("effort")
    if wanted is None or isinstance(wanted, str):
        return wanted
    raise BadRequest("output_config.effort must be a text", param="output_config.effort", code="invalid_type")


def _field(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{where}.{name} must be a text", param=f"{where}.{name}", code="invalid_type")
    return value
