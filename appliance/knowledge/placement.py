"""The configured vector store, which answers for those stores only whose vectors it holds.

Vectors do not move when ``retrieval.vector_store`` is changed. Without this a store whose vectors are in the former one
would look empty: searches would find nothing and say nothing about it.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import RetrievalUnavailable
from appliance.knowledge.forwarding import ForwardingStore, listing
from appliance.protocols import VectorStore
from appliance.storage import placing, stores
from appliance.storage.database import Database
from appliance.storage.tables import VectorStore as StoreRow


class HeldElsewhere(RetrievalUnavailable):
    """503: another vector store holds the vectors of a store."""


class PlacedStore(ForwardingStore):
    """A ``VectorStore`` in front of the configured one, whose ``name`` is noted with each store that it holds.

    All methods raise HeldElsewhere for a collection of a store that another one holds. A collection is looked
    up once: what changes its place, a move, gives it another name.
    """

    def __init__(self, inner: VectorStore, name: str, database: Database) -> None:
        self.inner, self.name, self._database = inner, name, database
        self._mine: set[str] = set()

    async def start(self) -> None:
        """Open, and take over the stores of which nothing was noted yet. Raises StartError."""
        await self.inner.start()
        async with self._database.session() as session:
            await placing.adopt(session, self.name)

    async def stop(self) -> None:
        """See ``VectorStore``."""
        await self.inner.stop()

    async def create(self, collection: str, dimensions: int) -> None:
        """See ``VectorStore``; from then on the collection's store is held here."""
        inner = await self._of(collection)
        if collection not in self._mine:
            async with self._database.session() as session:
                await placing.claim(session, stores.store_of(collection), self.name)
            self._mine.add(collection)
        await inner.create(collection, dimensions)

    async def drop(self, collection: str) -> None:
        """See ``VectorStore``."""
        await super().drop(collection)
        self._mine.discard(collection)

    async def collections(self) -> Sequence[str]:
        """See ``Inventory``; all that lie here, whosever they are. Raises BadRequest where that cannot be listed."""
        return await listing(self.inner).collections()

    async def chunk_ids(self, collection: str) -> Sequence[str]:
        """See ``Inventory``; also of what a store that is elsewhere by now has left here."""
        return await listing(self.inner).chunk_ids(collection)

    async def _of(self, collection: str) -> VectorStore:
        """The inner store, if it holds what the collection is of; a collection of no store is as it was left."""
        if collection not in self._mine:
            async with self._database.session(write=False) as session:
                store = await session.get(StoreRow, stores.store_of(collection))
            if store is not None and not placing.is_here(store, self.name):
                raise HeldElsewhere(placing.told(store.id, store.backend, self.name))
            if store is not None and store.backend is not None:
                self._mine.add(collection)
        return self.inner
