"""Store names, leases of others, jobs that never end, and embedding without a vector store."""

import msgspec
import pytest
from knowledge_kit import Stack, stack
from sqlalchemy import update

from appliance.config import parse
from appliance.context import AppContext
from appliance.errors import NotFound, RetrievalUnavailable
from appliance.knowledge.local import LocalKnowledge
from appliance.knowledge.separation import SeparateStores
from appliance.knowledge.stores import StoreDirectory
from appliance.plugins import Plugins
from appliance.storage import jobs, stores
from appliance.storage.database import Database
from appliance.storage.ids import now
from appliance.storage.tables import Job
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Scope, Search


async def test_names_become_ids_and_ids_stay(tmp_path) -> None:
    async with stack(tmp_path) as made:
        row, foreign = stores.new("handbook", "words"), stores.new("theirs", "words")
        for tenant, store in (("default", row), ("other", foreign)):
            async with made.database.tenant(tenant) as session:
                session.add(store)
        directory = StoreDirectory(made.database)
        assert await directory.resolve(Scope(), ["vs_x", "handbook", row.id, "vs_x"]) == ("vs_x", row.id)
        for name in ("theirs", "unknown"):
            with pytest.raises(NotFound, match=name):
                await directory.resolve(Scope(), [name])


async def queued(folder, **values: object) -> tuple[str, str]:
    """A file whose job no worker has seen, for none runs yet."""
    made = Stack(folder, ScriptedEmbedder(), "memory")
    await made.database.start()
    made.blobs.start()
    store, file = await made.make_store(), await made.upload("zebrafinch")
    await made.attach(store, file)
    async with made.database.session() as session:
        await session.execute(update(Job).values(**values))
    await made.database.stop()
    return store, file


async def test_a_file_that_keeps_ending_the_worker_fails_in_the_end(tmp_path) -> None:
    store, file = await queued(tmp_path, attempts=jobs.MAX_ATTEMPTS)
    async with stack(tmp_path) as made:
        row = await made.settled(store, file)
    assert (row.status, row.error_code) == ("failed", "server_error")
    assert "25 times" in row.error_message


async def test_a_lease_of_another_worker_is_respected_until_it_runs_out(tmp_path) -> None:
    store, file = await queued(tmp_path, owner="another", lease_expires=now() + 600)
    async with stack(tmp_path) as made:
        async with made.database.session(write=False) as session:
            assert not await jobs.due(session, "memory")
        assert (await made.row(store, file)).status == "in_progress"
        async with made.database.session() as session:
            await session.execute(update(Job).values(lease_expires=now() - 1))
        assert (await made.settled(store, file)).status == "completed"


async def test_b5_separate_tenants_have_a_vector_store_each(tmp_path) -> None:
    made = Stack(tmp_path, ScriptedEmbedder(), "memory")
    retrieval = msgspec.structs.replace(made.config.retrieval, separate_tenants=True)
    config = msgspec.structs.replace(made.config, retrieval=retrieval)
    made.knowledge = LocalKnowledge(made.plugins, AppContext(config=config, database=made.database))
    await made.start()
    kept = {}
    for tenant in ("default", "b"):
        store, file = await made.make_store(tenant), await made.upload(f"zebrafinch of {tenant}", tenant=tenant)
        await made.attach(store, file, tenant)
        assert (await made.settled(store, file)).status == "completed"
        found = await made.backend.search_text(store, "zebrafinch", limit=5, scope=Scope(tenant))
        assert [hit.chunk.text for hit in found] == [f"zebrafinch of {tenant}"]
        kept[tenant] = store
    backend = made.backend
    assert isinstance(backend, SeparateStores)
    for tenant, store in kept.items():
        assert await backend._stores[tenant].count(store) == 1
        assert [await other.count(store) for name, other in backend._stores.items() if name != tenant] == [0]
    await made.knowledge.remove_store(kept["b"])
    assert await backend._stores["b"].count(kept["b"]) == 0
    assert await backend.count(kept["default"]) == 1
    await made.stop()


async def test_without_a_vector_store_texts_can_still_be_embedded(tmp_path) -> None:
    config = parse("models: [{name: words, embedder: scripted_embedder}]", folder=tmp_path)
    embedder = ScriptedEmbedder()
    context = AppContext(config=config, database=Database(config.database_url))
    plugins = Plugins(config, {"scripted_embedder": embedder})
    plugins.bind(context)
    knowledge = LocalKnowledge(plugins, context)
    await knowledge.start()
    assert (await knowledge.embed("words", ["a"])).vectors == embedder.vector("a")
    with pytest.raises(RetrievalUnavailable, match=r"retrieval\.vector_store"):
        await knowledge.search(Search(store_ids=("vs_x",), queries=("a",)), Scope())
    await knowledge.stop()
    assert not knowledge.ready
