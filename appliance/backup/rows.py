"""Rows as lines of JSON, and back: the same on every database, with bytes as base64 (RFC 4648).

The standard library's JSON, as SQLAlchemy uses it for columns of JSON: what such a column holds comes back unchanged,
also numbers of any length and halves of surrogate pairs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Connection,
    LargeBinary,
    MetaData,
    RowMapping,
    Table,
    insert,
    literal,
    select,
    tuple_,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from appliance.backup import BackupError
from appliance.storage.database import translated

_PAGE = 200
_NO_ROW = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
"""What reading and binding raise for something else."""
_PART_BYTES = 4 * 2**20


async def read(connection: AsyncConnection, table: Table, tenant: str | None) -> AsyncIterator[list[bytes]]:
    """All rows of a table, or those of a tenant, by their primary key: lines, some MiB at a time."""
    keys = list(table.primary_key.columns)
    query = select(table).order_by(*keys).limit(_PAGE)
    if tenant is not None:
        query = query.where(table.c.tenant == tenant)
    lines: list[bytes] = []
    size, after = 0, query
    while rows := (await connection.execute(after)).mappings().all():
        for row in rows:
            lines.append(_line(row))
            size += len(lines[-1])
        if size >= _PART_BYTES:
            yield lines
            lines, size = [], 0
        last = [literal(rows[-1][key.name], key.type) for key in keys]
        after = query.where(tuple_(*keys) > tuple_(*last))
    if lines:
        yield lines


def _line(row: RowMapping) -> bytes:
    plain = {str(name): _text(value) if isinstance(value, bytes) else value for name, value in row.items()}
    return json.dumps(plain, separators=(",", ":")).encode() + b"\n"


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def reflected(connection: Connection) -> MetaData:
    """The tables as the database has them, which may be those of an earlier version."""
    metadata = MetaData()
    metadata.reflect(connection)
    for table in metadata.tables.values():
        for column in table.columns:
            if isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return metadata


async def write(connection: AsyncConnection, table: Table, lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Insert rows; gives them back. Raises BackupError for what is no row of the table."""
    try:
        rows = [_row(table, line) for line in lines]
        if not rows:
            raise ValueError("no rows")
        await connection.execute(insert(table), rows)
    except (*_NO_ROW, SQLAlchemyError) as error:
        if isinstance(error, DBAPIError) and (isinstance(error, IntegrityError) or translated(error)):
            raise  # a row, for which the database has no place
        raise BackupError(
            f"the backup is damaged: it holds a row that is none of {table.name}; take another copy of it"
        ) from None
    return rows


def _row(table: Table, line: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    return {name: _value(table.c[name].type, value) for name, value in row.items()}


def _value(kind: Any, value: Any) -> Any:
    if isinstance(kind, LargeBinary) and value is not None:
        return base64.b64decode(value, validate=True)
    return bool(value) if isinstance(kind, Boolean) and value is not None else value
