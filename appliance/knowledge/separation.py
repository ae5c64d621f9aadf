"""A vector store for each tenant, behind the face of one (``retrieval.separate_tenants``).

What a tenant stores lies in a database or folder of its own, if the vector store's plugin heeds ``AppContext.tenant``.
It comes beside the tenant's condition in every query, not in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from appliance.errors import RetrievalUnavailable, StartError
from appliance.knowledge.filters import Attributes, Filter
from appliance.knowledge.placement import listing
from appliance.protocols import VectorStore
from appliance.types import Hit, Scope, StoredChunk


class SeparateStores:
    """A ``VectorStore`` that hands each collection on to the store of its tenant; stores are opened when first used."""

    def __init__(
        self,
        make: Callable[[str], VectorStore],
        tenant_of: Callable[[str], Awaitable[str]],
        tenants: Callable[[], Awaitable[Sequence[str]]],
    ) -> None:
        """``make`` gives a tenant's store, not started; ``tenant_of`` says whose a collection is. Raises NotFound.

        ``tenants`` names all that have or had something.
        """
        self._make = make
        self._tenant_of = tenant_of
        self._known_tenants = tenants
        self._tenants: dict[str, str] = {}
        self._stores: dict[str, VectorStore] = {}
        self._opening = asyncio.Lock()
        self._running = False

    async def start(self) -> None:
        """Open the default tenant's store, so that what is wrong with the settings shows now. Raises StartError."""
        self._running = True
        await self._of_tenant("default")

    async def stop(self) -> None:
        """Close all, and open none again. Idempotent."""
        self._running = False
        stores, self._stores = self._stores, {}
        await asyncio.gather(*(store.stop() for store in stores.values()))

    async def create(self, collection: str, dimensions: int) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).create(collection, dimensions)

    async def drop(self, collection: str) -> None:
        """See ``VectorStore``."""
        await (await self._of(collection)).drop(collection)
        self._tenants.pop(collection, None)

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

    async def collections(self) -> Sequence[str]:
        """See ``Inventory``. Raises BadRequest if the tenants' stores cannot list what they hold."""
        for tenant in await self._known_tenants():
            await self._of_tenant(tenant)
        found: dict[str, str] = {}
        for tenant, store in self._stores.items():
            found |= dict.fromkeys(await listing(store).collections(), tenant)
        self._tenants |= found
        return list(found)

    async def chunk_ids(self, collection: str) -> Sequence[str]:
        """See ``Inventory``."""
        return await listing(await self._of(collection)).chunk_ids(collection)

    async def count(self, collection: str) -> int:
        """See ``VectorStore``."""
        return await (await self._of(collection)).count(collection)

    async def _of(self, collection: str) -> VectorStore:
        tenant = self._tenants.get(collection)
        if tenant is None:
            tenant = self._tenants[collection] = await self._tenant_of(collection)
        try:
            return self._stores.get(tenant) or await self._of_tenant(tenant)
        except StartError as error:
            raise RetrievalUnavailable("the vector store of this tenant cannot be opened; try again") from error

    async def _of_tenant(self, tenant: str) -> VectorStore:
        async with self._opening:
            if not self._running:
                raise RetrievalUnavailable("the vector store is stopped; try again later")
            if tenant not in self._stores:
                store = self._make(tenant)
                await store.start()
                self._stores[tenant] = store
            return self._stores[tenant]
