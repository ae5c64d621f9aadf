"""The last step of a call: its record is completed and told, also when the client is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from appliance.counting import counted, is_uncounted
from appliance.protocols import Recorder, TraceSpan
from appliance.telemetry import finish_span
from appliance.types import CallRecord

if TYPE_CHECKING:
    from appliance.models.registry import Models
    from appliance.plugins import Plugins

log = logging.getLogger("appliance.pipeline")
_SETTLE_SECONDS = 10.0


class Recording:
    """Tells recorders, and plugins that watch for finished calls."""

    def __init__(self, plugins: Plugins, models: Models, recorders: Sequence[tuple[str, Recorder]] = ()) -> None:
        self._plugins = plugins
        self._models = models
        self._recorders = recorders
        self._telling: set[asyncio.Task[None]] = set()
        """The loop alone would not keep a task alive whose request is gone."""

    async def record(self, record: CallRecord, span: TraceSpan) -> None:
        """Runs in a task of its own: a client that leaves now cancels nothing of it."""
        record.finished = time.perf_counter()
        uncounted = is_uncounted(record)
        if not uncounted:
            _finish(span, record)
        if uncounted or self._recorders or self._plugins.call_watchers:
            telling = asyncio.create_task(self._count_and_tell(record, span) if uncounted else self._tell(record))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
            await asyncio.shield(telling)

    async def settle(self) -> None:
        """Wait, within a bound, until every call that is over has been recorded."""
        if self._telling:
            await asyncio.wait(self._telling, timeout=_SETTLE_SECONDS)

    async def _count_and_tell(self, record: CallRecord, span: TraceSpan) -> None:
        model = self._models.resolve(record.call.model, record.call.principal)
        record.usage = await counted(record, model.tokenizer)
        _finish(span, record)
        await self._tell(record)

    async def _tell(self, record: CallRecord) -> None:
        for name, recorder in self._recorders:
            try:
                await recorder.record(record)
            except Exception:
                log.exception("plugin %s failed to record request %s", name, record.call.id)
        for name, watcher in self._plugins.call_watchers:
            try:
                for answer in watcher(record=record):
                    await answer
            except Exception:
                log.exception("plugin %s failed in appliance_on_call_finished for request %s", name, record.call.id)


def _finish(span: TraceSpan, record: CallRecord) -> None:
    try:
        finish_span(span, record)
    except Exception:
        log.exception("the trace of request %s could not be finished", record.call.id)
