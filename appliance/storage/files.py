"""Rows of uploaded files. In a tenant's session another tenant's id is as unknown as none at all.

A file of one person's, and one whose time is over, are as unknown to everybody else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import Conflict, NotFound
from appliance.storage import paging
from appliance.storage.ids import now, now_us
from appliance.storage.tables import File, StoreFile, VectorStore
from appliance.storage.tables.batches import UNFINISHED, Batch
from appliance.storage.tables.uploads import UploadPart
from appliance.storage.tenancy import TenantSession, seen_by

PERSONAL = ("batch", "batch_output")
"""Purposes of files that belong to the person who made them, if a person did."""


def new(
    file_id: str,
    filename: str,
    purpose: str,
    *,
    size: int,
    sha256: str,
    media_type: str | None = None,
    user: str | None = None,
    kept_seconds: int | None = None,
) -> File:
    """A row for a file that ``user`` made, to be kept for so long; ``None`` is for ever."""
    return File(
        id=file_id,
        filename=filename,
        purpose=purpose,
        media_type=media_type,
        bytes=size,
        sha256=sha256,
        created_us=now_us(),
        user=user if purpose in PERSONAL else None,
        expires_at=None if kept_seconds is None else now() + kept_seconds,
    )


async def get(
    session: TenantSession, file_id: str, user: str | None = None, *, keep: bool = False, param: str = "file_id"
) -> File:
    """One file that is everybody's in the tenant, or this user's.

    ``keep`` keeps others from deleting it until the transaction ends. Raises NotFound.
    """
    query = select(File).where(File.id == file_id, _there(user))
    found = await session.scalar(query.with_for_update(read=True, key_share=True) if keep else query)
    if found is None:
        raise NotFound(f"no file has the id {file_id[:64]!r}; GET /v1/files lists them", param=param)
    return found


async def page(
    session: TenantSession, wanted: paging.PageRequest, purpose: str | None = None, user: str | None = None
) -> tuple[Sequence[File], bool]:
    """A page of the files that this user may see, and whether more follow."""
    query = select(File).where(_there(user))
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return await paging.fetch(session, query, (File.created_us, File.id), wanted)


def _there(user: str | None) -> ColumnElement[bool]:
    return and_(seen_by(user, File.user), or_(File.expires_at.is_(None), File.expires_at > now()))


async def remove(session: TenantSession, file_id: str) -> None:
    """Delete a file's row.

    Raises:
        Conflict: a batch reads it.
        sqlalchemy.exc.IntegrityError: a vector store holds it.
    """
    await session.get(File, file_id, with_for_update=True)  # a batch that is being made holds it: see ``get``
    reading = select(Batch.id).where(Batch.input_file_id == file_id, Batch.status.in_(UNFINISHED))
    if batch := await session.scalar(reading.limit(1)):
        raise Conflict(f"{batch} reads the file; cancel it first, or delete the file when it is over")
    await session.execute(delete(File).where(File.id == file_id))


async def stores_of(session: TenantSession, file_id: str) -> Sequence[str]:
    """Ids of the vector stores that hold a file."""
    return (await session.scalars(select(StoreFile.store_id).where(StoreFile.file_id == file_id))).all()


# -- over all tenants ------------------------------------------------------------------------------------


async def expired(session: AsyncSession, after: str, limit: int) -> Sequence[tuple[str, str]]:
    """Tenant and id of files whose time is over, and which no batch reads; those behind the id ``after``, in order."""
    reading = exists().where(Batch.input_file_id == File.id, Batch.status.in_(UNFINISHED))
    query = select(File.tenant, File.id).where(File.expires_at <= now(), File.id > after, ~reading)
    query = query.order_by(File.id).limit(limit)
    return [(tenant, file_id) for tenant, file_id in await session.execute(query)]


async def all_ids(session: AsyncSession) -> Sequence[str]:
    """Ids of the files of all tenants."""
    return (await session.scalars(select(File.id))).all()


async def tenants(session: AsyncSession) -> Sequence[str]:
    """All tenants that have a file or a vector store."""
    return (await session.scalars(select(File.tenant).union(select(VectorStore.tenant)))).all()


async def known(session: AsyncSession, ids: Collection[str]) -> set[str]:
    """Which of these ids are files, or parts of files, of any tenant (to find blobs without a row)."""
    found = select(File.id).where(File.id.in_(ids)).union(select(UploadPart.id).where(UploadPart.id.in_(ids)))
    return set((await session.scalars(found)).all())
