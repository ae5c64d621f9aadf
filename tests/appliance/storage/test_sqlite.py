"""SQLite's connection sends one errand a statement to its thread, and is otherwise as aiosqlite's."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from appliance.storage.database import Database
from appliance.storage.sqlite import connect


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[AsyncConnection]:
    async with Database(f"sqlite+aiosqlite:///{tmp_path}/x.db") as database, database.session() as session:
        made = await session.connection()
        await made.execute(text("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT UNIQUE)"))
        yield made


async def test_a_statement_is_one_errand_of_the_connections_thread(
    connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver: Any = (await connection.get_raw_connection()).driver_connection
    errands, execute = [], driver._execute

    def counted(*args: Any) -> Any:
        errands.append(args)
        return execute(*args)

    monkeypatch.setattr(driver, "_execute", counted)
    for statement in ("INSERT INTO t (name) VALUES ('a'), ('b')", "SELECT * FROM t", "DELETE FROM t"):
        errands.clear()
        await connection.execute(text(statement))
        assert len(errands) == 1


async def test_rows_counts_and_ids_of_a_statement_are_as_sqlite_gives_them(connection: AsyncConnection) -> None:
    first = await connection.execute(text("INSERT INTO t (name) VALUES ('a')"))
    assert first.lastrowid == 1
    many = [{"name": name} for name in "bcd"]
    assert (await connection.execute(text("INSERT INTO t (name) VALUES (:name)"), many)).rowcount == 3
    found = await connection.execute(text("SELECT name FROM t WHERE id > :id ORDER BY id"), {"id": 1})
    assert list(found.keys()) == ["name"]
    assert [name for (name,) in found] == ["b", "c", "d"]
    changed = await connection.execute(text("UPDATE t SET name = name || '!' WHERE id > 2 RETURNING name"))
    assert sorted(changed.scalars()) == ["c!", "d!"]
    assert (await connection.execute(text("DELETE FROM t"))).rowcount == 4
    assert (await connection.execute(text("SELECT count(*) FROM t"))).scalar_one() == 0


async def test_a_statement_that_fails_leaves_the_connection_usable(connection: AsyncConnection) -> None:
    await connection.execute(text("INSERT INTO t (name) VALUES ('a')"))
    with pytest.raises(IntegrityError):
        await connection.execute(text("INSERT INTO t (name) VALUES ('a')"))
    assert (await connection.execute(text("SELECT name FROM t"))).scalars().all() == ["a"]


async def test_a_closed_connection_says_so(tmp_path: Path) -> None:
    made = await connect(str(tmp_path / "x.db"))
    async with made.cursor() as cursor:
        await cursor.execute("SELECT 1")
        assert list(await cursor.fetchall()) == [(1,)]
        assert list(await cursor.fetchall()) == []
    await made.close()
    with pytest.raises((ValueError, sqlite3.ProgrammingError)):
        async with made.cursor() as cursor:
            await cursor.execute("SELECT 1")
