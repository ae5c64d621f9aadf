"""The metadata database: SQLite by default, PostgreSQL for several replicas.

On SQLite a write transaction takes its lock at once (``BEGIN IMMEDIATE``): the server and the worker share
the file, and a lock asked for in the middle of a transaction can fail without waiting. A commit returns
when the data is on the disk (``synchronous=FULL``).
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import URL, Column, Connection, MetaData, String, Table, event, inspect, make_url, select, text
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm.exc import StaleDataError

from appliance.errors import BadRequest, ConfigError, Conflict, OutOfSpace, RequestError, StartError, Unavailable
from appliance.storage import sqlite
from appliance.storage.tables import Base
from appliance.storage.tenancy import TenantSession

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

HEAD = "0016"
"""The schema revision this code works with; the newest file in ``migrations/versions``."""
BUSY_SECONDS = 15.0
"""How long a statement waits for a lock that another transaction holds."""
STATEMENT_SECONDS = 60.0
_PEEK_SECONDS = 3.0
CONNECT_SECONDS = 10.0
"""For a connection that answers, and before that for a free place among the connections."""
_MIGRATION_LOCK = 7_214_160_512_009
"""PostgreSQL's advisory lock that one process holds while it changes the schema; the number means nothing."""
_VERSIONS = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
_FULL = ("database or disk is full", "No space left", "disk quota")
_OUT_OF_REACH = ("08", "25P0", "28", "3D", "40", "53", "55P03", "57")
"""SQLSTATEs, by their beginnings, of what another try may not meet: PostgreSQL's appendix A."""
_WAL_TRIES, _WAL_PAUSE_SECONDS = 100, 0.05
_DISK_FULL, _NUL_CHARACTER, _TOO_LONG = "53100", "22021", "22001"
_Session = TypeVar("_Session", bound=AsyncSession)


class Database:
    """One database; made once a process. Commands use it as an async context manager, which starts and stops it.

    Raises ConfigError for a URL that is none, or whose driver is not there.
    """

    def __init__(self, url: str) -> None:
        self._url = _parsed(url)
        self._engine: AsyncEngine | None = None
        self._writer: AsyncEngine | None = None

    async def start(self) -> None:
        """Connect and bring the schema to ``HEAD``.

        Raises:
            StartError: the database cannot be opened, or is of a newer version.
        """
        try:
            self._engine = _durable_engine(self._url)
            self._writer = self._engine.execution_options(appliance_begin="BEGIN IMMEDIATE")
            if await self._revision() != HEAD:
                await self._migrate()
        except (SQLAlchemyError, OSError) as error:
            await self.stop()
            raise StartError(f"the database cannot be opened: {_reason(error)}; check database and data_dir") from error

    async def peek(self, seconds: float = _PEEK_SECONDS) -> bool:
        """Connect only if the database is there with this very schema, and change nothing; whether it is.

        What does not answer within so many seconds is not there.
        SQLite's file is opened for reading alone; in it, no transaction can write.
        """
        if self._url.get_backend_name() == "sqlite" and not Path(self._url.database or "").is_file():
            return False
        try:
            self._engine = _engine(_for_reading(self._url))
            async with asyncio.timeout(seconds):
                current = await self._revision() == HEAD
        except (SQLAlchemyError, OSError):  # TimeoutError is one
            current = False
        if not current:
            await self.stop()
        return current

    async def stop(self) -> None:
        """Close all connections. Idempotent."""
        if self._engine is not None:
            await self._engine.dispose()
        self._engine = self._writer = None

    async def __aenter__(self) -> Database:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def tenant(
        self,
        tenant: str,
        *,
        stores: frozenset[str] | None = None,
        readers: Collection[str] | None = None,
        write: bool = True,
    ) -> AsyncIterator[TenantSession]:
        """A transaction in which one tenant's rows are all there is; otherwise as ``session``.

        ``stores`` narrows it further to the vector stores of these ids or names, ``readers`` to the documents that
        one of these may see (``Principal.readers``); ``None`` does not.
        """
        info = {"tenant": tenant, "stores": stores, "readers": None if readers is None else frozenset(readers)}
        async with self._transaction(
            lambda bind: TenantSession(bind, expire_on_commit=False, info=info), write
        ) as made:
            yield made

    @asynccontextmanager
    async def session(self, *, write: bool = True) -> AsyncIterator[AsyncSession]:
        """A transaction over all tenants, for the worker and the command line; requests use ``tenant``.

        It is committed at the end of the block and rolled back if that raises. ``write=False`` lets reads go on beside
        a writer; a statement that writes must not be in it.

        Raises:
            OutOfSpace: the disk is full.
            Unavailable: the database is locked for too long, or out of reach.
            BadRequest: a text is too long, or holds a character that the database cannot keep.
            Conflict: a row that it changed was deleted meanwhile.
        """
        async with self._transaction(lambda bind: AsyncSession(bind, expire_on_commit=False), write) as made:
            yield made

    @asynccontextmanager
    async def _transaction(self, make: Callable[[AsyncConnection], _Session], write: bool) -> AsyncIterator[_Session]:
        engine = self._writer if write else self._engine
        if engine is None:
            raise Unavailable("the database is not open; try again in a moment", retry_after=1)
        try:
            async with AsyncExitStack() as held:
                connection = await _connect(engine, held)
                async with make(connection) as session, session.begin():
                    yield session
        except DBAPIError as error:
            if told := translated(error):
                raise told from error
            raise
        except StaleDataError as error:
            raise Conflict("it was deleted at the same time") from error

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """All tables as they are at this moment, for as long as the block reads them beside whoever writes.

        Raises Unavailable: the database is out of reach.
        """
        if self._engine is None:
            raise Unavailable("the database is not open; try again in a moment", retry_after=1)
        engine = self._engine
        if engine.dialect.name == "postgresql":
            engine = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with _telling():
            async with AsyncExitStack() as held:
                connection = await _connect(engine, held)
                async with connection.begin():
                    await connection.execute(select(_VERSIONS))  # the first read is the moment
                    yield connection

    @asynccontextmanager
    async def loading(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, as long as it takes, in a database that may be without a schema and is not started.

        Nobody else changes the schema meanwhile.

        Raises Unavailable: the database is out of reach. OutOfSpace: the disk is full. BadRequest: see ``session``.
        """
        engine = _durable_engine(self._url).execution_options(appliance_begin="BEGIN IMMEDIATE")
        try:
            with _telling():
                async with AsyncExitStack() as held:
                    connection = await _connect(engine, held)
                    async with connection.begin():
                        await connection.run_sync(_take_the_schema)
                        yield connection
        finally:
            await engine.dispose()

    async def ping(self) -> None:
        """Raise ``Unavailable`` unless the database answers."""
        async with self.session(write=False) as session:
            await session.execute(text("SELECT 1"))

    async def _revision(self) -> str | None:
        assert self._engine is not None  # noqa: S101 - start() made it
        async with self._engine.connect() as connection:
            return await connection.run_sync(revision)

    async def _migrate(self) -> None:
        assert self._writer is not None  # noqa: S101 - start() made it
        async with self._writer.begin() as connection:
            await connection.run_sync(_bring_up_to_date)


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if told := translated(error):
            raise told from error
        raise


def revision(connection: Connection) -> str | None:
    """The schema's revision, empty where there is a history without one; ``None`` for a new database."""
    if not inspect(connection).has_table(_VERSIONS.name):
        return None
    found: str | None = connection.scalar(select(_VERSIONS.c.version_num))
    return found or ""


async def _connect(engine: AsyncEngine, held: AsyncExitStack) -> AsyncConnection:
    """By itself, since what a driver raises here need not be SQLAlchemy's. Raises Unavailable.

    A connection that was good may be to a server that has stopped in the middle: its first answer is not waited for
    without end.
    """
    try:
        async with asyncio.timeout(2 * CONNECT_SECONDS):
            return await held.enter_async_context(engine.connect())
    except OSError as error:  # TimeoutError is one
        raise Unavailable("the database is out of reach; try again", retry_after=1) from error
    except PoolTimeoutError as error:
        raise Unavailable("the database has too many callers; try again", retry_after=1) from error


def _take_the_schema(connection: Connection) -> None:
    """Until the transaction ends this process alone changes the schema, without hurry."""
    if connection.dialect.name != "postgresql":
        return
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        connection.execute(text(f"SET LOCAL {name} = 0"))
    connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _MIGRATION_LOCK})


def _bring_up_to_date(connection: Connection) -> None:
    """Make a new schema at once, or migrate an old one; another process may have been faster."""
    _take_the_schema(connection)
    present = revision(connection)
    if present is None:
        Base.metadata.create_all(connection)
        _VERSIONS.create(connection)
        connection.execute(_VERSIONS.insert().values(version_num=HEAD))
    elif present != HEAD:
        from appliance.storage.migrations.run import upgrade  # alembic costs 0.3 s and 15 MB: only where it is needed

        upgrade(connection)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect().get_async_dialect_cls(parsed)
        dialect.import_dbapi()
    except NoSuchModuleError as error:
        raise ConfigError(f"database: {error}; use sqlite+aiosqlite:// or postgresql+asyncpg://") from error
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"database: the driver {error.name} is not installed; pip install {error.name} "
            "(asyncpg: rag-appliance[postgres])"
        ) from error
    except (SQLAlchemyError, ValueError) as error:
        raise ConfigError("database: not a SQLAlchemy URL such as postgresql+asyncpg://user@host/name") from error
    if not dialect.is_async:
        raise ConfigError(
            f"database: the driver {dialect.driver} is not asynchronous; use sqlite+aiosqlite:// or postgresql+asyncpg://"
        )
    return parsed


def _durable_engine(url: URL) -> AsyncEngine:
    if url.get_backend_name() == "sqlite":
        _make_file(url.database)
    engine = _engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
    return engine


def _engine(url: URL) -> AsyncEngine:
    # What statements hold would come out with the errors that the log shows.
    engine = create_async_engine(url, hide_parameters=True, **_options(url))
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _leave_transactions_to_us)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _for_reading(url: URL) -> URL:
    """The same database; of SQLite by a URI with which nothing on the disk changes (sqlite.org/uri.html).

    In a file without a write-ahead log beside it nobody is at work. SQLite would make a log to read it, and leave that
    behind, were the file not said to be immutable.
    """
    if url.get_backend_name() != "sqlite":
        return url
    path = Path(url.database or "").resolve()
    in_use = path.with_name(f"{path.name}-wal").exists()
    query = {"uri": "true", "mode": "ro", "immutable": "0" if in_use else "1"}
    return url.set(database=path.as_uri()).update_query_dict(query)


def _options(url: URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": BUSY_SECONDS, "async_creator_fn": sqlite.connect}}
    options: dict[str, Any] = {"pool_pre_ping": True, "pool_timeout": CONNECT_SECONDS}
    if url.drivername == "postgresql+asyncpg":
        waits = {"statement_timeout": STATEMENT_SECONDS, "lock_timeout": BUSY_SECONDS}
        settings = {name: f"{round(seconds * 1000)}" for name, seconds in waits.items()}
        settings["default_transaction_isolation"] = "read committed"  # who waited for a lock then sees what came before
        options["connect_args"] = {"timeout": CONNECT_SECONDS, "server_settings": settings}
    return options


def _make_file(database: str | None) -> None:
    """Readable by this user alone; SQLite gives its side files the same mode."""
    if database and database != ":memory:":
        Path(database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        Path(database).touch(mode=0o600)


def _leave_transactions_to_us(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver must not begin them by itself


def _set_up_sqlite(connection: Any, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    _write_ahead(connection, cursor)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", f"busy_timeout={int(BUSY_SECONDS * 1000)}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _write_ahead(connection: Any, cursor: Any) -> None:
    """Two that open a new file at once may refuse each other this step without waiting, whatever the time-out is."""
    for left in reversed(range(_WAL_TRIES)):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if not left or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
        connection.run_async(lambda _: asyncio.sleep(_WAL_PAUSE_SECONDS))


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("appliance_begin", "BEGIN"))


def translated(error: DBAPIError) -> RequestError | None:
    """What a caller is told; ``None`` for what is a fault of ours."""
    state = _sqlstate(error)
    if state == _DISK_FULL or any(words in str(error.orig) for words in _FULL):
        return OutOfSpace("the disk that holds the database is full; free some space")
    if state == _NUL_CHARACTER:
        return BadRequest("a text holds a NUL character, which cannot be kept; remove it")
    if state == _TOO_LONG:
        return BadRequest("a text is longer than the database keeps; shorten ids, names and labels")
    if isinstance(error, OperationalError) or error.connection_invalidated or state.startswith(_OUT_OF_REACH):
        return Unavailable("the database is busy or out of reach; try again", retry_after=1)
    return None


def _sqlstate(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _reason(error: Exception) -> str:
    cause: BaseException | None = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if isinstance(error, DBAPIError) and _sqlstate(error):
        cause = error.orig and error.orig.__cause__  # the server's own words, without SQLAlchemy's
    if isinstance(cause, sqlite3.Error) or not isinstance(error, DBAPIError) or _sqlstate(error):
        return " ".join(str(cause).split())
    return type(cause).__name__  # another driver's message may repeat its URL with the password
