"""The request bodies of the OpenAI API, typed.

Null means "use the default" everywhere. Unknown fields are ignored, at the top and inside messages; a known
field of the wrong type is an error that names it. Free-form parts (tool schemas, response formats) keep
their JSON as it came.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from appliance.errors import BadRequest

_T = TypeVar("_T")
MAX_JSON_DEPTH = 64
MAX_QUESTION_CHARACTERS = 2_000
MAX_JSON_VALUES = 50_000
"""Values in a free-form field: a schema has hundreds, and a million of them would hold up everybody else."""
_LARGE = 256 * 1024
_PLACE = re.compile(r"(?P<told>.*) - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`", re.DOTALL)
"""How msgspec ends a message: "- at `$.n`", or "- at `key` in `$.n`" where a key of an object is wrong."""
_MAX_TOLD = 200
"""msgspec quotes a wrong enum value whole, and it may be of any length."""

Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
CacheSalt = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""Whether the model has it is the engine's to say."""
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
MAX_METADATA = 16
"""Keys of an object's metadata."""
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Label = Annotated[str, msgspec.Meta(max_length=512)]
Metadata: TypeAlias = Annotated[dict[Key, Label], msgspec.Meta(max_length=MAX_METADATA)]


NotServed: TypeAlias = None
"""Type of a field that must be left out: an answer that does not heed it would not be what was asked for."""
INSTEAD = {
    "moderation": "leave it out, and ask /v1/moderations or have filters in the configuration",
    "web_search_options": "leave it out, and have documents searched with the tool file_search",
}
"""What to do about such a field, by its name."""
INTERNAL = "x-internal"
"""In the schema of a field that is no part of the API."""
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "minItems": 1}
_SOME_TEXT = {"type": "string", "minLength": 1}
_EMBEDDED = {"anyOf": [_SOME_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_SOME_TEXT, _IDS]}, "minItems": 1}]}
"""Decoding it as these types would cost more than checking it does."""


class _Wire(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Nulls and defaults are left out when a request is encoded for an engine."""


class ImageUrl(_Wire):
    """Where an image part's picture is."""

    url: str
    detail: str | None = None


class ContentPart(_Wire):
    """One part of a message; ``text`` parts are joined, others go to the engine as they are."""

    type: str
    text: str | None = None
    image_url: ImageUrl | None = None
    input_audio: dict[str, Any] | None = None
    file: dict[str, Any] | None = None
    audio_url: dict[str, Any] | None = None
    video_url: dict[str, Any] | None = None
    refusal: str | None = None


class FunctionCall(_Wire, omit_defaults=False):
    """The function a model wants called; ``arguments`` is JSON text."""

    name: str = ""
    arguments: str = ""


class ToolCall(_Wire, omit_defaults=False):
    """One tool call of an assistant message."""

    id: str = ""
    type: str = "function"
    function: FunctionCall = msgspec.field(default_factory=FunctionCall)


class Message(_Wire):
    """One message. ``content`` is text, a list of parts, or null on an assistant turn that calls tools."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Newer vLLM's name for ``reasoning_content``."""
    audio: dict[str, Any] | None = None
    """Names an earlier audio answer."""


class StreamOptions(_Wire):
    """What a stream holds beside the text."""

    include_usage: bool | None = None


class FileSearch(msgspec.Struct, kw_only=True):
    """The ``file_search`` tool: search these stores before answering."""

    vector_store_ids: list[str] = []
    max_num_results: Annotated[int, msgspec.Meta(ge=1, le=50)] | None = None
    filters: dict[str, Any] | None = None
    ranking_options: dict[str, Any] | None = None
    rewrite_query: bool | None = None
    """Not OpenAI's tool's, but of its search API: a model makes a query of the question; ``None``: as configured."""


class _Sampling(_Wire):
    """Fields that chat and text completions share, and the vLLM extras that peers pass on."""

    model: str
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    user: str | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    structured_outputs: dict[str, Any] | None = None
    cache_salt: CacheSalt | None = None
    """Parts the client's prefix cache further; engines never get it as it is."""
    extra: Annotated[Any, msgspec.Meta(extra_json_schema={INTERNAL: True})] = None
    """Not the client's: the unknown fields that the configuration passes on; engines merge them into the body."""


class ChatRequest(_Sampling, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    moderation: NotServed = None
    web_search_options: NotServed = None


class CompletionRequest(_Sampling, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    best_of: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    suffix: str | None = None


class EmbeddingRequest(_Wire):
    """``POST /v1/embeddings``."""

    model: str
    input: Annotated[Any, msgspec.Meta(extra_json_schema=_EMBEDDED)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: str | None = None
    cache_salt: CacheSalt | None = None


class ModerationRequest(_Wire):
    """``POST /v1/moderations``: texts, or parts of one message. The configuration says which model judges."""

    input: str | list[str | ContentPart]
    model: str | None = None


class RankedDocument(_Wire):
    """A document given as an object."""

    text: str


class RerankRequest(_Wire):
    """``POST /v1/rerank``."""

    model: str
    query: str
    documents: list[str | RankedDocument]
    top_n: Count | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Count | None = None
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [item if isinstance(item, str) else item.text for item in self.documents]


class ScoreRequest(_Wire):
    """``POST /v1/score``: ``text_1`` is one text for all of ``text_2``, or as many."""

    model: str
    text_1: str | list[str]
    text_2: str | list[str]
    user: str | None = None

    @property
    def queries(self) -> list[str]:
        """``text_1`` as a list."""
        return [self.text_1] if isinstance(self.text_1, str) else self.text_1

    @property
    def texts(self) -> list[str]:
        """``text_2`` as a list."""
        return [self.text_2] if isinstance(self.text_2, str) else self.text_2


class TokenizeRequest(_Wire):
    """``POST /tokenize``: the tokens of ``prompt``, or of ``messages`` in the model's chat template."""

    model: str
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages, whose template adds its own."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(_Wire, omit_defaults=False):
    """``POST /detokenize``."""

    model: str
    tokens: list[TokenId]


def decoder(type_: type[_T]) -> Callable[[bytes], _T]:
    """A function that decodes a body of this type, with OpenAI errors.

    It raises BadRequest: not JSON, not an object, nested too deep, or a field of the wrong type (``param`` names it).
    """
    decode_any = msgspec.json.Decoder(type_).decode

    def decode(body: bytes) -> _T:
        """Many small values at once would set the garbage collector to work again and again, and all are in use."""
        if len(body) < _LARGE or not gc.isenabled():
            return decode_any(body)
        gc.disable()
        try:
            return decode_any(body)
        finally:
            gc.enable()

    def decode_body(body: bytes) -> _T:
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            raise invalid_field(error) from None
        except RecursionError:
            raise BadRequest("the body is nested too deep; flatten it", param=None) from None
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            raise BadRequest("the body is not valid JSON; send a JSON object", code="invalid_json") from None

    return decode_body


def invalid_field(error: msgspec.ValidationError) -> BadRequest:
    """msgspec's message as an OpenAI error: "Expected `int`, got `str` - at `$.n`" names ``n``."""
    place = _PLACE.fullmatch(str(error))
    message = (place["told"] if place else str(error))[:_MAX_TOLD]
    param = (place and place["path"]) or None
    if place and place["key"]:
        message += " as a key"
    if "missing required field" in message:
        missing = message.rpartition("field `")[2].rstrip("`")
        param = f"{param}.{missing}" if param else missing
        return BadRequest(f"{param} is required", param=param, code="missing_required_parameter")
    if message.startswith("Expected `null`, got"):
        hint = INSTEAD.get(param or "", "leave it out")
        return BadRequest(f"{param} is not served here; {hint}", param=param, code="unsupported_parameter")
    return BadRequest(f"{param or 'the body'}: {message[0].lower()}{message[1:]}", param=param, code="invalid_type")


def from_texts(values: Mapping[str, Any], type_: type[_T]) -> _T:
    """A struct of the texts that a query or a form holds. Raises BadRequest.

    msgspec takes the text "null" for None; a query has no null, only parameters that are left out.
    """
    try:
        read = msgspec.convert(values, type_, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from None
    for name, attribute in texts_of(cast("Hashable", type_)).items():
        if name in values and getattr(read, attribute) is None:
            raise BadRequest(f"{name}: expected a value, got null; leave it out", param=name, code="invalid_type")
    return read


@cache
def texts_of(type_: Any) -> Mapping[str, str]:
    """The attributes of a struct, by the names of its fields outside."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(type_)}


def check_depth(value: object, param: str, limit: int = MAX_JSON_DEPTH) -> None:
    """Refuse free-form JSON nested deeper than ``limit``, or of more than ``MAX_JSON_VALUES``. Raises BadRequest."""
    level = [value]
    seen = 0
    for _ in range(limit):
        parents = [item for item in level if isinstance(item, dict | list)]
        seen += sum(map(len, parents))
        if seen > MAX_JSON_VALUES:
            raise BadRequest(f"{param} holds more than {MAX_JSON_VALUES} values; send less", param=param)
        if not parents:
            return
        level = [item for parent in parents for item in (parent.values() if isinstance(parent, dict) else parent)]
    if any(isinstance(item, dict | list) for item in level):
        raise BadRequest(f"{param} is nested more than {limit} deep; flatten it", param=param)


def message_text(message: Message) -> str:
    """The text of a message: its string, or its text parts joined by newlines."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content or [] if part.text)


def asks_logprobs(request: object) -> bool:
    """Whether a request wants log probabilities, also by a field that the configuration passes on."""
    asked = getattr(request, "logprobs", None)
    passed: dict[str, Any] = getattr(request, "extra", None) or {}
    return (asked is not None and asked is not False) or any("logprob" in name for name in passed)


def question_of(request: ChatRequest) -> str:
    """The text of the last user message, as far as a search reads it; empty if there is none."""
    asked = next((message for message in reversed(request.messages) if message.role == "user"), None)
    return message_text(asked)[:MAX_QUESTION_CHARACTERS].strip() if asked else ""
