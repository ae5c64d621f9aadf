"""Searches in Milvus Lite's rows find what the memory store finds, and Milvus Lite's own search, whatever happened."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from appliance.plugin import Comparison, Filter, Hit, Scope, VectorStore
from appliance.testing.contracts.vector_store import chunk, vectors
from appliance_retrieval.memory import MemoryStore
from appliance_retrieval.milvus import MilvusStore
from appliance_retrieval.milvus_filter import row_filter

TEXTS = [f"{'pump ' * (1 + i % 3)}{'valve ' if i % 4 == 0 else ''}{'filter ' * (i % 2)}number{i}" for i in range(24)]
QUERY = "valve pump filter"
EVERYONE, ALICE = Scope(), Scope(readers=("*", "user:alice"))
ODD = Comparison(key="odd", type="eq", value=True)


async def opened(folder: Path) -> MilvusStore:
    store = MilvusStore(str(folder / "milvus.db"), run_dir=folder / "run")
    await store.start()
    await store.create("c", 2)
    return store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MilvusStore]:
    store = await opened(tmp_path)
    yield store
    await store.stop()


@pytest.fixture
async def memory() -> MemoryStore:
    memory = MemoryStore()
    await memory.start()
    await memory.create("c", 2)
    return memory


def by_id(hits: Sequence[Hit]) -> dict[str, Any]:
    return {hit.chunk.id: (hit.chunk, pytest.approx(hit.score, rel=1e-5, abs=1e-6)) for hit in hits}


async def found(store: VectorStore, scope: Scope, where: Filter | None, limit: int = 1000) -> list[Sequence[Hit]]:
    dense = await store.search_dense("c", vectors((2, 1)), limit=limit, scope=scope, where=where)
    return [dense, await store.search_text("c", QUERY, limit=limit, scope=scope, where=where)]


async def check_same(store: MilvusStore, memory: MemoryStore) -> None:
    for scope in (EVERYONE, ALICE, Scope(tenant="other")):
        for where in (None, ODD):
            for ours, exact in zip(await found(store, scope, where), await found(memory, scope, where), strict=True):
                assert {hit.chunk.id: (hit.chunk, hit.score) for hit in ours} == by_id(exact)
                assert [hit.score for hit in ours] == sorted((hit.score for hit in ours), reverse=True)


async def scores(folder: Path, groups: list[range]) -> dict[str, float]:
    """By text what a search finds; each group was sealed by itself."""
    store = await opened(folder)
    for group in groups:
        await store.upsert("c", [chunk(i, TEXTS[i]) for i in group], vectors(*[(1, 0)] * len(group)))
        await store.seal("c")
    hits = await store.search_text("c", QUERY, limit=24, scope=EVERYONE)
    await store.stop()
    return {hit.chunk.text: hit.score for hit in hits}


async def test_the_same_documents_score_the_same_however_they_came(tmp_path: Path, memory: MemoryStore) -> None:
    await memory.upsert("c", [chunk(i, text) for i, text in enumerate(TEXTS)], vectors(*[(1, 0)] * 24))
    exact = {hit.chunk.text: hit.score for hit in await memory.search_text("c", QUERY, limit=24, scope=EVERYONE)}
    at_once = await scores(tmp_path / "one", [range(24)])
    in_parts = await scores(tmp_path / "parts", [range(2), range(2, 12), range(12, 13), range(13, 24)])
    assert at_once == pytest.approx(exact, rel=1e-5)
    assert in_parts == pytest.approx(exact, rel=1e-5)


async def test_rows_that_are_not_sealed_yet_score_as_if_they_were(tmp_path: Path) -> None:
    await scores(tmp_path, [range(12), range(12, 20)])
    store = await opened(tmp_path)
    await store.upsert("c", [chunk(i, TEXTS[i]) for i in range(20, 24)], vectors(*[(1, 0)] * 4))
    hits = await store.search_text("c", QUERY, limit=24, scope=EVERYONE)
    await store.stop()
    assert {hit.chunk.text: hit.score for hit in hits} == pytest.approx(await scores(tmp_path / "new", [range(24)]))


async def test_a_collection_without_rows_is_searched_without_harm(store: MilvusStore) -> None:
    assert await found(store, EVERYONE, None) == [[], []]
    await store.seal("c")
    assert await found(store, EVERYONE, ODD) == [[], []]


@pytest.mark.parametrize("seed", range(4))
async def test_after_any_changes_searches_find_what_the_memory_store_finds(
    store: MilvusStore, memory: MemoryStore, seed: int
) -> None:
    dice = random.Random(seed)
    for _ in range(12):
        await change_both(dice, store, memory)
        await check_same(store, memory)


async def change_both(dice: random.Random, *stores: VectorStore) -> None:
    file_id, kind = f"file-{dice.randrange(4)}", dice.randrange(6)
    readers = dice.choice([("*",), ("user:alice",), ("user:bob",)])
    positions = dice.sample(range(12), dice.randint(1, 6))
    attributes = {"odd": bool(dice.randrange(2))}
    chunks = [chunk(i, dice.choice(TEXTS), file_id=file_id, readers=readers, attributes=attributes) for i in positions]
    points = vectors(*((dice.uniform(-1, 1), dice.uniform(-1, 1)) for _ in positions))
    for store in stores:
        if kind < 3:
            await store.upsert("c", chunks, points)
        elif kind == 3:
            await store.delete_file("c", file_id)
        elif kind == 4:
            await store.set_readers("c", file_id, readers)
        else:
            await store.set_attributes("c", file_id, attributes)
    if dice.randrange(2):
        for store in stores:
            await store.seal("c")


async def test_segments_that_milvus_lite_has_merged_are_searched_in_their_place(
    store: MilvusStore, memory: MemoryStore
) -> None:
    engine, segments = engine_of(store), []
    for number in range(6):
        for each in (store, memory):
            chunks = [chunk(i, TEXTS[number * 4 + i], file_id=f"file-{number}") for i in range(4)]
            await each.upsert("c", chunks, vectors(*((1, number + i) for i in range(4))))
            await each.delete_file("c", f"file-{number - 3}")
            await each.seal("c")
        engine._wait_for_bg(timeout=60)
        segments.append(len(engine._segment_cache))
        await check_same(store, memory)
    assert min(after - before for before, after in pairwise(segments)) < 0, "nothing was merged"


async def test_milvus_lites_own_search_finds_the_same(store: MilvusStore) -> None:
    """It ranks words by the segment, so there may be only one."""
    chunks = [chunk(i, text, attributes={"odd": bool(i % 2)}) for i, text in enumerate(TEXTS)]
    await store.upsert("c", chunks, vectors(*((1, i) for i in range(24))))
    await store.seal("c")
    database, where = store._database, row_filter(EVERYONE, ODD)
    dense, text = await found(store, EVERYONE, ODD, limit=5)
    theirs = database._search("c", "dense", list(unit(2, 1)), where, 5)
    assert [(hit.chunk, pytest.approx(hit.score, rel=1e-5)) for hit in theirs] == [(h.chunk, h.score) for h in dense]
    theirs = database._search("c", "sparse", QUERY.replace("valve", "valv"), where, 24)
    assert {hit.chunk.id: pytest.approx(-hit.score, rel=1e-5) for hit in theirs if hit.score}.items() >= {
        hit.chunk.id: hit.score for hit in text
    }.items()


def unit(x: float, y: float) -> tuple[float, float]:
    length = (x * x + y * y) ** 0.5
    return x / length, y / length


async def test_more_filters_than_are_remembered_stay_right(store: MilvusStore) -> None:
    chunks = [chunk(i, "pump", attributes={"n": i}) for i in range(40)]
    await store.upsert("c", chunks, vectors(*[(1, 0)] * 40))
    for number in [*range(40), 0, 39]:
        where = Comparison(key="n", type="eq", value=number)
        for hits in await found(store, EVERYONE, where):
            assert [hit.chunk.position for hit in hits] == [number]


async def test_conditions_of_any_size_are_remembered_in_a_few_bytes(store: MilvusStore) -> None:
    await store.upsert("c", [chunk(0, "pump", readers=("user:0",))], vectors((1, 0)))
    many = Scope(readers=tuple(f"user:{i}" for i in range(1000)))
    assert [len(hits) for hits in await found(store, many, None)] == [1, 1]
    keys = [key for part in store._database._indexes["c"]._state.parts for key in part.masks]
    assert keys
    assert max(map(len, keys)) <= 64
    with store._database.lite.reading("c") as collection:
        assert len(collection._filter_cache) == 0  # it would keep 256 of them, compiled, in every collection


async def test_the_best_come_in_the_order_of_their_rows_where_scores_are_equal(store: MilvusStore) -> None:
    await store.upsert("c", [chunk(i, "pump") for i in range(9)], vectors(*[(1, 0)] * 9))
    for hits in await found(store, EVERYONE, None, limit=4):
        assert [hit.chunk.position for hit in hits] == [0, 1, 2, 3]


def engine_of(store: MilvusStore) -> Any:
    assert store._database.lite is not None
    with store._database.lite.reading("c") as engine:
        return engine
