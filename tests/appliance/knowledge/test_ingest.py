"""From an attached file to a searchable one."""

import asyncio

import pytest
from eventually import until
from knowledge_kit import embedding, jobs_left, long_text, stack
from sqlalchemy import update

from appliance.errors import Conflict, NotFound, RetrievalUnavailable
from appliance.knowledge import ingest
from appliance.storage.tables import Job
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Scope, Search, StoredChunk


@pytest.fixture
async def made(tmp_path):
    async with stack(tmp_path) as running:
        yield running


async def test_an_attached_file_becomes_searchable_and_its_job_goes(made) -> None:
    store = await made.make_store()
    file = await made.add(store, "the zebrafinch sings at dawn", "birds.txt", kind="bird")
    row = await made.row(store, file)
    assert (row.status, row.chunks) == ("completed", 1)
    assert row.usage_bytes == len("the zebrafinch sings at dawn") + made.embedder.dimensions * 4
    (found,) = await made.search(store, "zebrafinch")
    assert (found.file_id, found.filename, found.matched, found.attributes) == (
        file,
        "birds.txt",
        True,
        {"kind": "bird"},
    )
    assert found.chunk_id == f"{file}:{row.version}:0"
    assert await jobs_left(made) == 0


async def test_o19_a_file_without_text_fails_and_says_so(made) -> None:
    store = await made.make_store()
    file = await made.upload("  \n \n", "empty.txt")
    await made.attach(store, file)
    row = await made.settled(store, file)
    assert (row.status, row.error_code, row.usage_bytes) == ("failed", "invalid_file", 0)
    assert row.error_message
    assert await made.backend.count(store) == 0
    assert await jobs_left(made) == 0


async def test_a_file_whose_bytes_are_gone_fails(made) -> None:
    store = await made.make_store()
    file = await made.upload("text")
    made.blobs.remove(file)
    await made.attach(store, file)
    row = await made.settled(store, file)
    assert (row.status, row.error_code) == ("failed", "server_error")


async def test_o23_attaching_twice_at_once_makes_one_row_and_one_set_of_chunks(made) -> None:
    store = await made.make_store()
    file = await made.upload("only once")
    await asyncio.gather(*(made.attach(store, file) for _ in range(10)))
    await made.settled(store, file)
    await made.attach(store, file)
    assert await jobs_left(made) == 0
    assert await made.backend.count(store) == 1


@pytest.mark.slow
async def test_o29_a_busy_strict_embedder_gets_every_chunk_once_and_in_place(tmp_path) -> None:
    embedder = ScriptedEmbedder(max_batch=10, busy={100}, retry_after=0.3)
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        text = " ".join(f"word{i}" for i in range(205_000))
        file = await made.upload(text)
        await made.attach(store, file)
        row = await made.settled(store, file, within=60)
        assert (row.status, row.chunks) == ("completed", 2050)
        chunks = await made.knowledge.content(store, file, Scope())
        assert [chunk.position for chunk in chunks] == list(range(2050))
        rows = made.backend._collections[store].rows
        assert all(rows[chunk.id].vector.tobytes() == embedder.vector(chunk.text) for chunk in chunks)
        assert sum(1 for size in embedder.calls if size > 10) < 10  # the limit is learned


async def test_o29_a_failure_halfway_leaves_no_half_indexed_file(tmp_path, monkeypatch) -> None:
    embedder = ScriptedEmbedder(batch_size=10)
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        original = embedder.embed

        async def breaks(inputs, *, bulk=False):
            if len(embedder.calls) >= 60:
                raise ValueError("out of order")
            return await original(inputs, bulk=bulk)

        monkeypatch.setattr(embedder, "embed", breaks)
        monkeypatch.setattr(ingest, "_UNEXPECTED_ATTEMPTS", 1)
        file = await made.upload(long_text(100_000))
        await made.attach(store, file)
        row = await made.settled(store, file)
        assert (row.status, row.error_code, row.usage_bytes) == ("failed", "server_error", 0)
        assert "out of order" not in row.error_message
        assert await made.backend.count(store) == 0


async def test_a_backend_that_is_out_of_reach_only_delays(made, monkeypatch) -> None:
    store = await made.make_store()
    calls = []
    original = made.backend.upsert

    async def flaky(*args):
        calls.append(1)
        if len(calls) == 1:
            raise RetrievalUnavailable("down", retry_after=0.1)
        await original(*args)

    monkeypatch.setattr(made.backend, "upsert", flaky)
    file = await made.add(store, "patience")
    assert (await made.row(store, file)).status == "completed"
    assert len(calls) == 2


async def test_what_is_worked_on_is_not_begun_twice_however_long_the_queue_was_not_looked_at(tmp_path) -> None:
    embedder = ScriptedEmbedder(hold_from=0)
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        file = await made.upload("zebrafinch")
        await made.attach(store, file)
        await until(lambda: len(embedder.calls) > 0)
        ingestor = made.knowledge._ingestor
        begun = list(ingestor._running.values())
        ingestor._renewed = float("-inf")
        async with made.database.session() as session:
            await session.execute(update(Job).values(lease_expires=1))
        await ingestor._claim()
        assert list(ingestor._running.values()) == begun
        embedder.release()
        assert (await made.settled(store, file)).status == "completed"
        assert len(embedder.calls) == 1


async def test_a_stopped_worker_is_taken_over_at_once(tmp_path) -> None:
    async with stack(tmp_path, ScriptedEmbedder(batch_size=10, hold_from=4)) as made:
        store = await made.make_store()
        file = await made.upload(long_text(20_000))
        await made.attach(store, file)
        await until(lambda: embedding(made))
    async with stack(tmp_path) as again:
        row = await again.settled(store, file)
        assert (row.status, row.chunks) == ("completed", 200)
        assert await again.backend.count(store) == 200


async def test_F9_o24_another_embedding_model_is_a_409_that_names_both_and_mixes_nothing_in(tmp_path) -> None:
    async with stack(tmp_path, ScriptedEmbedder(fingerprint="old")) as made:
        store = await made.make_store()
        await made.add(store, "zebrafinch")
    async with stack(tmp_path, ScriptedEmbedder(fingerprint="new", dimensions=32)) as again:
        with pytest.raises(Conflict, match=r"64 numbers.*32 numbers.*reindex"):
            await again.search(store, "zebrafinch")
        file = await again.upload("more")
        await again.attach(store, file)
        row = await again.settled(store, file)
        assert row.status == "failed"
        assert "reindex" in row.error_message


async def test_another_tenants_store_does_not_exist(made) -> None:
    store = await made.make_store()
    file = await made.add(store, "secret zebrafinch")
    other = Scope(tenant="other")
    with pytest.raises(NotFound):
        await made.knowledge.search(Search(store_ids=(store,), queries=("zebrafinch",)), other)
    with pytest.raises(NotFound):
        await made.knowledge.content(store, file, other)


async def test_an_expired_store_refuses_searches_and_files(made) -> None:
    store = await made.make_store(expires_days=0)
    file = await made.upload("late")
    with pytest.raises(Conflict, match="expired"):
        await made.search(store, "late")
    with pytest.raises(Conflict, match="expired"):
        await made.attach(store, file)


async def test_chunks_of_a_file_that_is_not_completed_are_not_shown(made) -> None:
    store = await made.make_store()
    await made.add(store, "zebrafinch one")
    late = StoredChunk(id="x:1:0", file_id="file-x", position=0, text="zebrafinch late")
    await made.backend.upsert(store, [late], made.embedder.vector(late.text))
    assert [found.text for found in await made.search(store, "zebrafinch late")] == ["zebrafinch one"]


async def test_this_process_stands_back_while_files_are_ingested(tmp_path) -> None:
    told: list[bool] = []

    def stand_back(busy: bool) -> bool:
        told.append(busy)
        return len(told) > 1  # the kernel takes no change the first time

    async with stack(tmp_path, ScriptedEmbedder(hold_from=0), stand_back=stand_back) as made:
        store = await made.make_store()
        file = await made.upload("zebrafinch")
        await made.attach(store, file)
        await until(lambda: told == [True, True])
        made.embedder.release()
        await made.settled(store, file)
        await until(lambda: told == [True, True, False])


async def test_a_second_worker_on_the_same_folder_waits_for_the_first(tmp_path, monkeypatch) -> None:
    from appliance.errors import StartError
    from appliance.knowledge.lease import WorkerLock

    first, second = WorkerLock(tmp_path), WorkerLock(tmp_path)
    name = await first.acquire()
    with pytest.raises(StartError, match="another worker"):
        await second.acquire(timeout=0.1)
    first.release()
    assert await second.acquire() == name
    second.release()
