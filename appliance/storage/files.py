"""Rows of uploaded files. Every function takes the tenant; another tenant's id is as unknown as none at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import NotFound
from appliance.storage import paging
from appliance.storage.tables import File, StoreFile


async def get(session: AsyncSession, tenant: str, file_id: str) -> File:
    """One file. Raises NotFound."""
    found = await session.scalar(select(File).where(File.id == file_id, File.tenant == tenant))
    if found is None:
        raise NotFound(f"no file has the id {file_id[:64]!r}; GET /v1/files lists them", param="file_id")
    return found


async def page(
    session: AsyncSession, tenant: str, wanted: paging.PageRequest, purpose: str | None = None
) -> tuple[Sequence[File], bool]:
    """A page of the tenant's files, and whether more follow."""
    query = select(File).where(File.tenant == tenant)
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return await paging.fetch(session, query, (File.created_us, File.id), wanted)


async def remove(session: AsyncSession, tenant: str, file_id: str) -> None:
    """Delete a file's row. Raises SQLAlchemy's IntegrityError while a vector store still holds it."""
    await session.execute(delete(File).where(File.id == file_id, File.tenant == tenant))


async def stores_of(session: AsyncSession, tenant: str, file_id: str) -> Sequence[str]:
    """Ids of the vector stores that hold a file."""
    query = select(StoreFile.store_id).where(StoreFile.file_id == file_id, StoreFile.tenant == tenant)
    return (await session.scalars(query)).all()


async def known(session: AsyncSession, ids: Collection[str]) -> set[str]:
    """Which of these ids are files of any tenant (to find blobs without a row)."""
    return set((await session.scalars(select(File.id).where(File.id.in_(ids)))).all())
