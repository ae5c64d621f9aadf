"""Fills the record of a call whose answer is sound, pictures or a transcript, while its bytes pass."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from appliance.counting import estimated
from appliance.errors import EngineError
from appliance.media.requests import MediaRequest, SpeechRequest
from appliance.protocols import MediaAnswer
from appliance.sse import event_data
from appliance.streams import count_token
from appliance.types import Call, CallRecord, Usage

MAX_BYTES = 256 * 2**20
"""Largest answer that is no stream; ten pictures of 4K as base64 are less."""
_WORDS = ("text", "srt", "vtt")
"""Formats of a transcript that are no JSON."""


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0


class _Summary(msgspec.Struct):
    text: str = ""
    usage: _Usage | None = None


_summarise = msgspec.json.Decoder(_Summary).decode


async def watched(call: Call, answer: MediaAnswer, record: CallRecord) -> AsyncIterator[bytes]:
    """The answer's pieces: sound as it comes, each event of a stream, anything else whole.

    What the engine does not count is estimated: texts by their bytes, an answer by its events.
    """
    produced = 0
    try:
        if call.stream:
            async for event in answer:
                _note_event(event, record)
                produced = record.tokens
                yield event
        elif isinstance(call.request, SpeechRequest):
            async for piece in answer:
                yield piece
        else:
            payload = await _whole(answer)
            text = _note_whole(payload, call.request, record)
            produced = estimated([text])
            yield payload
    finally:
        if record.usage == Usage():
            record.usage = Usage(estimated(call.request.texts), produced)


def _note_event(event: bytes, record: CallRecord) -> None:
    if b'.delta"' in event or b'.partial_image"' in event:
        count_token(record)
    if b'"usage"' in event:
        _note_usage(_summary(event_data(event) or b""), record)


def _note_whole(payload: bytes, request: MediaRequest, record: CallRecord) -> str:
    """Note the usage; the text of a transcript."""
    try:
        summary = _summary(payload)
    except EngineError:
        if getattr(request, "response_format", None) not in _WORDS:
            raise
        return payload.decode(errors="replace")
    _note_usage(summary, record)
    return summary.text


def _note_usage(summary: _Summary, record: CallRecord) -> None:
    """What is billed by the second has no tokens in it."""
    if summary.usage is not None and (summary.usage.input_tokens or summary.usage.output_tokens):
        record.usage = Usage(summary.usage.input_tokens, summary.usage.output_tokens)


def _summary(payload: bytes) -> _Summary:
    try:
        return _summarise(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EngineError("the engine sent something that is no OpenAI answer") from None


async def _whole(answer: MediaAnswer) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in answer:
        size += len(piece)
        if size > MAX_BYTES:
            raise EngineError("the engine's answer is too large; ask for fewer or smaller pictures")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
