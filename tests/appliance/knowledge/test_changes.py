"""Files and stores are taken out, and changed, whatever is being done to them (O-22)."""

import asyncio
import itertools

import pytest
from eventually import until
from knowledge_kit import embedding, jobs_left, long_text, stack

from appliance.errors import NotFound, RetrievalUnavailable
from appliance.knowledge import ingest
from appliance.storage import store_files, stores
from appliance.storage.tables import VectorStore
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Access, Scope, Search


@pytest.fixture
async def made(tmp_path):
    async with stack(tmp_path) as running:
        yield running


@pytest.fixture
async def often_tidied(tmp_path, monkeypatch):
    """What is otherwise done every minute is done at once."""
    monkeypatch.setattr(ingest, "_TIDY_SECONDS", 0.05)
    async with stack(tmp_path) as running:
        yield running


async def test_o22_a_removed_file_is_found_no_more_and_can_be_attached_again(made) -> None:
    store = await made.make_store()
    a = await made.add(store, "zebrafinch one")
    b = await made.add(store, "zebrafinch two")
    await made.knowledge.remove_file(store, a)
    assert [found.file_id for found in await made.search(store, "zebrafinch")] == [b]
    assert await made.row(store, a) is None
    await made.attach(store, a)
    await made.settled(store, a)
    assert {found.file_id for found in await made.search(store, "zebrafinch")} == {a, b}
    assert await made.backend.count(store) == 2


async def test_o22_removal_during_ingestion_leaves_no_late_chunk(tmp_path) -> None:
    """Removed before it is claimed, while calls of the embedder are held, and just as they go on."""
    embedder = ScriptedEmbedder(batch_size=10)
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        for place, goes_on in itertools.product((None, 0, 1, 7, 40), (False, True)):
            file = await made.upload(long_text(60_000))
            first = len(embedder.calls)
            embedder.hold_from = first + (place or 0)
            await made.attach(store, file)
            if place is not None:
                await until(lambda last=first + place: len(embedder.calls) > last)
            if goes_on:
                embedder.release()
            await made.knowledge.remove_file(store, file)
            assert await made.backend.count(store) == 0
            assert await made.row(store, file) is None
        embedder.release()
        last = await made.add(store, "what comes after all of it")
        assert {chunk.file_id for chunk in await made.backend.chunks(store, last, scope=Scope())} == {last}
        assert await made.backend.count(store) == 1
        assert await jobs_left(made) == 0


async def test_o22_a_removal_that_fails_is_seen_and_can_be_repeated(made, monkeypatch) -> None:
    store = await made.make_store()
    file = await made.add(store, "zebrafinch")

    async def down(*_: object) -> None:
        raise RetrievalUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(made.backend, "delete_file", down)
        with pytest.raises(RetrievalUnavailable):
            await made.knowledge.remove_file(store, file)
    assert await made.search(store, "zebrafinch") == []
    assert await made.row(store, file) is not None
    await made.knowledge.remove_file(store, file)
    assert await made.row(store, file) is None
    assert await made.backend.count(store) == 0


async def test_o22_a_removal_that_failed_is_tried_again_until_it_is_done(often_tidied, monkeypatch) -> None:
    made = often_tidied
    store, doomed = await made.make_store(), await made.make_store()
    file = await made.add(store, "zebrafinch")
    await made.add(doomed, "zebrafinch")

    async def down(*_: object) -> None:
        raise RetrievalUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(made.backend, "delete_file", down)
        patch.setattr(made.backend, "drop", down)
        with pytest.raises(RetrievalUnavailable):
            await made.knowledge.remove_file(store, file)
        with pytest.raises(RetrievalUnavailable):
            await made.knowledge.remove_store(doomed)
        assert (await made.row(store, file)).removing

    async def gone() -> bool:
        async with made.database.session(write=False) as session:
            left = await session.get(VectorStore, doomed)
        return left is None and await made.row(store, file) is None

    await until(gone)
    assert await made.backend.count(store) == await made.backend.count(doomed) == 0


async def test_o22_a_store_that_does_not_answer_is_asked_once_and_keeps_no_removal_of_others_waiting(
    made, monkeypatch
) -> None:
    away, store = await made.make_store(), await made.make_store()
    files = [(away, await made.add(away, f"zebrafinch {i}")) for i in range(3)]
    files.append((store, await made.add(store, "zebrafinch")))
    async with made.database.session() as session:
        for key in files:
            await store_files.begin_removal(session, *key)
    asked, delete = [], made.backend.delete_file

    async def answers_for_one(collection: str, file_id: str) -> None:
        asked.append(collection)
        if collection == away:
            raise RetrievalUnavailable("down")
        await delete(collection, file_id)

    with monkeypatch.context() as patch:
        patch.setattr(made.backend, "delete_file", answers_for_one)
        await made.knowledge._ingestor.changes.finish_removals()
    assert sorted(asked) == sorted([away, store])
    assert [await made.row(*key) is None for key in files] == [False, False, False, True]


async def test_what_cannot_be_cleaned_up_for_any_reason_comes_up_again(made, monkeypatch) -> None:
    monkeypatch.setattr(ingest, "_RETRY_SECONDS", 0.0)
    store = await made.make_store()
    file = await made.upload("zebrafinch")
    made.blobs.remove(file)
    delete, calls = made.backend.delete_file, []

    async def breaks_once(collection: str, file_id: str) -> None:
        calls.append(file_id)
        if len(calls) == 1:
            raise ValueError("out of order")
        await delete(collection, file_id)

    monkeypatch.setattr(made.backend, "delete_file", breaks_once)
    await made.attach(store, file)
    assert (await made.settled(store, file)).status == "failed"
    assert calls == [file, file]


async def test_r30_a_change_under_way_brings_no_chunk_back_after_the_removal(made, monkeypatch) -> None:
    """As in Milvus, which reads rows and writes them again."""
    store = await made.make_store()
    file = await made.add(store, "zebrafinch")
    read, goes_on = asyncio.Event(), asyncio.Event()

    async def rewrite(collection: str, file_id: str, readers: object) -> None:
        chunks = await made.backend.chunks(collection, file_id, scope=Scope())
        read.set()
        await goes_on.wait()
        await made.backend.upsert(collection, chunks, bytes(4 * made.embedder.dimensions * len(chunks)))

    monkeypatch.setattr(made.backend, "set_readers", rewrite)
    changing = asyncio.create_task(made.knowledge.set_access(store, file, Access(users=("ada",))))
    async with asyncio.timeout(20):
        await read.wait()
    removing = asyncio.create_task(made.knowledge.remove_file(store, file))
    done, _ = await asyncio.wait({removing}, timeout=0.3)
    assert not done
    goes_on.set()
    await asyncio.gather(changing, removing)
    assert await made.backend.count(store) == 0
    assert await made.row(store, file) is None


async def test_b15_readers_that_the_vector_store_could_not_take_are_given_to_it_later(
    often_tidied, monkeypatch
) -> None:
    made = often_tidied
    store = await made.make_store()
    files = [await made.add(store, f"zebrafinch {i}") for i in range(2)]

    async def down(*_: object) -> None:
        raise RetrievalUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(made.backend, "set_readers", down)
        for file in files:
            with pytest.raises(RetrievalUnavailable):
                await made.knowledge.set_access(store, file, Access(users=("ada",)))
    search = Search(store_ids=(store,), queries=("zebrafinch",))

    async def written() -> bool:
        return not any([(await made.row(store, file)).stale for file in files])

    await until(written)
    passages = (await made.knowledge.search(search, Scope(readers=("user:ada",)))).passages
    assert {passage.file_id for passage in passages} == set(files)


async def test_r30_removing_a_file_that_is_gone_touches_no_chunk(made, monkeypatch) -> None:
    store = await made.make_store()
    file = await made.add(store, "zebrafinch")
    await made.knowledge.remove_file(store, file)
    calls: list[object] = []

    async def noted(*arguments: object) -> None:
        calls.append(arguments)

    monkeypatch.setattr(made.backend, "delete_file", noted)
    await made.knowledge.remove_file(store, file)
    assert calls == []


async def test_a_removed_store_goes_with_its_running_ingestions(tmp_path) -> None:
    async with stack(tmp_path, ScriptedEmbedder(batch_size=10, hold_from=4)) as made:
        store = await made.make_store()
        files = [await made.upload(long_text(20_000)) for _ in range(5)]
        for file in files:
            await made.attach(store, file)
        await until(lambda: embedding(made))
        await made.knowledge.remove_store(store)
        assert await jobs_left(made) == 0
        assert await made.backend.count(store) == 0
        with pytest.raises(NotFound):
            await made.search(store, "word1")
        assert made.blobs.path(files[0]).exists()


async def test_a_cancelled_file_stops_and_is_cleaned_up(tmp_path) -> None:
    async with stack(tmp_path, ScriptedEmbedder(batch_size=10, hold_from=4)) as made:
        store = await made.make_store()
        files = [await made.upload(long_text(50_000)) for _ in range(4)]
        for file in files:
            await made.attach(store, file)
        await until(lambda: embedding(made))
        async with made.database.session() as session:
            await store_files.cancel(session, store, files)
        made.knowledge.wake()

        async def clean() -> bool:
            return await jobs_left(made) == 0

        await until(clean)
        assert [(await made.row(store, file)).status for file in files] == ["cancelled"] * 4
        assert await made.backend.count(store) == 0


async def test_removals_cut_short_by_a_crash_are_finished_at_the_start(tmp_path) -> None:
    async with stack(tmp_path) as made:
        store, doomed = await made.make_store(), await made.make_store()
        file = await made.add(store, "zebrafinch")
        await made.add(doomed, "zebrafinch")
        async with made.database.session() as session:
            await store_files.begin_removal(session, store, file)
            await stores.begin_removal(session, doomed)
    async with stack(tmp_path) as again:
        assert await again.row(store, file) is None
        with pytest.raises(NotFound):
            await again.search(doomed, "zebrafinch")
        await again.attach(store, file)
        assert (await again.settled(store, file)).status == "completed"
