"""Rows of files in vector stores, with the jobs that index them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import Forbidden, NotFound
from appliance.knowledge.filters import Filter
from appliance.storage import files, jobs, paging, stores
from appliance.storage.attributes import condition
from appliance.storage.ids import now_us
from appliance.storage.placing import here
from appliance.storage.tables import File, FileReader, Job, StoreFile, VectorStore
from appliance.storage.tenancy import TenantSession
from appliance.types import PUBLIC_ACCESS, Access

Whole: TypeAlias = tuple[str, int, int]
"""Id of a completed file, its version, and how many chunks it has."""


async def attach(
    session: TenantSession,
    store_id: str,
    file_id: str,
    *,
    attributes: Mapping[str, Any],
    chunk_size: int,
    chunk_overlap: int,
    chunker: str | None = None,
    access: Access = PUBLIC_ACCESS,
) -> StoreFile:
    """Put a file into a store and queue its ingestion; a file that is in it already stays as it is.

    The store is locked, so that two attachments at once make one row and none comes after a removal; the file so that
    it is not deleted meanwhile.

    Raises:
        NotFound: no such store or file. Conflict: the store has expired or is being deleted.
        Forbidden: another store holds the file for some readers only, and this session is kept to what one may see.
    """
    store = await stores.get_usable(session, store_id, lock=True)
    file = await files.get(session, file_id, keep=True)
    if file.restricted and not session.sees_all:
        raise Forbidden(
            f"file {file_id} is for certain readers; putting it into another store needs the permission access.manage"
        )
    if existing := await find(session, store_id, file_id):
        return existing
    moment = now_us()
    row = StoreFile(
        store_id=store_id,
        file_id=file_id,
        version=moment,
        status="in_progress",
        attributes=dict(attributes),
        chunk_size=chunk_size,
        chunk_overlap=chunk_overlap,
        chunker=chunker,
        chunks=0,
        usage_bytes=0,
        notes=[],
        removing=False,
        stale=False,
        public=access.public,
        created_us=moment,
        shares=_shares(session.tenant, store_id, file_id, access),
    )
    session.add(row)
    await session.flush()
    if not access.public:
        await session.execute(update(File).where(File.id == file_id).values(restricted=True))
    jobs.queue(session, row)
    await stores.touch(session, [store.id])
    return row


async def get(session: TenantSession, store_id: str, file_id: str) -> StoreFile:
    """One file of a store. Raises NotFound for an unknown store or file."""
    await stores.get(session, store_id)
    found = await find(session, store_id, file_id)
    if found is None:
        raise NotFound(f"vector store {store_id} holds no file {file_id[:64]!r}", param="file_id")
    return found


async def page(
    session: TenantSession,
    store_id: str,
    wanted: paging.PageRequest,
    *,
    status: str | None = None,
    among: Collection[str] | None = None,
    where: Filter | None = None,
) -> tuple[Sequence[StoreFile], bool]:
    """A page of a store's files; ``among`` limits it to a batch, ``where`` by attributes.

    Raises NotFound for an unknown store.
    """
    await stores.get(session, store_id)
    query = select(StoreFile).where(StoreFile.store_id == store_id)
    if status is not None:
        query = query.where(StoreFile.status == status)
    if among is not None:
        query = query.where(StoreFile.file_id.in_(among))
    if where is not None:
        query = query.where(condition(where, session.get_bind().dialect.name))
    return await paging.fetch(session, query, (StoreFile.created_us, StoreFile.file_id), wanted)


async def set_attributes(session: AsyncSession, store_id: str, file_id: str, attributes: Mapping[str, Any]) -> None:
    """Replace a file's attributes in a store."""
    await session.execute(_one(update(StoreFile), store_id, file_id).values(attributes=dict(attributes), stale=True))


async def set_access(session: AsyncSession, store_id: str, file_id: str, access: Access) -> None:
    """Replace who may see a file of a store, and with it who may get the file by itself."""
    row = await find(session, store_id, file_id, lock=True)
    if row is None:
        return
    row.public, row.stale = access.public, True
    wanted = {share.reader: share for share in _shares(row.tenant, store_id, file_id, access)}
    kept = [share for share in row.shares if wanted.pop(share.reader, None) is not None]
    row.shares = [*kept, *wanted.values()]
    await session.flush()
    closed = select(StoreFile.file_id).where(StoreFile.file_id == file_id, StoreFile.public.is_(False))
    await session.execute(update(File).where(File.id == file_id).values(restricted=closed.exists()))


def _shares(tenant: str, store_id: str, file_id: str, access: Access) -> list[FileReader]:
    readers = sorted(access.readers - {"*"})
    return [FileReader(tenant=tenant, store_id=store_id, file_id=file_id, reader=reader) for reader in readers]


async def fresh(session: AsyncSession, seen: StoreFile) -> None:
    """The chunks have attributes and readers as they were ``seen``; unless those changed meanwhile, nothing is due."""
    row = await find(session, seen.store_id, seen.file_id, lock=True)
    if row and (row.version, row.attributes, row.readers) == (seen.version, seen.attributes, seen.readers):
        row.stale = False


async def stale(session: AsyncSession, backend: str) -> Sequence[tuple[str, str]]:
    """Store and file ids of completed files whose chunks, in ``backend``, lack their attributes and readers yet."""
    query = select(StoreFile.store_id, StoreFile.file_id).join(VectorStore, VectorStore.id == StoreFile.store_id)
    query = query.where(StoreFile.stale.is_(True), StoreFile.status == "completed", here(backend))
    return [(store_id, file_id) for store_id, file_id in await session.execute(query)]


async def completed(session: AsyncSession) -> int:
    """How many files of all stores are completed."""
    query = select(func.count()).select_from(StoreFile).where(StoreFile.status == "completed")
    return await session.scalar(query) or 0


async def settled(session: AsyncSession, store_id: str) -> tuple[Sequence[Whole], set[str]]:
    """The completed files of a store; and the ids of those that are being worked on."""
    columns = StoreFile.file_id, StoreFile.version, StoreFile.chunks, StoreFile.status, StoreFile.removing
    rows = (await session.execute(select(*columns).where(StoreFile.store_id == store_id))).all()
    whole = [(file_id, version, chunks) for file_id, version, chunks, status, _ in rows if status == "completed"]
    busy = {file_id for file_id, _, _, status, removing in rows if status == "in_progress" or removing}
    queued = await session.scalars(select(Job.file_id).where(Job.store_id == store_id))
    return whole, busy | set(queued)


async def hold_chunks(session: AsyncSession, work: jobs.Work, chunks: int) -> None:
    """Note how many chunks a file has so far, unless it is not wanted any more."""
    row = _one(update(StoreFile), *work.key).where(StoreFile.version == work.version)
    await session.execute(row.where(StoreFile.status == "in_progress").values(chunks=chunks))


async def index_again(session: AsyncSession, row: StoreFile) -> None:
    """Queue a completed file anew, as the same version."""
    row.status, row.chunks, row.usage_bytes = "in_progress", 0, 0
    jobs.queue(session, row)


async def begin_removal_of_all(session: AsyncSession, store_id: str) -> None:
    """As ``begin_removal``, of every file in a store."""
    rows = update(StoreFile).where(StoreFile.store_id == store_id)
    await session.execute(rows.values(removing=True))
    await session.execute(rows.where(StoreFile.status == "in_progress").values(status="cancelled"))
    await session.execute(delete(Job).where(Job.store_id == store_id))  # after the rows, as where files are completed


async def remove_all(session: AsyncSession, store_id: str) -> None:
    """Delete the rows of every file in a store."""
    await session.execute(delete(StoreFile).where(StoreFile.store_id == store_id))


async def begin_removal(session: AsyncSession, store_id: str, file_id: str) -> None:
    """From now on searches do not show the file, and its job is gone."""
    row = _one(update(StoreFile), store_id, file_id)
    await session.execute(row.values(removing=True))
    await session.execute(row.where(StoreFile.status == "in_progress").values(status="cancelled"))
    await session.execute(delete(Job).where(Job.store_id == store_id, Job.file_id == file_id))


async def remove(session: AsyncSession, store_id: str, file_id: str) -> None:
    """Delete the row, and with it the job."""
    await session.execute(_one(delete(StoreFile), store_id, file_id))


async def being_removed(session: AsyncSession, backend: str) -> Sequence[tuple[str, str]]:
    """Store and file ids of removals that were begun, of stores that ``backend`` holds."""
    query = select(StoreFile.store_id, StoreFile.file_id).join(VectorStore, VectorStore.id == StoreFile.store_id)
    query = query.where(StoreFile.removing.is_(True), here(backend))
    return [(store_id, file_id) for store_id, file_id in await session.execute(query)]


async def cancel(session: TenantSession, store_id: str, file_ids: Collection[str]) -> None:
    """End the ingestion of those files that are not done. Their jobs stay: the worker cleans up by them."""
    rows = (StoreFile.store_id == store_id, StoreFile.file_id.in_(file_ids))
    await session.execute(update(StoreFile).where(*rows, StoreFile.status == "in_progress").values(status="cancelled"))


async def find(session: AsyncSession, store_id: str, file_id: str, *, lock: bool = False) -> StoreFile | None:
    """A file of a store, if it is there. ``lock`` keeps others from changing it until the transaction ends."""
    return await session.get(StoreFile, (store_id, file_id), with_for_update=lock or None)


def _one(statement: Any, store_id: str, file_id: str) -> Any:
    return statement.where(StoreFile.store_id == store_id, StoreFile.file_id == file_id)
