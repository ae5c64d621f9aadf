"""The answers that are written as bytes or plain objects, described for the OpenAPI document.

Engines and clients may know more fields than these; the types name what is always there.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from appliance.http.files import PURPOSES

T = TypeVar("T")
Object = dict[str, Any]
Binary = Annotated[str, msgspec.Meta(extra_json_schema={"format": "binary"})]
"""A file in a form."""


class Listing(msgspec.Struct, Generic[T], kw_only=True):
    """One page of a list; ``last_id`` is the cursor for ``after``."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of a request and its answer."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer to a chat."""

    index: int
    message: Object
    finish_reason: str | None
    logprobs: Object | UnsetType | None = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType | None = UNSET


class ChatMessage(msgspec.Struct, kw_only=True):
    """A message of a stored chat."""

    id: str
    role: str
    content: str | None
    content_parts: list[Object] | None


class TextChoice(msgspec.Struct, kw_only=True):
    """One completion of a text."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: Object | UnsetType | None = UNSET


class TextCompletion(msgspec.Struct, kw_only=True):
    """The completions of a text."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET


class Embedding(msgspec.Struct, kw_only=True):
    """One vector: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, kw_only=True):
    """Vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[Object]
    error: Object | None
    incomplete_details: Object | None
    usage: Object | None
    metadata: dict[str, str]


class Item(msgspec.Struct, kw_only=True):
    """An item of a response's input, or of a conversation."""

    id: str
    type: str


class InputTokens(msgspec.Struct, kw_only=True):
    """How many tokens the input of a response would have."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class AnthropicMessage(msgspec.Struct, kw_only=True):
    """An answer in Anthropic's form."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[Object]
    model: str
    stop_reason: str | None
    stop_sequence: str | None
    usage: Object


class CountedTokens(msgspec.Struct, kw_only=True):
    """How many tokens a chat in Anthropic's form would have."""

    input_tokens: int


class UploadForm(msgspec.Struct, kw_only=True):
    """The form of ``POST /v1/files``."""

    file: Binary
    purpose: Literal[PURPOSES]  # type: ignore[valid-type]
    anchor: Literal["created_at"] | UnsetType = msgspec.field(default=UNSET, name="expires_after[anchor]")
    seconds: Annotated[int, msgspec.Meta(ge=3600, le=2_592_000)] | UnsetType = msgspec.field(
        default=UNSET, name="expires_after[seconds]"
    )


class PartForm(msgspec.Struct, kw_only=True):
    """The form of ``POST /v1/uploads/{upload_id}/parts``."""

    data: Binary
