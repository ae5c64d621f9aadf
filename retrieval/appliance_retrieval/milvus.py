"""The ``milvus`` vector store: Milvus Lite in a local folder (default), or a Milvus server.

    plugin:
      milvus:
        uri: http://milvus:19530     # default: the folder milvus.db under data_dir
        token: ${env.MILVUS_TOKEN}   # server only

pymilvus blocks, so every call runs in a thread. Milvus Lite keeps no reader whole while a writer flushes (rows are
missing for that moment, deleted ones come back), so there one lock a collection keeps them apart; long writes
are cut into short ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from appliance.plugin import (
    AppContext,
    Attributes,
    ConfigError,
    Conflict,
    Filter,
    Hit,
    NotFound,
    OutOfSpace,
    RetrievalUnavailable,
    Scope,
    StartError,
    StoredChunk,
    Strict,
    VectorStore,
    VectorStoreFactory,
    hookimpl,
)
from appliance_retrieval.milvus_filter import literal, row_filter
from appliance_retrieval.milvus_lite_server import LiteServer
from appliance_retrieval.milvus_rows import (
    OUTPUT,
    chunk_of,
    index_configs,
    make_rows,
    make_schema,
    mutable_fields,
    terms_text,
    unit_rows,
)
from appliance_retrieval.terms import search_terms

_P = ParamSpec("_P")
_T = TypeVar("_T")
_WRITE_ROWS = 100
"""Rows a write holds the lock for: about 40 ms in Milvus Lite."""
_FLUSH_ROWS = 1000
"""Unflushed rows are searched slowly (0.1 ms each in Milvus Lite), so no more than this many pile up."""
_PAGE, _WINDOW = 4096, 16_384
"""Rows a page of an iterator, and the most that Milvus returns to one query."""
_NOT_FOUND = (4, 100)


class MilvusSettings(Strict, frozen=True):
    """Where the vectors are."""

    uri: str | None = None
    """A folder (Milvus Lite), or ``http://host:19530``; default ``<data_dir>/milvus.db``."""
    token: str = ""
    """``user:password`` or API key of a Milvus server."""
    timeout: float = 30.0
    """Seconds a call may take."""


@hookimpl
def appliance_settings() -> type[msgspec.Struct]:
    """``plugin.milvus``."""
    return MilvusSettings


@hookimpl
def appliance_vector_stores(settings: MilvusSettings) -> Mapping[str, VectorStoreFactory]:
    """``retrieval.vector_store: milvus``."""
    return {"milvus": lambda context: make_store(settings, context)}


def make_store(settings: MilvusSettings, context: AppContext) -> VectorStore:
    """The store that the settings ask for, not started.

    Raises:
        ConfigError: a token was given for a local folder.
    """
    uri = settings.uri or str(context.data_dir / "milvus.db")
    if "://" not in uri:
        uri = str(Path(context.config.folder) / uri)
    if "://" not in uri and settings.token:
        raise ConfigError(
            "plugin.milvus.token: Milvus Lite knows no tokens; remove it or set plugin.milvus.uri to a server"
        )
    return MilvusStore(uri, run_dir=context.run_dir, token=settings.token, timeout=settings.timeout)


class MilvusStore:
    """``VectorStore`` over pymilvus; ``uri`` is a folder or the address of a server."""

    def __init__(self, uri: str, *, run_dir: Path, token: str = "", timeout: float = 30.0) -> None:
        self._uri, self._run_dir, self._token, self._timeout = uri, run_dir, token, timeout
        self._lite: LiteServer | None = None
        self._client: Any = None
        self._threads: ThreadPoolExecutor | None = None
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._dimensions: dict[str, int] = {}
        self._unflushed: defaultdict[str, int] = defaultdict(int)

    async def start(self) -> None:
        """Open or connect. Raises StartError."""
        await asyncio.to_thread(self._connect)
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="milvus")

    async def stop(self) -> None:
        """Let running calls finish, then close. Idempotent."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)
            await asyncio.to_thread(self._disconnect)

    async def create(self, collection: str, dimensions: int) -> None:
        """Make the collection unless it exists. Raises Conflict if it has other dimensions."""
        await self._locked(collection, self._create, collection, dimensions)

    async def drop(self, collection: str) -> None:
        """Remove the collection with its data, if it exists."""
        await self._locked(collection, self._drop, collection)

    async def upsert(self, collection: str, chunks: Sequence[StoredChunk], vectors: bytes) -> None:
        """Write chunks, replacing those of the same id.

        Raises:
            NotFound: there is no such collection.
            Conflict: the vectors have another length than the collection's.
            InvalidFile: a chunk is longer than Milvus takes.
        """
        if not chunks:
            return
        dimensions = await self._locked(collection, self._open, collection)
        if len(vectors) != 4 * dimensions * len(chunks):
            raise Conflict(f"{collection} keeps vectors of {dimensions} numbers; use the embedder it was made with")
        step = 4 * dimensions * _WRITE_ROWS
        for i in range(0, len(chunks), _WRITE_ROWS):
            part, start = chunks[i : i + _WRITE_ROWS], i // _WRITE_ROWS * step
            rows = await self._call(make_rows, part, vectors[start : start + step], dimensions)
            await self._locked(collection, self._write, collection, rows)

    async def delete_file(self, collection: str, file_id: str) -> None:
        """Remove every chunk of a file."""
        await self._locked(collection, self._delete_file, collection, file_id)

    async def set_attributes(self, collection: str, file_id: str, attributes: Attributes) -> None:
        """Replace the attributes of every chunk of a file."""
        ids = await self._locked(collection, self._file_ids, collection, f"file_id == {literal(file_id)}")
        for i in range(0, len(ids), _WRITE_ROWS):
            await self._locked(collection, self._set_attributes, collection, ids[i : i + _WRITE_ROWS], attributes)

    async def seal(self, collection: str) -> None:
        """Flush to disk, and build what the next search would have to."""
        await self._locked(collection, self._flush, collection)
        await self._locked(collection, self._warm_up, collection)

    async def search_dense(
        self, collection: str, vector: bytes, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Nearest chunks by cosine."""
        condition, query = row_filter(scope, where), unit_rows(vector, len(vector) // 4)[0]
        return await self._locked(collection, self._search, collection, "dense", query, condition, limit)

    async def search_text(
        self, collection: str, query: str, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Best chunks by BM25."""
        terms = terms_text(query)
        if not terms:
            return []
        condition = row_filter(scope, where)
        return await self._locked(collection, self._search, collection, "sparse", terms, condition, limit)

    async def chunks(
        self, collection: str, file_id: str, *, scope: Scope, offset: int = 0, limit: int = 1000
    ) -> Sequence[StoredChunk]:
        """A file's chunks by position."""
        condition = row_filter(scope, None, file_id)
        return await self._locked(collection, self._chunks, collection, condition, offset, limit)

    async def count(self, collection: str) -> int:
        """Chunks in the collection; 0 if there is none."""
        return await self._locked(collection, self._count, collection)

    # What follows runs in threads, for Milvus Lite under the collection's lock.

    async def _call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._threads is None:
            raise RetrievalUnavailable("the vector store is stopped; try again later")
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: _translated(function, *args, **kwargs)
        )

    async def _locked(self, collection: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        # The thread takes the lock, not the coroutine: a cancelled request must not release it under a running write.
        def run() -> _T:
            with self._locks[collection] if self._lite else contextlib.nullcontext():
                return function(*args, **kwargs)

        return await self._call(run)

    def _connect(self) -> None:
        try:
            from pymilvus import MilvusClient

            search_terms("stems")
        except ImportError as error:
            raise StartError(f"{error.name} is missing; install rag-appliance[milvus]") from error
        # pymilvus logs failed calls with their filters, and Milvus Lite its row data.
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        if "://" not in self._uri:
            self._lite = LiteServer(Path(self._uri), self._run_dir)
        try:
            self._client = MilvusClient(
                self._lite.uri if self._lite else self._uri, token=self._token, timeout=self._timeout
            )
        except Exception as error:
            self._disconnect()
            raise StartError(f"Milvus at {self._uri} does not answer; check plugin.milvus.uri and token") from error

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._lite is not None:
            self._lite.close()
            self._lite = None
        self._dimensions.clear()

    def _open(self, collection: str) -> int:
        """Load a collection on first use; its dimensions."""
        if collection not in self._dimensions:
            if not self._client.has_collection(collection):
                raise NotFound(f"there is no collection {collection}; create the vector store again")
            fields = self._client.describe_collection(collection)["fields"]
            dimensions = next(int(field["params"]["dim"]) for field in fields if field["name"] == "dense")
            self._index(collection)
            self._client.load_collection(collection)
            self._dimensions[collection] = dimensions
        return self._dimensions[collection]

    def _exists(self, collection: str) -> bool:
        try:
            self._open(collection)
        except NotFound:
            return False
        return True

    def _create(self, collection: str, dimensions: int) -> None:
        if not self._client.has_collection(collection):
            schema = make_schema(self._client, dimensions)
            self._client.create_collection(collection, schema=schema, consistency_level="Strong")
        if self._open(collection) != dimensions:
            raise Conflict(
                f"{collection} keeps vectors of {self._dimensions[collection]} numbers, not {dimensions};"
                " use the embedder it was made with or index the store again"
            )

    def _index(self, collection: str) -> None:
        """Make the indexes that are missing, also those that a killed ``create`` left out."""
        present = set(self._client.list_indexes(collection))
        connection = self._client._get_connection()  # the public call sleeps half a second for each index
        for field, config in index_configs("FLAT" if self._lite else "AUTOINDEX").items():
            if field not in present:
                connection.create_index(collection, field, config, index_name=field, sync=False)

    def _drop(self, collection: str) -> None:
        self._client.drop_collection(collection)
        self._dimensions.pop(collection, None)
        self._unflushed.pop(collection, None)

    def _write(self, collection: str, rows: list[dict[str, Any]]) -> None:
        # Milvus Lite's upsert keeps old fields that a row no longer has, its insert replaces the row whole.
        if self._lite:
            self._client.insert(collection, rows)
        else:
            self._client.upsert(collection, rows)
        self._unflushed[collection] += len(rows)
        if self._lite and self._unflushed[collection] >= _FLUSH_ROWS:
            self._flush(collection)

    def _delete_file(self, collection: str, file_id: str) -> None:
        if self._exists(collection):
            self._client.delete(collection, filter=f"file_id == {literal(file_id)}")

    def _set_attributes(self, collection: str, ids: list[str], attributes: Attributes) -> None:
        columns = [*OUTPUT, "id", "terms", "dense"]
        rows = self._client.query(collection, filter=_by_id(ids), output_fields=columns, limit=len(ids))
        self._write(collection, [_with_attributes(row, attributes) for row in rows])

    def _flush(self, collection: str) -> None:
        if self._exists(collection):
            self._client.flush(collection)
            self._unflushed[collection] = 0
            if self._lite:
                self._lite.sync(collection)

    def _warm_up(self, collection: str) -> None:
        """Milvus Lite builds its BM25 index at the first search."""
        if self._lite and self._exists(collection):
            self._client.search(collection, ["warm"], anns_field="sparse", limit=1)

    def _search(self, collection: str, field: str, query: Any, condition: str, limit: int) -> list[Hit]:
        if not self._exists(collection):
            return []
        found = self._client.search(
            collection, [query], anns_field=field, limit=limit, filter=condition, output_fields=OUTPUT
        )
        # Milvus Lite returns BM25 scores below zero; cosines keep their sign.
        sign = -1.0 if self._lite and field == "sparse" else 1.0
        return [Hit(chunk_of({"id": hit["id"], **hit["entity"]}), sign * hit["distance"]) for hit in found[0]]

    def _file_ids(self, collection: str, condition: str) -> list[str]:
        """Ids of the rows that match, by position."""
        if not self._exists(collection):
            return []
        columns = ["id", "position"]
        rows = self._client.query(collection, filter=condition, output_fields=columns, limit=_WINDOW)
        if len(rows) == _WINDOW:
            rows = self._all_rows(collection, condition, columns)
        return [row["id"] for row in sorted(rows, key=lambda row: (row["position"], row["id"]))]

    def _all_rows(self, collection: str, condition: str, columns: list[str]) -> list[dict[str, Any]]:
        """More rows than one query may return."""
        pages = self._client.query_iterator(collection, batch_size=_PAGE, filter=condition, output_fields=columns)
        rows: list[dict[str, Any]] = []
        while page := pages.next():
            rows += page
        pages.close()
        return rows

    def _chunks(self, collection: str, condition: str, offset: int, limit: int) -> list[StoredChunk]:
        ids = self._file_ids(collection, condition)[offset : offset + limit]
        if not ids:
            return []
        rows = self._client.query(collection, filter=_by_id(ids), output_fields=[*OUTPUT, "id"], limit=len(ids))
        return sorted((chunk_of(row) for row in rows), key=lambda chunk: (chunk.position, chunk.id))

    def _count(self, collection: str) -> int:
        if not self._exists(collection):
            return 0
        return int(self._client.query(collection, filter="", output_fields=["count(*)"])[0]["count(*)"])


def _by_id(ids: Sequence[str]) -> str:
    return f"id in [{', '.join(literal(chunk_id) for chunk_id in ids)}]"


def _with_attributes(row: Mapping[str, Any], attributes: Attributes) -> dict[str, Any]:
    """A whole row again, with other attributes."""
    chunk = chunk_of(row)
    kept = {name: row[name] for name in ("id", "file_id", "position", "tenant", "text", "terms", "dense")}
    return {**kept, **mutable_fields(chunk, attributes)}


def _translated(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run, with Milvus' errors as ours. The cause is kept; the message holds no filter and no text."""
    from grpc import RpcError
    from pymilvus.exceptions import MilvusException

    try:
        return function(*args, **kwargs)
    except MilvusException as error:
        if error.code in _NOT_FOUND:
            raise NotFound("the collection is gone; create the vector store again") from error
        if "No space left" in error.message:
            raise OutOfSpace("the disk under the vector store is full; make room and try again") from error
        raise RetrievalUnavailable(f"Milvus failed (code {error.code}); try again, and check its disk") from error
    except RpcError as error:
        raise RetrievalUnavailable("Milvus does not answer; try again") from error
