"""What the scripted engine says, speaks and draws: transcripts of its script, sounds and pictures of what it was told.

A sound is the text's own bytes and a picture the smallest PNG there is, so that tests know every byte.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import msgspec

from appliance.media.requests import MediaRequest, SpeechRequest, TranscriptionRequest, TranslationRequest
from appliance.sse import encode
from appliance.types import Call

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One red pixel."""
_json = msgspec.json.Encoder().encode


class ScriptedMedia:
    """One answer; ``said`` gives the script's words, one after the other, and ``close`` is told how it ended."""

    def __init__(self, call: Call, said: AsyncIterator[str], close: Callable[[str], None]) -> None:
        self._call = call
        self._said = said
        self._close = close
        self._pieces = self._play()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            self._close("end")
            raise
        except Exception:
            self._close("fail")
            raise

    async def aclose(self) -> None:
        """Abort, if the script is not over."""
        self._close("abort")
        await self._pieces.aclose()

    async def _play(self) -> AsyncGenerator[bytes, None]:
        request: MediaRequest = self._call.request
        words: list[str] = []
        async for word in self._said:
            words.append(word)
            if self._call.stream and isinstance(request, TranscriptionRequest):
                yield _event("transcript.text.delta", delta=word)
        if isinstance(request, TranscriptionRequest | TranslationRequest):
            yield self._transcript(request, words)
        elif isinstance(request, SpeechRequest):
            for piece in self._sounds(request):
                yield piece
        elif self._call.stream:
            yield _event(f"{self._call.operation}.completed", **_picture(), usage=_usage(request, request.pictures))
        else:
            pictures = [{"b64_json": base64.b64encode(PNG).decode()} for _ in range(request.pictures)]
            yield _json({"created": 1, "data": pictures, "usage": _usage(request, request.pictures)})

    def _transcript(self, request: TranscriptionRequest | TranslationRequest, words: list[str]) -> bytes:
        text, usage = "".join(words), {"type": "tokens", **_counts(10, len(words))}
        if self._call.stream:
            return _event("transcript.text.done", text=text, usage=usage)
        if request.response_format in ("text", "srt", "vtt"):
            return text.encode()
        if request.response_format == "verbose_json":
            return _json({"text": text, "duration": 1.0, "language": "english"})
        return _json({"text": text} if isinstance(request, TranslationRequest) else {"text": text, "usage": usage})

    def _sounds(self, request: SpeechRequest) -> list[bytes]:
        spoken = [word.encode() for word in request.input.split()] or [b"silence"]
        if not self._call.stream:
            return spoken
        deltas = [_event("speech.audio.delta", audio=base64.b64encode(piece).decode()) for piece in spoken]
        return [*deltas, _event("speech.audio.done", usage=_counts(len(spoken), len(spoken)))]


def _event(kind: str, **fields: Any) -> bytes:
    return encode(_json({"type": kind, **fields}))


def _picture() -> dict[str, Any]:
    shown = {"background": "opaque", "output_format": "png", "quality": "low", "size": "1024x1024"}
    return {"b64_json": base64.b64encode(PNG).decode(), "created_at": 1, **shown}


def _usage(request: MediaRequest, pictures: int) -> dict[str, Any]:
    words = len(" ".join(request.texts).split())
    return {**_counts(words, pictures), "input_tokens_details": {"image_tokens": 0, "text_tokens": words}}


def _counts(read: int, made: int) -> dict[str, int]:
    return {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
