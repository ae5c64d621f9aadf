"""D6: how many chunks a tenant may keep, counted where they are made."""

from __future__ import annotations

import pytest
from eventually import until
from knowledge_kit import Stack, all_indexed, jobs_left, stack
from reindex_kit import TwoModels, new_model, old_model

from appliance.knowledge.indexing import WRITE_CHUNKS
from appliance.storage import kept as rows
from appliance.storage import store_files
from appliance.testing.scripted_embedder import ScriptedEmbedder

QUOTA = "limits: {max_stored_chunks: 10}\nauth: {tenants: {default: {}, large: {max_stored_chunks: 1000}}}\n"


def text_of(chunks: int, word: str = "word") -> str:
    """A text that is cut into so many chunks of ten words."""
    return " ".join(f"{word}{i}" for i in range(10 * chunks))


async def put(made: Stack, store: str, chunks: int, tenant: str = "default") -> str:
    file = await made.upload(text_of(chunks), tenant=tenant)
    await made.attach(store, file, tenant, size=10)
    return file


async def kept(made: Stack, tenant: str = "default") -> int:
    async with made.database.session(write=False) as session:
        return await rows.number(session, rows.CHUNKS, tenant)


async def test_D6_a_file_over_the_quota_of_chunks_fails_by_name_leaves_nothing_and_holds_nobody_up(tmp_path) -> None:
    async with stack(tmp_path, more=QUOTA) as made:
        store = await made.make_store()
        rows = [await made.settled(store, await put(made, store, chunks)) for chunks in (6, 6, 4)]
        assert [(row.status, row.chunks) for row in rows] == [("completed", 6), ("failed", 0), ("completed", 4)]
        assert rows[1].error_code == "server_error"
        assert "more than 10 chunks (max_stored_chunks)" in rows[1].error_message
        assert await made.backend.count(store) == await kept(made) == 10
        assert await jobs_left(made) == 0


async def test_D6_what_is_taken_out_makes_room_and_a_file_that_failed_can_be_attached_again(tmp_path) -> None:
    async with stack(tmp_path, more=QUOTA) as made:
        store = await made.make_store()
        first = await put(made, store, 6)
        assert (await made.settled(store, first)).status == "completed"
        second = await put(made, store, 6)
        assert (await made.settled(store, second)).status == "failed"
        await made.knowledge.remove_file(store, first)
        await made.knowledge.remove_file(store, second)
        assert await kept(made) == 0
        await made.attach(store, second, size=10)
        assert (await made.settled(store, second)).status == "completed"
        assert await made.backend.count(store) == await kept(made) == 6


async def test_D6_files_that_are_indexed_at_the_same_time_see_each_others_chunks(tmp_path) -> None:
    embedder = ScriptedEmbedder()
    async with stack(tmp_path, embedder, more=QUOTA) as made:
        store = await made.make_store()
        embedder.hold_from = len(embedder.calls)
        first = await put(made, store, 6)
        await until(lambda: len(embedder.calls) > 0)
        assert await kept(made) == 6, "a file that is not whole yet counts"
        second = await put(made, store, 6)
        assert (await made.settled(store, second)).status == "failed"
        embedder.release()
        assert (await made.settled(store, first)).status == "completed"
        assert await made.backend.count(store) == await kept(made) == 6


async def test_D6_a_long_file_is_given_up_where_the_quota_ends_and_what_was_written_of_it_goes(tmp_path) -> None:
    embedder = ScriptedEmbedder(batch_size=WRITE_CHUNKS)
    quota = f"limits: {{max_stored_chunks: {2 * WRITE_CHUNKS}}}\n"
    async with stack(tmp_path, embedder, more=quota) as made:
        store = await made.make_store()
        file = await put(made, store, 4 * WRITE_CHUNKS)
        row = await made.settled(store, file)
        assert (row.status, row.chunks) == ("failed", 0)
        assert sum(embedder.calls) <= 2 * WRITE_CHUNKS, "what does not fit is not embedded either"
        assert await made.backend.count(store) == await kept(made) == 0


async def test_D6_a_file_that_is_cancelled_while_it_is_indexed_counts_no_more(tmp_path) -> None:
    embedder = ScriptedEmbedder()
    async with stack(tmp_path, embedder, more=QUOTA) as made:
        store = await made.make_store()
        embedder.hold_from = len(embedder.calls)
        file = await put(made, store, 6)
        await until(lambda: len(embedder.calls) > 0)
        async with made.database.tenant("default") as session:
            await store_files.cancel(session, store, [file])
        made.knowledge.wake()
        await until(lambda: all_indexed(made))
        embedder.release()
        assert (await made.row(store, file)).status == "cancelled"
        assert await kept(made) == 0


async def test_D6_what_a_worker_held_when_it_ended_is_not_counted_against_the_file_itself(tmp_path) -> None:
    embedder = ScriptedEmbedder()
    async with stack(tmp_path, embedder, more=QUOTA) as made:
        store = await made.make_store()
        embedder.hold_from = len(embedder.calls)
        file = await put(made, store, 10)
        await until(lambda: len(embedder.calls) > 0)
    assert embedder.hold_from is not None, "it ended while the file was indexed"
    async with stack(tmp_path, more=QUOTA) as made:
        assert (await made.settled(store, file)).status == "completed"
        assert await made.backend.count(store) == await kept(made) == 10


async def test_D6_each_tenant_has_its_own_quota_of_chunks(tmp_path) -> None:
    async with stack(tmp_path, more=QUOTA) as made:
        stores = {tenant: await made.make_store(tenant) for tenant in ("default", "large")}
        files = {tenant: await put(made, stores[tenant], 11, tenant) for tenant in stores}
        statuses = {tenant: (await made.settled(stores[tenant], files[tenant])).status for tenant in stores}
        assert statuses == {"default": "failed", "large": "completed"}
        assert (await kept(made), await kept(made, "large")) == (0, 11)


async def test_D6_a_file_that_is_indexed_again_counts_once(tmp_path) -> None:
    async with stack(tmp_path, more=QUOTA) as made:
        store = await made.make_store()
        file = await put(made, store, 10)
        assert (await made.settled(store, file)).status == "completed"
        await made.backend.drop(store)
        assert (await made.knowledge.reconcile(repair=True)).orphans == 1
        assert (await made.settled(store, file)).status == "completed"
        assert await kept(made) == 10


class WithQuota(TwoModels):
    """Two models, and a quota of ten chunks."""

    def __init__(self, folder) -> None:
        models = {"old": old_model(), "new": new_model()}
        super().__init__(folder, models, store="memory", backend=None, more=QUOTA)


async def test_D6_a_store_that_is_full_can_be_indexed_by_another_model_beside_itself(tmp_path) -> None:
    made = WithQuota(tmp_path)
    await made.start()
    try:
        store = await made.make_store()
        file = await put(made, store, 10)
        assert (await made.settled(store, file)).status == "completed"
        await made.begin(store)
        await made.served_by(store, "new")
        assert await kept(made) == 10
        other = await put(made, store, 1)
        assert (await made.settled(store, other)).status == "failed"
        await made.knowledge.remove_file(store, file)
        other = await put(made, store, 10)
        assert (await made.settled(store, other)).status == "completed"
    finally:
        await made.stop()


@pytest.mark.parametrize("quota", ["", QUOTA])
async def test_D6_without_a_quota_a_file_is_not_counted_while_it_is_indexed(tmp_path, quota) -> None:
    embedder = ScriptedEmbedder()
    async with stack(tmp_path, embedder, more=quota) as made:
        store = await made.make_store()
        embedder.hold_from = len(embedder.calls)
        file = await put(made, store, 6)
        await until(lambda: len(embedder.calls) > 0)
        assert await kept(made) == (6 if quota else 0)
        embedder.release()
        assert (await made.settled(store, file)).status == "completed"
        assert await kept(made) == 6
