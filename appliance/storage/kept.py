"""How much a tenant keeps, counted from its rows, so that nothing beside them has to be kept in step."""

from __future__ import annotations

import zlib
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, Table, bindparam, cast, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage.tables import Base
from appliance.storage.tenancy import WHOLE_TENANT

_TURNS = 1_902_761_448
"""The first half of the keys of PostgreSQL's advisory locks that ``take_turn`` takes; the number means nothing."""
_TENANT: ColumnElement[str] = bindparam("tenant")


def _table(name: str) -> Table:
    return Base.metadata.tables[name]


def _number(of: ColumnElement[Any], table: Table, *conditions: ColumnElement[bool]) -> ColumnElement[int]:
    query = select(func.coalesce(cast(of, BigInteger), 0)).select_from(table)
    return query.where(table.c.tenant == _TENANT, *conditions).scalar_subquery()


def _count(name: str) -> ColumnElement[int]:
    return _number(func.count(), _table(name))


def _sum(name: str, column: str) -> ColumnElement[int]:
    return _number(func.sum(_table(name).c[column]), _table(name))


_UPLOADS = _table("uploads")
_KINDS = (
    *map(
        _count,
        ("files", "vector_stores", "responses", "chat_completions", "conversations", "conversation_items", "batches"),
    ),
    _number(func.count(), _UPLOADS, _UPLOADS.c.status == "pending"),
)

# One statement each, which sees the rows as they are at one moment: an upload that becomes a file counts once.
OBJECTS: Select[int] = select(reduce(add, _KINDS))
BYTES: Select[int] = select(_sum("files", "bytes") + _sum("upload_parts", "bytes"))
CHUNKS: Select[int] = select(_sum("vector_store_files", "chunks"))
"""Those of files that are being indexed included; read from an index alone."""


async def number(session: AsyncSession, what: Select[int], tenant: str) -> int:
    """One of the counts above, over all of the tenant, whatever the session is narrowed to besides."""
    return int(await session.scalar(what, {"tenant": tenant}, execution_options=WHOLE_TENANT) or 0)


async def take_turn(session: AsyncSession, tenant: str) -> None:
    """Wait until no other transaction has the turn of this tenant, and have it until this one ends.

    Who counts then sees all that was committed, and nothing is committed between the count and the own commit. On
    SQLite a transaction that writes has everybody's turn from its beginning (``BEGIN IMMEDIATE``). Two tenants may
    share one: that costs some waiting. PostgreSQL 13.3.5, "Advisory Locks".
    """
    if session.get_bind().dialect.name == "postgresql":
        lock = func.pg_advisory_xact_lock(_TURNS, zlib.crc32(tenant.encode()) - 2**31)
        await session.execute(select(lock), execution_options=WHOLE_TENANT)
