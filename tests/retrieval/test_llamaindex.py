"""The ``llamaindex`` store over LlamaIndex' own store in memory, its Qdrant store, and unfit ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from class_stores import BROKEN

from appliance.plugin import AppContext, Config, ConfigError, Scope, StartError, VectorStore, convert
from appliance.testing.contracts.vector_store import VectorStoreContract, chunk, vectors
from appliance_retrieval.llamaindex import LlamaIndexSettings, make_store

SIMPLE = {"class": "llama_index.core.vector_stores.simple.SimpleVectorStore"}
QDRANT = {
    "class": "llama_index.vector_stores.qdrant.QdrantVectorStore",
    "arguments": {
        "collection_name": "{collection}",
        "index_doc_id": False,  # in a folder Qdrant has no such index, and warns of it
        "client": {"class": "qdrant_client.QdrantClient", "arguments": {"path": "{data_dir}/qdrant"}},
    },
}


def store_at(folder: Path, settings: dict[str, Any], tenant: str | None = None) -> VectorStore:
    context = AppContext(config=Config(folder=str(folder)), database=cast("Any", None), tenant=tenant)
    return make_store(convert(settings, LlamaIndexSettings, "plugin.llamaindex"), context)


class TestLlamaIndexSimple(VectorStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[VectorStore]:
        store = store_at(tmp_path, {"class": "class_stores.LlamaIndexStore"})
        await store.start()
        yield store
        BROKEN.clear()
        await store.stop()

    @pytest.fixture
    async def outage(self) -> Any:
        async def begin() -> None:
            BROKEN.add("yes")

        return begin


@pytest.mark.slow
class TestLlamaIndexQdrant(VectorStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[VectorStore]:
        store = store_at(tmp_path, QDRANT)
        await store.start()
        yield store
        await store.stop()


async def test_b5_a_class_that_ignores_filters_stops_the_start(tmp_path: Path) -> None:
    store = store_at(tmp_path, {"class": "class_stores.LlamaIndexIgnoresFilters"})
    with pytest.raises(StartError, match="does not heed the filter"):
        await store.start()


async def test_a_class_that_removes_document_by_document_is_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llama_index.core.vector_stores.simple import SimpleVectorStore
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

    monkeypatch.setattr(SimpleVectorStore, "delete_nodes", BasePydanticVectorStore.delete_nodes)
    store = store_at(tmp_path, SIMPLE)
    await store.start()
    await store.create("vs_1", 2)
    rows = [chunk(0), chunk(1), chunk(0, file_id="file-b")]
    await store.upsert("vs_1", rows, vectors(*[(1, 0)] * 3))
    await store.delete_file("vs_1", "file-a")
    (hit,) = await store.search_dense("vs_1", vectors((1, 0)), limit=5, scope=Scope())
    assert hit.chunk.file_id == "file-b"
    await store.stop()


async def test_qdrant_in_a_folder_is_there_again_after_a_restart(tmp_path: Path) -> None:
    for run in range(2):
        store = store_at(tmp_path, QDRANT)
        await store.start()
        await store.create("vs_1", 2)
        if run == 0:
            await store.upsert("vs_1", [chunk(0)], vectors((1, 0)))
        assert len(await store.search_dense("vs_1", vectors((1, 0)), limit=5, scope=Scope())) == 1
        await store.stop()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"plugin\.llamaindex\.class: name the class"),
        ({"class": "collections.Counter"}, "makes no BasePydanticVectorStore"),
        ({"class": "llama_index.vector_stores.nothing.Store"}, "pip install"),
    ],
)
async def test_e6_a_class_that_cannot_be_used_names_the_setting_and_the_fix(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await store_at(tmp_path, settings).start()
