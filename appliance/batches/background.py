"""Takes up batches of this database and works on them, on behalf of those who made them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from appliance.batches.run import Ask, BatchRun, Means
from appliance.config import Config
from appliance.errors import ApplianceError
from appliance.leases import LeasedWork
from appliance.models.registry import Models
from appliance.storage import request_batches
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.ids import new_id
from appliance.storage.tables.batches import Batch

log = logging.getLogger("appliance.batches")
CONCURRENT = 8


class BackgroundBatches(LeasedWork[Batch]):
    """Runs the batches of this database, ``CONCURRENT`` at once."""

    def __init__(self, config: Config, database: Database, blobs: BlobStore, models: Models, ask: Ask) -> None:
        super().__init__(database, CONCURRENT)
        self._owner = new_id("worker_")
        self._runs: dict[str, BatchRun] = {}
        self._means = Means(
            database=database,
            blobs=blobs,
            models=models,
            ask=ask,
            slots=asyncio.Semaphore(config.limits.batch_concurrency),
            concurrency=config.limits.batch_concurrency,
            max_requests=config.limits.max_batch_requests,
            max_line_bytes=config.server.max_json_bytes,
        )

    def cancel(self, row_id: str) -> None:
        """Answer no more lines of one, if it is this process that works on it; others notice within two seconds."""
        if run := self._runs.get(row_id):
            run.cancel()

    async def due(self, session: AsyncSession) -> bool:
        """See ``LeasedWork``."""
        return await request_batches.due(session)

    async def claim(self, session: AsyncSession, limit: int) -> Sequence[Batch]:
        """See ``LeasedWork``."""
        return await request_batches.claim(session, self._owner, limit)

    async def renew(self, session: AsyncSession, ids: Sequence[str]) -> set[str]:
        """See ``LeasedWork``."""
        return await request_batches.renew(session, self._owner, ids)

    async def let_go(self, session: AsyncSession, ids: Sequence[str]) -> None:
        """See ``LeasedWork``."""
        await request_batches.let_go(session, self._owner, ids)

    async def run(self, row: Batch) -> None:
        """Work on one."""
        run = self._runs[row.id] = BatchRun(self._means, row)
        try:
            await run.run()
        except* ApplianceError as group:
            log.warning("batch %s waits to be taken up again: %s", row.id, group.exceptions[0])
        finally:
            del self._runs[row.id]
