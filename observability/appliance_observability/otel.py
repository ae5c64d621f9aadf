"""Plugin ``otel``: one trace a call, from its arrival to the last byte, in OpenTelemetry's GenAI conventions.

    plugin:
      otel:
        endpoint: http://collector:4318

The server span is named ``chat {model}``; retrieval and generation are its children; no span per chunk. The caller's
``traceparent`` is continued. Spans wait in a bounded queue that a thread sends off, so a dead collector costs spans,
never time. Headers, certificates and compression are those of OTEL_EXPORTER_OTLP_*. Without an endpoint, here or in
OTEL_EXPORTER_OTLP_ENDPOINT, nothing is traced. No global state is touched.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec

from appliance.plugin import Lifespan, Strict, Telemetry, hookimpl
from appliance_observability._otlp import endpoint_of, trace_collector

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor

    from appliance_observability._otlp import Collector
    from appliance_observability._spans import OtelTelemetry

_FLUSH_SECONDS = 5.0


class OtelSettings(Strict, frozen=True):
    """Where spans go, and what is in them."""

    endpoint: str | None = None
    """Base URL of an OTLP/HTTP collector; default: the standard environment variables."""
    service_name: str | None = None
    """Default: OTEL_SERVICE_NAME, or ``appliance``."""
    sample_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of the calls that are traced, unless the caller's ``traceparent`` says."""
    capture_content: bool = False
    """Put the messages of chats and the prompts of completions on the span."""


class Plugin:
    """One instance an app, so that the hooks share one processor of spans."""

    def __init__(self) -> None:
        self._processor: SpanProcessor | None = None

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.otel``."""
        return OtelSettings

    @hookimpl
    def appliance_telemetry(self, settings: OtelSettings) -> Telemetry | None:
        """Traces, if there is somewhere to send them."""
        endpoint = endpoint_of(settings.endpoint, "traces", "plugin.otel.endpoint")
        if endpoint is None:
            return None
        collector = trace_collector(endpoint)
        telemetry = build(settings, lambda resource: _sender(collector, resource))
        self._processor = telemetry.processor
        return telemetry

    @hookimpl
    def appliance_lifespan(self) -> Lifespan:
        """Sends what is left when the server stops."""
        return self._life()

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if self._processor is not None:
                await asyncio.to_thread(within, _FLUSH_SECONDS, self._processor.shutdown)


def build(settings: OtelSettings, processor: Callable[[Resource], SpanProcessor]) -> OtelTelemetry:
    """Traces by the settings; ``processor`` makes, for the resource, what gets the spans that end."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from appliance_observability._spans import OtelTelemetry

    name = settings.service_name or os.environ.get("OTEL_SERVICE_NAME") or "appliance"
    resource = Resource.create({"service.name": name})
    return OtelTelemetry(
        processor(resource),
        resource,
        ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        capture_content=settings.capture_content,
    )


def within(seconds: float, work: Callable[[], object]) -> None:
    """Do ``work`` in a thread that is left behind when it takes longer; it never keeps the process alive."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)


def _sender(collector: Collector, resource: Resource) -> SpanProcessor:
    from appliance_observability._sender import SpanSender

    return SpanSender(collector, resource)
