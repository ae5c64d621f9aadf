"""The ``memory`` vector store: exact search in this process' memory, gone with it. For tests and demonstrations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from appliance.plugin import (
    Attributes,
    Conflict,
    Filter,
    Hit,
    NotFound,
    RetrievalUnavailable,
    Scope,
    StoredChunk,
    VectorStoreFactory,
    hookimpl,
    matches,
)
from appliance_retrieval.terms import query_terms, search_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_K1, _B = 1.5, 0.75


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
        if found.dimensions != dimensions:
            raise Conflict(f"{collection} keeps vectors of {found.dimensions} numbers, not {dimensions}")

    async def drop(self, collection: str) -> None:
        """Remove the collection, if it exists."""
        self._collections.pop(collection, None)

    async def upsert(self, collection: str, chunks: Sequence[StoredChunk], vectors: bytes) -> None:
        """Write chunks, replacing those of the same id. Raises NotFound, Conflict on a wrong vector length."""
        import numpy as np

        if (found := self._collections.get(collection)) is None:
            raise NotFound(f"there is no collection {collection}; create the vector store again")
        if len(vectors) != 4 * found.dimensions * len(chunks):
            raise Conflict(f"{collection} keeps vectors of {found.dimensions} numbers")
        matrix = np.frombuffer(vectors, "<f4").reshape(len(chunks), found.dimensions)
        for chunk, vector in zip(chunks, matrix, strict=True):
            found.rows[chunk.id] = _Row(chunk, vector, Counter(search_terms(chunk.searchable)))

    async def delete_file(self, collection: str, file_id: str) -> None:
        """Remove every chunk of a file."""
        if found := self._collections.get(collection):
            found.rows = {key: row for key, row in found.rows.items() if row.chunk.file_id != file_id}

    async def set_attributes(self, collection: str, file_id: str, attributes: Attributes) -> None:
        """Replace the attributes of every chunk of a file."""
        for row in self._rows(collection):
            if row.chunk.file_id == file_id:
                row.chunk = msgspec.structs.replace(row.chunk, attributes=dict(attributes))

    async def set_readers(self, collection: str, file_id: str, readers: Sequence[str]) -> None:
        """Replace who may see the chunks of a file."""
        for row in self._rows(collection):
            if row.chunk.file_id == file_id:
                row.chunk = msgspec.structs.replace(row.chunk, readers=tuple(readers))

    async def seal(self, collection: str) -> None:
        """Nothing to do."""

    async def search_dense(
        self, collection: str, vector: bytes, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Nearest chunks by cosine."""
        import numpy as np

        query = np.frombuffer(vector, "<f4")
        if (found := self._collections.get(collection)) and len(query) != found.dimensions:
            raise Conflict(f"{collection} keeps vectors of {found.dimensions} numbers, not {len(query)}")
        rows = self._visible(collection, scope, where)
        return _best((Hit(row.chunk, _cosine(row.vector, query)) for row in rows), limit)

    async def search_text(
        self, collection: str, query: str, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """Best chunks by BM25."""
        weights = self._weights(collection, query_terms(query))
        mean = self._mean_length(collection)
        scored = ((row, _bm25(row.terms, weights, mean)) for row in self._visible(collection, scope, where))
        return _best((Hit(row.chunk, score) for row, score in scored if score > 0), limit)

    async def chunks(
        self, collection: str, file_id: str, *, scope: Scope, offset: int = 0, limit: int = 1000
    ) -> Sequence[StoredChunk]:
        """A file's chunks by position."""
        found = [row.chunk for row in self._visible(collection, scope, None) if row.chunk.file_id == file_id]
        return sorted(found, key=lambda chunk: (chunk.position, chunk.id))[offset : offset + limit]

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

    def _visible(self, collection: str, scope: Scope, where: Filter | None) -> list[_Row]:
        return [
            row
            for row in self._rows(collection)
            if _in_scope(row.chunk, scope) and matches(where, row.chunk.attributes)
        ]

    def _weights(self, collection: str, terms: Sequence[str]) -> dict[str, float]:
        """Inverse document frequency of each query term, times its repeats."""
        rows = self._rows(collection)
        weights = {}
        for term, repeats in Counter(terms).items():
            having = sum(term in row.terms for row in rows)
            weights[term] = repeats * math.log((len(rows) - having + 0.5) / (having + 0.5) + 1)
        return weights

    def _mean_length(self, collection: str) -> float:
        rows = self._rows(collection)
        return sum(row.terms.total() for row in rows) / len(rows) if rows else 0.0


def _in_scope(chunk: StoredChunk, scope: Scope) -> bool:
    return chunk.tenant == scope.tenant and not set(chunk.readers).isdisjoint(scope.readers)


def _cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    import numpy as np

    return float(a @ b / ((np.linalg.norm(a) * np.linalg.norm(b)) or 1.0))


def _bm25(terms: Counter[str], weights: Mapping[str, float], mean: float) -> float:
    penalty = _K1 * (1 - _B + _B * terms.total() / (mean or 1.0))
    return sum(weight * terms[term] * (_K1 + 1) / (terms[term] + penalty) for term, weight in weights.items())


def _best(hits: Iterable[Hit], limit: int) -> list[Hit]:
    return sorted(hits, key=lambda hit: -hit.score)[:limit]
