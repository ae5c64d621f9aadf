"""What the pipeline does with chunks on their way out: watch them for the record, and add citations."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from appliance.errors import EngineError
from appliance.knowledge.citations import Citations, quotes
from appliance.protocols import Generation
from appliance.types import Call, CallRecord, Chunk, Usage
from appliance.wire import question_of

# Bytes are searched, not decoded: a quote inside a JSON string is escaped, so these match only real keys.
_OUTPUT = re.compile(rb'"(?:content|text|arguments|reasoning|reasoning_content|refusal)":\s*"[^"]')
_LAST = re.compile(rb'"finish_reason":\s*"|"usage":\s*\{')
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|arguments)":\s?"([^"\\]*+(?:\\.[^"\\]*+)*+)"')
_END = b"}\n\n"


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Summary(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_summarise = msgspec.json.Decoder(_Summary).decode


async def observed(call: Call, generation: Generation, record: CallRecord) -> AsyncIterator[Chunk]:
    """The engine's chunks as the client asked for them, while the record fills.

    The final usage chunk, which engines always send, is kept back unless ``stream_options.include_usage`` asks
    for it; then every other chunk says ``"usage": null``, as OpenAI's do.
    """
    if not call.stream:
        async for chunk in generation:
            _summary(chunk, record)
            yield chunk
        return
    options = call.request.stream_options
    wants_usage = bool(options and options.include_usage)
    produced = record.produced
    async for chunk in generation:
        event = chunk.event
        last = _LAST.search(event)
        if produced is not None and (text := _TEXT.search(event)):
            produced += text[1]
        if (record.tokens and not last) or _OUTPUT.search(event):
            count_token(record)
        if last:
            summary = _summary(chunk, record)
            if summary.usage is not None and summary.choices:
                chunk = _without_counts(chunk)  # noqa: PLW2901
                event = chunk.event
            elif summary.usage is not None and not wants_usage:
                continue
        if wants_usage and b'"usage"' not in event and event.endswith(_END):
            chunk = Chunk(event[:-3] + b',"usage":null}\n\n')  # noqa: PLW2901
        yield chunk


def count_token(record: CallRecord) -> None:
    """Note an event with output, and when it passed."""
    record.tokens += 1
    record.last_token = time.perf_counter()
    if record.first_token is None:
        record.first_token = record.last_token


def _without_counts(chunk: Chunk) -> Chunk:
    """Running counts, which some engines put beside the text, make clients take a chunk for the usage chunk."""
    return Chunk(body={key: value for key, value in chunk.body.items() if key != "usage"})


def _summary(chunk: Chunk, record: CallRecord) -> _Summary:
    """Note finish reasons and usage; the usage chunk is the one without choices.

    What is decoded already is not read again: of thousands of vectors that takes a tenth of a second.
    """
    try:
        summary = _summarise(chunk.payload) if chunk.decoded is None else msgspec.convert(chunk.decoded, _Summary)
    except msgspec.MsgspecError:
        raise EngineError("the engine sent something that is no OpenAI answer") from None
    record.finish_reasons += tuple(c.finish_reason for c in summary.choices if c.finish_reason)
    if usage := summary.usage:
        details = usage.prompt_tokens_details
        record.usage = Usage(
            usage.prompt_tokens or 0, usage.completion_tokens or 0, (details and details.cached_tokens) or 0
        )
    return summary


async def cited(call: Call, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """Add ``annotations`` to the message, or to each choice's last delta of a stream; those of the engine go."""
    part = "delta" if call.stream else "message"
    quoted = quotes(question_of(call.request))
    texts: dict[int, Citations] = {}
    async for chunk in chunks:
        body = chunk.body
        changed = False
        for choice in body.get("choices", []):
            citations = texts.setdefault(choice.get("index", 0), Citations(call.passages, quoted))
            changed |= _cite(choice, part, citations)
        yield Chunk(body=body) if changed else chunk


def _cite(choice: dict[str, Any], part: str, citations: Citations) -> bool:
    message = choice.get(part)
    if not isinstance(message, dict):
        return False
    citations.read(message.get("content") or "")
    own = citations.annotations() if choice.get("finish_reason") else []
    if not own:
        return message.pop("annotations", None) is not None
    message["annotations"] = own
    return True
