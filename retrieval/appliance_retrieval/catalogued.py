"""A whole vector store from an index that can do little, and a catalogue of what is in it.

The catalogue is written before the index and cleared after it: whatever lies in the index is known, so that it can be
removed, and what a query finds there comes back only as the catalogue has it now. A right that is taken away is gone
with the catalogue's transaction, before the index has heard of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

from appliance.plugin import (
    AppContext,
    Attributes,
    Filter,
    Hit,
    NotFound,
    RetrievalUnavailable,
    Scope,
    StartError,
    StoredChunk,
)
from appliance_retrieval.catalogue import Catalogue, Entry, Selection
from appliance_retrieval.places import place_of
from appliance_retrieval.unit_vectors import check_dimensions, check_query, check_rows, unit_rows

_SUFFIX = ".db"
_MOST_OPEN = 64
"""Catalogues open at once; more only while more are used."""


class VectorIndex(Protocol):
    """Finds the nearest vectors under some labels. All methods raise RetrievalUnavailable when it is out of reach."""

    async def start(self) -> None:
        """Connect. Raises StartError, also when the index does not heed the labels of a query."""

    async def stop(self) -> None:
        """Close. Idempotent."""

    async def open(self, collection: str, dimensions: int) -> None:
        """Make a collection ready, or find it so."""

    async def add(self, collection: str, entries: Sequence[Entry]) -> None:
        """Write vectors with their labels, replacing those of the same key."""

    async def remove(self, collection: str, keys: Sequence[str]) -> None:
        """Remove vectors; keys that are not there are no error."""

    async def nearest(self, collection: str, vector: bytes, limit: int, selection: Selection) -> Sequence[str]:
        """Keys of the nearest vectors by cosine, among those under the selection's labels, in any order."""
        ...

    async def seal(self, collection: str) -> None:
        """Wait until what was written is found."""

    async def drop(self, collection: str, keys: Sequence[str]) -> None:
        """Remove a collection, which holds these keys."""


class CataloguedStore:
    """``VectorStore`` over an index; the catalogues lie in ``folder``, a file for each collection."""

    def __init__(self, index: VectorIndex, folder: Path) -> None:
        self._index, self._folder = index, folder
        self._open: OrderedDict[str, Catalogue] = OrderedDict()
        """By collection, the one used last at the end."""
        self._users: Counter[str] = Counter()
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._running = False

    async def start(self) -> None:
        """Reach the index. Raises StartError."""
        try:
            import numpy as np  # noqa: F401

            from appliance_retrieval.terms import search_terms

            search_terms("stems")
        except ImportError as error:
            raise StartError(f"{error.name} is missing; pip install numpy pystemmer") from error
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._index.start()
        self._running = True

    async def stop(self) -> None:
        """Close everything. Idempotent."""
        self._running = False
        catalogues, self._open = self._open, OrderedDict()
        for catalogue in catalogues.values():
            await asyncio.to_thread(catalogue.close)
        await self._index.stop()

    # -- collections -----------------------------------------------------------------------------------

    async def create(self, collection: str, dimensions: int) -> None:
        """Make the collection unless it exists. Raises Conflict if it has other dimensions."""
        async with self._using(collection, dimensions) as found:
            if found is not None:
                check_dimensions(collection, found.dimensions, dimensions)

    async def drop(self, collection: str) -> None:
        """Remove the collection with its data, if it exists."""
        async with self._using(collection) as found:
            if found is None:
                return
            async with self._opening[collection]:
                if self._open.get(collection) is not found:
                    return  # another call has dropped it
                keys = await asyncio.to_thread(found.keys)
                await self._index.drop(collection, keys)
                self._open.pop(collection, None)
                await asyncio.to_thread(_remove_files, found, self._path(collection))

    async def collections(self) -> Sequence[str]:
        """Names of all collections."""
        self._check_running()
        paths = await asyncio.to_thread(lambda: list(self._folder.glob(f"*{_SUFFIX}")))
        return [unquote(path.name.removesuffix(_SUFFIX)) for path in paths]

    @contextlib.asynccontextmanager
    async def _using(self, collection: str, dimensions: int = 0) -> AsyncIterator[Catalogue | None]:
        """The collection's catalogue, opened at first use; made if ``dimensions`` are given; else ``None``."""
        self._check_running()
        async with self._opening[collection]:
            found = self._open.get(collection) or await self._opened(collection, dimensions)
            if found is not None:
                self._open.move_to_end(collection)
            self._users[collection] += 1
        try:
            await self._close_oldest()
            yield found
        finally:
            self._users[collection] -= 1

    async def _opened(self, collection: str, dimensions: int) -> Catalogue | None:
        path = self._path(collection)
        if not dimensions and not await asyncio.to_thread(path.exists):
            return None
        try:
            found = await asyncio.to_thread(Catalogue, path, collection, dimensions)
        except NotFound:
            return None
        try:
            await self._index.open(collection, found.dimensions)
            await self._refill(found)
        except BaseException:
            found.close()
            raise
        self._open[collection] = found
        return found

    async def _close_oldest(self) -> None:
        """Each open one takes file descriptors, and memory for its labels."""
        if len(self._open) <= _MOST_OPEN:
            return
        idle = [collection for collection in self._open if not self._users[collection]]
        for collection in idle[: len(self._open) - _MOST_OPEN]:
            async with self._opening[collection]:
                if not self._users[collection] and (found := self._open.pop(collection, None)):
                    await asyncio.to_thread(found.close)

    async def _refill(self, catalogue: Catalogue) -> None:
        """Write everything to an index that has lost it, as one in memory does at its end."""
        page = await asyncio.to_thread(catalogue.entries)
        if page:
            first = page[0]
            labels = Selection((first.access,), (first.facets,))
            if await self._index.nearest(catalogue.collection, first.vector, 1, labels):
                return
        while page:
            await self._index.add(catalogue.collection, page)
            page = await asyncio.to_thread(catalogue.entries, page[-1].key)

    def _path(self, collection: str) -> Path:
        return self._folder / f"{quote(collection, safe='')}{_SUFFIX}"

    def _check_running(self) -> None:
        if not self._running:
            raise RetrievalUnavailable("the vector store is stopped; try again later")

    # -- writing ---------------------------------------------------------------------------------------

    async def upsert(self, collection: str, chunks: Sequence[StoredChunk], vectors: bytes) -> None:
        """Write chunks, replacing those of the same id. Raises NotFound, Conflict on a wrong vector length."""
        async with self._using(collection) as found:
            if found is None:
                raise NotFound(f"there is no collection {collection}; create the vector store again")
            check_rows(collection, found.dimensions, len(vectors), len(chunks))
            if chunks:
                entries = await asyncio.to_thread(_put, found, chunks, vectors)
                await self._index.add(collection, entries)

    async def delete_file(self, collection: str, file_id: str) -> None:
        """Remove every chunk of a file."""
        async with self._using(collection) as found:
            if found and (entries := await asyncio.to_thread(found.entries_of, file_id)):
                await self._index.remove(collection, [entry.key for entry in entries])
                await asyncio.to_thread(found.remove_file, file_id)

    async def set_attributes(self, collection: str, file_id: str, attributes: Attributes) -> None:
        """Replace the attributes of every chunk of a file."""
        async with self._using(collection) as found:
            if found and (entries := await asyncio.to_thread(found.set_attributes, file_id, attributes)):
                await self._index.add(collection, entries)

    async def set_readers(self, collection: str, file_id: str, readers: Sequence[str]) -> None:
        """Replace who may see the chunks of a file."""
        async with self._using(collection) as found:
            if found and (entries := await asyncio.to_thread(found.set_readers, file_id, readers)):
                await self._index.add(collection, entries)

    async def seal(self, collection: str) -> None:
        """Wait until the index finds what was written; the catalogue is durable at each write."""
        async with self._using(collection) as found:
            if found:
                await self._index.seal(collection)

    # -- reading ---------------------------------------------------------------------------------------

    async def search_dense(
        self, collection: str, vector: bytes, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Nearest chunks by cosine."""
        async with self._using(collection) as found:
            if found is None:
                return []
            check_query(collection, found.dimensions, len(vector))
            if (selection := await _selection(found, scope, where)) is None:
                return []
            query = unit_rows(vector, found.dimensions).tobytes()
            if not selection.fits_an_index:
                return await asyncio.to_thread(found.nearest, selection, query, limit)
            keys = await self._index.nearest(collection, query, limit, selection)
            hits = await asyncio.to_thread(found.hits, keys, selection, query)
            return hits[:limit]

    async def search_text(
        self, collection: str, query: str, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Best chunks by BM25, from the catalogue."""
        async with self._using(collection) as found:
            if found is None or (selection := await _selection(found, scope, where)) is None:
                return []
            return await asyncio.to_thread(found.search, query, selection, limit)

    async def chunks(
        self, collection: str, file_id: str, *, scope: Scope, offset: int = 0, limit: int = 1000
    ) -> Sequence[StoredChunk]:
        """A file's chunks by position."""
        async with self._using(collection) as found:
            if found is None or (selection := await _selection(found, scope)) is None:
                return []
            return await asyncio.to_thread(found.page, file_id, selection, offset, limit)

    async def vector(self, collection: str, chunk_id: str, *, scope: Scope) -> bytes | None:
        """A chunk's vector at length one, from the catalogue."""
        async with self._using(collection) as found:
            if found is None or (selection := await _selection(found, scope)) is None:
                return None
            return await asyncio.to_thread(found.vector, chunk_id, selection)

    async def count(self, collection: str) -> int:
        """Chunks in the collection; 0 if there is none."""
        async with self._using(collection) as found:
            return await asyncio.to_thread(found.count) if found else 0

    async def chunk_ids(self, collection: str) -> Sequence[str]:
        """Ids of all chunks of a collection."""
        async with self._using(collection) as found:
            return await asyncio.to_thread(found.ids) if found else []


def catalogue_folder(context: AppContext, plugin: str) -> Path:
    """Where a plugin's catalogues lie; with separate tenants, those of the context's."""
    own = () if context.tenant is None else (place_of(context.tenant),)
    return context.data_dir.joinpath("catalogue", plugin, *own)


def floats(vector: bytes) -> list[float]:
    """A float32 row as numbers."""
    import numpy as np

    row: list[float] = np.frombuffer(vector, "<f4").tolist()
    return row


async def _selection(catalogue: Catalogue, scope: Scope, where: Filter | None = None) -> Selection | None:
    """In a thread: where each chunk has attributes of its own, there are as many labels to judge."""
    return await asyncio.to_thread(catalogue.select, scope, where)


def _put(catalogue: Catalogue, chunks: Sequence[StoredChunk], vectors: bytes) -> list[Entry]:
    return catalogue.put(chunks, unit_rows(vectors, catalogue.dimensions).tobytes())


def _remove_files(catalogue: Catalogue, path: Path) -> None:
    catalogue.close()
    for name in (f"{path.name}-wal", f"{path.name}-shm", path.name):
        path.with_name(name).unlink(missing_ok=True)
