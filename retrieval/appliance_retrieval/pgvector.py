"""The ``pgvector`` vector store: PostgreSQL with the extension pgvector.

    plugin:
      pgvector:
        url: postgresql://appliance:${env.DB_PASSWORD}@db.example.org/vectors   # default: ``database``, if PostgreSQL

A collection is a table: vectors under an HNSW index by cosine, words as a ``tsvector`` ranked by BM25, readers and
attributes under GIN indexes. The tenant and the readers are terms of every statement. With
``retrieval.separate_tenants`` each tenant has a schema of its own.
"""

# ruff: noqa: S608 - names in statements are our own; every value is bound
from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from appliance.plugin import (
    AppContext,
    Attributes,
    Filter,
    Hit,
    NotFound,
    Scope,
    StoredChunk,
    Strict,
    VectorStore,
    VectorStoreFactory,
    hookimpl,
)
from appliance_retrieval.pgvector_address import dsn_of
from appliance_retrieval.pgvector_database import PgvectorDatabase, Table
from appliance_retrieval.pgvector_sql import (
    COLUMNS,
    Parameters,
    attributes_json,
    chunk_of,
    details_json,
    row_condition,
    stored,
    tsquery,
    tsvector,
    unstored,
)
from appliance_retrieval.places import place_of
from appliance_retrieval.terms import BM25_B, BM25_K1, query_terms
from appliance_retrieval.unit_vectors import check_dimensions, check_query, check_rows, unit_rows

_QUERY_TERMS = 500
_SIZE_SECONDS = 10.0


class PgvectorSettings(Strict, frozen=True):
    """Which database."""

    url: str = ""
    """``postgresql://user:password@host:port/name?sslmode=verify-full``; default: the appliance's own ``database``."""
    schema: Annotated[str, msgspec.Meta(pattern=r"^[a-z_][a-z0-9_]{0,39}$")] = "appliance_vectors"
    """Where the tables are; made if it is not there."""
    connections: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    """Open at once, at most."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
    """Seconds a statement may take."""


@hookimpl
def appliance_settings() -> type[msgspec.Struct]:
    """``plugin.pgvector``."""
    return PgvectorSettings


@hookimpl
def appliance_vector_stores(settings: PgvectorSettings) -> Mapping[str, VectorStoreFactory]:
    """``retrieval.vector_store: pgvector``."""
    return {"pgvector": lambda context: make_store(settings, context)}


def make_store(settings: PgvectorSettings, context: AppContext) -> VectorStore:
    """The store that the settings ask for, not started. Raises ConfigError."""
    dsn = dsn_of(settings.url or context.config.database_url)
    schema = settings.schema if context.tenant is None else f"{settings.schema}_{place_of(context.tenant)[-16:]}"
    database = PgvectorDatabase(dsn, schema=schema, connections=settings.connections, timeout=settings.timeout)
    return PgvectorStore(database)


class PgvectorStore:
    """``VectorStore`` over asyncpg."""

    def __init__(self, database: PgvectorDatabase) -> None:
        self._database = database
        self._sizes: dict[str, tuple[float, float, float]] = {}

    async def start(self) -> None:
        """Connect, and make extension and schema where they are not there. Raises StartError."""
        await self._database.connect()

    async def stop(self) -> None:
        """Close all connections. Idempotent."""
        await self._database.disconnect()

    async def create(self, collection: str, dimensions: int) -> None:
        """Make the collection unless it exists. Raises Conflict if it has other dimensions."""
        found = await self._database.create(stored(collection), dimensions)
        check_dimensions(collection, found.dimensions, dimensions)

    async def drop(self, collection: str) -> None:
        """Remove the collection with its data, if it exists."""
        await self._database.drop(stored(collection))

    async def upsert(self, collection: str, chunks: Sequence[StoredChunk], vectors: bytes) -> None:
        """Write chunks in one transaction, replacing those of the same id. Raises NotFound, Conflict."""
        table = await self._database.find(stored(collection))
        if table is None:
            raise NotFound(f"there is no collection {collection}; create the vector store again")
        check_rows(collection, table.dimensions, len(vectors), len(chunks))
        rows = await asyncio.to_thread(_rows, chunks, vectors, 4 * table.dimensions)
        await self._database.write_all(table.upsert, rows)

    async def delete_file(self, collection: str, file_id: str) -> None:
        """Remove every chunk of a file."""
        if table := await self._database.find(stored(collection)):
            await self._database.write(f"DELETE FROM {table.name} WHERE file_id = $1", stored(file_id))

    async def set_attributes(self, collection: str, file_id: str, attributes: Attributes) -> None:
        """Replace the attributes of every chunk of a file."""
        if table := await self._database.find(stored(collection)):
            await self._database.write(
                f"UPDATE {table.name} SET attributes = $2::text::jsonb, details = $3 WHERE file_id = $1",
                stored(file_id),
                attributes_json(attributes),
                details_json(attributes),
            )

    async def set_readers(self, collection: str, file_id: str, readers: Sequence[str]) -> None:
        """Replace who may see the chunks of a file."""
        if table := await self._database.find(stored(collection)):
            statement = f"UPDATE {table.name} SET readers = $2 WHERE file_id = $1"
            await self._database.write(statement, stored(file_id), [stored(reader) for reader in readers])

    async def seal(self, collection: str) -> None:
        """Nothing to do: what is committed is durable and in the indexes."""
        await self._database.find(stored(collection))

    async def search_dense(
        self, collection: str, vector: bytes, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Nearest chunks by cosine."""
        table = await self._database.find(stored(collection))
        if table is None:
            return []
        check_query(collection, table.dimensions, len(vector))
        parameters = Parameters()
        distance = table.distance(parameters.bind(_array(vector), "vector"))
        statement = (
            f"SELECT {COLUMNS}, 1 - ({distance}) AS score FROM {table.name}"
            f" WHERE {row_condition(scope, where, parameters)} ORDER BY {distance} LIMIT {int(limit)}"
        )
        return [Hit(chunk_of(row), row["score"]) for row in await self._database.read(statement, *parameters.values)]

    async def search_text(
        self, collection: str, query: str, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Best chunks by BM25, with the statistics of the whole collection."""
        table = await self._database.find(stored(collection))
        words = list(dict.fromkeys(query_terms(query)))[:_QUERY_TERMS]
        if table is None or not words:
            return []
        size, mean = await self._size(table)
        parameters = Parameters()
        given, matched = parameters.bind(words, "text[]"), parameters.bind(tsquery(words), "text")
        size_, mean_ = parameters.bind(size, "float8"), parameters.bind(mean, "float8")
        # One pass: what is hidden counts in how rare a word is, and nowhere else.
        statement = f"""
            WITH found AS MATERIALIZED (
                SELECT id, words, {row_condition(scope, where, parameters)} AS visible,
                    lexeme, array_length(positions, 1) AS times
                FROM {table.name},
                    unnest(ts_filter(setweight(terms, 'A', {given}), '{{a}}')) AS kept (lexeme, positions)
                WHERE terms @@ {matched}::tsquery),
            weights AS MATERIALIZED (
                SELECT lexeme, ln(1 + (greatest({size_}, chunks) - chunks + 0.5) / (chunks + 0.5)) AS weight
                FROM (SELECT lexeme, count(*) AS chunks FROM found GROUP BY lexeme) AS counted),
            best AS MATERIALIZED (
                SELECT id, sum(weight * times * {BM25_K1 + 1}
                    / (times + {BM25_K1} * ({1 - BM25_B} + {BM25_B} * words / {mean_}))) AS score
                FROM found JOIN weights USING (lexeme) WHERE visible
                GROUP BY id ORDER BY score DESC, id LIMIT {int(limit)})
            SELECT {COLUMNS}, score FROM best JOIN {table.name} USING (id) ORDER BY score DESC, id"""
        rows = await self._database.read(statement, *parameters.values)
        return [Hit(chunk_of(row), float(row["score"])) for row in rows]

    async def _size(self, table: Table) -> tuple[float, float]:
        """Chunks of a collection and their mean number of words, as they were within ``_SIZE_SECONDS``."""
        until, size, mean = self._sizes.get(table.name, (0.0, 0.0, 0.0))
        if time.monotonic() > until:
            statement = f"SELECT count(*)::float8 AS size, avg(words)::float8 AS mean FROM {table.name}"
            (row,) = await self._database.read(statement)
            size, mean = row["size"], max(row["mean"] or 0.0, 1.0)
            self._sizes[table.name] = (time.monotonic() + _SIZE_SECONDS, size, mean)
        return size, mean

    async def chunks(
        self, collection: str, file_id: str, *, scope: Scope, offset: int = 0, limit: int = 1000
    ) -> Sequence[StoredChunk]:
        """A file's chunks by position."""
        table = await self._database.find(stored(collection))
        if table is None:
            return []
        parameters = Parameters()
        file = parameters.bind(stored(file_id), "text")
        statement = (
            f"SELECT {COLUMNS} FROM {table.name} WHERE file_id = {file} AND {row_condition(scope, None, parameters)}"
            f" ORDER BY position, id LIMIT {int(limit)} OFFSET {int(offset)}"
        )
        return [chunk_of(row) for row in await self._database.read(statement, *parameters.values)]

    async def vector(self, collection: str, chunk_id: str, *, scope: Scope) -> bytes | None:
        """A chunk's vector at length one."""
        table = await self._database.find(stored(collection))
        if table is None:
            return None
        parameters = Parameters()
        chunk = parameters.bind(stored(chunk_id), "text")
        statement = f"SELECT dense FROM {table.name} WHERE id = {chunk} AND {row_condition(scope, None, parameters)}"
        rows = await self._database.read(statement, *parameters.values)
        return unit_rows(rows[0]["dense"].to_numpy().tobytes(), table.dimensions).tobytes() if rows else None

    async def count(self, collection: str) -> int:
        """Chunks in the collection; 0 if there is none."""
        table = await self._database.find(stored(collection))
        if table is None:
            return 0
        rows = await self._database.read(f"SELECT count(*) AS n FROM {table.name}")
        return int(rows[0]["n"])

    async def collections(self) -> Sequence[str]:
        """Names of all collections."""
        return [unstored(name) for name in await self._database.collections()]

    async def chunk_ids(self, collection: str) -> Sequence[str]:
        """Ids of all chunks of a collection."""
        table = await self._database.find(stored(collection))
        if table is None:
            return []
        rows = await self._database.read(f"SELECT id FROM {table.name}")
        return [unstored(row["id"]) for row in rows]


def _rows(chunks: Sequence[StoredChunk], vectors: bytes, step: int) -> list[tuple[object, ...]]:
    """In a thread: every word is cut and stemmed."""
    return [_row(chunk, vectors[i * step : (i + 1) * step]) for i, chunk in enumerate(chunks)]


def _row(chunk: StoredChunk, vector: bytes) -> tuple[object, ...]:
    """A row in the order of ``pgvector_database.WRITTEN``."""
    terms, words = tsvector(chunk.searchable)
    return (
        stored(chunk.id),
        stored(chunk.file_id),
        chunk.position,
        chunk.start,
        chunk.end,
        stored(chunk.tenant),
        [stored(reader) for reader in chunk.readers],
        stored(chunk.text),
        stored(chunk.context),
        terms,
        words,
        attributes_json(chunk.attributes),
        details_json(chunk.attributes),
        _array(vector),
    )


def _array(vector: bytes) -> Any:
    import numpy as np

    return np.frombuffer(vector, "<f4")
