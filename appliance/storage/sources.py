"""Rows of document sources; the caller's session is one of their tenant, but for those over all tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage.ids import now_us
from appliance.storage.tables import StoreFile
from appliance.storage.tables.sources import DocumentSource, SourceFile
from appliance.storage.tenancy import TenantSession


@dataclass(frozen=True)
class Counts:
    """What is known of a source's documents."""

    documents: int = 0
    indexing: int = 0
    failing: int = 0


async def documents(session: TenantSession, source: str) -> Sequence[SourceFile]:
    """All that was taken from a source."""
    return (await session.scalars(select(SourceFile).where(SourceFile.source == source))).all()


async def statuses(session: TenantSession, source: str, store_id: str) -> Mapping[str, tuple[str, str | None]]:
    """Status and error of a source's files in its store, by their ids; what a client took out is not among them."""
    of_source = SourceFile.source == source
    old, new = (
        select(column).where(of_source, column.is_not(None)) for column in (SourceFile.file_id, SourceFile.next_id)
    )
    query = select(StoreFile.file_id, StoreFile.status, StoreFile.error_message).where(
        StoreFile.store_id == store_id,
        StoreFile.removing.is_(False),
        or_(StoreFile.file_id.in_(old), StoreFile.file_id.in_(new)),
    )
    return {file_id: (status, error) for file_id, status, error in await session.execute(query)}


async def document(session: TenantSession, source: str, key: str) -> SourceFile:
    """The row of a document, made if it is not there."""
    found = await session.get(SourceFile, (source, key))
    if found is None:
        found = SourceFile(source=source, key=key, version="", sha256="", settings="")
        session.add(found)
    return found


# -- over all tenants ------------------------------------------------------------------------------------


async def owner(session: AsyncSession, name: str) -> str | None:
    """Whose the documents of a source are; a name is of one tenant."""
    documents = select(SourceFile.tenant).where(SourceFile.source == name)
    return await session.scalar(
        documents.union_all(select(DocumentSource.tenant).where(DocumentSource.name == name)).limit(1)
    )


async def record(
    session: AsyncSession, name: str, tenant: str, store_id: str | None, error: str | None, *, listed: bool
) -> bool:
    """Note what a sync came to; whether the error is another than before. A source that is known keeps its tenant."""
    row = await session.get(DocumentSource, name)
    before = row.error if row else None
    if row is None:
        row = DocumentSource(name=name, tenant=tenant)
        session.add(row)
    row.store_id, row.tried_us, row.error = store_id or row.store_id, now_us(), error
    if listed:
        row.synced_us = row.tried_us
    return error != before


async def with_news(session: AsyncSession) -> set[str]:
    """The sources that have a new file which their store is no longer indexing."""
    theirs = (StoreFile.file_id == SourceFile.next_id) & (StoreFile.store_id == DocumentSource.store_id)
    query = (
        select(SourceFile.source)
        .join(DocumentSource, DocumentSource.name == SourceFile.source)
        .outerjoin(StoreFile, theirs)
        .where(SourceFile.next_id.is_not(None), func.coalesce(StoreFile.status, "") != "in_progress")
    )
    return set((await session.scalars(query.distinct())).all())


async def known(session: AsyncSession) -> Mapping[str, DocumentSource]:
    """Every source that was ever synced, by its name."""
    return {row.name: row for row in (await session.scalars(select(DocumentSource))).all()}


async def counts(session: AsyncSession) -> Mapping[str, Counts]:
    """Numbers of documents by source."""
    indexing = func.sum(case((SourceFile.next_id.is_not(None), 1), else_=0))
    failing = func.sum(case((SourceFile.error.is_not(None), 1), else_=0))
    query = select(SourceFile.source, func.count(), indexing, failing).group_by(SourceFile.source)
    return {source: Counts(*map(int, numbers)) for source, *numbers in await session.execute(query)}


async def failing(session: AsyncSession, source: str, limit: int) -> Sequence[tuple[str, str]]:
    """Documents whose newest content is not in the store, and why."""
    query = select(SourceFile.key, SourceFile.error).where(SourceFile.source == source, SourceFile.error.is_not(None))
    rows = await session.execute(query.order_by(SourceFile.key).limit(limit))
    return [(key, error or "") for key, error in rows]
