"""Plugin ``audit``: sends the audit log elsewhere, as OTLP logs or lines of JSON, while it is written.

    plugin:
      audit:
        endpoint: http://collector:4318
        file: /var/log/appliance/audit.jsonl

The log in the database stays what counts. Each target remembers there how far it got, so that an outage of the
collector, a full disk or a restart delays entries and loses none; after a failure some may come twice, which ``seq``
tells. Of several replicas one sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from appliance.plugin import (
    AppContext,
    ApplianceError,
    AuditFeed,
    AuditRecord,
    ConfigError,
    Lifespan,
    Strict,
    Unavailable,
    hookimpl,
)
from appliance_observability._otlp import endpoint_of

log = logging.getLogger("appliance.audit")
_BATCH = 200
_SEND_SECONDS = 10.0
_LONGEST_PAUSE = 60.0
_STOP_SECONDS = 5.0


class AuditSettings(Strict, frozen=True):
    """Where entries go; at least one target is needed."""

    endpoint: str | None = None
    """Base URL of an OTLP/HTTP collector; default: the standard environment variables."""
    service_name: str | None = None
    """Default: OTEL_SERVICE_NAME, or ``appliance``."""
    file: str | None = None
    """Lines of JSON are appended to this file, which may be moved away at any time; relative to the configuration."""
    interval: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 1.0
    """Seconds between two looks for new entries."""


class Target(Protocol):
    """Takes entries; returns when they are safe there. Raises for those that are not."""

    name: str

    async def send(self, records: Sequence[AuditRecord]) -> None:
        """All or, as far as the caller knows, none."""

    def close(self) -> None:
        """Give up what is under way."""


@hookimpl
def appliance_settings() -> type[AuditSettings]:
    """The block under ``plugin.audit``."""
    return AuditSettings


@hookimpl
def appliance_lifespan(settings: AuditSettings, context: AppContext) -> Lifespan:
    """Sends while the server runs."""
    return _life(targets(settings, context), context, settings.interval)


def targets(settings: AuditSettings, context: AppContext) -> list[Target]:
    """What is configured. Raises ConfigError if that is nothing, or no URL."""
    found: list[Target] = []
    if endpoint := endpoint_of(settings.endpoint, "logs", "plugin.audit.endpoint"):
        found.append(Collector(endpoint, settings.service_name))
    if settings.file is not None:
        found.append(LinesFile(Path(context.config.folder) / settings.file))
    if not found:
        raise ConfigError("plugin.audit: there is nowhere to send the audit log to; set endpoint or file")
    return found


@asynccontextmanager
async def _life(found: Sequence[Target], context: AppContext, interval: float) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    tasks = [
        asyncio.create_task(export(target, AuditFeed(context.database, target.name), interval, stopping))
        for target in found
    ]
    try:
        yield
    finally:
        stopping.set()
        await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for target, task in zip(found, tasks, strict=True):
            task.cancel()
            target.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def export(target: Target, feed: AuditFeed, interval: float, stopping: asyncio.Event) -> None:
    """Send what is there and what comes, until ``stopping`` is set, and once more after that."""
    pause, last = interval, False
    while not last:
        last = stopping.is_set()
        try:
            await _send_all(target, feed)
            pause = interval
        except Exception as error:  # noqa: BLE001 - whatever it is, another try may go better
            pause = min(pause * 2, _LONGEST_PAUSE)
            log.warning("the audit log cannot be sent to %s, again in %.0f s: %s", target.name, pause, _told(error))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), pause)
    with contextlib.suppress(ApplianceError):
        await feed.release()


async def _send_all(target: Target, feed: AuditFeed) -> None:
    while records := await feed.next(_BATCH):
        await target.send(records)
        await feed.sent(records[-1])


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, ApplianceError) else f"{type(error).__name__}: {error}"


class LinesFile:
    """Appends each entry as a line, and waits for the disk. Opened anew each time, so that it can be rotated."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, records: Sequence[AuditRecord]) -> None:
        """See ``Target``."""
        await asyncio.to_thread(self._append, b"".join(record.line + b"\n" for record in records))

    def close(self) -> None:
        """Nothing is held open."""

    def _append(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            before = os.fstat(descriptor).st_size
            try:
                # A write may be cut short, on a full disk for one.
                while data:
                    data = data[file.write(data) :]
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, before)
                raise


class Collector:
    """Sends entries as OTLP logs: the entry itself as body, its fields as attributes."""

    name = "otlp"

    def __init__(self, endpoint: str, service_name: str | None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
            from opentelemetry.sdk.resources import Resource
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"plugin.audit.endpoint: needs the Python package {error.name}; pip install 'rag-appliance[otel]'"
            ) from error
        name = service_name or os.environ.get("OTEL_SERVICE_NAME") or "appliance"
        self._resource = Resource.create({"service.name": name})
        self._exporter = OTLPLogExporter(endpoint=endpoint, timeout=_SEND_SECONDS)

    async def send(self, records: Sequence[AuditRecord]) -> None:
        """See ``Target``. Raises Unavailable."""
        await asyncio.to_thread(self._send, records)

    def close(self) -> None:
        """See ``Target``."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _send(self, records: Sequence[AuditRecord]) -> None:
        from opentelemetry.sdk._logs.export import LogRecordExportResult

        from appliance_observability._audit_logs import as_otlp

        batch = [as_otlp(record, self._resource) for record in records]
        if self._exporter.export(batch) is not LogRecordExportResult.SUCCESS:
            raise Unavailable("the collector did not take them; the log of opentelemetry has the reason")
