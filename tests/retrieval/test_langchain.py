"""The ``langchain`` store over LangChain's own store in memory, Qdrant's of langchain-qdrant, and some unfit ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from class_stores import BROKEN

from appliance.plugin import (
    AppContext,
    Comparison,
    Config,
    ConfigError,
    NotFound,
    RetrievalUnavailable,
    Scope,
    StartError,
    VectorStore,
    convert,
)
from appliance.testing.contracts.vector_store import VectorStoreContract, chunk, vectors
from appliance_retrieval import index_check
from appliance_retrieval.langchain import LangChainSettings, make_store

IN_MEMORY = {"class": "langchain_core.vectorstores.InMemoryVectorStore", "filter": "function"}


QDRANT = {
    "class": "langchain_qdrant.QdrantVectorStore.construct_instance",
    "filter": "qdrant",
    "arguments": {
        "collection_name": "{collection}",
        "client_options": {"path": "{data_dir}/qdrant/{collection}"},
    },
}


def store_at(folder: Path, settings: dict[str, Any], tenant: str | None = None) -> VectorStore:
    context = AppContext(config=Config(folder=str(folder)), database=cast("Any", None), tenant=tenant)
    return make_store(convert(settings, LangChainSettings, "plugin.langchain"), context)


@pytest.fixture
def outage() -> Iterator[Any]:
    async def begin() -> None:
        BROKEN.add("yes")

    yield begin
    BROKEN.clear()


class TestLangChainInMemory(VectorStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[VectorStore]:
        store = store_at(tmp_path, {"class": "class_stores.LangChainStore", "filter": "function"})
        await store.start()
        yield store
        BROKEN.clear()
        await store.stop()

    @pytest.fixture
    async def outage(self, outage: Any) -> Any:
        return outage


@pytest.mark.slow
class TestLangChainQdrant(VectorStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[VectorStore]:
        store = store_at(tmp_path, QDRANT)
        await store.start()
        yield store
        await store.stop()


async def filled(store: VectorStore) -> VectorStore:
    await store.start()
    await store.create("vs_1", 2)
    await store.upsert("vs_1", [chunk(i, f"word{i}") for i in range(5)], vectors(*[(1, i) for i in range(5)]))
    return store


async def positions(store: VectorStore, scope: Scope | None = None) -> list[int]:
    hits = await store.search_dense("vs_1", vectors((1, 0)), limit=50, scope=scope or Scope())
    return [hit.chunk.position for hit in hits]


@pytest.mark.parametrize("name", ["IgnoresFilters", "FiltersAfterwards"])
async def test_b5_a_class_that_does_not_heed_the_filter_in_its_query_stops_the_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_check, "SECONDS", 0.05)
    store = store_at(tmp_path, {"class": f"class_stores.{name}", "filter": "function"})
    with pytest.raises(StartError, match="does not"):
        await store.start()
    with pytest.raises(RetrievalUnavailable):
        await store.count("vs_1")


async def test_b5_a_class_that_heeds_one_term_of_two_stops_the_start(tmp_path: Path) -> None:
    store = store_at(tmp_path, {"class": "class_stores.HeedsOneTerm"})
    with pytest.raises(StartError, match="does not heed the filter"):
        await store.start()


async def test_a_class_that_keeps_other_vectors_than_it_is_handed_stops_the_start(tmp_path: Path) -> None:
    store = store_at(tmp_path, {"class": "class_stores.EmbedsElsewhere", "filter": "function"})
    with pytest.raises(StartError, match="does not find the nearest vector first"):
        await store.start()


async def test_b15_a_class_that_deletes_nothing_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_check, "SECONDS", 0.05)
    store = store_at(tmp_path, {"class": "class_stores.ForgetsNothing", "filter": "function"})
    with pytest.raises(StartError, match="goes on finding what was removed"):
        await store.start()


async def test_a_filter_of_the_wrong_kind_stops_the_start_with_its_place(tmp_path: Path) -> None:
    store = store_at(tmp_path, {"class": IN_MEMORY["class"], "filter": "operators"})
    with pytest.raises(StartError, match=r"plugin\.langchain: .*InMemoryVectorStore cannot be used \(TypeError\)"):
        await store.start()


async def test_a_collection_that_two_drop_at_once_goes_and_what_asks_for_it_then_is_told(tmp_path: Path) -> None:
    store = cast("Any", await filled(store_at(tmp_path, IN_MEMORY)))
    (entry, *_) = store._open["vs_1"].entries()
    await asyncio.gather(store.drop("vs_1"), store.drop("vs_1"))
    assert await store.collections() == []
    for late in (store._index.add("vs_1", [entry]), store._index.remove("vs_1", [entry.key])):
        with pytest.raises(NotFound, match="gone"):
            await late
    await store.stop()


async def test_a_class_that_writes_beside_what_is_there_has_old_vectors_removed_first(tmp_path: Path) -> None:
    store = await filled(store_at(tmp_path, {"class": "class_stores.KeepsOldOnes", "filter": "function"}))
    await store.upsert("vs_1", [chunk(i) for i in range(5)], vectors(*[(1, 4 - i) for i in range(5)]))
    assert await positions(store) == [4, 3, 2, 1, 0]
    await store.set_readers("vs_1", "file-a", ("user:1",))
    assert await positions(store) == []
    assert await positions(store, Scope(readers=("user:1",))) == [4, 3, 2, 1, 0]
    await store.stop()


async def test_a_class_in_memory_is_filled_again_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        store = store_at(tmp_path, IN_MEMORY)
        await store.start()
        await store.create("vs_1", 2)
        if not await store.count("vs_1"):
            await store.upsert("vs_1", [chunk(i) for i in range(2500)], vectors(*[(1, i) for i in range(2500)]))
        hits = await store.search_dense("vs_1", vectors((1, 2499)), limit=1, scope=Scope())
        assert [hit.chunk.position for hit in hits] == [2499]
        await store.stop()


async def test_arguments_may_name_the_collection_its_dimensions_and_objects_of_other_classes(tmp_path: Path) -> None:
    settings = {
        "class": "class_stores.LangChainStore",
        "filter": "function",
        "arguments": {
            "name": "{tenant}-{collection}-{dimensions}",
            "marker": {"class": "collections.Counter", "arguments": {"made": 1}},
        },
    }
    store = await filled(store_at(tmp_path, settings, "a"))
    inner = cast("Any", store)._index._stores["vs_1"].vectors
    assert inner.name.startswith("t_a_")
    assert inner.name.endswith("-vs_1-2")
    assert inner.marker == {"made": 1}
    await store.stop()


async def test_an_error_of_the_class_is_not_shown(
    tmp_path: Path, outage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = await filled(store_at(tmp_path, {"class": "class_stores.LangChainStore", "filter": "function"}))
    await outage()
    with pytest.raises(RetrievalUnavailable, match="ConnectionError") as failed:
        await positions(store)
    assert "10.1.2.3" not in f"{failed.value}{caplog.text}"
    await store.stop()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, ConfigError, r"plugin\.langchain\.class: name the class"),
        ({"class": "InMemory"}, ConfigError, r"plugin\.langchain\.class: .* no class path"),
        ({"class": "os; import x.Y"}, ConfigError, "no class path"),
        ({"class": "no_such_package.Store"}, ConfigError, r"no package no_such_package; pip install"),
        (
            {"class": "langchain_core.vectorstores.NoSuchStore"},
            ConfigError,
            "there is no class langchain_core.*pip install",
        ),
        ({"class": "collections.Counter"}, ConfigError, "makes no LangChain VectorStore"),
        ({"class": IN_MEMORY["class"], "arguments": {"x": "pw"}}, ConfigError, r"plugin\.langchain\.arguments: do not"),
        ({"class": IN_MEMORY["class"], "arguments": {"x": {"class": "x.Y"}}}, ConfigError, r"arguments\.x\.class"),
    ],
)
async def test_e6_a_class_that_cannot_be_used_names_the_setting_and_the_fix(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        await store_at(tmp_path, settings).start()
    assert "pw" not in str(refused.value)


async def test_tenants_are_kept_apart_only_where_the_arguments_do_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"retrieval\.separate_tenants needs \{tenant\}"):
        store_at(tmp_path, IN_MEMORY, "a")


async def test_b5_a_class_that_takes_operators_finds_what_they_say(tmp_path: Path) -> None:
    settings = {"class": "class_stores.TakesOperators", "filter": "operators", "filter_argument": "where"}
    store = await filled(store_at(tmp_path, settings))
    await store.upsert("vs_1", [chunk(9, readers=("user:1",), attributes={"n": 9})], vectors((1, 0)))
    assert await positions(store) == [0, 1, 2, 3, 4]
    assert await positions(store, Scope(readers=("user:1",))) == [9]
    nine = Comparison("n", "eq", 9)
    for readers, expected in ((("user:1", "*"), [9]), (("*",), [])):
        found = await store.search_dense("vs_1", vectors((1, 0)), limit=9, scope=Scope(readers=readers), where=nine)
        assert [hit.chunk.position for hit in found] == expected
    await store.stop()
