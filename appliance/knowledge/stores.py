"""Finds vector stores by id or name, among those that a caller may reach."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from appliance.errors import NotFound
from appliance.storage import stores
from appliance.storage.database import Database
from appliance.types import Scope

PREFIX = "vs_"


class StoreDirectory:
    """Turns what clients and configurations write into ids. Ids pass as they are: the search itself checks them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reached(self, scope: Scope, references: Collection[str]) -> frozenset[str]:
        """Those of these ids and names that a store within reach has; asks nobody about nothing."""
        if not references:
            return frozenset()
        async with self._database.tenant(scope.tenant, stores=scope.stores, write=False) as session:
            return await stores.reached(session, references)

    async def resolve(self, scope: Scope, names: Sequence[str]) -> tuple[str, ...]:
        """Ids in the same order, each once. Raises NotFound for a name that no store within reach has."""
        if all(name.startswith(PREFIX) for name in names):
            return tuple(dict.fromkeys(names))
        async with self._database.tenant(scope.tenant, stores=scope.stores, write=False) as session:
            found: dict[str, None] = {}
            for name in names:
                store = None if name.startswith(PREFIX) else await stores.by_name(session, name)
                if store is None and not name.startswith(PREFIX):
                    raise NotFound(
                        f"no vector store has the name or id {name[:64]!r}; GET /v1/vector_stores lists them",
                        param="vector_store_ids",
                    )
                found[store.id if store else name] = None
        return tuple(found)
