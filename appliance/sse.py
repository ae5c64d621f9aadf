"""Server-sent events as bytes: cut a stream into whole events, read an event's data, write an event.

Nothing here decodes text, so a character cut between two network reads cannot be harmed. The grammar is WHATWG HTML's
"event stream interpretation": lines end in LF, CRLF or CR, a blank line ends an event, a line that starts with a colon
is a comment.
"""

from __future__ import annotations

__all__ = ["MAX_EVENT_BYTES", "EventSplitter", "EventTooLarge", "encode", "event_data"]

MAX_EVENT_BYTES = 8 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event of a stream is larger than the limit."""


class EventSplitter:
    """Cuts one stream, fed in pieces of any size, into whole events.

    Events come out with LF line ends and one blank line at the end. Blocks that hold only comments are dropped.
    """

    __slots__ = ("_limit", "_pending", "_skip_lf", "_started")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        """``limit`` is the largest event in bytes."""
        self._limit = limit
        self._pending = bytearray()
        self._skip_lf = False
        self._started = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that ``data`` completes, in order.

        Raises:
            EventTooLarge: an event, complete or not, is over the limit.
        """
        if self._is_one_plain_event(data):
            return [data]
        data = self._with_lf_ends(data)
        start = max(0, len(self._pending) - 1)
        self._pending += data
        if not self._started and not self._begin():
            return []
        # Only what is new can hold the end of an event: a large one, fed byte by byte, is not searched over and over.
        if self._pending.find(b"\n\n", start) < 0:
            self._check(len(self._pending))
            return []
        return self._take_events()

    @property
    def pending(self) -> bool:
        """Whether an event has begun and not ended: at the end of a stream, true means that it was cut off."""
        return bool(self._pending.strip(b"\n"))

    def flush(self) -> bytes:
        """Return the bytes of an event that never ended, and forget them."""
        rest = bytes(self._pending.strip(b"\n"))
        self._pending.clear()
        return rest

    def _is_one_plain_event(self, data: bytes) -> bool:
        """The usual case, an engine's chunk: it passes as it came, without a copy."""
        return (
            data.startswith(b"data:")
            and not self._pending
            and data.find(b"\n\n") == len(data) - 2
            and b"\r" not in data
            and len(data) <= self._limit
            and self._mark_started()
        )

    def _mark_started(self) -> bool:
        self._started = True
        self._skip_lf = False
        return True

    def _with_lf_ends(self, data: bytes) -> bytes:
        if self._skip_lf and data:
            data = data.removeprefix(b"\n")
            self._skip_lf = False
        if b"\r" in data:
            # A CR at the very end may be half of a CRLF; it counts as a line end now and its LF is skipped later.
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _begin(self) -> bool:
        """Drop a byte order mark at the start of the stream; False while too little has come to tell."""
        if len(self._pending) < len(_BOM) and _BOM.startswith(self._pending):
            return False
        self._started = True
        if self._pending.startswith(_BOM):
            del self._pending[: len(_BOM)]
        return True

    def _take_events(self) -> list[bytes]:
        *blocks, rest = bytes(self._pending).split(b"\n\n")
        self._pending = bytearray(rest)
        events = [block.lstrip(b"\n") + b"\n\n" for block in blocks if _has_fields(block)]
        self._check(max(map(len, events), default=0))
        self._check(len(rest))
        return events

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise EventTooLarge(f"an event of the stream is larger than {self._limit} bytes")


def event_data(event: bytes) -> bytes | None:
    """Return an event's data, its data lines joined by LF; None when it has none (only comments or other fields)."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    lines = [_field_value(line) for line in event.splitlines() if line == b"data" or line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def encode(data: bytes) -> bytes:
    """Return one event that carries ``data``; each line becomes a data line, so no data can end the event early."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\n" in data:
        data = data.replace(b"\n", b"\ndata: ")
    return b"data: " + data + b"\n\n"


def _field_value(line: bytes) -> bytes:
    return line[5:].removeprefix(b" ")


def _has_fields(block: bytes) -> bool:
    return any(line and not line.startswith(b":") for line in block.split(b"\n"))
