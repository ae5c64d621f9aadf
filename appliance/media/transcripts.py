"""Transcripts as text: put through the output filters as a chat's answer would be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from appliance.errors import BadRequest, Blocked, EngineError
from appliance.media.requests import MediaRequest, TranscriptionRequest, TranslationRequest
from appliance.sse import encode, event_data
from appliance.types import Call, Chunk

if TYPE_CHECKING:
    from appliance.filtering import Filters

DELTA, DONE = "transcript.text.delta", "transcript.text.done"
_FILTERABLE = (UNSET, "json", "text")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def is_transcript(request: MediaRequest) -> bool:
    """Whether the answer is words."""
    return isinstance(request, TranscriptionRequest | TranslationRequest)


def check_filterable(request: MediaRequest) -> None:
    """Refuse what output filters cannot read: words beside the text, with times. Raises BadRequest."""
    if not isinstance(request, TranscriptionRequest | TranslationRequest):
        return
    if request.response_format not in _FILTERABLE:
        raise BadRequest("answers are filtered here, so response_format must be json or text", param="response_format")
    if isinstance(request, TranscriptionRequest) and request.include:
        raise BadRequest("answers are filtered here, so include[] is not taken; leave it out", param="include[]")


def text_of(payload: bytes) -> str:
    """The text of a plain transcript, whether the engine wrapped it or not. Raises EngineError."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return str(_decode(payload)["text"])
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise EngineError("the engine sent something that is no transcript; try again") from None


def filtered(call: Call, pieces: AsyncIterator[bytes], filters: Filters, held: AsyncExitStack) -> AsyncIterator[bytes]:
    """The transcript after the output filters. Raises Blocked where one of them ends it."""
    transcript = _Transcript(call, pieces)
    chunks = transcript.chat()
    held.push_async_exit(aclosing(chunks))  # type: ignore[type-var]
    return transcript.back(filters.output(call, chunks, held))


class _Transcript:
    """One transcript on its way through the filters: its words as chunks, the rest kept for the end."""

    def __init__(self, call: Call, pieces: AsyncIterator[bytes]) -> None:
        self._call = call
        self._pieces = pieces
        self._rest: dict[str, Any] = {}

    async def chat(self) -> AsyncIterator[Chunk]:
        """The chunks of a chat that says the same."""
        if self._call.stream:
            async for event in self._pieces:
                body = _decode(event_data(event) or b"{}")
                if body.get("type") == DELTA:
                    yield _chunk(self._call, {"delta": {"content": body.get("delta", "")}, "finish_reason": None})
                elif body.get("type") == DONE:
                    self._rest = body
            yield _chunk(self._call, {"delta": {}, "finish_reason": "stop"})
            return
        async for payload in self._pieces:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                self._rest = _decode(payload)
            message = {"role": "assistant", "content": text_of(payload)}
            yield _chunk(self._call, {"message": message, "finish_reason": "stop"})

    async def back(self, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        """The transcript that the filtered chunks spell."""
        texts: list[str] = []
        async for chunk in chunks:
            for choice in chunk.body["choices"]:
                said = (choice.get("delta") or choice.get("message") or {}).get("content") or ""
                texts.append(said)
                if said and self._call.stream:
                    yield encode(_encode({"type": DELTA, "delta": said}))
                if choice.get("finish_reason") == "content_filter":
                    raise Blocked("the transcript holds a term that is not allowed here", param="file")
        # Log probabilities spell the text, token by token.
        rest = {key: value for key, value in self._rest.items() if key != "logprobs"}
        if self._call.stream:
            yield encode(_encode({"type": DONE, **rest, "text": "".join(texts)}))
        else:
            yield _encode({**rest, "text": "".join(texts)})


def _chunk(call: Call, choice: dict[str, Any]) -> Chunk:
    head = {"id": call.id, "object": "chat.completion.chunk", "created": 0, "model": call.model}
    return Chunk(body={**head, "choices": [{"index": 0, **choice}]})
