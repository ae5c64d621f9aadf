"""Retrieval in this process: what the worker runs, and tests and demonstrations without one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeVar

from appliance.context import AppContext
from appliance.errors import ConfigError, Conflict, ModelNotFound, RetrievalUnavailable
from appliance.knowledge.chunking import check_chunker
from appliance.knowledge.embedding import BatchingEmbedder
from appliance.knowledge.filters import Attributes
from appliance.knowledge.indexing import Indexer
from appliance.knowledge.ingest import Ingestor, StandBack
from appliance.knowledge.lease import WorkerLock
from appliance.knowledge.parsing import ParserPool
from appliance.knowledge.placement import PlacedStore
from appliance.knowledge.reconcile import Reconciler
from appliance.knowledge.reindexing import Reindexer
from appliance.knowledge.report import ReindexOrder, Report, SourceReport, StoreStatus, SyncOrder
from appliance.knowledge.reranking import scores
from appliance.knowledge.searching import Searcher
from appliance.knowledge.separation import SeparateStores
from appliance.knowledge.sources.service import Sources
from appliance.knowledge.tasks import task_group
from appliance.models.registry import model_spec
from appliance.models.store import ModelStore, open_store
from appliance.plugins import Plugins
from appliance.protocols import Embedder, Reranker, VectorStore, VectorStoreFactory
from appliance.quotas import Quotas
from appliance.scanning import Scanning
from appliance.storage import files, placing, store_files, stores
from appliance.storage.blobs import BlobStore
from appliance.types import Access, Embeddings, Findings, Scope, Search, StoredChunk
from appliance.wording import counted

log = logging.getLogger("appliance.knowledge")
_PAGE_CHUNKS = 1000
_T = TypeVar("_T")


class LocalKnowledge:
    """``Knowledge`` over the configured vector store and embedders. The database must be started.

    Without ``retrieval.vector_store`` only ``embed`` and ``rerank`` work. One of them at a time works on a data folder;
    with ``standby`` this one waits for its turn as long as it takes. ``stand_back`` is told when ingestion begins and
    ends.
    """

    def __init__(
        self,
        plugins: Plugins,
        context: AppContext,
        *,
        standby: bool = False,
        stand_back: StandBack = lambda _: True,
    ) -> None:
        self._plugins = plugins
        self._standby = standby
        self._stand_back = stand_back
        self._context = context
        self._embedders: dict[str, BatchingEmbedder] = {}
        self._rerankers: dict[str, Reranker] = {}
        self._backend: PlacedStore | None = None
        self._searcher: Searcher | None = None
        self._ingestor: Ingestor | None = None
        self._reindexer: Reindexer | None = None
        self._sources: Sources | None = None
        self._held = AsyncExitStack()
        self._ready = False

    @property
    def ready(self) -> bool:
        """True between ``start`` and ``stop``."""
        return self._ready

    @property
    def fingerprints(self) -> frozenset[str] | None:
        """See ``Knowledge``."""
        return frozenset(item.embedder.fingerprint for item in self._embedders.values()) if self._ready else None

    async def start(self) -> None:
        """Take the data folder, load the embedders and open the vector store.

        Raises:
            ConfigError, StartError: naming the setting and the fix.
        """
        lock = WorkerLock(self._context.data_dir)
        try:
            owner = await lock.acquire(None if self._standby else 30.0)
            self._held.callback(lock.release)
            self._embedders = await self._start_embedders()
            self._rerankers = await self._start_rerankers()
            if self._context.config.retrieval.vector_store is not None:
                await self._start_retrieval(self._context.config.retrieval.vector_store, owner)
        except BaseException:
            await self.stop()
            raise
        self._ready = True

    async def stop(self) -> None:
        """Let go of everything, in reverse. Idempotent."""
        self._ready = False
        await self._held.aclose()

    async def search(self, search: Search, scope: Scope) -> Findings:
        """See ``Knowledge``."""
        return await _present(self._searcher).search(search, scope)

    async def embed(self, model: str, inputs: Sequence[str | Sequence[int]]) -> Embeddings:
        """See ``Knowledge``."""
        embedder = self._embedders.get(model)
        if embedder is None:
            raise ModelNotFound("there is no embedding model of that name; GET /v1/models lists them", param="model")
        return await embedder.embed(inputs)

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """See ``Knowledge``."""
        reranker = self._rerankers.get(model)
        if reranker is None:
            raise ModelNotFound("there is no reranker of that name; GET /v1/models lists the models", param="model")
        return await scores(reranker, query, texts)

    async def remove_file(self, store_id: str, file_id: str) -> None:
        """See ``Knowledge``."""
        await _present(self._ingestor).changes.remove_file(store_id, file_id)

    async def remove_store(self, store_id: str) -> None:
        """See ``Knowledge``."""
        await _present(self._ingestor).changes.remove_store(store_id)

    async def set_attributes(self, store_id: str, file_id: str, attributes: Attributes) -> None:
        """See ``Knowledge``."""
        await _present(self._ingestor).changes.set_attributes(store_id, file_id, attributes)

    async def set_access(self, store_id: str, file_id: str, access: Access) -> None:
        """See ``Knowledge``."""
        await _present(self._ingestor).changes.set_access(store_id, file_id, access)

    async def content(self, store_id: str, file_id: str, scope: Scope) -> list[StoredChunk]:
        """See ``Knowledge``."""
        backend = _present(self._backend)
        async with self._context.database.tenant(
            scope.tenant, stores=scope.stores, readers=scope.readers, write=False
        ) as session:
            row = await store_files.get(session, store_id, file_id)
            collection = (await stores.get(session, store_id)).collection
        if row.status != "completed" or row.removing:
            raise Conflict(f"file {file_id} is {row.status}; its content is there once it is completed")
        found: list[StoredChunk] = []
        while page := await backend.chunks(collection, file_id, scope=scope, offset=len(found), limit=_PAGE_CHUNKS):
            found += page
        return found

    async def reconcile(self, *, repair: bool) -> Report:
        """See ``Knowledge``."""
        ingestor, backend = _present(self._ingestor), _present(self._backend)
        blobs = BlobStore(self._context.data_dir / "files")
        return await Reconciler(self._context.database, backend, blobs, ingestor.changes).run(repair=repair)

    async def sync(self, order: SyncOrder) -> list[SourceReport]:
        """See ``Knowledge``."""
        return await _present(self._sources).sync(order)

    async def reindex(self, order: ReindexOrder) -> StoreStatus:
        """See ``Knowledge``."""
        return await _present(self._reindexer).order(order)

    async def stores(self, store_id: str | None = None) -> list[StoreStatus]:
        """See ``Knowledge``."""
        return await _present(self._reindexer).status(store_id)

    async def unserved(self) -> int:
        """See ``Knowledge``."""
        return 0 if self._reindexer is None else await self._reindexer.unserved()

    def wake(self) -> None:
        """See ``Knowledge``."""
        if self._ingestor is not None:
            self._ingestor.wake()

    # -- start -----------------------------------------------------------------------------------------

    async def _start_embedders(self) -> dict[str, BatchingEmbedder]:
        built = self._build_embedders()
        for embedder in built.values():
            self._held.push_async_callback(embedder.stop)
        async with task_group() as group:
            for embedder in built.values():
                group.create_task(embedder.start())
        return {name: BatchingEmbedder(name, embedder) for name, embedder in built.items()}

    def _build_embedders(self) -> Mapping[str, Embedder]:
        config, kinds, store = self._context.config, self._plugins.embedders(), self._models()
        built: dict[str, Embedder] = {}
        for i, model in enumerate(config.models):
            if model.embedder is None:
                continue
            if model.embedder not in kinds:
                raise ConfigError(
                    f"models[{i}].embedder: no listed plugin provides {model.embedder}; list one that does"
                )
            built[model.name] = kinds[model.embedder](model_spec(model, f"models[{i}]", store), self._context)
        return built

    async def _start_rerankers(self) -> dict[str, Reranker]:
        """After the embedders, which may have made the files that they load."""
        kinds, store = self._plugins.rerankers(), self._models()
        started: dict[str, Reranker] = {}
        for i, model in enumerate(self._context.config.models):
            if model.reranker is None:
                continue
            factory = kinds.get(model.reranker)
            if factory is None:
                raise ConfigError(
                    f"models[{i}].reranker: no listed plugin provides {model.reranker}; list one that does"
                )
            reranker = factory(model_spec(model, f"models[{i}]", store), self._context)
            self._held.push_async_callback(reranker.stop)
            await reranker.start()
            started[model.name] = reranker
        return started

    def _models(self) -> ModelStore:
        config = self._context.config
        return open_store(config, self._plugins.model_sources())

    async def _start_retrieval(self, name: str, owner: str) -> None:
        factory = self._plugins.vector_stores().get(name)
        if factory is None:
            raise ConfigError(f"retrieval.vector_store: no listed plugin provides {name}; list one that does")
        self._backend = PlacedStore(self._store(factory), name, self._context.database)
        self._held.push_async_callback(self._backend.stop)
        await self._backend.start()
        database, retrieval = self._context.database, self._context.config.retrieval
        self._searcher = Searcher(
            database,
            self._backend,
            self._embedders,
            retrieval.candidates,
            fusion=retrieval.fusion,
            reranker=self._rerankers.get(retrieval.reranker or ""),
            rerank_candidates=retrieval.rerank_candidates,
        )
        indexer = self._indexer(self._backend)
        self._held.push_async_callback(indexer.parsers.stop)
        self._ingestor = Ingestor(database, self._backend, indexer, owner, self._stand_back)
        self._held.push_async_callback(self._ingestor.stop)
        await self._ingestor.start()
        self._reindexer = Reindexer(database, self._backend, self._ingestor, self._embedders)
        self._held.push_async_callback(self._reindexer.stop)
        self._reindexer.start()
        await asyncio.to_thread(indexer.blobs.start)  # sources write files too, and no server may have run here yet
        self._sources = Sources(self._context.config, database, indexer.blobs, self._ingestor.changes)
        self._held.push_async_callback(self._sources.stop)
        self._sources.start()
        await self._warn_of_stores(self._backend.name, self._reindexer)

    async def _warn_of_stores(self, backend: str, reindexer: Reindexer) -> None:
        """Tell the log of stores that cannot be searched as things are configured."""
        async with self._context.database.session(write=False) as session:
            number = await placing.count_elsewhere(session, backend)
        if number:
            log.warning(
                "the vectors of %s are not in %s; see appliance stores status, and set "
                "retrieval.vector_store back or run appliance stores reconcile --repair",
                counted(number, "store"),
                backend,
            )
        if number := await reindexer.unserved():
            log.warning(
                "the vectors of %s are of models that are not configured; see appliance stores status",
                counted(number, "store"),
            )

    def _store(self, factory: VectorStoreFactory) -> VectorStore:
        if not self._context.config.retrieval.separate_tenants:
            return factory(self._context)
        return SeparateStores(
            lambda tenant: factory(replace(self._context, tenant=tenant)), self._tenant_of, self._tenants
        )

    async def _tenants(self) -> Sequence[str]:
        async with self._context.database.session(write=False) as session:
            return await files.tenants(session)

    async def _tenant_of(self, collection: str) -> str:
        async with self._context.database.session(write=False) as session:
            return await stores.tenant_of(session, stores.store_of(collection))

    def _indexer(self, backend: VectorStore) -> Indexer:
        config = self._context.config
        default = config.embedding_model()
        if default is None:
            raise ConfigError("retrieval.embedder: name the embedding model, an entry of models with embedder set")
        chunkers = self._plugins.chunkers()
        check_chunker(config.retrieval.chunker, chunkers)
        scanning = Scanning(self._plugins.scanners())
        return Indexer(
            database=self._context.database,
            blobs=BlobStore(self._context.data_dir / "files", scanning.check if scanning else None),
            backend=backend,
            embedders=self._embedders,
            default=self._embedders[default.name],
            chunkers=chunkers,
            chunker=config.retrieval.chunker or next(iter(chunkers)),
            parsers=ParserPool(config, names=self._plugins.parser_names(), size=2),
            quotas=Quotas.of(config, self._context.database),
        )


def _present(part: _T | None) -> _T:
    if part is None:
        raise RetrievalUnavailable(
            "retrieval is not running; set retrieval.vector_store, or try again in a moment", retry_after=1
        )
    return part
