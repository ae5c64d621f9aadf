"""The server's side of a connection: uvicorn's, with bounds on what a peer may send and how slowly.

uvicorn with httptools takes a head of any size and waits for it for ever. Here a head, a chunk extension or a
trailer ends at ``MAX_HEAD_BYTES`` with 431, a head must be whole after ``HEAD_SECONDS``, and a body must keep coming.
What is not HTTP is answered with an OpenAI error body like everything else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from appliance.errors import BadRequest
from appliance.http.errors import error_body

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 12.0
BODY_SECONDS = 30.0
LINGER_SECONDS = 2.0
"""How long what is left of a request is read after its answer: closing at once could lose that (RFC 9112, 9.6)."""
LINGER_BYTES = 2**20
"""How much of a head that was refused is read and dropped within that time."""
MIN_BODY_BYTES = 1024
"""A body that brings less within ``BODY_SECONDS`` is given up, unless it is the server that does not read."""


class Connection(HttpToolsProtocol):
    """One client's connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # uvicorn's, which would keep whole addresses, whatever a client put into them
        self._unread = 0
        """Bytes that came since the last piece of a body: of a head, of chunk framing or of trailers."""
        self._body_bytes = 0
        self._in_body = False
        self._too_large = False
        self._refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The head of the first request is due."""
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more. uvicorn tells only the last of several pipelined requests that the client left."""
        self._stop_watching()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Refuse what is too large before the parser keeps it; watch what is still due."""
        self._unread += len(data)
        if self._refused:
            if self._unread > LINGER_BYTES:
                self.transport.close()
            return
        if self._unread > MAX_HEAD_BYTES + len(data):  # this read may hold a body, the ones before did not
            self._refuse_head()
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self.send_400_response("")
        if self._timer is None and not self.transport.is_closing():
            if self._in_body:
                self._watch_body()
            elif self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete):
                self._watch_head()

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Parse the request again without its wish for another protocol, for which the parser drops the body.

        Java's HTTP client and ``curl --http2`` wish for HTTP/2 with every request; a server may ignore that.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        closes = any(name == b"connection" and b"close" in value.lower() for name, value in self.headers)
        headers = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection")]
        headers += [(b"connection", b"close")] if closes else []
        head = b"%b %b HTTP/%b\r\n" % (method, self.url, version)
        head += b"".join(b"%b: %b\r\n" % header for header in headers)
        self.parser = httptools.HttpRequestParser(self)
        self._unread = 0
        self.data_received(head + b"\r\n" + rest)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # Parser callbacks

    def on_headers_complete(self) -> None:
        """The head is over; one read may have brought a large one whole."""
        if self._unread > MAX_HEAD_BYTES and self._head_bytes() > MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError  # stops the parser; send_400_response comes next
        if self.parser.should_upgrade():
            return  # it comes again
        self._stop_watching()
        self._unread = self._body_bytes = 0
        self._in_body = True
        super().on_headers_complete()
        self.headers = []  # trailers come here, and must not become headers of the request

    def on_body(self, body: bytes) -> None:
        """Progress."""
        self._unread = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next head may come."""
        if self.parser.should_upgrade():
            return
        self._stop_watching()
        self._unread = 0
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A body that was answered before its end, as one over the limit, is not read for ever."""
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing():
            self._stop_watching()
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    # Refusals

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser gave up on, and close."""
        if self._too_large:
            self._refuse_head()
        else:
            self._refuse(400, b"Bad Request", "this is not valid HTTP/1.1; send it with an HTTP client")

    def _refuse_head(self) -> None:
        self._refuse(
            431,
            b"Request Header Fields Too Large",
            f"the request's head is over {MAX_HEAD_BYTES} bytes; send fewer or shorter headers",
        )

    def _refuse(self, status: int, reason: bytes, message: str) -> None:
        if not self.transport.is_closing() and self._may_write():
            body = msgspec.json.encode(error_body(BadRequest(message)))
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, reason, len(body), body)
            )
            if not self._in_body:  # else the app may be at work, and must hear now that there will be no more
                self._linger()
                return
        self.transport.close()

    def _linger(self) -> None:
        """Drop what still comes of a refused head, for a moment: bytes left unread would reset the connection."""
        self._stop_watching()
        self._refused, self._unread = True, 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _may_write(self) -> bool:
        """Nothing may be put into an answer under way, nor behind one whose request has not ended."""
        if self.cycle is None:
            return True
        return not self.cycle.response_started if self._in_body else self.cycle.response_complete

    def _head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    # What is due

    def _watch_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _watch_body(self) -> None:
        self._timer = self.loop.call_later(BODY_SECONDS, self._check_body, self._body_bytes)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_body(self, before: int) -> None:
        if self.flow.read_paused or self._body_bytes - before >= MIN_BODY_BYTES:
            self._watch_body()
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._timer = None
        self._refuse(408, b"Request Timeout", "the request did not come in time; send it whole, without pauses")
