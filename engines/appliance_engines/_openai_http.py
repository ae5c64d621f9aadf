"""Sends calls to an OpenAI-compatible server: what the ``openai`` and ``vllm`` engines share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from appliance.plugin import (
    Call,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Generation,
    MediaAnswer,
    Upstream,
    UpstreamError,
    UpstreamResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from appliance_engines._cache_salt import CacheSalt
from appliance_engines._openai_errors import Refusal, broken, error_object
from appliance_engines._openai_media import PATHS as MEDIA_PATHS
from appliance_engines._openai_media import Pieces, checked, encode_media, events
from appliance_engines._openai_stream import Answer, Renamer, ReportedError, Stream, public

__all__ = ["Client", "Timeouts", "Unreachable", "encode_request", "post", "read"]

MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Largest plain answer; embeddings of many long inputs are large."""
_PATHS = {
    "chat": "/chat/completions",
    "completion": "/completions",
    "embeddings": "/embeddings",
    "rerank": "/rerank",
    "score": "/score",
}
_RANKING = ("rerank", "score")
_encode_json = msgspec.json.Encoder().encode


class Timeouts(msgspec.Struct, frozen=True):
    """Limits in seconds; None waits for ever."""

    connect: float = 5.0
    answer: float | None = 600.0
    """From a plain request to its answer."""
    first_byte: float | None = 60.0
    """From a stream's request to its response head."""
    idle: float | None = 60.0
    """The longest silence within a stream, also before its first event."""


class Unreachable(EngineUnavailable):
    """503: nobody listens; the server has not seen the request."""


class Client:
    """Sends calls to one server. Holds two pools, as plain and streamed requests wait for their heads differently."""

    def __init__(
        self,
        base_url: str,
        *,
        refusal: Refusal,
        timeouts: Timeouts,
        uds: Path | None = None,
        headers: Mapping[str, str] | None = None,
        salt: CacheSalt | None = None,
    ) -> None:
        """``base_url`` ends where ``/chat/completions`` begins; ``refusal`` turns HTTP errors into ours.

        ``salt`` is sent with each call; without it none is, whatever the client said.

        Raises:
            ValueError: the URL or a header cannot be used.
        """
        self.timeouts = timeouts
        self._refusal = refusal
        self._salt = salt
        self.plain = Upstream(
            base_url,
            uds=uds,
            headers=headers,
            connect_timeout=timeouts.connect,
            head_timeout=timeouts.answer,
            idle_timeout=timeouts.answer,
        )
        self.streams = Upstream(
            base_url,
            uds=uds,
            headers=headers,
            connect_timeout=timeouts.connect,
            head_timeout=timeouts.first_byte,
            idle_timeout=timeouts.idle,
        )

    async def generate(self, call: Call, model: str, on_failure: Callable[[], None] | None = None) -> Generation:
        """Send a call under the server's name for the model; return once it is accepted.

        ``on_failure`` is called when a stream fails later.

        Raises:
            RequestError: see ``Engine.generate``; ``Unreachable`` when no connection could be made.
        """
        response = await self._send(call, _PATHS[call.operation], encode_request(call, model, self._salt))
        if call.stream and response.headers.get("content-type", "").startswith("text/event-stream"):
            return await self._stream(Stream(response, call.model, on_failure), call)
        return await self._answer(response, call)

    async def produce(self, call: Call, model: str, more: Mapping[str, str] | None = None) -> MediaAnswer:
        """Send a call for sound or pictures; return once it is accepted. ``more`` are further fields of a form.

        Raises:
            RequestError: see ``MediaEngine.produce``; ``Unreachable`` when no connection could be made.
        """
        body, content_type = encode_media(call, model, more)
        response = await self._send(call, MEDIA_PATHS[call.operation], body, {"content-type": content_type})
        if call.stream:
            return await Pieces(response, events(response, call)).begun()
        if response.headers.get("content-type", "").startswith("application/json"):
            return Pieces(response, checked(response, call))
        return Pieces(response, response)

    async def _send(
        self, call: Call, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> UpstreamResponse:
        """The response to a call, once its head is there with status 200. Raises RequestError."""
        upstream = self.streams if call.stream else self.plain
        response = await post(upstream, path, body, {**(headers or {}), **_trace_headers(call)})
        if response.status != 200:
            raise self._refusal(response.status, response.headers, await read(response), call)
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        await self.plain.aclose()
        await self.streams.aclose()

    async def _stream(self, stream: Stream, call: Call) -> Stream:
        """The stream with its first event there: some servers accept every stream and refuse it in that event."""
        try:
            await stream.begin()
        except ReportedError as error:
            if 400 <= error.reported < 500:
                raise self._refusal(error.reported, {}, error.payload, call) from None
            raise
        except BaseException:
            await stream.aclose()
            raise
        return stream

    async def _answer(self, response: UpstreamResponse, call: Call) -> Answer:
        payload = await read(response)
        if payload.lstrip()[:1] != b"{" or (b'"error"' in payload and error_object(payload) is not None):
            raise EngineError("the model failed to answer; try again")
        if call.stream:
            raise EngineError("the model's server does not stream; ask without stream")
        if call.operation in ("chat", "completion"):
            payload = public(payload)
        return Answer(Renamer(call.model).rename(payload))


def encode_request(call: Call, model: str, salt: CacheSalt | None = None) -> bytes:
    """The body for the server: its own model name, our salt, no nulls, and token counts at the end of every stream.

    ``store`` and its metadata stay here: what is kept is kept in our own database, nowhere else.
    """
    if call.operation in _RANKING:
        return _encode_json(msgspec.structs.replace(call.request, model=model))
    given = call.request.cache_salt
    changes: dict[str, object] = {"model": model, "cache_salt": salt.of(call.principal, given) if salt else None}
    if call.operation != "embeddings":
        changes["stream"] = True if call.stream else None
        changes["stream_options"] = {"include_usage": True} if call.stream else None
    if call.operation == "chat":
        changes["store"] = changes["metadata"] = None
    request = msgspec.structs.replace(call.request, **changes)
    extra = getattr(request, "extra", None)
    if not extra:
        return _encode_json(request)
    body = msgspec.to_builtins(request)
    del body["extra"]
    return _encode_json({**extra, **body})


async def post(
    upstream: Upstream, path: str, body: bytes, headers: Mapping[str, str] | None = None
) -> UpstreamResponse:
    """The response to a request, once its head is there.

    Raises:
        Unreachable, EngineTimeout, EngineError
    """
    try:
        return await upstream.request("POST", path, body, headers)
    except UpstreamUnreachable as error:
        raise Unreachable("the model is out of reach; try again", retry_after=1.0) from error
    except UpstreamTimeout as error:
        raise EngineTimeout("the model did not answer in time; try again or ask for fewer tokens") from error
    except UpstreamError as error:
        raise EngineError("the model's server closed the connection without an answer; try again") from error


async def read(response: UpstreamResponse) -> bytes:
    """The whole of a response, which is let go of. Raises EngineTimeout, EngineError where it breaks off."""
    try:
        return await response.read(MAX_ANSWER_BYTES)
    except UpstreamError as error:
        raise broken(error) from error
    finally:
        await response.aclose()


def _trace_headers(call: Call) -> dict[str, str]:
    parent = call.headers.get("traceparent")
    return {"traceparent": parent} if parent and parent.isascii() and parent.isprintable() else {}
