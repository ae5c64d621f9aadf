"""What a backup holds, table by table, and what becomes of it on the machine where it is restored.

Every table of the database is in one of the two lists here. Vectors are in neither: they are made again from the
documents, by the model that each store names, so that a backup fits every vector store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from sqlalchemy import Table, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage.ids import now
from appliance.storage.moving import begin_anew
from appliance.storage.tables import Base, File, Job, StoreFile, VectorStore
from appliance.storage.tables.audit import AuditExport, AuditHead
from appliance.storage.tables.batches import Batch
from appliance.storage.tables.idempotency import KeptAnswer
from appliance.storage.tables.responses import StoredResponse
from appliance.storage.tables.uploads import UploadPart

KEPT: Mapping[str, str] = {
    "api_keys": "callers go on with their keys",
    "audit_exports": "how far exporters got, so that nothing is sent twice; whose lease it was does not count",
    "audit_log": "the chain goes on where it was",
    "audit_head": "its newest link; loaded behind the entries, which may not come after it",
    "batches": "those that ran go on, on the new machine",
    "batch_results": "lines that were answered are not asked again",
    "chat_completion_metadata": "clients' objects",
    "chat_completions": "clients' objects",
    "conversation_items": "clients' objects",
    "conversations": "clients' objects",
    "document_sources": "whose the documents of a source are",
    "file_batches": "clients' objects",
    "file_readers": "who may see a document",
    "files": "clients' objects; their bytes are in the backup",
    "idempotency_keys": "answers that are given again, and no request that was being worked on",
    "reindexes": "which model was to take over a store: it is the one that embeds it then",
    "response_events": "streams that can be gone on with",
    "responses": "clients' objects; those that ran in the background go on, on the new machine",
    "source_files": "what was taken from a source, so that nothing is taken twice",
    "upload_parts": "parts that were acknowledged; their bytes are in the backup",
    "uploads": "clients' objects",
    "usage_batches": "what was booked already, so that nothing is booked twice",
    "usage_days": "what was used",
    "vector_store_files": "what is in which store; completed files are indexed again",
    "vector_stores": "clients' objects; each gets a new collection",
}
"""Tables whose rows are in a backup, and why."""
LEFT_OUT: Mapping[str, str] = {
    "browser_sessions": "who signed out since would be signed in again; people sign in once more",
    "jobs": "made anew, one for each file that is to be indexed",
    "rebuilt_files": "what is in second collections, of which a backup has none",
}
"""Tables whose rows are of the moment, and why they are not in a backup."""
WITH_BYTES = frozenset({File.__tablename__, UploadPart.__tablename__})
"""Tables whose rows have bytes in the blob store, under the same id."""
_GROUP = 500


def tables(tenant: str | None = None) -> list[Table]:
    """Those of a backup in the order in which they can be loaded; for a tenant those alone that have its rows.

    The audit log is one chain of all tenants, of which none can have a part.
    """
    found = [table for table in Base.metadata.sorted_tables if table.name in KEPT]
    found.sort(key=lambda table: table.name == AuditHead.__tablename__)
    if tenant is None:
        return found
    return [table for table in found if "tenant" in table.c and table.name != "audit_log"]


async def settle(session: AsyncSession, lost: Sequence[str], *, tenant: str | None = None) -> int:
    """Make of rows as they were a state from which a server can go on; how many files are to be indexed.

    ``lost`` are ids of rows without bytes: files and parts that were deleted while the backup was made. They go.
    With a ``tenant`` only its stores are begun anew.
    """
    await _remove(session, lost)
    await _let_go(session)
    stores, queued = select(VectorStore), select(func.count()).select_from(Job)
    if tenant is not None:
        stores, queued = stores.where(VectorStore.tenant == tenant), queued.where(Job.tenant == tenant)
    for store in (await session.scalars(stores)).all():
        await _requeue(session, store)
    await session.flush()
    return await session.scalar(queued) or 0


async def _remove(session: AsyncSession, lost: Sequence[str]) -> None:
    for ids in _groups(lost):
        await session.execute(delete(StoreFile).where(StoreFile.file_id.in_(ids)))
        await session.execute(delete(File).where(File.id.in_(ids)))
        await session.execute(delete(UploadPart).where(UploadPart.id.in_(ids)))


async def _let_go(session: AsyncSession) -> None:
    """Nobody is at work on anything."""
    await session.execute(update(StoredResponse).values(lease_expires=0))
    await session.execute(update(Batch).values(owner=None, lease_expires=0))
    await session.execute(update(AuditExport).values(owner="", lease_expires=0))
    await session.execute(delete(KeptAnswer).where(KeptAnswer.body.is_(None)))


async def _requeue(session: AsyncSession, store: VectorStore) -> None:
    """The time, in minutes, is the number of its new collection: none that this store had, wherever, has the same."""
    files = StoreFile.store_id == store.id, StoreFile.removing.is_(False)
    under_way = (*files, StoreFile.status == "in_progress")
    await session.execute(update(StoreFile).where(*under_way).values(status="completed"))
    await begin_anew(session, store, max(store.generations + 1, now() // 60))


def _groups(ids: Collection[str]) -> Iterator[list[str]]:
    listed = list(ids)
    return (listed[at : at + _GROUP] for at in range(0, len(listed), _GROUP))
