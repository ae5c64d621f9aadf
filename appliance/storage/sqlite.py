"""aiosqlite with one errand a statement.

aiosqlite sends each call to the connection's thread by itself: to make a cursor, to execute, to fetch, to close. These
are four errands a statement, and each costs processor time and a turn of the event loop. Here it is one.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import aiosqlite


def connect(database: str, **options: Any) -> aiosqlite.Connection:
    """For ``async_creator_fn`` of SQLAlchemy's dialect; ``options`` as of ``sqlite3.connect``."""
    connection = _Connection(lambda: sqlite3.connect(database, **options), iter_chunk_size=64)
    connection._thread.daemon = True  # as the dialect has it: a connection that stays open must not keep the process
    return connection


class _Connection(aiosqlite.Connection):
    def cursor(self) -> _Cursor:  # type: ignore[override]
        """One that becomes SQLite's own when it executes something."""
        return _Cursor(self)


class _Cursor(aiosqlite.Cursor):
    """Has all rows of its statement, and is closed, once that is executed."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__(connection, None)  # type: ignore[arg-type]
        self._connection = connection
        self._rows: deque[Any] = deque()

    async def execute(self, sql: str, parameters: Any = ()) -> aiosqlite.Cursor:
        """Execute a statement, and fetch what it returns."""
        return await self._run(lambda: self._connection._conn.execute(sql, parameters))

    async def executemany(self, sql: str, parameters: Any) -> aiosqlite.Cursor:
        """Execute a statement for each row of parameters."""
        return await self._run(lambda: self._connection._conn.executemany(sql, parameters))

    async def _run(self, begin: Callable[[], sqlite3.Cursor]) -> aiosqlite.Cursor:
        self._cursor, self._rows = await self._execute(_fetched, begin)  # type: ignore[no-untyped-call]
        return self

    async def fetchall(self) -> Iterable[Any]:
        """The rows that were not fetched yet."""
        rows, self._rows = self._rows, deque()
        return rows

    async def close(self) -> None:
        """It is closed already."""


def _fetched(begin: Callable[[], sqlite3.Cursor]) -> tuple[sqlite3.Cursor, deque[Any]]:
    cursor = begin()
    try:
        return cursor, deque(cursor.fetchall())
    finally:
        cursor.close()
