"""Checks of request bodies that types cannot express, answered before anything costs anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from appliance.config import LimitsConfig
from appliance.errors import BadRequest, RequestError
from appliance.http.constraints import check_constraints
from appliance.knowledge.file_search import read_file_search
from appliance.wire import (
    ChatRequest,
    CompletionRequest,
    ContentPart,
    DetokenizeRequest,
    EmbeddingRequest,
    Message,
    TokenizeRequest,
    check_depth,
)

_TOKEN_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
MAX_STOP = 16
MAX_PARTS = 2048
MAX_ALL_PARTS = 16_384
"""Parts and tool calls of all messages: each is looked at several times, 280,000 of them for 4 seconds."""
MAX_TOKEN_IDS = 4096
MAX_PROMPT = 1_000_000
"""Entries of a prompt that is an array: texts, token arrays or token ids."""
DEFAULT_COMPLETION_TOKENS = 16
PARTS = ("text", "image_url", "input_audio", "file", "audio_url", "video_url", "refusal")
"""The types of message parts; each part has a field of that name."""
_FREE_FORM = (
    "tool_choice",
    "response_format",
    "functions",
    "function_call",
    "structured_outputs",
    "audio",
    "prediction",
)


def cap_tokens(request: ChatRequest | CompletionRequest | EmbeddingRequest, limits: LimitsConfig) -> None:
    """Give a request that names no maximum the configured one; completions keep OpenAI's default of 16 below it."""
    cap = limits.max_completion_tokens
    if cap is None or isinstance(request, EmbeddingRequest) or request.max_tokens is not None:
        return
    if isinstance(request, CompletionRequest):
        request.max_tokens = min(cap, DEFAULT_COMPLETION_TOKENS)
    elif request.max_completion_tokens is None:
        request.max_completion_tokens = cap


@contextmanager
def in_words_of(type_: type[msgspec.Struct], names: Mapping[str, str]) -> Iterator[None]:
    """Errors about a chat in the words of the API that it came by, whose body is a ``type_``.

    ``names`` has its own fields by those of the chat; these are named whole, as what is in them lies elsewhere. A field
    that neither knows, as an engine may name one, is not named.
    """
    try:
        yield
    except RequestError as error:
        param = error.param or ""
        field = re.split(r"[.\[]", param, maxsplit=1)[0]
        if field in names:
            error.param = names[field]
            error.args = (str(error).replace(param, names[field], 1),)
        elif field not in type_.__struct_fields__:
            error.param = None
        raise


def check_chat(request: ChatRequest, limits: LimitsConfig) -> None:
    """Raises BadRequest naming the field. A choice of ``allowed_tools`` becomes the tools that it leaves."""
    _check_messages(request.messages, request.tools, limits)
    if request.top_logprobs is not None and not request.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    _check_sampling(request, limits)
    _check_tokens(request.max_completion_tokens, "max_completion_tokens", limits)
    narrow_tools(request)


def check_counted(request: ChatRequest, limits: LimitsConfig) -> None:
    """As ``check_chat``, of a chat that is not answered: what its prompt is made of. Raises BadRequest."""
    _check_messages(request.messages, request.tools, limits)
    check_depth(request.tool_choice, "tool_choice")
    narrow_tools(request)


def check_tokenize(request: TokenizeRequest, limits: LimitsConfig) -> None:
    """Raises BadRequest naming the field."""
    if (request.prompt is None) == (request.messages is None):
        raise BadRequest("give one of prompt and messages", param="prompt")
    if request.messages is not None:
        _check_messages(request.messages, request.tools, limits)
    if request.add_generation_prompt and request.continue_final_message:
        raise BadRequest("give one of add_generation_prompt and continue_final_message", param="continue_final_message")
    for name in ("tools", "chat_template_kwargs"):
        check_depth(getattr(request, name), name)


def check_detokenize(request: DetokenizeRequest) -> None:
    """Raises BadRequest naming the field."""
    if len(request.tokens) > MAX_PROMPT:
        raise BadRequest(f"tokens holds more than {MAX_PROMPT}; send several requests", param="tokens")


def _check_messages(messages: list[Message], tools: list[dict[str, Any]] | None, limits: LimitsConfig) -> None:
    if not messages:
        raise BadRequest("messages must hold at least one message", param="messages")
    if len(messages) > limits.max_messages:
        raise BadRequest(f"messages holds more than {limits.max_messages} (limits.max_messages)", param="messages")
    if sum(map(_parts, messages)) > MAX_ALL_PARTS:
        raise BadRequest(f"messages hold more than {MAX_ALL_PARTS} parts and tool calls together", param="messages")
    for i, message in enumerate(messages):
        _check_message(message, f"messages[{i}]")
    if tools is not None and len(tools) > limits.max_tools:
        raise BadRequest(f"tools holds more than {limits.max_tools} (limits.max_tools)", param="tools")
    check_depth(tools, "tools")
    for i, tool in enumerate(tools or []):
        _check_tool(tool, f"tools[{i}]")


def _parts(message: Message) -> int:
    return (len(message.content) if isinstance(message.content, list) else 0) + len(message.tool_calls or ())


def _check_message(message: Message, where: str) -> None:
    if message.content is None and not (message.role == "assistant" and (message.tool_calls or message.refusal)):
        raise BadRequest(f"{where}.content is required for role {message.role}", param=f"{where}.content")
    if message.role == "tool" and not message.tool_call_id:
        raise BadRequest(f"{where}.tool_call_id is required for role tool", param=f"{where}.tool_call_id")
    if len(message.tool_calls or ()) > MAX_PARTS:
        raise BadRequest(f"{where}.tool_calls holds more than {MAX_PARTS}", param=f"{where}.tool_calls")
    if isinstance(message.content, list):
        if len(message.content) > MAX_PARTS:
            raise BadRequest(f"{where}.content holds more than {MAX_PARTS} parts; join them", param=f"{where}.content")
        for i, part in enumerate(message.content):
            check_part(part, f"{where}.content[{i}]")


def check_part(part: ContentPart, where: str, types: Sequence[str] = PARTS) -> None:
    """Raises BadRequest for a part of none of these types, or one without the field of its type."""
    if part.type not in types:
        raise BadRequest(f"{where}.type must be one of {', '.join(types)}", param=f"{where}.type")
    if getattr(part, part.type) is None:
        raise BadRequest(
            f"{where}.{part.type} is required", param=f"{where}.{part.type}", code="missing_required_parameter"
        )
    for name in ("input_audio", "file", "audio_url", "video_url"):
        check_depth(getattr(part, name), f"{where}.{name}")


def _check_tool(tool: dict[str, Any], where: str) -> None:
    kind = tool.get("type")
    if kind not in ("function", "file_search"):
        raise BadRequest(f"{where}.type must be function or file_search", param=f"{where}.type")
    function = tool.get("function")
    if kind == "file_search":
        read_file_search(tool, where)
    elif not (isinstance(function, dict) and isinstance(function.get("name"), str)):
        raise BadRequest(f"{where}.function needs a name", param=f"{where}.function")


def narrow_tools(request: ChatRequest) -> None:
    """Make of a choice of ``allowed_tools`` the tools that it leaves: engines know tools and modes only.

    Raises:
        BadRequest: it is no whole choice.
    """
    if not isinstance(request.tool_choice, dict) or request.tool_choice.get("type") != "allowed_tools":
        return
    allowed = request.tool_choice.get("allowed_tools")
    wanted, mode = (allowed.get("tools"), allowed.get("mode", "auto")) if isinstance(allowed, dict) else (None, None)
    if not isinstance(wanted, list) or mode not in ("auto", "required"):
        raise BadRequest(
            "tool_choice.allowed_tools needs tools and mode auto or required", param="tool_choice.allowed_tools"
        )
    names = {_tool_name(tool) for tool in wanted}
    # An empty list is no answer to "which tools?": vLLM refuses it.
    request.tools = [tool for tool in request.tools or [] if _tool_name(tool) in names] or None
    request.tool_choice = mode if request.tools else None


def _tool_name(tool: Any) -> tuple[str | None, str | None]:
    function = tool.get("function") if isinstance(tool, dict) else None
    return _text_of(tool, "type"), _text_of(function, "name")


def _text_of(value: Any, key: str) -> str | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def check_completion(request: CompletionRequest, limits: LimitsConfig) -> None:
    """Raises BadRequest naming the field."""
    if request.prompt in ("", []):
        raise BadRequest("prompt must not be empty", param="prompt")
    if isinstance(request.prompt, list):
        if len(request.prompt) > MAX_PROMPT:
            raise BadRequest(f"prompt holds more than {MAX_PROMPT} entries; send less", param="prompt")
        _check_prompts(request.prompt)
    _check_sampling(request, limits)
    if request.best_of is not None and request.best_of > limits.max_choices:
        raise BadRequest(f"best_of must be at most {limits.max_choices} (limits.max_choices)", param="best_of")


def _check_prompts(prompts: Sequence[Any]) -> None:
    kinds = {type(item) for item in prompts}
    if len(kinds) > 1:
        raise BadRequest("prompt must hold texts, token ids or arrays of token ids, not a mixture", param="prompt")
    if "" in prompts or [] in prompts:
        raise BadRequest("prompt holds an empty prompt", param="prompt")
    if not isinstance(prompts[0], str) and not _is_tokens(prompts) and not all(map(_is_tokens, prompts)):
        raise BadRequest("prompt holds a number that is no token id", param="prompt")


def check_embedding(request: EmbeddingRequest, limits: LimitsConfig) -> None:
    """Raises BadRequest naming ``input``."""
    raw = request.input
    if isinstance(raw, str):
        raw = [raw]
    if not isinstance(raw, list) or not raw:
        raise BadRequest("input must be a text, or an array of at least one text or token array", param="input")
    if len(raw) > MAX_PROMPT:
        raise BadRequest(f"input holds more than {MAX_PROMPT} entries; send several requests", param="input")
    if len(raw) > limits.max_embedding_inputs and not all(type(item) is int for item in raw):
        raise BadRequest(
            f"input holds more than {limits.max_embedding_inputs} entries; send several requests", param="input"
        )
    if not _is_tokens(raw) and not all(item and (isinstance(item, str) or _is_tokens(item)) for item in raw):
        raise BadRequest("input must hold texts or arrays of token ids, none of them empty", param="input")


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and 0 <= item < 2**31 for item in value)


def _check_sampling(request: ChatRequest | CompletionRequest, limits: LimitsConfig) -> None:
    if request.n is not None and request.n > limits.max_choices:
        raise BadRequest(f"n must be at most {limits.max_choices} (limits.max_choices)", param="n")
    if isinstance(request.stop, list) and len(request.stop) > MAX_STOP:
        raise BadRequest(f"stop holds more than {MAX_STOP} texts", param="stop")
    for name in ("logit_bias", "stop_token_ids"):
        if len(getattr(request, name) or ()) > MAX_TOKEN_IDS:
            raise BadRequest(f"{name} holds more than {MAX_TOKEN_IDS} token ids", param=name)
    if not all(_TOKEN_ID.fullmatch(key) for key in request.logit_bias or ()):
        raise BadRequest("logit_bias: keys must be token ids", param="logit_bias")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options needs stream to be true", param="stream_options")
    _check_tokens(request.max_tokens, "max_tokens", limits)
    for name in _FREE_FORM:
        value = getattr(request, name, None)
        if value:
            check_depth(value, name)
    check_constraints(
        getattr(request, "response_format", None),
        request.structured_outputs,
        getattr(request, "tools", None),
        getattr(request, "functions", None),
    )


def _check_tokens(value: int | None, name: str, limits: LimitsConfig) -> None:
    if value is not None and limits.max_completion_tokens is not None and value > limits.max_completion_tokens:
        raise BadRequest(
            f"{name} must be at most {limits.max_completion_tokens} (limits.max_completion_tokens)", param=name
        )
