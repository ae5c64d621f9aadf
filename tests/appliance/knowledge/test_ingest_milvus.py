"""Ingestion and removal against the real Milvus Lite."""

import pytest
from eventually import until
from knowledge_kit import long_text, stack

from appliance.knowledge.filters import Comparison
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Access, Scope, Search

pytestmark = pytest.mark.slow


async def test_o22_a_removed_file_stays_gone_over_a_restart(tmp_path) -> None:
    async with stack(tmp_path, store="milvus") as made:
        store = await made.make_store()
        a, b = await made.add(store, "zebrafinch one"), await made.add(store, "zebrafinch two")
        await made.knowledge.remove_file(store, a)
        assert {found.file_id for found in await made.search(store, "zebrafinch")} == {b}
    async with stack(tmp_path, store="milvus") as again:
        assert {found.file_id for found in await again.search(store, "zebrafinch")} == {b}
        assert await again.backend.count(store) == 1
        await again.attach(store, a)
        await again.settled(store, a)
        assert {found.file_id for found in await again.search(store, "zebrafinch")} == {a, b}
        assert await again.backend.count(store) == 2


async def test_o22_removal_during_ingestion_leaves_no_late_chunk(tmp_path) -> None:
    """Just as the held calls of the embedder go on, so that some are removed while their chunks are written."""
    embedder = ScriptedEmbedder(batch_size=20)
    async with stack(tmp_path, embedder, store="milvus") as made:
        store = await made.make_store()
        for place in (0, 0, 1, 4, 12):
            file = await made.upload(long_text(40_000))
            embedder.hold_from = len(embedder.calls) + place
            await made.attach(store, file)
            await until(lambda: len(embedder.calls) > embedder.hold_from)
            written = await made.backend.count(store)
            embedder.release()
            if place == 1:  # amid the writing of the next chunks

                async def more(written: int = written) -> bool:
                    return await made.backend.count(store) > written

                await until(more)
            await made.knowledge.remove_file(store, file)
            assert await made.backend.count(store) == 0
        await made.add(store, "what comes after all of it")
        assert await made.backend.count(store) == 1


async def test_o23_equal_texts_keep_their_own_attributes_and_an_update_moves_only_its_own(tmp_path) -> None:
    async with stack(tmp_path, store="milvus") as made:
        store = await made.make_store()
        a, b = await made.add(store, "port: 80", dir="a", n=1), await made.add(store, "port: 80", dir="b", n=True)
        for value, file in (("a", a), ("b", b)):
            found = await made.search(store, "port", where=Comparison("dir", "eq", value))
            assert [hit.file_id for hit in found] == [file]
        assert [hit.file_id for hit in await made.search(store, "port", where=Comparison("n", "eq", True))] == [b]
        await made.knowledge.set_attributes(store, a, {"dir": "c"})
        assert await made.search(store, "port", where=Comparison("dir", "eq", "a")) == []
        (chunk,) = await made.knowledge.content(store, a, Scope())
        assert chunk.attributes == {"dir": "c"}


async def test_b16_access_is_in_the_chunks_and_changes_without_embedding(tmp_path) -> None:
    async with stack(tmp_path, store="milvus") as made:
        store = await made.make_store()
        file, other = await made.add(store, "zebrafinch one"), await made.add(store, "zebrafinch two")
        embedded = len(made.embedder.calls)
        await made.knowledge.set_access(store, file, Access(users=("alice",), groups=("hr",)))
        assert len(made.embedder.calls) == embedded
        search = Search(store_ids=(store,), queries=("zebrafinch",))
        for readers, expected, denied in (
            (("*", "user:bob"), {other}, 1),
            (("*", "user:Alice", "group:h%"), {other}, 1),
            (("*", "user:alice"), {file, other}, 0),
            (("group:hr",), {file}, 0),
        ):
            found = await made.knowledge.search(search, Scope(readers=readers))
            assert ({hit.file_id for hit in found.passages}, found.denied) == (expected, denied)
        await made.knowledge.set_access(store, file, Access(public=True))
        assert {hit.file_id for hit in await made.search(store, "zebrafinch")} == {file, other}
        assert (await made.knowledge.reconcile(repair=False)).orphans == 0


async def test_a_file_of_thousands_of_chunks_reads_back_whole_and_in_order(tmp_path) -> None:
    async with stack(tmp_path, store="milvus") as made:
        store = await made.make_store()
        text = long_text(150_000)
        file = await made.upload(text)
        await made.attach(store, file)
        row = await made.settled(store, file, within=60)
        assert (row.status, row.chunks) == ("completed", 1500)
        chunks = await made.knowledge.content(store, file, Scope())
        assert " ".join(chunk.text for chunk in chunks) == text
        (first, *_) = await made.search(store, "word149999", embedding_weight=0.0)
        assert "word149999" in first.text
