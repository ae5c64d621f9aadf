"""The ``milvus`` vector store: Milvus Lite in a local folder (default), or a Milvus server.

    plugin:
      milvus:
        uri: http://milvus:19530     # default: the folder milvus.db under data_dir
        token: ${env.MILVUS_TOKEN}   # server only

With ``retrieval.separate_tenants`` each tenant has a folder of its own (in ``milvus`` under data_dir, or in ``uri``),
or on a server a database of its own.

pymilvus blocks, so every call runs in a thread. Milvus Lite keeps no reader whole while a writer flushes (rows are
missing for that moment, deleted ones come back), so there one lock a collection keeps them apart; long writes
are cut into short ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from appliance.plugin import (
    AppContext,
    Attributes,
    ConfigError,
    Filter,
    Hit,
    NotFound,
    RetrievalUnavailable,
    Scope,
    StoredChunk,
    Strict,
    VectorStore,
    VectorStoreFactory,
    hookimpl,
)
from appliance_retrieval.milvus_database import MilvusDatabase, translated
from appliance_retrieval.milvus_filter import EVERYTHING, literal, row_filter
from appliance_retrieval.milvus_rows import make_rows, query_text
from appliance_retrieval.milvus_server import check_address
from appliance_retrieval.places import place_of
from appliance_retrieval.unit_vectors import check_rows, unit_rows

_P = ParamSpec("_P")
_T = TypeVar("_T")
_WRITE_ROWS = 100
"""Rows a write holds the lock for: about 40 ms in Milvus Lite."""


class MilvusSettings(Strict, frozen=True):
    """Where the vectors are."""

    uri: str | None = None
    """A folder (Milvus Lite), or ``http://host:19530``; default ``<data_dir>/milvus.db``."""
    token: str = ""
    """``user:password`` or API key of a Milvus server."""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
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
        ConfigError: a token was given for a local folder, or the address of a server is none.
    """
    own = "" if context.tenant is None else place_of(context.tenant)
    uri = settings.uri or str(context.data_dir / ("milvus" if own else "milvus.db"))
    if "://" not in uri:
        uri = str(Path(context.config.folder) / uri)
    if "://" not in uri and settings.token:
        raise ConfigError(
            "plugin.milvus.token: Milvus Lite knows no tokens; remove it or set plugin.milvus.uri to a server"
        )
    if "://" in uri:
        check_address(uri)
        return MilvusStore(uri, run_dir=context.run_dir, token=settings.token, timeout=settings.timeout, database=own)
    folders = (str(Path(uri) / own), context.run_dir / own) if own else (uri, context.run_dir)
    return MilvusStore(folders[0], run_dir=folders[1], timeout=settings.timeout)


class MilvusStore:
    """``VectorStore`` over pymilvus; ``uri`` is a folder or the address of a server."""

    def __init__(self, uri: str, *, run_dir: Path, token: str = "", timeout: float = 30.0, database: str = "") -> None:
        self._database = MilvusDatabase(uri, run_dir=run_dir, token=token, timeout=timeout, database=database)
        self._threads: ThreadPoolExecutor | None = None
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    async def start(self) -> None:
        """Open or connect. Raises StartError."""
        await asyncio.to_thread(self._database.connect)
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="milvus")

    async def stop(self) -> None:
        """Let running calls finish, then close. Idempotent."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)
            await asyncio.to_thread(self._database.disconnect)

    async def create(self, collection: str, dimensions: int) -> None:
        """Make the collection unless it exists. Raises Conflict if it has other dimensions."""
        await self._locked(collection, self._database.create, collection, dimensions)

    async def drop(self, collection: str) -> None:
        """Remove the collection with its data, if it exists."""
        await self._locked(collection, self._database.drop, collection)

    async def upsert(self, collection: str, chunks: Sequence[StoredChunk], vectors: bytes) -> None:
        """Write chunks, replacing those of the same id.

        Raises:
            NotFound: there is no such collection.
            Conflict: the vectors have another length than the collection's.
            InvalidFile: a chunk is longer than Milvus takes.
        """
        if not chunks:
            return
        dimensions = await self._locked(collection, self._database.open, collection)
        check_rows(collection, dimensions, len(vectors), len(chunks))
        step = 4 * dimensions * _WRITE_ROWS
        for i in range(0, len(chunks), _WRITE_ROWS):
            part, start = chunks[i : i + _WRITE_ROWS], i // _WRITE_ROWS * step
            rows = await self._call(make_rows, part, vectors[start : start + step], dimensions)
            await self._locked(collection, self._database.write, collection, rows)

    async def delete_file(self, collection: str, file_id: str) -> None:
        """Remove every chunk of a file."""
        await self._locked(collection, self._database.delete_file, collection, file_id)

    async def set_attributes(self, collection: str, file_id: str, attributes: Attributes) -> None:
        """Replace the attributes of every chunk of a file."""
        await self._rewrite(collection, file_id, lambda chunk: replace(chunk, attributes=dict(attributes)))

    async def set_readers(self, collection: str, file_id: str, readers: Sequence[str]) -> None:
        """Replace who may see the chunks of a file. Raises InvalidFile for more readers than a row holds."""
        await self._rewrite(collection, file_id, lambda chunk: replace(chunk, readers=tuple(readers)))

    async def _rewrite(self, collection: str, file_id: str, change: Callable[[StoredChunk], StoredChunk]) -> None:
        """Milvus changes no single column, so rows are written whole again, with the vectors that they have."""
        ids = await self._locked(collection, self._database.file_ids, collection, f"file_id == {literal(file_id)}")
        for i in range(0, len(ids), _WRITE_ROWS):
            await self._locked(collection, self._database.rewrite, collection, ids[i : i + _WRITE_ROWS], change)

    async def seal(self, collection: str) -> None:
        """In Milvus Lite: flush to disk, and build what the next search would have to. A server does both by itself."""
        await self._locked(collection, self._database.flush, collection)
        await self._locked(collection, self._database.warm_up, collection)

    async def search_dense(
        self, collection: str, vector: bytes, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Nearest chunks by cosine."""
        condition, query = row_filter(scope, where), unit_rows(vector, len(vector) // 4)[0].tolist()
        return await self._locked(collection, self._database.nearest, collection, query, condition, limit)

    async def search_text(
        self, collection: str, query: str, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Best chunks by BM25."""
        terms = query_text(query)
        if not terms:
            return []
        condition = row_filter(scope, where)
        return await self._locked(collection, self._database.matching, collection, terms, condition, limit)

    async def chunks(
        self, collection: str, file_id: str, *, scope: Scope, offset: int = 0, limit: int = 1000
    ) -> Sequence[StoredChunk]:
        """A file's chunks by position."""
        condition = row_filter(scope, None, file_id)
        return await self._locked(collection, self._database.chunks, collection, condition, offset, limit)

    async def vector(self, collection: str, chunk_id: str, *, scope: Scope) -> bytes | None:
        """A chunk's vector at length one."""
        return await self._locked(collection, self._database.vector, collection, chunk_id, row_filter(scope, None))

    async def count(self, collection: str) -> int:
        """Chunks in the collection; 0 if there is none."""
        return await self._locked(collection, self._database.count, collection)

    async def collections(self) -> Sequence[str]:
        """Names of all collections."""
        return await self._call(self._database.collections)

    async def chunk_ids(self, collection: str) -> Sequence[str]:
        """Ids of all chunks of a collection."""
        return await self._locked(collection, self._database.file_ids, collection, EVERYTHING)

    async def _call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._threads is None:
            raise RetrievalUnavailable("the vector store is stopped; try again later")

        def run() -> _T:
            try:
                return translated(function, *args, **kwargs)
            except (NotFound, RetrievalUnavailable):
                self._database.forget()
                raise

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    async def _locked(self, collection: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        # The thread takes the lock, not the coroutine: a cancelled request must not release it under a running write.
        def run() -> _T:
            with self._locks[collection] if self._database.lite else contextlib.nullcontext():
                return function(*args, **kwargs)

        return await self._call(run)
