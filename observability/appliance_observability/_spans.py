"""Spans of calls, named and labelled by the GenAI semantic conventions (semconv 1.45, status Development)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from appliance.plugin import ApplianceError, Call, ChatRequest, CompletionRequest, RequestError, TraceSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.sampling import Sampler

Value: TypeAlias = str | int | float | bool | Sequence[str]

SCOPE = "appliance"
"""The instrumentation scope of all spans."""
_SCOPE = InstrumentationScope(SCOPE)
_PROPAGATOR = TraceContextTextMapPropagator()
_NO_PARENT = Context()
_IDS = RandomIdGenerator()
_UNSET = Status(StatusCode.UNSET)
_SAMPLED, _NOT_SAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)
_NO_STATE = TraceState()
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
    """Traces that ``processor`` gets, span by span as they end.

    A span is made when it ends, from what was noted since it began: the SDK's own open span, which may be written to by
    several threads and is checked at each attribute, costs 13 us, this one 4.
    """

    def __init__(
        self, processor: SpanProcessor, resource: Resource, sampler: Sampler, *, capture_content: bool = False
    ) -> None:
        self.processor = processor
        self.resource = resource
        self._sampler = sampler
        self._capture_content = capture_content

    def start_call(self, call: Call, template: str) -> OtelSpan:
        """The server span of a call, a child of the caller's ``traceparent`` if there is one."""
        operation = _OPERATIONS.get(call.operation, call.operation)
        name = f"{operation} {call.model}"
        parent, context = self._placed(call.headers, name)
        attributes: dict[str, Value] = {}
        if context.trace_flags:
            attributes = _call_attributes(call, operation, template)
            if self._capture_content:
                attributes |= _content(call.request)
        return OtelSpan(self, name, SpanKind.SERVER, context, parent=parent, attributes=attributes)

    def start_step(self, parent: TraceSpan, name: str, attributes: Mapping[str, str | int | float]) -> OtelSpan:
        """A span inside ``parent``, recorded if that one is."""
        kind = SpanKind.CLIENT if name == "generate" else SpanKind.INTERNAL
        if not isinstance(parent, OtelSpan):
            _, context = self._placed({}, name)
            return OtelSpan(self, name, kind, context, parent=None, attributes=dict(attributes))
        above = parent.context
        context = SpanContext(above.trace_id, _IDS.generate_span_id(), False, above.trace_flags, above.trace_state)
        return OtelSpan(self, name, kind, context, parent=above, attributes=dict(attributes))

    def headers(self, span: TraceSpan) -> Mapping[str, str]:
        """``traceparent`` and ``tracestate`` for another process (W3C Trace Context, section 3)."""
        if not isinstance(span, OtelSpan):
            return {}
        context = span.context
        found = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
        if context.trace_state:
            found["tracestate"] = context.trace_state.to_header()
        return found

    def _placed(self, headers: Mapping[str, str], name: str) -> tuple[SpanContext | None, SpanContext]:
        """The caller's span, and the context of a new one; whether it is recorded is in its trace flags."""
        carried = _PROPAGATOR.extract(headers, _NO_PARENT) if "traceparent" in headers else _NO_PARENT
        above = get_current_span(carried).get_span_context()
        parent = above if above.is_valid else None
        trace_id = parent.trace_id if parent else _IDS.generate_trace_id()
        judged = self._sampler.should_sample(carried, trace_id, name)
        return parent, SpanContext(
            trace_id,
            _IDS.generate_span_id(),
            False,
            _SAMPLED if judged.decision is Decision.RECORD_AND_SAMPLE else _NOT_SAMPLED,
            judged.trace_state or _NO_STATE,
        )


class OtelSpan:
    """A span that has begun."""

    __slots__ = ("_attributes", "_began", "_ended", "_kind", "_name", "_parent", "_status", "_telemetry", "context")

    def __init__(
        self,
        telemetry: OtelTelemetry,
        name: str,
        kind: SpanKind,
        context: SpanContext,
        *,
        parent: SpanContext | None,
        attributes: dict[str, Value],
    ) -> None:
        self.context = context
        self._telemetry = telemetry
        self._name = name
        self._kind = kind
        self._parent = parent
        self._attributes = attributes
        self._status = _UNSET
        self._ended = False
        self._began = time.time_ns()

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
            self._status = Status(StatusCode.ERROR, str(error) if isinstance(error, ApplianceError) else None)

    def end(self) -> None:
        """Close the span and hand it on, if it is recorded; again does nothing."""
        if self._ended:
            return
        self._ended = True
        if self.context.trace_flags:
            self._telemetry.processor.on_end(self._finished())

    def _finished(self) -> ReadableSpan:
        return ReadableSpan(
            name=self._name,
            context=self.context,
            parent=self._parent,
            resource=self._telemetry.resource,
            attributes=self._attributes,
            kind=self._kind,
            status=self._status,
            start_time=self._began,
            end_time=time.time_ns(),
            instrumentation_scope=_SCOPE,
        )


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
