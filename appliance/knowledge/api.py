"""What the server asks of retrieval: ``LocalKnowledge`` in this process, or ``RemoteKnowledge`` in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from appliance.knowledge.filters import Attributes
from appliance.knowledge.report import ReindexOrder, Report, SourceReport, StoreStatus, SyncOrder
from appliance.types import Access, Embeddings, Findings, Scope, Search, StoredChunk


class Upkeep(Protocol):
    """What commands ask, as well as servers."""

    async def reconcile(self, *, repair: bool) -> Report:
        """Compare rows, chunks and bytes of all tenants, and mend the difference if ``repair``.

        Raises:
            BadRequest: the vector store cannot say what it holds.
        """
        ...

    async def sync(self, order: SyncOrder) -> list[SourceReport]:
        """Bring document sources in step with what is there now. Raises NotFound for a name that is none."""
        ...

    async def reindex(self, order: ReindexOrder) -> StoreStatus:
        """Begin, take back, end or cancel a change of what embeds a store; it goes on by itself.

        Raises:
            NotFound: no such store. BadRequest: no such embedding model, or a name that several stores have.
            Conflict: the store has no second collection of that status, or one that is in the way.
        """
        ...

    async def stores(self, store_id: str | None = None) -> list[StoreStatus]:
        """What embeds one store, or each of all tenants, and how the change of it is doing."""
        ...


class Knowledge(Upkeep, Protocol):
    """Search, embeddings and ingestion.

    Every method may raise ``RetrievalUnavailable``; stores and files of another tenant are ``NotFound``.
    """

    async def start(self) -> None:
        """Load models and open the vector store. Raises StartError with the fix."""

    async def stop(self) -> None:
        """Let go of everything; ingestions under way are taken up by the next start. Idempotent."""

    @property
    def ready(self) -> bool:
        """True while calls can be answered."""
        ...

    @property
    def fingerprints(self) -> frozenset[str] | None:
        """Of the embedding models that are configured; ``None`` while they are not known yet."""
        ...

    async def search(self, search: Search, scope: Scope) -> Findings:
        """The best passages of some stores; ``search.store_ids`` are ids.

        Raises:
            NotFound: a store does not exist in the tenant.
            Conflict: a store has expired, is being deleted, or holds vectors of another embedding model.
        """
        ...

    async def embed(self, model: str, inputs: Sequence[str | Sequence[int]]) -> Embeddings:
        """Embed texts or arrays of token ids with a configured embedding model. Raises ModelNotFound, BadRequest."""
        ...

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """How well each text answers a query, 0 to 1, by a configured reranker. Raises ModelNotFound."""
        ...

    async def remove_file(self, store_id: str, file_id: str) -> None:
        """Take a file out of a store: ends its ingestion, deletes its chunks, then its row. May be repeated."""

    async def remove_store(self, store_id: str) -> None:
        """Delete a store with everything in it. May be repeated."""

    async def set_attributes(self, store_id: str, file_id: str, attributes: Attributes) -> None:
        """Replace a file's attributes in a store, in its row and in its chunks."""

    async def set_access(self, store_id: str, file_id: str, access: Access) -> None:
        """Replace who may see a file of a store: nobody else from the first moment on, the new ones on return."""

    async def content(self, store_id: str, file_id: str, scope: Scope) -> list[StoredChunk]:
        """All chunks of a file, in order. Raises NotFound, or Conflict while it is not completed."""
        ...

    async def unserved(self) -> int:
        """How many stores, of all tenants, hold vectors of embedding models that are not configured."""
        ...

    def wake(self) -> None:
        """There may be new work in the database. Cheap; never raises."""
