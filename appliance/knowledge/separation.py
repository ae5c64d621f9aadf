"""A vector store for each tenant, behind the face of one (``retrieval.separate_tenants``).

What a tenant stores lies in a database or folder of its own, if the vector store's plugin heeds ``AppContext.tenant``.
It comes beside the tenant's condition in every query, not in its place.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from appliance.errors import RetrievalUnavailable, StartError
from appliance.knowledge.forwarding import ForwardingStore, listing
from appliance.protocols import VectorStore


class SeparateStores(ForwardingStore):
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
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By tenant: a store that does not answer holds up no other."""
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

    async def drop(self, collection: str) -> None:
        """See ``VectorStore``."""
        await super().drop(collection)
        self._tenants.pop(collection, None)

    async def collections(self) -> Sequence[str]:
        """See ``Inventory``. Raises BadRequest if the tenants' stores cannot list what they hold."""
        for tenant in await self._known_tenants():
            await self._of_tenant(tenant)
        found: dict[str, str] = {}
        for tenant, store in self._stores.items():
            found |= dict.fromkeys(await listing(store).collections(), tenant)
        self._tenants |= found
        return list(found)

    async def _of(self, collection: str) -> VectorStore:
        tenant = self._tenants.get(collection)
        if tenant is None:
            tenant = self._tenants[collection] = await self._tenant_of(collection)
        try:
            return self._stores.get(tenant) or await self._of_tenant(tenant)
        except StartError as error:
            raise RetrievalUnavailable("the vector store of this tenant cannot be opened; try again") from error

    async def _of_tenant(self, tenant: str) -> VectorStore:
        async with self._opening[tenant]:
            self._check_running()
            if tenant not in self._stores:
                store = self._make(tenant)
                await store.start()
                if not self._running:
                    await store.stop()
                self._check_running()
                self._stores[tenant] = store
            return self._stores[tenant]

    def _check_running(self) -> None:
        if not self._running:
            raise RetrievalUnavailable("the vector store is stopped; try again later")
