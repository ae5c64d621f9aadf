"""Finds vector stores by id or name, among those that a caller may reach."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from appliance.errors import Conflict, NotFound, RetrievalUnavailable
from appliance.storage import placing, reindexes, stores
from appliance.storage.database import Database
from appliance.storage.tenancy import TenantSession
from appliance.types import Scope


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
        if all(map(stores.is_ours, names)):
            return tuple(dict.fromkeys(names))
        async with self._database.tenant(scope.tenant, stores=scope.stores, write=False) as session:
            found: dict[str, None] = {}
            for name in names:
                store = None if stores.is_ours(name) else await stores.by_name(session, name)
                if store is None and not stores.is_ours(name):
                    raise NotFound(
                        f"no vector store has the name or id {name[:64]!r}; GET /v1/vector_stores lists them",
                        param="vector_store_ids",
                    )
                found[store.id if store else name] = None
        return tuple(found)

    async def check_usable(self, scope: Scope, ids: Sequence[str]) -> None:
        """Raises NotFound and Conflict for stores that the caller cannot search."""
        async with self._database.tenant(scope.tenant, stores=scope.stores, write=False) as session:
            for store_id in ids:
                await stores.get_usable(session, store_id)


async def check_fillable(
    session: TenantSession, store_id: str, *, backend: str, fingerprints: Collection[str] | None
) -> None:
    """Whether files can come into a store: those that cannot are refused at once instead of failing later.

    ``backend`` is the configured vector store; ``fingerprints`` are of the configured embedding models, ``None`` while
    nobody knows them.

    Raises:
        NotFound: no such store.
        RetrievalUnavailable: another vector store holds its vectors.
        Conflict: they are of a model that is not configured, and no other one is about to take over.
    """
    store = await stores.get(session, store_id)
    if not placing.is_here(store, backend):
        raise RetrievalUnavailable(placing.told(store.id, store.backend, backend))
    if fingerprints is None or store.fingerprint is None or store.fingerprint in fingerprints:
        return
    second = await reindexes.find(session, store.id)
    if second is None or second.status != reindexes.BUILDING or second.fingerprint not in fingerprints:
        raise Conflict(
            f"vector store {store.id} holds vectors of the model {store.embedder}, which is not configured any more; "
            f"index it by another one first: POST /v1/vector_stores/{store.id}/reindex, or 'appliance stores reindex "
            f"{store.id} --embedder NAME'",
            code="embedding_model_changed",
        )
