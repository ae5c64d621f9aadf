"""The app's own routes, for plugins that speak another protocol than HTTP.

Whatever comes in by gRPC or the like is asked of the same routes, with the same guard, so that no step of a request's
path can be left out. Nothing is asked over a socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from appliance.audit import ORIGIN, Origin
from appliance.errors import PluginError, Unavailable
from appliance.http.addresses import client_address, headers_of
from appliance.http.repeats import check_repeated
from appliance.http.request_id import request_id_of

if TYPE_CHECKING:
    from litestar.types import ASGIApp

    from appliance.config import ServerConfig
    from appliance.pipeline import Pipeline
    from appliance.types import Principal

log = logging.getLogger("appliance")
_AHEAD = 4
"""Messages of an answer that may wait for their reader; then the route waits."""


@dataclass(frozen=True)
class Asked:
    """One request, as HTTP would have it: ``path`` is percent-encoded, ``query`` raw.

    ``client`` is the address and port that it came from.
    """

    method: str
    path: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    client: tuple[str, int] = ("127.0.0.1", 0)
    query: bytes = b""

    def scope(self) -> dict[str, Any]:
        """The ASGI scope (ASGI HTTP specification 2.3)."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "2",
            "method": self.method,
            "scheme": "http",
            "path": unquote(self.path),
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": [(name.lower().encode(), value.encode()) for name, value in self.headers],
            "client": self.client,
            "server": None,
            "state": {},
            "extensions": {},
        }


@dataclass(frozen=True)
class Reply:
    """An answer that has begun: iterate ``chunks`` for its body."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([chunk async for chunk in self.chunks])


class Front:
    """One an app. Usable once the app stands, that is in and after a plugin's lifespan."""

    def __init__(self) -> None:
        self._parts: tuple[ASGIApp, Pipeline, ServerConfig] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._draining = False
        self.listening: dict[str, str] = {}
        """Addresses where plugins serve, by the name of the protocol, for the summary of ``appliance serve``."""

    def bind(self, app: ASGIApp, pipeline: Pipeline, server: ServerConfig) -> None:
        """Called once, when the app is put together."""
        self._parts = app, pipeline, server

    @property
    def guarded(self) -> bool:
        """Whether callers are asked who they are; without that, only loopback may be served."""
        return self._bound()[1].guarded

    async def authorize(self, asked: Asked, action: str | None) -> Principal:
        """Who asks, if they may do ``action`` on ``asked.path``; for what has no route. ``None``: whoever is known.

        Raises:
            Unauthenticated, Forbidden; InvalidCredentials, BadRequest: a header that may come once is there twice
        """
        _, pipeline, server = self._bound()
        scope = asked.scope()
        headers = headers_of(scope, server)
        ORIGIN.set(Origin(request_id_of(headers), client_address(scope, server)))
        check_repeated(scope, headers, server, pipeline.trail)
        principal = await pipeline.authenticate(headers, asked.query)
        if action is not None:
            await pipeline.authorize(principal, action, asked.path)
        return principal

    @asynccontextmanager
    async def ask(self, asked: Asked) -> AsyncIterator[Reply]:
        """Have a route answer; leaving the block early is what a client's disconnect is, and waits for its clean-up.

        Raises:
            Unavailable: the route ended without an answer, or the server is about to stop.
        """
        if self._draining:
            raise Unavailable("the server is shutting down; try again")
        exchange = _Exchange(asked.body)
        task = asyncio.create_task(exchange.run(self._bound()[0], asked.scope()))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            yield await exchange.reply()
        finally:
            exchange.leave()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()):
                log.error("%s %s failed: %s", asked.method, asked.path, type(error).__name__, exc_info=error)

    def drain(self) -> None:
        """Take nothing new from now on."""
        self._draining = True

    async def settle(self, seconds: float) -> None:
        """Take nothing new, and let what runs end, for so many seconds at most."""
        self.drain()
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    def _bound(self) -> tuple[ASGIApp, Pipeline, ServerConfig]:
        if self._parts is None:
            raise PluginError("context.front was used before the app stood; use it in the lifespan, or later")
        return self._parts


class _Exchange:
    """Both ends of one request in this process."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._sent: asyncio.Queue[Any] = asyncio.Queue(_AHEAD)
        self._gone = asyncio.Event()

    async def run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        """Let the app answer; its end is told to the reader."""
        try:
            await app(cast("Any", scope), self._receive, self._send)
        finally:
            await self._send(None)

    async def _receive(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if not self._gone.is_set():
            await self._sent.put(message)

    async def reply(self) -> Reply:
        """Wait for the answer to begin."""
        message = await self._sent.get()
        if message is None:
            raise Unavailable("the server ended the request; try again")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
        return Reply(message["status"], headers, self._chunks())

    async def _chunks(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._sent.get()
            if message is None:
                raise Unavailable("the answer broke off; try again")
            more = message.get("more_body", False)
            if body := message.get("body"):
                yield body

    def leave(self) -> None:
        """Nobody reads any more: what waits is dropped, and the app is told."""
        self._gone.set()
        while not self._sent.empty():
            self._sent.get_nowait()
