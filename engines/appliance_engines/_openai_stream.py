"""Answers of an OpenAI-compatible server, plain and streamed, as chunks.

The path of a streamed event is kept short: it is looked at as bytes, never decoded, and costs no task of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from appliance.plugin import (
    Chunk,
    EngineError,
    EventSplitter,
    RequestError,
    UpstreamError,
    UpstreamResponse,
    encode,
    event_data,
)
from appliance_engines._openai_errors import broken, error_object

__all__ = ["Answer", "Renamer", "ReportedError", "Stream", "public"]

_TAIL_SECONDS = 1.0
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')
_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.)*")')
# OpenAI's clients know none of these. Text never matches, as quotes inside it are escaped.
_PRIVATE = re.compile(
    rb',"(?:reasoning|stop_reason|token_ids|routed_experts|metrics|prompt_(?:logprobs|text|token_ids)'
    rb'|(?:ec|kv)_transfer_params)":null'
)
_encode_json = msgspec.json.Encoder().encode


class ReportedError(EngineError):
    """502: an event of the stream reports an error. ``payload`` is the event's JSON, for nobody but us to read."""

    def __init__(self, payload: bytes, error: Mapping[str, Any]) -> None:
        super().__init__("the model failed in the middle of its answer; try again")
        self.payload = payload
        code = error.get("code")
        self.reported = code if isinstance(code, int) else 0


class Answer:
    """A plain answer: one chunk."""

    __slots__ = ("_payload",)

    def __init__(self, payload: bytes) -> None:
        self._payload: bytes | None = payload

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Chunk:
        payload, self._payload = self._payload, None
        if payload is None:
            raise StopAsyncIteration
        return Chunk(payload=payload)

    async def aclose(self) -> None:
        """Forget the answer."""
        self._payload = None


class Stream:
    """A streamed answer: one chunk an event, until ``[DONE]``.

    Comments and empty events are dropped. An event with an error, an end without ``[DONE]`` and a ``[DONE]`` before any
    finish reason raise: a broken answer never looks whole.
    """

    __slots__ = ("_closed", "_events", "_finished", "_held", "_on_failure", "_rename", "_response", "_splitter")

    def __init__(self, response: UpstreamResponse, model: str, on_failure: Callable[[], None] | None = None) -> None:
        self._response = response
        self._on_failure = on_failure
        self._splitter = EventSplitter()
        self._rename = Renamer(model).rename
        self._events: Iterator[bytes] = iter(())
        self._finished = self._closed = False
        self._held: Chunk | None = None

    def __aiter__(self) -> Stream:
        return self

    async def begin(self) -> None:
        """Wait for the first event, which iteration then gives. Raises as iteration does."""
        self._held = await self.__anext__()

    async def __anext__(self) -> Chunk:
        """Return the next event.

        Raises:
            EngineError: the answer broke off or reports an error. ``EngineTimeout``: the server fell silent.
        """
        if self._held is not None:
            chunk, self._held = self._held, None
            return chunk
        while True:
            for event in self._events:
                if opened := await self._open(event):
                    return Chunk(self._rename(public(opened)))
                if self._closed:  # whatever follows [DONE] is no part of the answer
                    break
            if self._closed:
                raise StopAsyncIteration
            try:
                self._events = iter(self._splitter.feed(await self._response.__anext__()))
            except (StopAsyncIteration, UpstreamError, ValueError) as error:  # ValueError: an event over the limit
                raise await self._failed(broken(error)) from error

    async def aclose(self) -> None:
        """Let go of the answer; before its end this closes the connection, on which the server stops generating."""
        self._closed = True
        self._events = iter(())
        self._held = None
        await self._response.aclose()

    async def _open(self, event: bytes) -> bytes | None:
        """The event in its plainest form; nothing if it carries nothing."""
        if not event.startswith(b"data: {") or event.find(b"\n") != len(event) - 2:
            return await self._open_unusual(event)
        if b'"error"' in event and (error := error_object(event[6:])) is not None:
            raise await self._failed(ReportedError(event[6:], error))
        if not self._finished and b'"finish_reason":null' not in event and _FINISHED.search(event):
            self._finished = True
        return event

    async def _open_unusual(self, event: bytes) -> bytes | None:
        """The end of the stream, and what is rare but legal: several data lines, no space after the colon."""
        data = (event_data(event) or b"").strip()
        if data == b"[DONE]":
            await self._end()
        elif data.startswith(b"{"):
            # In JSON a raw line end can only be white space, so one data line will do.
            return await self._open(encode(data.replace(b"\n", b" ")))
        elif data:
            raise await self._failed(EngineError("the model's server sent what is not an answer; try again"))
        return None

    async def _end(self) -> None:
        if not self._finished:
            raise await self._failed(EngineError("the model's answer ended without being finished; try again"))
        self._closed = True
        self._events = iter(())
        # The end of the body follows at once; having read it, the connection can serve the next call.
        try:
            async with asyncio.timeout(_TAIL_SECONDS):
                async for _ in self._response:
                    pass
        except (TimeoutError, UpstreamError):
            await self._response.aclose()

    async def _failed(self, error: RequestError) -> RequestError:
        """Close up, then give the error back to be raised."""
        if not self._closed and self._on_failure is not None:
            self._on_failure()
        await self.aclose()
        return error


class Renamer:
    """Puts the client's name for the model in the place of the server's."""

    __slots__ = ("_name", "_new", "_old", "_same")

    def __init__(self, model: str) -> None:
        self._name = _encode_json(model)
        self._new = b'"model":' + self._name
        self._old = b""
        self._same = False

    def rename(self, body: bytes) -> bytes:
        """The body with its first ``model`` field changed; text never matches, as quotes inside it are escaped."""
        if self._same:
            return body
        if not self._old or self._old not in body:
            self._learn(body)
        return body.replace(self._old, self._new, 1) if self._old else body

    def _learn(self, body: bytes) -> None:
        found = _MODEL.search(body)
        self._old = found[0] if found else b""
        self._same = found is not None and found[1] == self._name


def public(body: bytes) -> bytes:
    """The body without what vLLM adds for itself and leaves empty. It looks at every byte: not for embeddings."""
    return _PRIVATE.sub(b"", body)
