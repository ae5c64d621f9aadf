"""Token counts of answers that broke off before their engine reported any.

Engines report what a call came to with its last event. When the client leaves, or a limit ends the stream, that event
never comes; then the engine's tokenizer is asked, once it is over. Where there is none, four bytes are a token.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from appliance.errors import ApplianceError
from appliance.protocols import Tokenizer
from appliance.types import CallRecord, Usage
from appliance.wire import ChatRequest, CompletionRequest, TokenizeRequest, message_text

log = logging.getLogger("appliance.pipeline")
_SECONDS = 5.0
_BYTES_A_TOKEN = 4
_NOTHING = Usage()


def is_uncounted(record: CallRecord) -> bool:
    """Whether an engine worked on the call and never said how much.

    A plain answer that nobody waited for counts its prompt alone: how far it got is not known.
    """
    return record.asked and record.usage == _NOTHING and (record.tokens > 0 or record.outcome == "aborted")


async def counted(record: CallRecord, tokenizer: Tokenizer | None) -> Usage:
    """What the call came to. Never raises; takes five seconds at most."""
    if tokenizer is not None:
        try:
            async with asyncio.timeout(_SECONDS):
                return Usage(await _prompt_tokens(record, tokenizer), await _answer_tokens(record, tokenizer))
        except Exception as error:  # noqa: BLE001 - whatever a tokenizer does, the call must be recorded
            told = error if isinstance(error, ApplianceError) else type(error).__name__
            log.warning("request %s: its tokens are estimated, for they cannot be counted: %s", record.call.id, told)
    return Usage(_estimate(record.call.request), record.tokens)


async def _prompt_tokens(record: CallRecord, tokenizer: Tokenizer) -> int:
    model, request = record.call.model, record.call.request
    if isinstance(request, ChatRequest):
        extra = request.extra or {}
        asked = TokenizeRequest(
            model=model,
            messages=request.messages,
            tools=request.tools,
            chat_template_kwargs=extra.get("chat_template_kwargs"),
        )
        return (await tokenizer.tokenize(asked)).count
    if not isinstance(request, CompletionRequest):
        return 0
    texts, given = _prompts(request)
    counts = [(await tokenizer.tokenize(TokenizeRequest(model=model, prompt=text))).count for text in texts]
    return sum(counts) + given


async def _answer_tokens(record: CallRecord, tokenizer: Tokenizer) -> int:
    """An event holds one token, or more when an engine guesses ahead or a busy one puts events together.

    A text that ends within a character, or is no JSON, counts by its events.
    """
    if not record.produced:
        return record.tokens
    try:
        text = msgspec.json.decode(b'"' + bytes(record.produced) + b'"', type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return record.tokens
    asked = TokenizeRequest(model=record.call.model, prompt=text, add_special_tokens=False)
    return max(record.tokens, (await tokenizer.tokenize(asked)).count)


def _prompts(request: CompletionRequest) -> tuple[list[str], int]:
    """The prompts that are texts, and how many tokens there are in those that are ids: one list, or many."""
    if isinstance(request.prompt, str):
        return [request.prompt], 0
    texts = [prompt for prompt in request.prompt if isinstance(prompt, str)]
    ids = [len(prompt) if isinstance(prompt, list) else 1 for prompt in request.prompt if not isinstance(prompt, str)]
    return texts, sum(ids)


def _estimate(request: object) -> int:
    if isinstance(request, ChatRequest):
        return estimated([message_text(message) for message in request.messages])
    if isinstance(request, CompletionRequest):
        texts, given = _prompts(request)
        return estimated(texts) + given
    return 0


def estimated(texts: list[str]) -> int:
    """Tokens of some texts, by their bytes."""
    return -(-sum(len(text.encode("utf-8", "replace")) for text in texts) // _BYTES_A_TOKEN)
