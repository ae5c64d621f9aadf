"""Finds the vector stores that a chat names, by id or, for configured models, by name."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import NotFound
from appliance.storage import stores
from appliance.storage.database import Database


class StoreDirectory:
    """Names and ids of vector stores, within a tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def resolve(self, tenant: str, references: Sequence[str]) -> tuple[str, ...]:
        """The ids behind ids and names, each once. Raises NotFound for the first that the tenant does not have."""
        found: dict[str, None] = {}
        async with self._database.session() as session:
            for reference in references:
                if reference.startswith("vs_"):
                    found[(await stores.get(session, tenant, reference)).id] = None
                    continue
                named = await stores.by_name(session, tenant, reference)
                if named is None:
                    raise NotFound(
                        f"no vector store is named {reference[:64]!r}; POST /v1/vector_stores makes one",
                        param="vector_store_ids",
                    )
                found[named.id] = None
        return tuple(found)
