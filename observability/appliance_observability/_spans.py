"""Spans of calls, named and labelled by the GenAI semantic conventions (semconv 1.45, status Development)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from appliance.plugin import ApplianceError, Call, ChatRequest, CompletionRequest, RequestError, TraceSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Value: TypeAlias = str | int | float | bool | Sequence[str]

_PROPAGATOR = TraceContextTextMapPropagator()
_NO_PARENT = Context()
_OPERATIONS = {"completion": "text_completion", "search": "retrieval"}
_REQUEST_FIELDS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
_LONGEST_CONTENT = 65_536
"""Characters of captured content."""


class OtelTelemetry:
    """Traces through one tracer provider."""

    def __init__(self, provider: TracerProvider, *, capture_content: bool = False) -> None:
        self.provider = provider
        self._capture_content = capture_content
        self._tracer = provider.get_tracer("appliance")

    def start_call(self, call: Call, template: str) -> OtelSpan:
        """The server span of a call, a child of the caller's ``traceparent`` if there is one."""
        operation = _OPERATIONS.get(call.operation, call.operation)
        parent = _PROPAGATOR.extract(call.headers, _NO_PARENT) if "traceparent" in call.headers else _NO_PARENT
        span = self._tracer.start_span(f"{operation} {call.model}", context=parent, kind=SpanKind.SERVER)
        attributes = _call_attributes(call, operation, template) if span.is_recording() else {}
        if attributes and self._capture_content:
            attributes |= _content(call.request)
        return OtelSpan(span, attributes)

    def start_step(self, parent: TraceSpan, name: str, attributes: Mapping[str, str | int | float]) -> OtelSpan:
        """A span inside ``parent``."""
        context = set_span_in_context(parent.span, _NO_PARENT) if isinstance(parent, OtelSpan) else _NO_PARENT
        kind = SpanKind.CLIENT if name == "generate" else SpanKind.INTERNAL
        return OtelSpan(self._tracer.start_span(name, context=context, kind=kind), dict(attributes))

    def headers(self, span: TraceSpan) -> Mapping[str, str]:
        """``traceparent`` and ``tracestate`` for another process."""
        carrier: dict[str, str] = {}
        if isinstance(span, OtelSpan):
            _PROPAGATOR.inject(carrier, set_span_in_context(span.span, _NO_PARENT))
        return carrier


class OtelSpan:
    """An open span. Attributes are collected here and written once, at the end, which halves their cost."""

    __slots__ = ("_attributes", "_ended", "span")

    def __init__(self, span: Span, attributes: dict[str, Value]) -> None:
        self.span = span
        self._attributes = attributes
        self._ended = False

    def set(self, key: str, value: Value) -> None:
        """Set an attribute."""
        self._attributes[key] = value

    def fail(self, error: BaseException) -> None:
        """Name the error by its class; its text only if it is one of ours, which never quote prompts.

        A refusal (4xx) is no error of the server's, and a call that was cancelled no error at all.
        """
        if not isinstance(error, Exception):
            self._attributes["appliance.cancelled"] = True
            return
        self._attributes["error.type"] = type(error).__name__
        if not (isinstance(error, RequestError) and error.status < 500):
            description = str(error) if isinstance(error, ApplianceError) else None
            self.span.set_status(Status(StatusCode.ERROR, description))

    def end(self) -> None:
        """Close the span; again does nothing."""
        if not self._ended:
            self._ended = True
            self.span.set_attributes(self._attributes)
            self.span.end()


def _call_attributes(call: Call, operation: str, template: str) -> dict[str, Value]:
    found: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "appliance",
        "gen_ai.request.model": call.model,
        "gen_ai.request.stream": call.stream,
        "http.request.method": "POST",
        "http.route": template,
        "appliance.request.id": call.id,
    }
    for field, key in _REQUEST_FIELDS.items():
        value = getattr(call.request, field, None)
        if value is not None:
            found[key] = value
    return found


def _content(request: Any) -> dict[str, Value]:
    if isinstance(request, ChatRequest):
        content = msgspec.json.encode(request.messages).decode()
    elif isinstance(request, CompletionRequest):
        content = msgspec.json.encode(request.prompt).decode()
    else:
        return {}
    return {"gen_ai.input.messages": content[:_LONGEST_CONTENT]}
