"""The shape of the hot routes: ASGI mounts that read a body, watch the client, and write an answer themselves.

A Litestar handler and its response object cost twice the CPU of the rest. A stream is committed once the engine has
accepted, and after that an error is an event, never an ending that looks like success.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar.types import Receive, Scope, Send

from appliance.errors import MethodNotAllowed
from appliance.http import errors
from appliance.http.disconnect import ClientGone, ClientWatch
from appliance.http.request_id import processing_ms
from appliance.http.requests import read_body
from appliance.wire import decoder

if TYPE_CHECKING:
    from appliance.config import AuthConfig
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


class Route(ABC):
    """One hot route, mounted as an ASGI app: reads the body, watches the client, and answers errors."""

    form = errors.OPENAI
    idempotent = False
    """Whether it reads ``Idempotency-Key``."""

    def __init__(self, path: str, type_: type[Any]) -> None:
        self.path = path
        self.decode = decoder(type_)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        runtime: Runtime = scope["litestar_app"].state.runtime
        request_id: str = scope["state"]["request_id"]
        reply = Reply(send, request_id, self.form, scope["state"]["began"])
        try:
            if cast("Any", scope)["method"] != "POST":
                raise MethodNotAllowed("this path takes POST only; see GET /openapi.json", allow="POST")
            body = await read_body(scope["headers"], receive, runtime.config.server.max_json_bytes)
            async with ClientWatch(receive):
                await self.serve(scope, body, runtime, reply)
        except ClientGone:
            log.debug("request %s: the client left", request_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an OpenAI error
            errors.log_unexpected(error, request_id)
            await reply.fail(error, runtime.config.auth)

    @abstractmethod
    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """Answer a body; is cancelled when the client leaves."""


class Reply:
    """Writes one answer; knows whether it has begun."""

    __slots__ = ("_began", "_form", "_own", "_send", "started")

    def __init__(self, send: Send, request_id: str, form: errors.ErrorForm, began: float) -> None:
        self._send = send
        self._form = form
        self._began = began
        self._own = [(name.encode("latin-1"), request_id.encode("latin-1")) for name in form.id_headers]
        self.started = False

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """More headers for an answer that has not begun, as those that admitters grant."""
        self._own += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    def _added(self) -> list[tuple[bytes, bytes]]:
        return [*self._own, (b"openai-processing-ms", b"%d" % processing_ms(self._began))]

    async def start_stream(self) -> None:
        """Commit to a stream."""
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._added()]})

    async def send_piece(self, piece: bytes) -> None:
        """One event."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end_stream(self, last: bytes = DONE) -> None:
        """``[DONE]``, or what else comes last, and the end."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def send_json(self, payload: bytes, status: int = 200) -> None:
        """A whole JSON answer."""
        self.started = True
        headers = [JSON_HEADER, (b"content-length", b"%d" % len(payload)), *self._added()]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": payload, "more_body": False})

    async def fail(self, error: Exception, auth: AuthConfig) -> None:
        """An error: as a status before the first byte, as an event after it."""
        if not self.started:
            await self.send_problem(errors.problem(error, auth, self._form))
            return
        body = self._form.body(errors.as_request_error(error))
        event = b"%bdata: %b\n\n" % (self._form.event, _encode(body))
        await self._send({"type": "http.response.body", "body": event, "more_body": False})

    async def send_problem(self, found: errors.Problem) -> None:
        """An error body with its status and headers."""
        self.started = True
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.headers.items()]
        headers += [(b"content-length", b"%d" % len(found.body)), *self._added()]
        await self._send({"type": "http.response.start", "status": found.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": found.body, "more_body": False})
