"""All collections of a vector store at once: the one that is searched, and a second one while there is one.

What is taken away or changed is so in both, whichever serves now or later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.knowledge.filters import Attributes
from appliance.protocols import VectorStore
from appliance.storage import reindexes
from appliance.storage.database import Database


@dataclass
class Collections:
    """Writes to every collection of a store."""

    database: Database
    backend: VectorStore

    async def names(self, store_id: str) -> Sequence[str]:
        """The one that is searched first; none if there is no such store."""
        async with self.database.session(write=False) as session:
            return await reindexes.names(session, store_id)

    async def delete_file(self, store_id: str, file_id: str) -> None:
        """Remove every chunk of a file."""
        for name in await self.names(store_id):
            await self.backend.delete_file(name, file_id)

    async def update(self, store_id: str, file_id: str, attributes: Attributes, readers: Sequence[str]) -> None:
        """Give every chunk of a file these attributes and readers, to stay."""
        for name in await self.names(store_id):
            await self.backend.set_attributes(name, file_id, attributes)
            await self.backend.set_readers(name, file_id, readers)
            await self.backend.seal(name)

    async def drop(self, store_id: str) -> None:
        """Remove all that the store holds."""
        for name in await self.names(store_id):
            await self.backend.drop(name)
