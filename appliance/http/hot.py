"""The shape of the hot routes: ASGI mounts that read a body, watch the client, and write an answer themselves.

A Litestar handler and its response object cost twice the CPU of the rest. A stream is committed once the engine has
accepted, and after that an error is an event, never an ending that looks like success.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from litestar.types import Receive, Scope, Send

from appliance.errors import MethodNotAllowed
from appliance.http import errors, idempotency
from appliance.http.disconnect import ClientGone, ClientWatch
from appliance.http.request_id import processing_ms
from appliance.http.requests import any_model, may_be_large, read_body
from appliance.wire import decoder

if TYPE_CHECKING:
    from appliance.config import AuthConfig
    from appliance.runtime import Runtime
    from appliance.types import Principal

log = logging.getLogger("appliance.http")
DONE = b"data: [DONE]\n\n"
EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
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
        state = scope["state"]
        request_id: str = state["request_id"]
        key = state["headers"].get(idempotency.HEADER) if self.idempotent else None
        reply = (Reply if key is None else KeptReply)(send, request_id, self.form, state["began"])
        try:
            if cast("Any", scope)["method"] != "POST":
                raise MethodNotAllowed("this path takes POST only; see GET /openapi.json", allow="POST")
            body = await self.read(scope, receive, runtime)
            async with ClientWatch(receive):
                if isinstance(reply, KeptReply) and key is not None:
                    await self.serve_once(key, scope, body, runtime, reply)
                else:
                    await self.serve(scope, body, runtime, reply)
        except ClientGone:
            log.debug("request %s: the client left", request_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an OpenAI error
            errors.log_unexpected(error, request_id)
            await reply.fail(error, runtime.config.auth)

    async def read(self, scope: Scope, receive: Receive, runtime: Runtime) -> Any:
        """The body as ``serve`` gets it: bytes, unless a route reads another kind.

        Of who may use no model nothing large is read. Raises BadRequest, Forbidden, RateLimited, TooLarge.
        """
        limit = runtime.config.server.max_json_bytes
        if not may_be_large(scope["state"]["headers"]):
            return await read_body(scope["headers"], receive, limit)
        caller: Principal = scope["user"]
        await runtime.pipeline.authorize(caller, "models.use", any_model(caller, self.path))
        with runtime.room.counted(caller.id, limit, receive) as counted:
            return await read_body(scope["headers"], counted, limit)

    @abstractmethod
    async def serve(self, scope: Scope, body: Any, runtime: Runtime, reply: Reply) -> None:
        """Answer a body; is cancelled when the client leaves."""

    async def serve_once(self, key: str, scope: Scope, body: bytes, runtime: Runtime, reply: KeptReply) -> None:
        """The same for a request with an ``Idempotency-Key``: its end goes out when the answer is kept."""

        async def work() -> idempotency.Outcome:
            await self.serve(scope, body, runtime, reply)
            return reply.outcome

        await reply.finish(await self.once(key, scope, body, runtime, work))

    async def once(
        self, key: str, scope: Scope, body: bytes, runtime: Runtime, work: idempotency.Work
    ) -> idempotency.Outcome:
        """What ``work`` gives, or gave to the same body before. Raises as ``idempotency.once``, and Forbidden.

        What is given again is shown to those alone who may still use the model.
        """
        caller: Principal = scope["user"]
        fingerprint = partial(idempotency.fingerprint_of, "POST", self.path, b"", body)
        found = await idempotency.once(runtime.database, caller, key, fingerprint, work)
        if idempotency.REPLAYED in found.headers:
            await runtime.pipeline.authorize(caller, "models.use", self.decode(body).model)
        return found


class Reply:
    """Writes one answer; knows whether it has begun."""

    __slots__ = ("_began", "_events", "_form", "_own", "_send", "started")

    def __init__(self, send: Send, request_id: str, form: errors.ErrorForm, began: float) -> None:
        self._send = send
        self._form = form
        self._began = began
        self._own = [(name.encode("latin-1"), request_id.encode("latin-1")) for name in form.id_headers]
        self.started = False
        self._events = True

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """More headers for an answer that has not begun, as those that admitters grant."""
        self._own += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    def forget(self) -> None:
        """Nothing of this answer is to be given again for its ``Idempotency-Key``: it failed, or is not to be kept."""

    def _added(self) -> list[tuple[bytes, bytes]]:
        return [*self._own, (b"openai-processing-ms", b"%d" % processing_ms(self._began))]

    async def start_stream(self) -> None:
        """Commit to a stream."""
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._added()]})

    async def start_media(self, content_type: bytes) -> None:
        """Commit to an answer that is sent in pieces and is no stream of events."""
        self.started, self._events = True, False
        headers = [(b"content-type", content_type), *self._added()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send_piece(self, piece: bytes) -> None:
        """One event, or another piece."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end_stream(self, last: bytes = DONE) -> None:
        """``[DONE]``, or what else comes last, and the end."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def send_json(self, payload: bytes) -> None:
        """A whole JSON answer."""
        await self.send_whole(payload, b"application/json")

    async def send_whole(self, payload: bytes, content_type: bytes) -> None:
        """A whole answer."""
        self.started = True
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(payload)), *self._added()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": payload, "more_body": False})

    async def fail(self, error: Exception, auth: AuthConfig) -> None:
        """An error: as a status before the first byte, as an event after it.

        Sound has no place for it: the answer is left unfinished, and the server closes the connection.
        """
        if not self.started:
            await self.send_problem(errors.problem(error, auth, self._form))
            return
        if not self._events:
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


class KeptReply(Reply):
    """Gathers an answer for its ``Idempotency-Key`` while a stream goes out; holds its end back until that is kept."""

    __slots__ = ("_end", "_keep", "_pieces", "_streamed")

    def __init__(self, send: Send, request_id: str, form: errors.ErrorForm, began: float) -> None:
        super().__init__(send, request_id, form, began)
        self._pieces: list[bytes] = []
        self._end: bytes | None = None
        self._streamed = False
        self._keep = True

    def forget(self) -> None:
        """See ``Reply``."""
        self._keep = False

    async def start_stream(self) -> None:
        """See ``Reply``."""
        self._streamed = True
        await super().start_stream()

    async def send_piece(self, piece: bytes) -> None:
        """See ``Reply``."""
        self._pieces.append(piece)
        await super().send_piece(piece)

    async def end_stream(self, last: bytes = DONE) -> None:
        """See ``Reply``; goes out with ``finish``."""
        self._end = last

    async def send_json(self, payload: bytes) -> None:
        """See ``Reply``; goes out with ``finish``."""
        self._end = payload

    @property
    def outcome(self) -> idempotency.Outcome:
        """The whole answer."""
        headers = {"content-type": EVENT_STREAM} if self._streamed else {}
        return idempotency.Outcome(b"".join((*self._pieces, self._end or b"")), headers, keep=self._keep)

    async def finish(self, outcome: idempotency.Outcome) -> None:
        """Send what was held back, or the whole answer where it is one from before."""
        if self._end is None:
            self.add_headers({name: value for name, value in outcome.headers.items() if name != "content-type"})
            self._streamed = outcome.headers.get("content-type") == EVENT_STREAM
            self._end = outcome.body
            if self._streamed:
                await super().start_stream()
        await (super().end_stream if self._streamed else super().send_json)(self._end)
