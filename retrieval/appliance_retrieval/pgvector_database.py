"""Connections to PostgreSQL, and the tables that collections are."""

# ruff: noqa: S608 - names in statements are our own; every value is bound
from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.plugin import NotFound, OutOfSpace, RetrievalUnavailable, StartError
from appliance_retrieval.pgvector_address import warn_of_unchecked
from appliance_retrieval.terms import search_terms

_LOCK = 7_305_411_908
"""Names the advisory lock under which schema and tables are made: several servers may start at once."""
_MOST_INDEXED = 2000
"""Numbers of a vector that an index of pgvector takes; longer ones are indexed in half precision, up to twice that."""
_SINCE = (0, 8)
"""The version in which a search that a filter thins out goes on until it has found enough."""
_SESSION = {
    "application_name": "appliance",
    # What a filter leaves out takes no place among the hits: the search goes on until there are enough.
    "hnsw.iterative_scan": "strict_order",
    "hnsw.max_scan_tuples": "2147483647",
    "hnsw.scan_mem_multiplier": "4",
}
WRITTEN = "id, file_id, position, first, last, tenant, readers, text, context, terms, words, attributes, details, dense"
_PLACES = "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::tsvector, $11, $12::text::jsonb, $13, $14"


@dataclass(frozen=True)
class Table:
    """Where a collection lies; ``name`` is made of names of our own."""

    name: str
    dimensions: int

    @property
    def upsert(self) -> str:
        """The statement that writes one row."""
        changed = ", ".join(f"{column} = excluded.{column}" for column in WRITTEN.split(", ")[1:])
        return f"INSERT INTO {self.name} ({WRITTEN}) VALUES ({_PLACES}) ON CONFLICT (id) DO UPDATE SET {changed}"

    @property
    def type(self) -> str:
        """The type by which vectors are compared; that of the index."""
        return f"vector({self.dimensions})" if self.dimensions <= _MOST_INDEXED else f"halfvec({self.dimensions})"

    def distance(self, vector: str) -> str:
        """The cosine distance to a vector, written as the index needs it."""
        return f"dense::{self.type} <=> {vector}::{self.type}"

    def statements(self) -> Iterable[str]:
        """What makes the table."""
        yield f"""
            CREATE TABLE {self.name} (
                id text PRIMARY KEY, file_id text NOT NULL, position bigint NOT NULL,
                first bigint NOT NULL, last bigint NOT NULL,
                tenant text NOT NULL, readers text[] NOT NULL,
                text text NOT NULL, context text NOT NULL, terms tsvector NOT NULL, words bigint NOT NULL,
                attributes jsonb NOT NULL, details text NOT NULL,
                dense vector({self.dimensions}) NOT NULL)"""
        yield f"CREATE INDEX ON {self.name} (file_id, position, id)"
        yield f"CREATE INDEX ON {self.name} (tenant)"
        yield f"CREATE INDEX ON {self.name} USING gin (readers)"
        # Without the list of pending entries, which every search would read through until it is emptied.
        yield f"CREATE INDEX ON {self.name} USING gin (terms) WITH (fastupdate = off)"
        if self.dimensions <= 2 * _MOST_INDEXED:
            kind = self.type.partition("(")[0]
            yield f"CREATE INDEX ON {self.name} USING hnsw ((dense::{self.type}) {kind}_cosine_ops)"


class PgvectorDatabase:
    """A pool of connections to one schema."""

    def __init__(self, url: str, *, schema: str, connections: int, timeout: float) -> None:
        self._url, self._schema = url, schema
        self._connections, self._timeout = connections, timeout
        self._times: dict[str, Any] = {"timeout": timeout, "command_timeout": timeout}
        self._pool: Any = None
        self._tables: dict[str, Table] = {}

    async def connect(self) -> None:
        """Connect, and make what is not there. Raises StartError."""
        try:
            import asyncpg
            import pgvector.asyncpg  # noqa: F401

            search_terms("stems")
        except ImportError as error:
            raise StartError(f"{error.name} is missing; install rag-appliance[pgvector]") from error
        warn_of_unchecked(self._url)
        try:
            connection = await asyncpg.connect(self._url, **self._times)
            try:
                await self._prepare(connection)
            finally:
                await connection.close(timeout=self._timeout)
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=self._connections,
                **self._times,
                init=self._init,
                server_settings=_SESSION,
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
            raise StartError(
                f"PostgreSQL cannot be used ({type(error).__name__}); check plugin.pgvector.url"
            ) from error

    async def _prepare(self, connection: Any) -> None:
        from asyncpg import InsufficientPrivilegeError, PostgresError

        async with connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            try:
                await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except InsufficientPrivilegeError as error:
                raise StartError("have an administrator run CREATE EXTENSION vector in the database") from error
            except PostgresError as error:
                raise StartError("PostgreSQL has no extension vector; install pgvector 0.8 or later there") from error
            version = await connection.fetchval("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
            if tuple(int(part) for part in version.split(".")[:2]) < _SINCE:
                raise StartError(
                    f"pgvector {version} is too old; update it to 0.8 or later, then ALTER EXTENSION vector UPDATE"
                )
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._schema}.collections (name text PRIMARY KEY,"
                " number bigint GENERATED ALWAYS AS IDENTITY, dimensions integer NOT NULL)"
            )

    async def _init(self, connection: Any) -> None:
        """Vectors travel as numpy arrays."""
        from pgvector.asyncpg import register_vector

        schema = await connection.fetchval(
            "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'"
        )
        await register_vector(connection, schema=schema)

    async def disconnect(self) -> None:
        """Close all. Idempotent."""
        pool, self._pool = self._pool, None
        self._tables.clear()
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), self._timeout)
            except TimeoutError:
                pool.terminate()

    # -- collections -----------------------------------------------------------------------------------

    async def find(self, collection: str) -> Table | None:
        """A collection's table."""
        if collection not in self._tables:
            rows = await self.read(
                f"SELECT number, dimensions FROM {self._schema}.collections WHERE name = $1",
                collection,
            )
            if not rows:
                return None
            self._tables[collection] = self._table(rows[0]["number"], rows[0]["dimensions"])
        return self._tables[collection]

    def _table(self, number: int, dimensions: int) -> Table:
        return Table(f"{self._schema}.chunks_{number}", dimensions)

    async def create(self, collection: str, dimensions: int) -> Table:
        """Make a collection's table, or find it, whatever its dimensions."""
        async with self._connection() as connection, connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            row = await connection.fetchrow(
                f"INSERT INTO {self._schema}.collections (name, dimensions) VALUES ($1, $2)"
                " ON CONFLICT (name) DO NOTHING RETURNING number",
                collection,
                dimensions,
            )
            if row is not None:
                for statement in self._table(row["number"], dimensions).statements():
                    await connection.execute(statement)
        found = await self.find(collection)
        if found is None:
            raise NotFound("the collection is gone; create the vector store again")
        return found

    async def drop(self, collection: str) -> None:
        """Remove a collection's table."""
        self._tables.pop(collection, None)
        async with self._connection() as connection, connection.transaction():
            await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            number = await connection.fetchval(
                f"DELETE FROM {self._schema}.collections WHERE name = $1 RETURNING number",
                collection,
            )
            if number is not None:
                await connection.execute(f"DROP TABLE IF EXISTS {self._table(number, 0).name}")

    async def collections(self) -> list[str]:
        """Names of all collections."""
        return [row["name"] for row in await self.read(f"SELECT name FROM {self._schema}.collections")]

    # -- statements ------------------------------------------------------------------------------------

    async def read(self, statement: str, *values: Any) -> Sequence[Any]:
        """Rows that a statement gives."""
        async with self._connection() as connection:
            rows: Sequence[Any] = await connection.fetch(statement, *values)
            return rows

    async def write(self, statement: str, *values: Any) -> None:
        """Run a statement."""
        async with self._connection() as connection:
            await connection.execute(statement, *values)

    async def write_all(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each row, in one transaction."""
        async with self._connection() as connection:
            await connection.executemany(statement, rows)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """A connection, with PostgreSQL's errors as ours. The cause is kept; the message holds no value."""
        import asyncpg

        if self._pool is None:
            raise RetrievalUnavailable("the vector store is stopped; try again later")
        try:
            async with self._pool.acquire(timeout=self._timeout) as connection:
                yield connection
        except asyncpg.UndefinedTableError as error:
            self._tables.clear()
            raise NotFound("the collection is gone; create the vector store again") from error
        except asyncpg.DiskFullError as error:
            raise OutOfSpace("the disk under PostgreSQL is full; make room and try again") from error
        except asyncpg.PostgresError as error:
            raise RetrievalUnavailable(f"PostgreSQL failed ({type(error).__name__}); try again") from error
        except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            raise RetrievalUnavailable("PostgreSQL does not answer; try again") from error
