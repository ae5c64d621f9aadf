"""Waits at the start for the files of ``retrieval.stores``, so that the first question finds its answer."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import func, select, tuple_

from appliance.config import Config
from appliance.storage.database import Database
from appliance.storage.tables import StoreFile, VectorStore

log = logging.getLogger("appliance.sources")
WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.1


async def until_indexed(config: Config, database: Database, seconds: float = WAIT_SECONDS) -> None:
    """Until the configured stores have no file under way. What takes longer goes on, and the log says so."""
    try:
        async with asyncio.timeout(seconds):
            while await _under_way(config, database):
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        log.warning(
            "%d configured files are still being indexed; searches find them as they are done",
            await _under_way(config, database),
        )


async def _under_way(config: Config, database: Database) -> int:
    names = [(store.tenant, store.name) for store in config.retrieval.stores]
    query = select(func.count()).select_from(StoreFile).join(VectorStore, StoreFile.store_id == VectorStore.id)
    query = query.where(tuple_(VectorStore.tenant, VectorStore.name).in_(names), StoreFile.status == "in_progress")
    async with database.session(write=False) as session:
        return await session.scalar(query) or 0
