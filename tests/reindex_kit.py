"""A retrieval stack with two models, ``old`` (64 numbers), which is the default, and ``new`` (32)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from eventually import until
from knowledge_kit import Stack

from appliance.config import parse
from appliance.context import AppContext
from appliance.hookspecs import hookimpl
from appliance.knowledge.local import LocalKnowledge
from appliance.knowledge.report import ReindexOrder, StoreStatus
from appliance.plugins import Plugins
from appliance.protocols import EmbedderFactory, VectorStore, VectorStoreFactory
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Scope, Search

DAY = 86_400
YAML = """
plugins: [{plugins}, documents, tokens]
models: [{models}]
retrieval: {{vector_store: {store}, embedder: {default}}}
"""


def old_model() -> ScriptedEmbedder:
    return ScriptedEmbedder(dimensions=64, fingerprint="old-weights", batch_size=1)


def new_model() -> ScriptedEmbedder:
    return ScriptedEmbedder(dimensions=32, fingerprint="new-weights", batch_size=1)


class Parts:
    """A plugin with the embedders and the vector store that a test brings along."""

    def __init__(self, embedders: Mapping[str, ScriptedEmbedder], stores: Mapping[str, VectorStore]) -> None:
        self._embedders = embedders
        self._stores = stores

    @hookimpl
    def appliance_embedders(self) -> Mapping[str, EmbedderFactory]:
        return {name: lambda spec, context, made=made: made for name, made in self._embedders.items()}

    @hookimpl
    def appliance_vector_stores(self) -> Mapping[str, VectorStoreFactory]:
        return {name: lambda context, made=made: made for name, made in self._stores.items()}


parts = Parts({"old": old_model(), "new": new_model()}, {})
"""For the configuration of a worker process, which loads plugins by name."""


class TwoModels(Stack):
    """As ``Stack``, with models by name; ``backend`` is a vector store that outlives the stack."""

    def __init__(
        self,
        folder: Path,
        embedders: Mapping[str, ScriptedEmbedder],
        *,
        store: str,
        backend: VectorStore | None,
        more: str = "",
    ) -> None:
        text = YAML.format(
            plugins=store if backend is None else "parts",
            models=", ".join(f"{{name: {name}, embedder: {name}}}" for name in embedders),
            store=store,
            default=next(iter(embedders)),
        )
        self.config = parse(text + more, folder=folder)
        self.embedders = embedders
        self.embedder = next(iter(embedders.values()))
        self.database = Database(self.config.database_url)
        self.context = AppContext(config=self.config, database=self.database)
        self.blobs = BlobStore(self.config.data_path / "files")
        self.plugins = Plugins(self.config, {"parts": Parts(embedders, {} if backend is None else {store: backend})})
        self.plugins.bind(self.context)
        self.knowledge = LocalKnowledge(self.plugins, self.context)

    async def order(self, step: str, store: str, **options: object) -> StoreStatus:
        given = {"keep_seconds": DAY, "by": "test", **options}
        return await self.knowledge.reindex(ReindexOrder(step=step, store=store, **given))

    async def status(self, store: str) -> StoreStatus:
        (found,) = [one for one in await self.knowledge.stores() if one.id == store]
        return found

    async def begin(self, store: str, **options: object) -> StoreStatus:
        return await self.order("begin", store, **{"embedder": "new", **options})

    async def served_by(self, store: str, model: str) -> None:
        """Wait until a store is searched by a model, and nothing is being built."""

        async def switched() -> bool:
            found = await self.status(store)
            return found.embedder == model and (found.reindex is None or found.reindex.status == "kept")

        await until(switched)

    async def whole(self, store: str) -> None:
        """Every chunk id that must be there is, once, in every collection, and no other; asked of the real rows."""
        report = await self.knowledge.reconcile(repair=False)
        assert report.orphans == 0, report


@asynccontextmanager
async def two_models(
    folder: Path,
    embedders: Mapping[str, ScriptedEmbedder] | None = None,
    *,
    store: str = "memory",
    backend: VectorStore | None = None,
) -> AsyncIterator[TwoModels]:
    made = TwoModels(folder, embedders or {"old": old_model(), "new": new_model()}, store=store, backend=backend)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def filled(made: TwoModels, texts: int = 3) -> tuple[str, list[str]]:
    """A store with files, each of which is of several chunks."""
    store = await made.make_store()
    return store, [await made.add(store, f"zebrafinch{i} " + "sings at dawn " * 60) for i in range(texts)]


async def held(made: TwoModels, model: str, calls: int = 0) -> None:
    """Wait until a call of a model is held, which ``calls`` more come before."""
    embedder = made.embedders[model]
    await until(lambda: embedder.hold_from is not None and len(embedder.calls) > embedder.hold_from + calls)


def hold(made: TwoModels, model: str, after: int = 0) -> None:
    """Let a model's calls wait, but for so many; empty ``hold_from`` lets them go."""
    embedder = made.embedders[model]
    embedder.hold_from = len(embedder.calls) + after


async def found(made: TwoModels, store: str, query: str, **scope: Any) -> set[str]:
    """Ids of the files of which a search finds something."""
    hits = await made.knowledge.search(Search(store_ids=(store,), queries=(query,), limit=50), Scope(**scope))
    return {hit.file_id for hit in hits.passages}


async def collections(made: TwoModels) -> list[str]:
    return sorted(await made.backend.collections())
