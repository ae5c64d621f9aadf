"""The face of one vector store before several, or before one that does not answer for everything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from appliance.errors import BadRequest
from appliance.knowledge.filters import Attributes, Filter
from appliance.protocols import GivesVectors, Inventory, VectorStore
from appliance.types import Hit, Scope, StoredChunk


class ForwardingStore(ABC):
    """What concerns a collection goes to the ``VectorStore`` that answers for it."""

    @abstractmethod
    async def _of(self, collection: str) -> VectorStore:
        """The store that answers for a collection. Raises RetrievalUnavailable."""

    async def create(self, collection: str, dimensions: int) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).create(collection, dimensions)

    async def drop(self, collection: str) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).drop(collection)

    async def upsert(self, collection: str, chunks: Sequence[StoredChunk], vectors: bytes) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).upsert(collection, chunks, vectors)

    async def delete_file(self, collection: str, file_id: str) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).delete_file(collection, file_id)

    async def set_attributes(self, collection: str, file_id: str, attributes: Attributes) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).set_attributes(collection, file_id, attributes)

    async def set_readers(self, collection: str, file_id: str, readers: Sequence[str]) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).set_readers(collection, file_id, readers)

    async def seal(self, collection: str) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).seal(collection)

    async def search_dense(
        self, collection: str, vector: bytes, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """See ``VectorStore``."""
        store = await self._of(collection)
        return await store.search_dense(collection, vector, limit=limit, scope=scope, where=where)

    async def search_text(
        self, collection: str, query: str, *, limit: int, scope: Scope, where: Filter | None = None
    ) -> Sequence[Hit]:
        """See ``VectorStore``."""
        store = await self._of(collection)
        return await store.search_text(collection, query, limit=limit, scope=scope, where=where)

    async def chunks(
        self, collection: str, file_id: str, *, scope: Scope, offset: int = 0, limit: int = 1000
    ) -> Sequence[StoredChunk]:
        """See ``VectorStore``."""
        store = await self._of(collection)
        return await store.chunks(collection, file_id, scope=scope, offset=offset, limit=limit)

    async def vector(self, collection: str, chunk_id: str, *, scope: Scope) -> bytes | None:
        """See ``GivesVectors``; ``None`` also from a store that is none."""
        store = await self._of(collection)
        return await store.vector(collection, chunk_id, scope=scope) if isinstance(store, GivesVectors) else None

    async def chunk_ids(self, collection: str) -> Sequence[str]:
        """See ``Inventory``."""
        return await listing(await self._of(collection)).chunk_ids(collection)

    async def count(self, collection: str) -> int:
        """See ``VectorStore``."""
        return await (await self._of(collection)).count(collection)


def listing(store: VectorStore) -> Inventory:
    """The store as one that says what it holds. Raises BadRequest for one that cannot."""
    if not isinstance(store, Inventory):
        raise BadRequest("this vector store cannot list what it holds, so it cannot be reconciled")
    return store
