"""Spans in OTLP's protobuf encoding (opentelemetry-proto 1.x), written field by field.

OpenTelemetry's own encoder builds a message object for each attribute: 23 us a span, in a thread that keeps the event
loop from the interpreter while it does so. This takes 5 us, at the end of the span. Both give the same message
(tests/observability/test_otlp_encoding.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanKind

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status

_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1
_KINDS = {kind: bytes((0x30, kind.value + 1)) for kind in SpanKind}
"""Field 6; the numbers of the protocol begin with UNSPECIFIED, those of the library with INTERNAL."""
_BYTES = [bytes((number,)) for number in range(0x80)]
_TIMES = struct.Struct("<BQBQ").pack
_DOUBLE = struct.Struct("<d").pack
_HAS_IS_REMOTE = b"\x85\x01" + struct.pack("<I", 0x100)
_IS_REMOTE = b"\x85\x01" + struct.pack("<I", 0x300)
"""Field 16, SpanFlags: whether the parent is known to be of another process, and that it is."""


def request(resource: Resource, scope: str, spans: Iterable[bytes]) -> bytes:
    """An ``ExportTraceServiceRequest`` of spans that ``encode`` gave."""
    attributes = b"".join(_field(b"\x0a", _attribute(key, value)) for key, value in resource.attributes.items())
    scoped = _field(b"\x0a", _field(b"\x0a", _text(scope))) + b"".join(_field(b"\x12", span) for span in spans)
    found = _field(b"\x0a", attributes) + _field(b"\x12", scoped)
    if resource.schema_url:
        found += _field(b"\x1a", _text(resource.schema_url))
    return _field(b"\x0a", found)


def encode(span: ReadableSpan) -> bytes:
    """A ``Span`` without events and links, which the appliance does not make."""
    context, parent = span.get_span_context() or INVALID_SPAN_CONTEXT, span.parent
    parts = [b"\x0a\x10", context.trace_id.to_bytes(16, "big"), b"\x12\x08", context.span_id.to_bytes(8, "big")]
    if context.trace_state:
        parts.append(_field(b"\x1a", _text(context.trace_state.to_header())))
    if parent is not None:
        parts += (b"\x22\x08", parent.span_id.to_bytes(8, "big"))
    parts += (_field(b"\x2a", _text(span.name)), _KINDS[span.kind])
    parts.append(_TIMES(0x39, span.start_time or 0, 0x41, span.end_time or 0))
    parts += [_field(b"\x4a", _attribute(key, value)) for key, value in (span.attributes or {}).items()]
    parts += (_status(span.status), _flags(parent))
    return b"".join(parts)


def _status(status: Status) -> bytes:
    code = bytes((0x18, status.status_code.value)) if status.status_code.value else b""
    return _field(b"\x7a", (_field(b"\x12", _text(status.description)) if status.description else b"") + code)


def _flags(parent: SpanContext | None) -> bytes:
    return _IS_REMOTE if parent is not None and parent.is_remote else _HAS_IS_REMOTE


def _attribute(key: str, value: object) -> bytes:
    """A ``KeyValue``."""
    return _key(key) + _field(b"\x12", _value(value))


@lru_cache(maxsize=1024)
def _key(key: str) -> bytes:
    return _field(b"\x0a", _text(key))


def _value(value: object) -> bytes:
    """An ``AnyValue``; what the protocol has no type for is told as text."""
    if isinstance(value, str):
        return _field(b"\x0a", _text(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int) and _LEAST_INT <= value <= _MOST_INT:
        return b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return b"\x21" + _DOUBLE(value)
    if isinstance(value, Sequence):
        return _field(b"\x2a", b"".join(_field(b"\x0a", _value(item)) for item in value))
    return _field(b"\x0a", _text(str(value)))


def _text(text: str) -> bytes:
    """UTF-8; halves of surrogate pairs, which clients can send, become question marks."""
    return text.encode("utf-8", "replace")


def _field(tag: bytes, content: bytes) -> bytes:
    """A field of variable length; ``tag`` is its number and wire type."""
    length = len(content)
    return tag + (_BYTES[length] if length < 0x80 else _varint(length)) + content


def _varint(number: int) -> bytes:
    """A number below 2**64, seven bits a byte, the least first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
