"""The metadata database: SQLite by default, any SQLAlchemy async URL otherwise.

On SQLite a write transaction takes its lock at once (``BEGIN IMMEDIATE``): the server and the worker share
the file, and a lock asked for in the middle of a transaction can fail without waiting. A commit returns
when the data is on the disk (``synchronous=FULL``).
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Connection, MetaData, String, Table, event, inspect, make_url, select, text
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from appliance.errors import ConfigError, OutOfSpace, StartError, Unavailable
from appliance.storage.tables import Base

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

HEAD = "0006"
"""The schema revision this code works with; the newest file in ``migrations/versions``."""
BUSY_SECONDS = 15.0
_VERSIONS = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
_FULL = ("database or disk is full", "No space left", "disk quota")


class Database:
    """One database; made once a process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: AsyncEngine | None = None
        self._writer: AsyncEngine | None = None

    async def start(self) -> None:
        """Connect and bring the schema to ``HEAD``.

        Raises:
            ConfigError: the URL is none, or its driver is not installed.
            StartError: the database cannot be opened, or is of a newer version.
        """
        try:
            self._engine = _engine(self._url)
            self._writer = self._engine.execution_options(appliance_begin="BEGIN IMMEDIATE")
            if await self._revision() != HEAD:
                await self._migrate()
        except (SQLAlchemyError, OSError) as error:
            await self.stop()
            raise StartError(f"the database cannot be opened: {_reason(error)}; check database and data_dir") from error

    async def stop(self) -> None:
        """Close all connections. Idempotent."""
        if self._engine is not None:
            await self._engine.dispose()
        self._engine = self._writer = None

    @asynccontextmanager
    async def session(self, *, write: bool = True) -> AsyncIterator[AsyncSession]:
        """A transaction: committed at the end of the block, rolled back if it raises.

        ``write=False`` lets reads go on beside a writer; a statement that writes must not be in it.

        Raises:
            OutOfSpace: the disk is full.
            Unavailable: the database is locked for too long, or out of reach.
        """
        engine = self._writer if write else self._engine
        if engine is None:
            raise Unavailable("the database is not open; try again in a moment", retry_after=1)
        try:
            async with AsyncSession(engine, expire_on_commit=False) as session, session.begin():
                yield session
        except OperationalError as error:
            raise _translated(error) from error
        except PoolTimeoutError as error:
            raise Unavailable("the database has too many callers; try again", retry_after=1) from error

    async def ping(self) -> None:
        """Raise ``Unavailable`` unless the database answers."""
        async with self.session(write=False) as session:
            await session.execute(text("SELECT 1"))

    async def _revision(self) -> str | None:
        assert self._engine is not None  # noqa: S101 - start() made it
        async with self._engine.connect() as connection:
            return await connection.run_sync(_revision)

    async def _migrate(self) -> None:
        assert self._writer is not None  # noqa: S101 - start() made it
        async with self._writer.begin() as connection:
            await connection.run_sync(_bring_up_to_date)


def _revision(connection: Connection) -> str | None:
    """The schema's revision, empty where there is a history without one; ``None`` for a new database."""
    if not inspect(connection).has_table(_VERSIONS.name):
        return None
    found: str | None = connection.scalar(select(_VERSIONS.c.version_num))
    return found or ""


def _bring_up_to_date(connection: Connection) -> None:
    """Make a new schema at once, or migrate an old one; another process may have been faster."""
    present = _revision(connection)
    if present is None:
        Base.metadata.create_all(connection)
        _VERSIONS.create(connection)
        connection.execute(_VERSIONS.insert().values(version_num=HEAD))
    elif present != HEAD:
        from appliance.storage.migrations.run import upgrade  # alembic costs 0.3 s and 15 MB: only where it is needed

        upgrade(connection)


def _engine(url: str) -> AsyncEngine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            _make_file(parsed.database)
        options: dict[str, Any] = (
            {"connect_args": {"timeout": BUSY_SECONDS}} if parsed.get_backend_name() == "sqlite" else {}
        )
        engine = create_async_engine(parsed, pool_pre_ping=parsed.get_backend_name() != "sqlite", **options)
    except NoSuchModuleError as error:
        raise ConfigError(f"database: {error}; use sqlite+aiosqlite:// or postgresql+asyncpg://") from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"database: the driver {error.name} is not installed; pip install {error.name}") from error
    except (SQLAlchemyError, ValueError) as error:
        raise ConfigError("database: not a SQLAlchemy URL such as postgresql+asyncpg://user@host/name") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _make_file(database: str | None) -> None:
    """Readable by this user alone; SQLite gives its side files the same mode."""
    if database and database != ":memory:":
        Path(database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        Path(database).touch(mode=0o600)


def _set_up_sqlite(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={int(BUSY_SECONDS * 1000)}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("appliance_begin", "BEGIN"))


def _translated(error: OperationalError) -> OutOfSpace | Unavailable:
    if any(words in str(error.orig) for words in _FULL):
        return OutOfSpace("the disk that holds the database is full; free some space")
    return Unavailable("the database is busy or out of reach; try again", retry_after=1)


def _reason(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if isinstance(cause, sqlite3.Error) or not isinstance(error, DBAPIError):
        return " ".join(str(cause).split())
    return type(cause).__name__  # a server's message may repeat its URL with the password
