"""Rows of uploaded files. In a tenant's session another tenant's id is as unknown as none at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import NotFound
from appliance.storage import paging
from appliance.storage.tables import File, StoreFile
from appliance.storage.tenancy import TenantSession


async def get(session: TenantSession, file_id: str, *, keep: bool = False) -> File:
    """One file. ``keep`` keeps others from deleting it until the transaction ends. Raises NotFound."""
    lock = {"read": True, "key_share": True} if keep else None
    found = await session.get(File, file_id, with_for_update=lock)
    if found is None:
        raise NotFound(f"no file has the id {file_id[:64]!r}; GET /v1/files lists them", param="file_id")
    return found


async def page(
    session: TenantSession, wanted: paging.PageRequest, purpose: str | None = None
) -> tuple[Sequence[File], bool]:
    """A page of the tenant's files, and whether more follow."""
    query = select(File)
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return await paging.fetch(session, query, (File.created_us, File.id), wanted)


async def remove(session: TenantSession, file_id: str) -> None:
    """Delete a file's row. Raises SQLAlchemy's IntegrityError while a vector store still holds it."""
    await session.execute(delete(File).where(File.id == file_id))


async def stores_of(session: TenantSession, file_id: str) -> Sequence[str]:
    """Ids of the vector stores that hold a file."""
    return (await session.scalars(select(StoreFile.store_id).where(StoreFile.file_id == file_id))).all()


async def known(session: AsyncSession, ids: Collection[str]) -> set[str]:
    """Which of these ids are files of any tenant (to find blobs without a row)."""
    return set((await session.scalars(select(File.id).where(File.id.in_(ids)))).all())
