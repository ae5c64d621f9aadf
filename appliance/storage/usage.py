"""Usage in the database: booked in batches, each exactly once, and summed up for reports.

A batch carries an id. Its row and the sums go in by one transaction, so a batch that is offered again, because nobody
saw the commit, changes nothing. Several processes may book into the same days.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from appliance.config import load
from appliance.storage.database import Database
from appliance.storage.ids import now
from appliance.storage.tables.usage import UsageBatch, UsageDay

UsageDimension: TypeAlias = Literal["day", "tenant", "user", "key", "model", "operation"]
"""What usage can be told apart by."""
_LABEL_BYTES = 255
_COLUMNS: Mapping[UsageDimension, InstrumentedAttribute[str]] = {
    "day": UsageDay.day,
    "tenant": UsageDay.tenant,
    "user": UsageDay.user_id,
    "key": UsageDay.key_id,
    "model": UsageDay.model,
    "operation": UsageDay.operation,
}


class UsageKey(NamedTuple):
    """Which sums a call belongs to. ``day`` is an ISO date (UTC); an empty text stands for none."""

    day: str
    tenant: str
    user: str
    key: str
    model: str
    operation: str


class UsageSums(msgspec.Struct):
    """Sums over calls.

    ``errors`` are calls that failed or were refused, ``aborted`` those whose client left. ``cached_tokens`` are part of
    ``input_tokens``, and so are ``retrieved_tokens``. ``cost`` is in units of ``appliance.pricing``.
    """

    requests: int = 0
    errors: int = 0
    aborted: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retrieved_tokens: int = 0
    retrieved_passages: int = 0
    cost: int = 0

    def add(self, other: UsageSums) -> None:
        """Add another's sums to these."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


SUMS: tuple[str, ...] = UsageSums.__struct_fields__


class UsageRow(NamedTuple):
    """One line of a report: its place in each dimension asked for, and the sums."""

    place: Mapping[UsageDimension, str]
    sums: UsageSums


class UsageStore:
    """The usage of one database, which must be started."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    @asynccontextmanager
    async def open(cls, config_path: Path) -> AsyncIterator[UsageStore]:
        """The usage of a configuration's database. Raises ConfigError, StartError."""
        async with Database(load(config_path).database_url) as database:
            yield cls(database)

    async def book(self, batch: str, sums: Mapping[UsageKey, UsageSums], *, forget: Sequence[str] = ()) -> bool:
        """Add a batch to the days; false when it was there already.

        ``forget`` are earlier batches of the same writer that it will never offer again.

        Raises:
            OutOfSpace, Unavailable: it may or may not be booked; offer it again.
        """
        async with self._database.session() as session:
            if forget:
                await session.execute(delete(UsageBatch).where(UsageBatch.id.in_(forget)))
            if await session.get(UsageBatch, batch) is not None:
                return False
            session.add(UsageBatch(id=batch, booked_at=now()))
            if sums:
                await session.execute(_adding(session), _rows(sums))
            return True

    async def report(
        self,
        *,
        start: str,
        end: str,
        by: Sequence[UsageDimension] = (),
        tenant: str | None = None,
        only: Sequence[Mapping[UsageDimension, Collection[str]]] = (),
    ) -> list[UsageRow]:
        """Sums from the day ``start`` up to the one before ``end`` (ISO dates), apart by the dimensions in ``by``.

        ``tenant`` ``None`` is for the command line: all tenants. ``only`` keeps to some values of dimensions;
        every mapping must hold.
        """
        columns = [_COLUMNS[name] for name in by]
        totals = [func.coalesce(func.sum(getattr(UsageDay, name)), 0) for name in SUMS]
        query = select(*columns, *totals).where(UsageDay.day >= start, UsageDay.day < end)
        for name, values in (pair for kept in only for pair in kept.items()):
            query = query.where(_COLUMNS[name].in_([usage_label(value) for value in values]))
        query = query.group_by(*columns).order_by(*columns)
        within = self._database.session(write=False) if tenant is None else self._database.tenant(tenant, write=False)
        async with within as session:
            rows = (await session.execute(query)).all()
        return [_row(by, row) for row in rows]


def usage_label(text: str | None, size: int = _LABEL_BYTES) -> str:
    """A text as the table can hold it: at most ``size`` bytes of UTF-8 without NUL.

    A longer one keeps its beginning and gets a digest, so that no two share a label. Nothing that a caller's token says
    may keep a batch from being booked.
    """
    plain = (text or "").replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
    if len(plain) > size:
        plain = plain[: size - 33] + b"#" + hashlib.sha256(plain).hexdigest()[:32].encode()
    return plain.decode("utf-8", "ignore")


def _adding(session: AsyncSession) -> Any:
    """An insert that adds to the row that is there. PostgreSQL and SQLite have the same clause, not the same class."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    table = UsageDay.metadata.tables[UsageDay.__tablename__]
    statement = insert(table)
    added = {name: table.c[name] + statement.excluded[name] for name in SUMS}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)


def _rows(sums: Mapping[UsageKey, UsageSums]) -> list[dict[str, Any]]:
    """In one order for everybody: two processes that lock the same rows must not wait for each other in a ring."""
    return [
        {
            "day": key.day,
            "tenant": key.tenant,
            "user_id": key.user,
            "key_id": key.key,
            "model": key.model,
            "operation": key.operation,
            **msgspec.structs.asdict(value),
        }
        for key, value in sorted(sums.items())
    ]


def _row(by: Sequence[UsageDimension], row: Sequence[Any]) -> UsageRow:
    counts = dict(zip(SUMS, map(int, row[len(by) :]), strict=True))
    return UsageRow(dict(zip(by, row, strict=False)), UsageSums(**counts))
