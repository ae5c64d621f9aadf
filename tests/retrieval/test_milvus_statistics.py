"""BM25 in Milvus Lite weighs words by the whole collection, however that was cut into segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.plugin import Scope
from appliance.testing.contracts.vector_store import chunk, vectors
from appliance_retrieval.memory import MemoryStore
from appliance_retrieval.milvus import MilvusStore
from appliance_retrieval.milvus_lite_statistics import shares_statistics

TEXTS = [f"{'pump ' * (1 + i % 3)}{'valve ' if i % 4 == 0 else ''}{'filter ' * (i % 2)}number{i}" for i in range(24)]
QUERY = "valve pump filter"


async def scores(folder: Path, groups: list[range]) -> dict[str, float]:
    """By text what a search finds; each group was sealed by itself."""
    store = MilvusStore(str(folder / "milvus.db"), run_dir=folder / "run")
    await store.start()
    await store.create("c", 2)
    for group in groups:
        await store.upsert("c", [chunk(i, TEXTS[i]) for i in group], vectors(*[(1, 0)] * len(group)))
        await store.seal("c")
    found = await store.search_text("c", QUERY, limit=24, scope=Scope())
    await store.stop()
    return {hit.chunk.text: hit.score for hit in found}


async def test_the_same_documents_score_the_same_however_they_came(tmp_path: Path) -> None:
    memory = MemoryStore()
    await memory.start()
    await memory.create("c", 2)
    await memory.upsert("c", [chunk(i, text) for i, text in enumerate(TEXTS)], vectors(*[(1, 0)] * 24))
    exact = {hit.chunk.text: hit.score for hit in await memory.search_text("c", QUERY, limit=24, scope=Scope())}
    at_once = await scores(tmp_path / "one", [range(24)])
    in_parts = await scores(tmp_path / "parts", [range(2), range(2, 12), range(12, 13), range(13, 24)])
    assert at_once == pytest.approx(exact, rel=1e-5)
    assert in_parts == pytest.approx(exact, rel=1e-5)


async def test_statistics_are_shared_again_after_a_start_and_when_more_comes(tmp_path: Path) -> None:
    await scores(tmp_path, [range(12), range(12, 20)])
    store = MilvusStore(str(tmp_path / "milvus.db"), run_dir=tmp_path / "run")
    await store.start()
    first = await store.search_text("c", QUERY, limit=24, scope=Scope())
    engine = store._database.lite.collection("c")
    assert shares_statistics(engine, "sparse")
    await store.upsert("c", [chunk(i, TEXTS[i]) for i in range(20, 24)], vectors(*[(1, 0)] * 4))
    await store._call(store._database.flush, "c")
    assert not shares_statistics(engine, "sparse"), "a new segment has statistics of its own until it is searched"
    more = await store.search_text("c", QUERY, limit=24, scope=Scope())
    assert shares_statistics(engine, "sparse")
    await store.stop()
    assert len(more) == len(first) + 4
    assert {hit.chunk.text: hit.score for hit in more} == pytest.approx(await scores(tmp_path / "new", [range(24)]))


async def test_a_collection_without_rows_is_searched_without_harm(tmp_path: Path) -> None:
    assert await scores(tmp_path, []) == {}
