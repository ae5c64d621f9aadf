"""A small HTTP/1.1 client for one upstream server: keep-alive, streams, back-pressure, time limits.

Made for the hot path, where a general client costs more than everything else a request passes through. One ``Upstream``
speaks to one origin, by TCP, TLS or a unix socket, over as many connections as there are requests under way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from appliance._http1 import (
    READ_BYTES,
    Body,
    Connection,
    StaleConnection,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)

__all__ = ["Upstream", "UpstreamBroken", "UpstreamError", "UpstreamResponse", "UpstreamTimeout", "UpstreamUnreachable"]

MAX_IDLE_SECONDS = 30.0
"""A kept connection is not used again after this time; servers commonly close theirs after 60 s or more."""
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class UpstreamResponse:
    """A response whose head has come. Iterate it for the body's pieces as they arrive, or ``read`` the whole.

    A response that is neither read to its end nor closed lets go of its connection when it is collected.
    """

    __slots__ = ("_body", "_connection", "headers", "status")

    def __init__(self, body: Body, connection: Connection) -> None:
        self.status = body.status
        self.headers: dict[str, str] = body.headers
        """By lower-case name; several of one name are joined by a comma."""
        self._body = body
        self._connection = connection

    def __aiter__(self) -> UpstreamResponse:
        return self

    async def __anext__(self) -> bytes:
        """Return what has arrived since the last piece, at least one byte.

        Raises:
            UpstreamBroken: the body ended before it was complete.
            UpstreamTimeout: nothing came for ``idle_timeout`` seconds.
        """
        body = self._body
        while not body.pieces:
            if body.error is not None:
                raise body.error
            if body.done:
                raise StopAsyncIteration
            await body.wait(self._connection.loop)
        pieces = body.pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        body.buffered = 0
        if not body.done and self._connection.paused:
            self._connection.resume()
        return piece

    async def read(self, limit: int = 32 * 1024 * 1024) -> bytes:
        """Return the whole body.

        Raises:
            UpstreamBroken: it is larger than ``limit`` bytes, or ended before it was complete.
            UpstreamTimeout: nothing came for ``idle_timeout`` seconds.
        """
        pieces: list[bytes] = []
        size = 0
        async for piece in self:
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                await self.aclose()
                raise UpstreamBroken(f"the response is larger than {limit} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def aclose(self) -> None:
        """Let go of the response; before its end this closes the connection, which tells an engine to stop."""
        if not self._body.done:
            self._connection.abort()
        self._body.pieces.clear()

    def __del__(self) -> None:
        if not self._body.done:
            # The garbage collector may run in any thread, and in the middle of anything.
            with suppress(RuntimeError):  # the loop is closed, and its connections with it
                self._connection.loop.call_soon_threadsafe(_give_up, self._body, self._connection)


class Upstream:
    """A pool of connections to one HTTP server."""

    def __init__(
        self,
        base_url: str,
        *,
        uds: Path | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout: float = 5.0,
        head_timeout: float | None = None,
        idle_timeout: float | None = None,
    ) -> None:
        """Times are in seconds; None waits for ever.

        Args:
            base_url: ``http://host:port/base`` or ``https://...``; its path goes before each request's.
            uds: unix socket to connect to; ``base_url`` then only gives the Host header and the path.
            headers: sent with every request, unless the request has its own of that name.
            connect_timeout: limit for a new connection, TLS included.
            head_timeout: limit from the request to the head of its response.
            idle_timeout: the longest silence between two pieces of a body.

        Raises:
            ValueError: ``base_url`` is no http or https URL, or holds a user name or password.
        """
        self._set_origin(base_url)
        self._uds = uds
        if uds is not None:
            self.origin = str(uds)
        self._defaults = {name.lower(): _line(name, value) for name, value in (headers or {}).items()}
        self._host_line = f"Host: {self._netloc}\r\n"
        self._fixed_lines = self._host_line + "".join(self._defaults.values())
        self._connect_timeout = connect_timeout
        self._head_timeout = head_timeout
        self._idle_timeout = idle_timeout
        self._read_buffer = memoryview(bytearray(READ_BYTES))
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> UpstreamResponse:
        """Send a request and return its response as soon as the head is there.

        It may reach the server twice, where a kept connection closes without an answer: ask only for what leaves the
        same behind when it is done again, as generations do, and have a client of its own for anything else.

        ``content-type`` is application/json where there is a body and no header says otherwise.

        Raises:
            UpstreamUnreachable: no connection within ``connect_timeout``.
            UpstreamTimeout: no response head within ``head_timeout``.
            UpstreamBroken: the connection closed without a response, or the response is not valid HTTP.
            ValueError: the method, the path or a header cannot be sent.
        """
        head = self._head(method, path, body, headers)
        kept = self._take()
        if kept is not None:
            try:
                return await self._exchange(kept, head, body)
            except StaleConnection:
                pass  # most likely the server closed it while it was idle; for certain nobody can tell
        return await self._exchange(await self._connect(), head, body)

    async def aclose(self) -> None:
        """Close every connection; responses under way break off."""
        self._closed = True
        self._idle.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.abort()
        for _ in range(100):
            if not self._connections:
                break
            await asyncio.sleep(0)  # a transport tells its protocol in a later turn of the loop

    def _set_origin(self, base_url: str) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("the base URL must look like http://host:port or https://host")
        if "@" in url.netloc:
            raise ValueError("the base URL must not hold a user name or password: send them in a header")
        self._netloc = url.netloc
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._base_path = url.path.rstrip("/")
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self.origin = f"{url.scheme}://{url.netloc}"

    def _head(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None) -> bytes:
        target = self._base_path + path
        if not target.isprintable() or " " in target:
            raise ValueError("a request's path must be quoted: it holds no spaces and no control characters")
        if method == "HEAD":
            raise ValueError("HEAD is not supported: use GET and close the response")
        lines = f"{method} {target} HTTP/1.1\r\n" + self._header_lines(headers or {}, has_body=bool(body))
        if body or method in _WITH_BODY:
            lines += f"Content-Length: {len(body)}\r\n"
        return (lines + "\r\n").encode("latin-1")

    def _header_lines(self, headers: Mapping[str, str], *, has_body: bool) -> str:
        own = {name.lower(): _line(name, value) for name, value in headers.items()}
        if not _OWN_HEADERS.isdisjoint(own):
            raise ValueError(f"the client sets these headers itself: {', '.join(sorted(_OWN_HEADERS))}")
        if has_body and "content-type" not in own and "content-type" not in self._defaults:
            own["content-type"] = "Content-Type: application/json\r\n"
        if self._defaults.keys().isdisjoint(own):
            return self._fixed_lines + "".join(own.values())
        return self._host_line + "".join((self._defaults | own).values())

    async def _exchange(self, connection: Connection, head: bytes, content: bytes) -> UpstreamResponse:
        body = connection.send(head, content, self._head_timeout, self._idle_timeout)
        try:
            while not body.head_done and not body.done:
                await body.wait(connection.loop)
        except BaseException:
            if not body.done:  # else the connection may already serve somebody else
                connection.abort()
            raise
        if not body.head_done and body.error is not None:
            raise body.error
        return UpstreamResponse(body, connection)

    async def _connect(self) -> Connection:
        if self._closed:
            raise UpstreamUnreachable(f"{self.origin}: this client is closed")
        loop = asyncio.get_running_loop()
        connection = Connection(loop, self.origin, self._read_buffer, self._release, self._connections.discard)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._open(loop, connection)
        except TimeoutError:
            raise UpstreamUnreachable(f"no connection to {self.origin} within {self._connect_timeout:g} s") from None
        except OSError as error:
            raise UpstreamUnreachable(f"cannot connect to {self.origin}: {error.strerror or error}") from error
        if not connection.closed:
            self._connections.add(connection)
        return connection

    async def _open(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        if self._uds is None:
            await loop.create_connection(lambda: connection, self._host, self._port, ssl=self._tls)
        else:
            await loop.create_unix_connection(lambda: connection, str(self._uds))

    def _take(self) -> Connection | None:
        """The connection that was used last is the likeliest to be still open."""
        while self._idle:
            connection = self._idle.pop()
            if connection.closed:
                continue
            if connection.loop.time() - connection.idle_since <= MAX_IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    def _release(self, connection: Connection) -> None:
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(MAX_IDLE_SECONDS, self._sweep, connection.loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Drop connections idle for too long, without waiting for a request to find them."""
        oldest = loop.time() - MAX_IDLE_SECONDS
        for connection in self._idle:
            if connection.idle_since <= oldest:
                connection.abort()
        self._idle = [connection for connection in self._idle if not connection.closed]
        self._sweeper = loop.call_later(MAX_IDLE_SECONDS, self._sweep, loop) if self._idle else None


def _give_up(body: Body, connection: Connection) -> None:
    """Close the connection unless the response has come to its end: then it may already serve somebody else."""
    if not body.done:
        connection.abort()


def _line(name: str, value: str) -> str:
    if not name.isprintable() or not value.isprintable():
        raise ValueError(f"header {name!r} holds a control character")  # it could smuggle in another header
    return f"{name}: {value}\r\n"
