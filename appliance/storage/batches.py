"""Rows of file batches."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from appliance.errors import NotFound
from appliance.storage import stores
from appliance.storage.ids import new_id, now_us
from appliance.storage.stores import Counts
from appliance.storage.tables import FileBatch, StoreFile
from appliance.storage.tenancy import TenantSession


def add(session: TenantSession, store_id: str, file_ids: Sequence[str]) -> FileBatch:
    """Record a batch of files that were attached in this transaction."""
    batch = FileBatch(
        id=new_id("vsfb_"),
        store_id=store_id,
        file_ids=list(file_ids),
        cancelled=False,
        created_us=now_us(),
    )
    session.add(batch)
    return batch


async def get(session: TenantSession, store_id: str, batch_id: str) -> FileBatch:
    """One batch. Raises NotFound for an unknown store or batch."""
    await stores.get(session, store_id)
    found = await session.scalar(select(FileBatch).where(FileBatch.id == batch_id, FileBatch.store_id == store_id))
    if found is None:
        raise NotFound(f"vector store {store_id} has no file batch {batch_id[:64]!r}", param="batch_id")
    return found


async def counts(session: TenantSession, batch: FileBatch) -> Counts:
    """How its files fare, from their rows."""
    query = (
        select(StoreFile.status, func.count())
        .where(StoreFile.store_id == batch.store_id, StoreFile.file_id.in_(batch.file_ids))
        .group_by(StoreFile.status)
    )
    found = Counts()
    for status, number in await session.execute(query):
        setattr(found, status, number)
    return found
