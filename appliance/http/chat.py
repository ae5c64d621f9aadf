"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/embeddings``: the hot routes.

They are ASGI mounts, not handlers: a Litestar handler and its response object cost twice the CPU of the rest.
A plain answer is one chunk; a stream is committed once the engine has accepted, and after that an error is an
event, never an ending that looks like success.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar.types import Receive, Scope, Send

from appliance.config import LimitsConfig
from appliance.errors import BadRequest, EngineError, MethodNotAllowed
from appliance.http import errors, validate
from appliance.http.disconnect import ClientGone, ClientWatch
from appliance.http.requests import read_body
from appliance.types import Call, Chunk, Operation
from appliance.wire import ChatRequest, CompletionRequest, EmbeddingRequest, check_depth, decoder

if TYPE_CHECKING:
    from appliance.runtime import Runtime

log = logging.getLogger("appliance.http")
DONE = b"data: [DONE]\n\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
JSON_HEADER = (b"content-type", b"application/json")
_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, Any]).decode


class Route:
    """One hot route: how its body is decoded and checked, and which operation it is."""

    def __init__(
        self,
        path: str,
        operation: Operation,
        type_: type[ChatRequest | CompletionRequest | EmbeddingRequest],
        check: Callable[[Any, LimitsConfig], None],
    ) -> None:
        self.path = path
        self.operation: Operation = operation
        self._decode = decoder(type_)
        self._check = check
        self._known = frozenset(field.encode_name for field in msgspec.structs.fields(type_))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        runtime: Runtime = scope["litestar_app"].state.runtime
        request_id: str = scope["state"]["request_id"]
        reply = Reply(send, request_id)
        try:
            if cast("Any", scope)["method"] != "POST":
                raise MethodNotAllowed("this path takes POST only; see GET /openapi.json", allow="POST")
            body = await read_body(scope["headers"], receive, runtime.config.server.max_json_bytes)
            call = self._call(scope, body, runtime, request_id)
            async with ClientWatch(receive):
                await self._answer(call, runtime, reply)
        except ClientGone:
            log.debug("request %s: the client left", request_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an OpenAI error
            errors.log_unexpected(error, request_id)
            await reply.fail(error, runtime.config.auth.realm)

    async def _answer(self, call: Call, runtime: Runtime, reply: Reply) -> None:
        """The last bytes go out after the context is left: whoever has seen them finds every lease given back."""
        if not call.stream:
            async with runtime.pipeline.answer(call, self.path) as chunks:
                payload = await _only(chunks)
            await reply.send_json(payload)
            return
        async with runtime.pipeline.answer(call, self.path) as chunks:
            await reply.start_stream()
            async for chunk in chunks:
                await reply.send_piece(chunk.event)
        await reply.end_stream()

    def _call(self, scope: Scope, body: bytes, runtime: Runtime, request_id: str) -> Call:
        request = self._decode(body)
        self._check(request, runtime.config.limits)
        validate.cap_tokens(request, runtime.config.limits)
        model = runtime.models.resolve(request.model)
        if model.embeds and self.operation != "embeddings":
            raise BadRequest(f"model {model.name} makes embeddings; use it with /v1/embeddings", param="model")
        if not isinstance(request, EmbeddingRequest):
            request.extra = self._extra(body, model.pass_fields) if model.pass_fields else None
        return Call(
            id=request_id,
            operation=self.operation,
            model=request.model,
            request=request,
            principal=scope["user"],
            stream=bool(getattr(request, "stream", False)),
            headers=scope["state"]["headers"],
        )

    def _extra(self, body: bytes, names: frozenset[str]) -> dict[str, Any] | None:
        """Unknown fields that the model's configuration lets through."""
        found = {key: value for key, value in _fields(body).items() if key in names and key not in self._known}
        check_depth(found, "body")
        return found or None


class Reply:
    """Writes one answer; knows whether it has begun."""

    __slots__ = ("_id", "_send", "_started")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._id = (b"x-request-id", request_id.encode("latin-1"))
        self._started = False

    async def start_stream(self) -> None:
        """Commit to a stream."""
        self._started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, self._id]})

    async def send_piece(self, piece: bytes) -> None:
        """One event."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end_stream(self) -> None:
        """``[DONE]``, and the end."""
        await self._send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def send_json(self, payload: bytes, status: int = 200) -> None:
        """A whole JSON answer."""
        self._started = True
        headers = [JSON_HEADER, (b"content-length", b"%d" % len(payload)), self._id]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": payload, "more_body": False})

    async def fail(self, error: Exception, realm: str) -> None:
        """An error: as a status before the first byte, as an event after it."""
        if not self._started:
            await self.send_problem(errors.problem(error, realm))
            return
        event = b"data: " + _encode(errors.error_body(errors.as_request_error(error))) + b"\n\n"
        await self._send({"type": "http.response.body", "body": event, "more_body": False})

    async def send_problem(self, found: errors.Problem) -> None:
        """An error body with its status and headers."""
        self._started = True
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.headers.items()]
        headers += [(b"content-length", b"%d" % len(found.body)), self._id]
        await self._send({"type": "http.response.start", "status": found.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": found.body, "more_body": False})


async def _only(chunks: AsyncIterable[Chunk]) -> bytes:
    """The one chunk of a plain answer, once its generation has ended well."""
    payload = b""
    async for chunk in chunks:
        payload = chunk.payload
    if not payload:
        raise EngineError("the engine gave no answer")
    return payload


HOT_ROUTES = (
    Route("/v1/chat/completions", "chat", ChatRequest, validate.check_chat),
    Route("/v1/completions", "completion", CompletionRequest, validate.check_completion),
    Route("/v1/embeddings", "embeddings", EmbeddingRequest, validate.check_embedding),
)
