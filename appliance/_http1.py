"""One keep-alive HTTP/1.1 client connection: an asyncio protocol around httptools.

A chunk of a stream costs one parser call and one append here, and no task, timer or decoding of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools

__all__ = ["Body", "Connection", "UpstreamBroken", "UpstreamError", "UpstreamTimeout", "UpstreamUnreachable"]

MAX_HEAD_BYTES = 64 * 1024
PAUSE_BYTES = 128 * 1024
"""Reading stops above this many buffered bytes. The read that crosses it may bring 64 KiB more: 192 KiB at most."""
READ_BYTES = 64 * 1024
_JOIN_BYTES = 64 * 1024


class UpstreamError(Exception):
    """A request to an upstream server failed; the message names the server, never what was sent."""


class UpstreamUnreachable(UpstreamError):
    """No connection could be made."""


class UpstreamTimeout(UpstreamError):
    """The server was silent for too long."""


class UpstreamBroken(UpstreamError):
    """The server closed the connection too early, or sent what is not HTTP."""


class StaleConnection(Exception):
    """A kept connection was closed by the server before any byte of the response came.

    Whether it had seen the request cannot be told, so only what may be done twice is tried again (RFC 9110, 9.2.2).
    """


class Body:
    """A response on its way in: its head, the pieces that wait to be read, and how it ended."""

    __slots__ = ("buffered", "done", "error", "head_done", "headers", "pieces", "status", "waiter")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.head_done = False
        self.pieces: list[bytes] = []
        self.buffered = 0
        self.done = False
        self.error: Exception | None = None
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Let the reader look again."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the next ``wake``."""
        self.waiter = loop.create_future()
        try:
            await self.waiter
        finally:
            self.waiter = None


class Connection(asyncio.BufferedProtocol):
    """Carries one request and its response at a time.

    ``release`` is called when a response has ended and the connection can carry another, ``lost`` when it is closed.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        origin: str,
        read_buffer: memoryview,
        release: Callable[[Connection], None],
        lost: Callable[[Connection], None],
    ) -> None:
        self.loop = loop
        self.closed = False
        self.idle_since = 0.0
        self._origin = origin
        self._read_buffer = read_buffer
        self._release = release
        self._lost = lost
        self._parser = httptools.HttpResponseParser(self)
        self._body: Body | None = None
        self._head_bytes = self._header_bytes = 0
        self._sized = False
        self._reused = False
        self._reusable = False
        self.paused = False
        """Whether reading is stopped until the buffered pieces are taken."""
        self._idle_timeout: float | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # The two ends of a request

    def send(self, head: bytes, content: bytes, head_timeout: float | None, idle_timeout: float | None) -> Body:
        """Write a request; the returned body fills as the response comes in. Times are in seconds."""
        body = Body()
        if self.closed:  # by the server, in the moment since it was opened
            body.error = UpstreamBroken(f"{self._origin} closed the connection without an answer")
            body.done = True
            return body
        self._body = body
        self._head_bytes = self._header_bytes = 0
        self._sized = False
        self._idle_timeout = idle_timeout
        self._set_deadline(head_timeout)
        if len(content) <= _JOIN_BYTES:
            self.transport.write(head + content)
        else:
            self.transport.write(head)
            self.transport.write(content)
        return body

    def abort(self) -> None:
        """Close at once: the server sees that nobody waits for its answer any more."""
        self._fail(UpstreamBroken(f"{self._origin}: the request was given up"))

    def resume(self) -> None:
        """Read on; called by whoever has taken the buffered pieces."""
        if self.paused:
            self.paused = False
            self._set_deadline(self._idle_timeout)
            self.transport.resume_reading()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        # One buffer serves all connections of a loop: it is filled and emptied without a turn of the loop between.
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        body = self._body
        if body is None:
            self._close()  # bytes that nobody asked for
            return
        streaming = body.head_done
        if not streaming:
            self._head_bytes += nbytes
        try:
            self._parser.feed_data(self._read_buffer[:nbytes])
        except Exception as error:  # noqa: BLE001 - httptools wraps whatever a callback raised
            self._fail(_parse_error(self._origin, error))
            return
        if body.done:
            self._finish(body)
        elif body.head_done:
            self._go_on(body, streaming)
        elif self._head_bytes > MAX_HEAD_BYTES:
            # Counted here too: the parser shows a header only when it is whole, and one may never be.
            self._fail(_parse_error(self._origin, _HeadTooLarge()))
        body.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        body = self._body
        if body is not None:
            body.error = self._early_end(body, exc)
            body.done = True
            body.wake()
        self._close()
        self._lost(self)

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        body = cast("Body", self._body)
        if body.head_done:
            return  # a trailer
        self._header_bytes += len(name) + len(value) + 4  # the colon, a space and the line end
        if self._header_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLarge
        key = name.lower().decode("latin-1")
        known = body.headers.get(key)
        text = value.decode("latin-1")
        body.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        body = cast("Body", self._body)
        status = self._parser.get_status_code()
        if status < 200:
            body.headers.clear()  # an interim response; the real one follows
            return
        body.status = status
        body.head_done = True
        self._sized = "content-length" in body.headers or "transfer-encoding" in body.headers or status in (204, 304)
        self._reusable = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        body = cast("Body", self._body)
        body.pieces.append(data)
        body.buffered += len(data)

    def on_message_complete(self) -> None:
        body = cast("Body", self._body)
        if body.head_done:
            body.done = True

    def on_message_begin(self) -> None:
        if self._body is None or self._body.done:
            raise _Unasked

    # Ends

    def _finish(self, body: Body) -> None:
        """The response is whole: keep the connection if both sides can go on with it."""
        self._body = None
        self._deadline = None
        # An answer that came before the request was written out leaves the rest of it in the way of the next one.
        if self._reusable and not self.transport.get_write_buffer_size() and not self.transport.is_closing():
            self._reused = True
            self._release(self)
        else:
            self._close()

    def _early_end(self, body: Body, exc: Exception | None) -> Exception | None:
        """What a closed connection means for the response under way; None when it is simply its end."""
        if body.error is not None or (body.head_done and not self._sized and exc is None):
            return body.error
        if self._reused and not self._head_bytes:
            return StaleConnection()
        if body.head_done:
            return UpstreamBroken(f"{self._origin} closed the connection in the middle of its answer")
        return UpstreamBroken(f"{self._origin} closed the connection without an answer")

    def _fail(self, error: Exception) -> None:
        body = self._body
        self._body = None
        if body is not None:
            body.error = error
            body.done = True
            body.wake()
        self._close()

    def _close(self) -> None:
        self.closed = True
        self._body = None
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.transport.abort()

    # Time and back-pressure

    def _go_on(self, body: Body, streaming: bool) -> None:
        """More of the body has come, and more is due."""
        if body.buffered > PAUSE_BYTES:
            self.paused = True
            self._deadline = None
            self.transport.pause_reading()
        elif not streaming:
            self._set_deadline(self._idle_timeout)
        elif self._idle_timeout is not None:
            self._deadline = self.loop.time() + self._idle_timeout

    def _set_deadline(self, seconds: float | None) -> None:
        if seconds is None:
            self._deadline = None
            return
        self._deadline = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        """The one timer of a connection: it moves itself on when the deadline moved, so chunks need not touch it."""
        self._timer = None
        body = self._body
        if self._deadline is None or body is None:
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)
            return
        what = "stopped in the middle of its answer" if body.head_done else "did not answer in time"
        self._fail(UpstreamTimeout(f"{self._origin} {what}"))


class _HeadTooLarge(Exception):
    pass


class _Unasked(Exception):
    pass


def _parse_error(origin: str, error: BaseException) -> UpstreamBroken:
    cause: Any = error.__context__ or error
    if isinstance(cause, _HeadTooLarge):
        return UpstreamBroken(f"{origin} sent a response head larger than {MAX_HEAD_BYTES} bytes")
    if isinstance(cause, _Unasked):
        return UpstreamBroken(f"{origin} sent more than one response to a request")
    return UpstreamBroken(f"{origin} sent what is not valid HTTP/1.1")
