"""The plugin ``otel``, whose spans stay here instead of going to a collector."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from appliance.plugin import Telemetry, hookimpl
from appliance_observability.otel import OtelSettings, build


class Traces:
    """A plugin with the settings of ``plugin.otel``; ``spans`` are those that ended."""

    def __init__(self, **settings: Any) -> None:
        self._memory = InMemorySpanExporter()
        self.telemetry = build(OtelSettings(**settings), lambda _: SimpleSpanProcessor(self._memory))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._memory.get_finished_spans()

    @hookimpl
    def appliance_telemetry(self) -> Telemetry:
        return self.telemetry
