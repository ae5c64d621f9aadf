"""How many tokens a call may come to, before it runs, and how many it came to, after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from appliance.plugin import (
    Call,
    CallRecord,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    MediaRequest,
    Message,
    ModerationRequest,
    RerankRequest,
    ScoreRequest,
    Usage,
    choices_of,
)

BYTES_PER_TOKEN = 4
"""What tokenizers of current models come to for English text; other scripts take more bytes a letter, and tokens."""
_PER_MESSAGE = 4
"""The chat template's tokens around a message."""
_PER_ATTACHMENT = 1024
"""An image or a sound, read or made: what it costs has nothing to do with its bytes."""
_COMPLETION_DEFAULT = 16
"""What OpenAI's and vLLM's text completions give where no maximum is named."""


class Estimate(NamedTuple):
    """Tokens of a call: ``answer`` over all choices; ``named`` if the client said how long it may be."""

    prompt: int
    answer: int
    named: bool

    @property
    def usage(self) -> Usage:
        """As if all of it were used."""
        return Usage(self.prompt, self.answer)


def estimate(call: Call, answer_tokens: int, retrieved_bytes: int) -> Estimate:
    """Look at the request's size. ``retrieved_bytes`` is what a search may add to a chat's prompt."""
    request = call.request
    if isinstance(request, ChatRequest):
        prompt = sum(map(_message_tokens, request.messages)) + call.unread // BYTES_PER_TOKEN
        prompt += sum(_bytes(_strings(value)) for value in _schemas(request)) // BYTES_PER_TOKEN
        if retrieved_bytes:
            prompt += retrieved_bytes // BYTES_PER_TOKEN
        named = request.max_completion_tokens or request.max_tokens
        return Estimate(prompt, (named or answer_tokens) * choices_of(request), named is not None)
    if isinstance(request, CompletionRequest):
        each, named = request.max_tokens or _COMPLETION_DEFAULT, request.max_tokens is not None
        return Estimate(_tokens([request.prompt, request.suffix or ""]), each * choices_of(request), named)
    if isinstance(request, EmbeddingRequest):
        return Estimate(_tokens(request.input), 0, named=True)
    if isinstance(request, RerankRequest | ScoreRequest):
        queries = [request.query] if isinstance(request, RerankRequest) else request.queries
        repeated = len(request.texts) // len(queries)
        return Estimate(_tokens(queries) * repeated + _tokens(request.texts), 0, named=True)
    if isinstance(request, MediaRequest):
        prompt = _tokens(request.texts) + _PER_ATTACHMENT * request.attachments
        return Estimate(prompt, _PER_ATTACHMENT * request.pictures, named=True)
    if isinstance(request, ModerationRequest):
        given = [request.input] if isinstance(request.input, str) else request.input
        texts = [item if isinstance(item, str) else item.text or "" for item in given]
        return Estimate(_tokens(texts) + _PER_ATTACHMENT * texts.count(""), 0, named=True)
    return Estimate(0, 0, named=True)


def used(record: CallRecord, expected: Estimate, error: BaseException | None) -> Usage:
    """What to charge for a call that is over.

    The engine's own count, if it came. Otherwise the events that were seen; and for a plain answer that the client did
    not wait for all that was reserved, as nobody can tell how much of it was made. A call that failed before its
    first token costs nothing.
    """
    usage = record.usage
    if usage.prompt_tokens or usage.completion_tokens:
        return usage
    if record.tokens:
        return Usage(expected.prompt, record.tokens)
    if error is None:
        return expected.usage
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return Usage(expected.prompt) if record.call.stream else expected.usage
    return Usage()


def _message_tokens(message: Message) -> int:
    attachments = 0
    if isinstance(message.content, list):
        texts = [part.text for part in message.content if part.text]
        attachments = len(message.content) - len(texts)
    else:
        texts = [message.content] if message.content else []
    texts += filter(None, (message.name, message.refusal, message.reasoning_content, message.reasoning))
    for call in message.tool_calls or ():
        texts += (call.id, call.function.name, call.function.arguments)
    return _PER_MESSAGE + -(-_bytes(texts) // BYTES_PER_TOKEN) + attachments * _PER_ATTACHMENT


def _schemas(request: ChatRequest) -> Iterable[Any]:
    """What of a chat beside its messages a template may put into the prompt."""
    return request.tools, request.functions, request.prediction, request.extra


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts)


def _strings(value: Any) -> Iterable[str]:
    """Every text in free-form JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _tokens(value: str | list[Any]) -> int:
    """Tokens of texts, token ids, or lists of either."""
    if isinstance(value, str):
        return -(-_bytes([value]) // BYTES_PER_TOKEN)
    return sum(1 if isinstance(item, int) else _tokens(item) for item in value)
