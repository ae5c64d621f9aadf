"""Looks at every source when its time has come, or when told to, one sync of a source at a time."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from appliance.config import Config
from appliance.errors import ApplianceError, NotFound
from appliance.knowledge.report import SourceReport, SyncOrder
from appliance.knowledge.sources.opening import configured, is_seed
from appliance.knowledge.sources.sync import Indexing, Sync
from appliance.knowledge.tasks import tried
from appliance.source_config import SourceConfig
from appliance.storage import sources
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database

log = logging.getLogger("appliance.sources")
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 10.0
"""How long a source rests of which a step has failed."""


class Sources:
    """The sources of a configuration."""

    def __init__(self, config: Config, database: Database, blobs: BlobStore, indexing: Indexing) -> None:
        self._config = config
        self._database = database
        self._blobs = blobs
        self._indexing = indexing
        self._wanted = {source.name: source for source in configured(config)}
        self._due = {source.name: 0.0 for source in self._wanted.values() if source.every or is_seed(source)}
        self._resting: dict[str, float] = {}
        """Until when those rest that failed."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._running: set[asyncio.Task[object]] = set()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look, if there is something to look at."""
        if self._wanted:
            self._loop = asyncio.create_task(self._run(), name="sources")

    async def stop(self) -> None:
        """Stop; a sync that is cut short is made good by the next. Idempotent."""
        tasks = [task for task in (self._loop, *self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = None

    async def sync(self, order: SyncOrder) -> list[SourceReport]:
        """Bring sources in step, one after the other. Raises NotFound for a name that is none."""
        for name in order.names:
            if name not in self._wanted:
                known = ", ".join(self._wanted) or "none"
                raise NotFound(f"no source is named {name}; there are: {known}")
        return [await self._sync(self._wanted[name], order) for name in order.names or self._wanted]

    async def _sync(self, wanted: SourceConfig, order: SyncOrder) -> SourceReport:
        async with self._locks[wanted.name]:
            report = await self._one(wanted, order).run()
            if wanted.every:
                pause = min(wanted.every, max(_POLL_SECONDS, wanted.settle)) if report.waiting else wanted.every
                self._due[wanted.name] = time.monotonic() + pause
            return report

    async def _advance(self, wanted: SourceConfig) -> None:
        async with self._locks[wanted.name]:
            try:
                await self._one(wanted, SyncOrder()).advance()
            except Exception:
                self._resting[wanted.name] = time.monotonic() + _RETRY_SECONDS
                raise

    def _one(self, wanted: SourceConfig, order: SyncOrder) -> Sync:
        return Sync(
            wanted,
            self._config,
            self._database,
            self._blobs,
            self._indexing,
            remove_all=order.remove_all,
            by=order.by,
        )

    async def _run(self) -> None:
        while True:
            await tried("looking after document sources", self._turn(), log)
            await asyncio.sleep(_POLL_SECONDS)

    async def _turn(self) -> None:
        """Begin what is due; what is at work already is left alone."""
        for name, due in tuple(self._due.items()):
            if due <= time.monotonic() and not self._locks[name].locked():
                self._due[name] = time.monotonic() + (self._wanted[name].every or math.inf)
                self._begin(self._sync(self._wanted[name], SyncOrder()))
        async with self._database.session(write=False) as session:
            names = await sources.with_news(session)
        for name in names & self._wanted.keys():
            if not self._locks[name].locked() and self._resting.get(name, 0.0) <= time.monotonic():
                self._begin(self._advance(self._wanted[name]))

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, ApplianceError):
            log.warning("a document source waits: %s", error)
        else:
            log.error("a document source could not be brought in step", exc_info=error)
