"""The ``memory`` vector store: exact search in this process' memory, gone with it. For tests and demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from appliance.plugin import (
    Attributes,
    Filter,
    Hit,
    NotFound,
    RetrievalUnavailable,
    Scope,
    StoredChunk,
    VectorStoreFactory,
    hookimpl,
)
from appliance_retrieval.memory_index import MemoryIndex, in_scope
from appliance_retrieval.terms import query_terms, search_terms
from appliance_retrieval.unit_vectors import check_dimensions, check_query, check_rows, unit_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@hookimpl
def appliance_vector_stores() -> Mapping[str, VectorStoreFactory]:
    """``retrieval.vector_store: memory``."""
    return {"memory": lambda context: MemoryStore()}


@dataclass
class _Row:
    chunk: StoredChunk
    vector: NDArray[np.float32]
    terms: Counter[str]


@dataclass
class _Collection:
    dimensions: int
    rows: dict[str, _Row] = field(default_factory=dict)
    index: MemoryIndex | None = None
    """Over the rows as they are; ``None`` after a change."""

    def searchable(self) -> MemoryIndex:
        """The index, made at the first search after a change."""
        if self.index is None:
            self.index = MemoryIndex([(row.chunk, row.vector, row.terms) for row in self.rows.values()])
        return self.index


class MemoryStore:
    """``VectorStore`` over dictionaries: brute-force cosine, and BM25 with the statistics of the whole collection."""

    def __init__(self) -> None:
        self._kept: dict[str, _Collection] = {}
        self._running = False

    @property
    def _collections(self) -> dict[str, _Collection]:
        if not self._running:
            raise RetrievalUnavailable("the vector store is stopped; try again later")
        return self._kept

    async def start(self) -> None:
        """Begin to answer."""
        self._running = True

    async def stop(self) -> None:
        """Answer no more; what was written stays until the object goes."""
        self._running = False

    async def create(self, collection: str, dimensions: int) -> None:
        """Make the collection unless it exists. Raises Conflict if it has other dimensions."""
        found = self._collections.setdefault(collection, _Collection(dimensions))
        check_dimensions(collection, found.dimensions, dimensions)

    async def drop(self, collection: str) -> None:
        """Remove the collection, if it exists."""
        self._collections.pop(collection, None)

    async def upsert(self, collection: str, chunks: Sequence[StoredChunk], vectors: bytes) -> None:
        """Write chunks, replacing those of the same id. Raises NotFound, Conflict on a wrong vector length."""
        import numpy as np

        if (found := self._collections.get(collection)) is None:
            raise NotFound(f"there is no collection {collection}; create the vector store again")
        check_rows(collection, found.dimensions, len(vectors), len(chunks))
        found.index = None
        matrix = np.frombuffer(vectors, "<f4").reshape(len(chunks), found.dimensions)
        for chunk, vector in zip(chunks, matrix, strict=True):
            found.rows[chunk.id] = _Row(chunk, vector, Counter(search_terms(chunk.searchable)))

    async def delete_file(self, collection: str, file_id: str) -> None:
        """Remove every chunk of a file."""
        if found := self._collections.get(collection):
            found.index = None
            found.rows = {key: row for key, row in found.rows.items() if row.chunk.file_id != file_id}

    async def set_attributes(self, collection: str, file_id: str, attributes: Attributes) -> None:
        """Replace the attributes of every chunk of a file."""
        self._rewrite(collection, file_id, attributes=dict(attributes))

    async def set_readers(self, collection: str, file_id: str, readers: Sequence[str]) -> None:
        """Replace who may see the chunks of a file."""
        self._rewrite(collection, file_id, readers=tuple(readers))

    def _rewrite(self, collection: str, file_id: str, **fields: Any) -> None:
        if found := self._collections.get(collection):
            found.index = None
        for row in self._rows(collection):
            if row.chunk.file_id == file_id:
                row.chunk = msgspec.structs.replace(row.chunk, **fields)

    async def seal(self, collection: str) -> None:
        """Nothing to do."""

    async def search_dense(
        self, collection: str, vector: bytes, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Nearest chunks by cosine."""
        import numpy as np

        if (found := self._collections.get(collection)) is None:
            return []
        check_query(collection, found.dimensions, len(vector))
        return found.searchable().nearest(np.frombuffer(vector, "<f4"), limit, scope, where)

    async def search_text(
        self, collection: str, query: str, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Best chunks by BM25."""
        found = self._collections.get(collection)
        return found.searchable().matching(query_terms(query), limit, scope, where) if found else []

    async def chunks(
        self, collection: str, file_id: str, *, scope: Scope, offset: int = 0, limit: int = 1000
    ) -> Sequence[StoredChunk]:
        """A file's chunks by position."""
        rows = (row.chunk for row in self._rows(collection))
        found = [chunk for chunk in rows if chunk.file_id == file_id and in_scope(chunk, scope)]
        return sorted(found, key=lambda chunk: (chunk.position, chunk.id))[offset : offset + limit]

    async def vector(self, collection: str, chunk_id: str, *, scope: Scope) -> bytes | None:
        """A chunk's vector at length one."""
        found = self._collections.get(collection)
        row = found.rows.get(chunk_id) if found else None
        if found is None or row is None or not in_scope(row.chunk, scope):
            return None
        return unit_rows(row.vector.tobytes(), found.dimensions).tobytes()

    async def count(self, collection: str) -> int:
        """Chunks in the collection; 0 if there is none."""
        return len(self._rows(collection))

    async def collections(self) -> Sequence[str]:
        """Names of all collections."""
        return list(self._collections)

    async def chunk_ids(self, collection: str) -> Sequence[str]:
        """Ids of all chunks of a collection."""
        return [row.chunk.id for row in self._rows(collection)]

    def _rows(self, collection: str) -> list[_Row]:
        found = self._collections.get(collection)
        return list(found.rows.values()) if found else []
