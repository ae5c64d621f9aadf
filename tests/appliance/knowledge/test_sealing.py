"""Files are completed in groups, once their chunks are safe from a crash."""

import pytest
from eventually import until
from knowledge_kit import embedding, long_text, stack

from appliance.errors import RetrievalUnavailable
from appliance.knowledge import sealing
from appliance.storage import store_files
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Scope


@pytest.fixture
async def made(tmp_path):
    async with stack(tmp_path) as running:
        yield running


async def test_files_are_sealed_in_groups_and_completed_only_then(made, monkeypatch) -> None:
    store = await made.make_store()
    seals, original = [], made.backend.seal

    async def seal(collection):
        async with made.database.tenant("default", write=False) as session:
            rows, _ = await store_files.page(session, store, _Everything())
        seals.append(sum(row.status == "completed" for row in rows))
        if len(seals) == 1:  # held until all is written, so that what follows does not hang on how fast that is
            await until(lambda: written(40), 60)
        await original(collection)

    async def written(number: int) -> bool:
        return await made.backend.count(store) == number

    monkeypatch.setattr(made.backend, "seal", seal)
    files = [await made.upload(f"file {i}") for i in range(40)]
    for file in files:
        await made.attach(store, file)
    for file in files:
        await made.settled(store, file)
    assert len(seals) <= 6  # of at most 16 files each, the first and the last perhaps of fewer
    assert seals[0] == 0
    assert await made.backend.count(store) == 40


class _Everything:
    limit, order, after, before = 1000, "asc", None, None


async def test_a_failed_seal_is_tried_again(made, monkeypatch) -> None:
    monkeypatch.setattr(sealing, "_RETRY_SECONDS", 0.05)
    store = await made.make_store()
    tries, original = [], made.backend.seal

    async def seal(collection):
        tries.append(1)
        if len(tries) < 3:
            raise RetrievalUnavailable("down")
        await original(collection)

    monkeypatch.setattr(made.backend, "seal", seal)
    file = await made.add(store, "sealed")
    assert (await made.row(store, file)).status == "completed"
    assert len(tries) == 3


async def test_attributes_changed_during_ingestion_arrive(tmp_path) -> None:
    async with stack(tmp_path, ScriptedEmbedder(batch_size=10, hold_from=4)) as made:
        store = await made.make_store()
        file = await made.upload(long_text(20_000))
        await made.attach(store, file, colour="red")
        await until(lambda: embedding(made))
        await made.knowledge.set_attributes(store, file, {"colour": "blue"})
        made.embedder.release()
        await made.settled(store, file)
        chunks = await made.knowledge.content(store, file, Scope())
        assert {chunk.attributes["colour"] for chunk in chunks} == {"blue"}
        assert (await made.row(store, file)).attributes == {"colour": "blue"}
        await made.knowledge.set_attributes(store, file, {"colour": "green"})
        chunks = await made.knowledge.content(store, file, Scope())
        assert {chunk.attributes["colour"] for chunk in chunks} == {"green"}
