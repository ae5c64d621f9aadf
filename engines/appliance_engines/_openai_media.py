"""Sound and pictures of an OpenAI-compatible server: the bodies that are sent, and the answers as they come back.

Streams come out as OpenAI's events whoever sent them: vLLM streams a transcript as it streams a chat, and a server that
does not stream one at all sends it whole.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from appliance.plugin import (
    Attachment,
    Call,
    EngineError,
    EventSplitter,
    ImageRequest,
    MediaRequest,
    SpeechRequest,
    TranscriptionRequest,
    TranslationRequest,
    UpstreamError,
    UpstreamResponse,
    encode,
    event_data,
)
from appliance_engines._openai_errors import broken, error_object

__all__ = ["PATHS", "Pieces", "checked", "encode_media", "events"]

PATHS = {
    "transcription": "/audio/transcriptions",
    "translation": "/audio/translations",
    "speech": "/audio/speech",
    "image_generation": "/images/generations",
    "image_edit": "/images/edits",
    "image_variation": "/images/variations",
}
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Largest answer in JSON, and largest event of a stream: pictures as base64."""
MAX_TRANSCRIPT_BYTES = 32 * 1024 * 1024
MAX_ERROR = 64 * 1024
_ENDS = (".done", ".completed")
_DELTA, _DONE = "transcript.text.delta", "transcript.text.done"
_json = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def encode_media(call: Call, model: str, more: Mapping[str, str] | None = None) -> tuple[bytes, str]:
    """The body for the server and its content type. ``more`` are fields of a form that only this server knows."""
    request: MediaRequest = call.request
    if isinstance(request, SpeechRequest | ImageRequest):
        return _json(msgspec.structs.replace(request, model=model)), "application/json"
    boundary = secrets.token_hex(24)
    fields = [("model", model), *_fields(request), *(more or {}).items()]
    pieces = [piece for name, value in fields for piece in _part(boundary, name, value)]
    return b"".join([*pieces, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def _fields(request: MediaRequest) -> Iterator[tuple[str, Any]]:
    """The fields of a form that were given, those of lists and objects one by one."""
    for field in msgspec.structs.fields(type(request)):
        value = getattr(request, field.name)
        if field.name == "model" or value is msgspec.UNSET:
            continue
        if isinstance(value, list):
            yield from ((field.encode_name, item) for item in value)
        elif isinstance(value, dict):
            yield from ((f"{field.encode_name}[{key}]", item) for key, item in value.items())
        else:
            yield field.encode_name, value


def _part(boundary: str, name: str, value: Any) -> tuple[bytes, bytes, bytes]:
    """Head, content and end, by RFC 7578; names are escaped as browsers do (WHATWG HTML, multipart/form-data)."""
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"'
    if isinstance(value, Attachment):
        media_type = value.media_type or "application/octet-stream"
        head += f'; filename="{_quoted(value.filename)}"\r\nContent-Type: {media_type}'
        return f"{head}\r\n\r\n".encode(), value.content, b"\r\n"
    text = _json(value).decode() if isinstance(value, bool) else str(value)
    return f"{head}\r\n\r\n".encode(), text.encode(), b"\r\n"


def _quoted(text: str) -> str:
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")


class Pieces:
    """An answer's pieces, from an iterator over them; closing it lets go of the response."""

    def __init__(self, response: UpstreamResponse, pieces: AsyncGenerator[bytes, None] | UpstreamResponse) -> None:
        self._response = response
        self._pieces = pieces
        self._closed = False
        self._first: bytes | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The next piece. Raises EngineError, EngineTimeout where the answer breaks off."""
        if self._closed:
            raise StopAsyncIteration
        if self._first is not None:
            first, self._first = self._first, None
            return first
        try:
            return await anext(self._pieces)
        except (UpstreamError, ValueError) as error:  # ValueError: an event over the limit
            raise broken(error) from error

    async def begun(self) -> Pieces:
        """The same with its first piece there: some servers refuse a stream in its first event. Raises as iteration."""
        try:
            self._first = await anext(self)
        except StopAsyncIteration:
            raise EngineError("the model gave no answer; try again") from None
        except BaseException:
            await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """Let go of the answer; before its end this closes the connection."""
        self._closed = True
        await self._pieces.aclose()
        await self._response.aclose()


async def checked(response: UpstreamResponse, call: Call) -> AsyncGenerator[bytes, None]:
    """A JSON answer, whole. Raises EngineError where it is none, is no sound, or reports an error."""
    payload = await response.read(MAX_ANSWER_BYTES)
    if (
        isinstance(call.request, SpeechRequest)
        or payload.lstrip()[:1] != b"{"
        or (b'"error"' in payload[:MAX_ERROR] and error_object(payload) is not None)
    ):
        raise EngineError("the model failed to answer; try again")
    yield payload


async def events(response: UpstreamResponse, call: Call) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer, whole and of OpenAI's types; the last one says that it is complete.

    Raises:
        EngineError: an event reports an error, or the stream ends without its last event.
    """
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        for event in _at_once(await response.read(MAX_TRANSCRIPT_BYTES), call):
            yield event
        return
    told = _Told()
    splitter = EventSplitter(MAX_ANSWER_BYTES)
    async for piece in response:
        for raw in splitter.feed(piece):
            for event in told.read(raw):
                yield event
    if not told.complete:
        raise EngineError("the model's answer ended without being finished; try again")


class _Told:
    """What a stream has said so far."""

    def __init__(self) -> None:
        self.complete = False
        self._text: list[str] = []
        self._usage: dict[str, Any] | None = None
        self._finished = False

    def read(self, raw: bytes) -> Iterator[bytes]:
        """One event of the server as events of OpenAI's."""
        data = (event_data(raw) or b"").strip()
        if data == b"[DONE]":
            yield from self._end()
        elif data and not self.complete:
            yield from self._body(data)

    def _body(self, data: bytes) -> Iterator[bytes]:
        try:
            body = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineError("the model's server sent what is not an answer; try again") from error
        if error_object(data) is not None:
            raise EngineError("the model failed in the middle of its answer; try again")
        if "choices" in body:
            yield from self._chunk(body)
            return
        kind = body.get("type")
        if isinstance(kind, str):
            self.complete = kind.endswith(_ENDS)
            yield encode(data)

    def _chunk(self, body: dict[str, Any]) -> Iterator[bytes]:
        """vLLM's: a chunk as of a chat."""
        self._usage = body.get("usage") or self._usage
        for choice in body["choices"]:
            self._finished = self._finished or choice.get("finish_reason") is not None
            text = (choice.get("delta") or {}).get("content")
            if text:
                self._text.append(text)
                yield encode(_json({"type": _DELTA, "delta": text}))

    def _end(self) -> Iterator[bytes]:
        if self._finished and not self.complete:
            self.complete = True
            yield _done("".join(self._text), self._usage)


def _at_once(payload: bytes, call: Call) -> Iterator[bytes]:
    """A transcript that came whole although a stream was asked for, which OpenAI's whisper-1 does too."""
    if not isinstance(call.request, TranscriptionRequest | TranslationRequest):
        raise EngineError("the model's server does not stream; ask without stream")
    try:
        text = _decode(payload)["text"] if payload.lstrip().startswith(b"{") else payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise EngineError("the model failed to answer; try again") from error
    yield encode(_json({"type": _DELTA, "delta": text}))
    yield _done(text, None)


def _done(text: str, usage: dict[str, Any] | None) -> bytes:
    body: dict[str, Any] = {"type": _DONE, "text": text}
    if usage is not None:
        prompt, said = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        counted = {"input_tokens": prompt, "output_tokens": said, "total_tokens": prompt + said}
        body["usage"] = {"type": "tokens", **counted}
    return encode(_json(body))
