"""Plugin ``otel``: one trace a call, from its arrival to the last byte, in OpenTelemetry's GenAI conventions.

    plugin:
      otel:
        endpoint: http://collector:4318

The server span is named ``chat {model}``; retrieval and generation are its children; no span per chunk. The caller's
``traceparent`` is continued. Spans wait in a bounded queue that a thread sends off, so a dead collector costs spans,
never time. Without an endpoint, here or in OTEL_EXPORTER_OTLP_ENDPOINT, nothing is traced. No global state is touched.
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
from appliance_observability._otlp import endpoint_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from appliance_observability._spans import OtelTelemetry

_BATCH_SPANS = 128
_SEND_SECONDS = 5.0
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
    """One instance an app, so that the hooks share one tracer provider."""

    def __init__(self) -> None:
        self._provider: TracerProvider | None = None

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.otel``."""
        return OtelSettings

    @hookimpl
    def appliance_telemetry(self, settings: OtelSettings) -> Telemetry | None:
        """Traces, if there is somewhere to send them."""
        if not _endpoint(settings):
            return None
        telemetry = build(settings, _sending(settings))
        self._provider = telemetry.provider
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
            if self._provider is not None:
                await asyncio.to_thread(within, _FLUSH_SECONDS, self._provider.shutdown)


def build(settings: OtelSettings, processor: SpanProcessor) -> OtelTelemetry:
    """A tracer of its own; ``processor`` gets the spans that end."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from appliance_observability._spans import OtelTelemetry

    name = settings.service_name or os.environ.get("OTEL_SERVICE_NAME") or "appliance"
    provider = TracerProvider(
        resource=Resource.create({"service.name": name}),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(processor)
    return OtelTelemetry(provider, capture_content=settings.capture_content)


def within(seconds: float, work: Callable[[], object]) -> None:
    """Do ``work`` in a thread that is left behind when it takes longer; it never keeps the process alive."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)


def _sending(settings: OtelSettings) -> SpanProcessor:
    """Sends spans to the endpoint. Raises ConfigError for one that is no URL."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=_endpoint(settings), timeout=_SEND_SECONDS)
    # Encoding a batch holds up the event loop now and then, a small one for less than a millisecond.
    batch = int(os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH_SPANS))
    return BatchSpanProcessor(exporter, max_export_batch_size=batch)


def _endpoint(settings: OtelSettings) -> str | None:
    return endpoint_of(settings.endpoint, "traces", "plugin.otel.endpoint")
