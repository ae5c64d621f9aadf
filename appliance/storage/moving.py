"""A store whose vectors another vector store of the configuration holds is begun anew in the one that is configured."""

from __future__ import annotations

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage import reindexes
from appliance.storage.placing import is_here
from appliance.storage.stores import has_expired
from appliance.storage.tables import Job, StoreFile, VectorStore


async def move(session: AsyncSession, store_id: str, backend: str) -> None:
    """Begin a store that another vector store holds anew in ``backend``; otherwise as ``begin_anew``."""
    store = await session.get(VectorStore, store_id, with_for_update=True)
    if store is None or is_here(store, backend):
        return
    await begin_anew(session, store, store.generations + 1)
    store.backend = backend


async def begin_anew(session: AsyncSession, store: VectorStore, generation: int) -> None:
    """Give a store a new collection, by the model that was to embed it, and queue all its files. It must be locked.

    Nothing of the store may be worked on meanwhile. What was said of its collections is forgotten, and where they
    were. Of a store that has expired or is being deleted no file is queued: what is left of it can go.
    """
    second = await reindexes.find(session, store.id, lock=True)
    if second is not None and second.status == reindexes.BUILDING:
        store.embedder = second.embedder
    await reindexes.end(session, store.id)
    store.generation = store.generations = generation
    store.backend = store.fingerprint = store.dimensions = None
    if not (store.removing or has_expired(store)):
        await _queue_all(session, store.id)


async def _queue_all(session: AsyncSession, store_id: str) -> None:
    """Every completed file is to be indexed again, as the same version."""
    completed = StoreFile.store_id == store_id, StoreFile.status == "completed", StoreFile.removing.is_(False)
    columns = [StoreFile.tenant, StoreFile.store_id, StoreFile.file_id, StoreFile.version]
    jobs = insert(Job).from_select([column.key for column in columns], select(*columns).where(*completed))
    await session.execute(jobs)  # the other columns get what a new row has
    again = {"status": "in_progress", "chunks": 0, "usage_bytes": 0}
    await session.execute(update(StoreFile).where(*completed).values(**again))
