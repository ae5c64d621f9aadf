"""The body of ``POST /v1/responses``, and the chat that answers it.

Input items become messages, tools and output formats take their chat form. What a chat cannot do is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from appliance.errors import BadRequest
from appliance.responses.items import messages_of
from appliance.responses.prompts import PromptReference
from appliance.wire import (
    ChatRequest,
    Count,
    Message,
    Metadata,
    NotServed,
    Probability,
    StreamOptions,
    Temperature,
    check_depth,
)

RESULTS = "file_search_call.results"
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (RESULTS, LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url")


class TextFormat(msgspec.Struct, kw_only=True):
    """What the answer's text must be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``text`` of a request."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(msgspec.Struct, kw_only=True):
    """``reasoning`` of a request; ``effort`` goes to the engine."""

    effort: str | None = None
    summary: str | None = None


class ConversationReference(msgspec.Struct, kw_only=True):
    """``conversation`` given as an object."""

    id: str


class ResponsesStreamOptions(msgspec.Struct, kw_only=True):
    """``include_obfuscation`` is accepted; nothing is padded here."""

    include_obfuscation: bool | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """``POST /v1/responses``."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    metadata: Metadata | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    moderation: NotServed = None
    prompt: PromptReference | None = None

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the answer belongs to."""
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named

    @property
    def stored(self) -> bool:
        """Whether the answer is kept; it is unless the client says no."""
        return self.store is not False


class QueuedRequest(ResponsesRequest, kw_only=True):
    """A background request as it is kept until it is answered; clients cannot send what it adds."""

    template: list[Message] = msgspec.field(default_factory=list)
    """What its template had the system or developer say when the request came: the configuration may have changed."""


OWN_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""The fields here by those of a chat that they become, where they have another name."""


def check(request: ResponsesRequest) -> None:
    """What types cannot express. Raises BadRequest naming the field."""
    for name in request.include or []:
        if name not in INCLUDABLE:
            raise BadRequest(
                f"include: {name[:80]!r} is not served here; known are {', '.join(INCLUDABLE)}", param="include"
            )
    wanted = request.text.format if request.text else None
    check_depth(request.tools, "tools")
    check_depth(request.tool_choice, "tool_choice")
    check_depth(wanted and wanted.schema, "text.format")
    if request.previous_response_id and request.conversation:
        raise BadRequest("give previous_response_id or conversation, not both", param="conversation")
    if request.background and not request.stored:
        raise BadRequest("background needs store to be true: its answer is fetched later", param="background")
    if request.truncation == "auto":
        raise BadRequest(
            "truncation must be disabled: nothing is cut silently here; send less input", param="truncation"
        )


def chat_of(request: ResponsesRequest, items: Sequence[dict[str, Any]], prompt: Sequence[Message] = ()) -> ChatRequest:
    """The chat for a request; ``items`` are the earlier turns and the new input, ``prompt`` a template's instructions.

    Raises:
        BadRequest: naming the field.
    """
    messages = [*prompt, *messages_of(items)]
    if request.instructions:
        messages.insert(0, Message(role="system", content=request.instructions))
    wants_logprobs = LOGPROBS in (request.include or ()) or bool(request.top_logprobs)
    tools, choice = _chat_tools(request.tools or []), _chat_choice(request.tool_choice)
    return ChatRequest(
        model=request.model,
        messages=messages,
        stream=request.stream,
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        logprobs=wants_logprobs or None,
        top_logprobs=request.top_logprobs if wants_logprobs else None,
        tools=tools or None,
        tool_choice=choice if tools else None,
        parallel_tool_calls=request.parallel_tool_calls if tools else None,
        response_format=response_format(request.text),
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        verbosity=request.text.verbosity if request.text else None,
        user=request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        service_tier=request.service_tier,
    )


def _chat_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_chat_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def _chat_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind == "file_search":
        return tool
    if kind != "function":
        raise BadRequest(
            f"{where}.type: {str(kind)[:40]!r} is not served here; function and file_search are", param=f"{where}.type"
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise BadRequest(f"{where}.name is required", param=f"{where}.name", code="missing_required_parameter")
    parts = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": parts}


def _chat_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None or choice in ("auto", "none", "required"):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    if isinstance(choice, dict) and choice.get("type") == "file_search":
        return {"type": "file_search"}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(choice)
    raise BadRequest(
        "tool_choice must be auto, none, required, or name a function, file_search or allowed_tools",
        param="tool_choice",
    )


def _allowed(choice: Mapping[str, Any]) -> dict[str, Any]:
    """``allowed_tools``, which ``http.validate`` heeds."""
    wanted, mode = choice.get("tools"), choice.get("mode", "auto")
    if not isinstance(wanted, list) or mode not in ("auto", "required"):
        raise BadRequest("tool_choice: allowed_tools needs tools and mode auto or required", param="tool_choice")
    named = [
        {"type": tool.get("type"), "function": {"name": tool["name"]}} if "name" in tool else tool
        for tool in wanted
        if isinstance(tool, dict)
    ]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


def response_format(text: TextConfig | None) -> dict[str, Any] | None:
    """``text.format`` as a chat's ``response_format``. Raises BadRequest."""
    wanted = text.format if text else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object"}
    if wanted.schema is None or not wanted.name:
        raise BadRequest("text.format: json_schema needs name and schema", param="text.format.schema")
    schema = {"name": wanted.name, "schema": wanted.schema}
    schema |= {key: value for key in ("strict", "description") if (value := getattr(wanted, key)) is not None}
    return {"type": "json_schema", "json_schema": schema}
