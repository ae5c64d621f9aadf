"""Traces when no plugin provides them, and what the pipeline writes on a call's span."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from appliance.protocols import TraceSpan
from appliance.types import Call, CallRecord


class NoSpan:
    """A span that keeps nothing."""

    def set(self, key: str, value: str | int | float | bool | Sequence[str]) -> None:
        """Ignore."""

    def fail(self, error: BaseException) -> None:
        """Ignore."""

    def end(self) -> None:
        """Ignore."""


_NO_SPAN = NoSpan()


class NoTelemetry:
    """Telemetry that costs nothing."""

    def start_call(self, call: Call, template: str) -> TraceSpan:
        """A span that keeps nothing."""
        return _NO_SPAN

    def start_step(self, parent: TraceSpan, name: str, attributes: Mapping[str, str | int | float]) -> TraceSpan:
        """A span that keeps nothing."""
        return _NO_SPAN

    def headers(self, span: TraceSpan) -> Mapping[str, str]:
        """No headers."""
        return {}


def finish_span(span: TraceSpan, record: CallRecord) -> None:
    """Write the outcome on a call's span (OpenTelemetry GenAI conventions) and end it."""
    if span is not _NO_SPAN:
        span.set("http.response.status_code", record.status)
        span.set("gen_ai.usage.input_tokens", record.usage.prompt_tokens)
        span.set("gen_ai.usage.output_tokens", record.usage.completion_tokens)
        if record.finish_reasons:
            span.set("gen_ai.response.finish_reasons", record.finish_reasons)
        if record.outcome == "aborted":
            span.set("appliance.cancelled", True)
    span.end()


def ending(step: TraceSpan) -> Callable[[object, BaseException | None, object], None]:
    """An exit for a stack of what is held: ends a step, as failed if an error comes by, also in mid-stream."""

    def end(_: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            step.fail(error)
        step.end()

    return end
