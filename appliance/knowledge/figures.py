"""Gauges of the ingestion for ``/metrics``, looked up in the database now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from appliance.errors import ApplianceError
from appliance.gauges import Gauge, Gauges
from appliance.storage import progress
from appliance.storage.database import Database

log = logging.getLogger("appliance")
INTERVAL = 10.0
_FILES, _PAGES = "appliance_ingestion_files", "appliance_ingestion_pages_per_second"


class IngestionFigures:
    """Offers the gauges; they are fresh while ``kept`` is entered."""

    def __init__(self, database: Database, gauges: Gauges) -> None:
        self._database = database
        self._files: Mapping[str, float] = {}
        self._pages: Mapping[str, float] = {}
        gauges.add(
            Gauge(
                name=_FILES,
                help="Files on their way into vector stores (waiting, running), and those that failed.",
                label="state",
                read=lambda: self._files,
            )
        )
        gauges.add(
            Gauge(
                name=_PAGES,
                help="Pages indexed a second by the files at work, since each was begun.",
                label="state",
                read=lambda: self._pages,
            )
        )

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Look every ten seconds."""
        task = asyncio.create_task(self._run(), name="ingestion figures")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def look(self) -> None:
        """Look once."""
        async with self._database.session(write=False) as session:
            self._files = await progress.totals(session)
            self._pages = {"running": await progress.pages_per_second(session)}

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except ApplianceError as error:
                log.debug("figures of ingestion wait: %s", error)
            except Exception:
                log.exception("figures of ingestion failed and are tried again")
            await asyncio.sleep(INTERVAL)
