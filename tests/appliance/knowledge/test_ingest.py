"""From an attached file to a searchable one, and out again."""

import asyncio
import itertools
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from knowledge_kit import Stack, stack, until
from sqlalchemy import func, select, update

from appliance.errors import Conflict, NotFound, RetrievalUnavailable
from appliance.knowledge import indexing, ingest, sealing
from appliance.knowledge.indexing import one_ahead, section_end
from appliance.storage import store_files, stores
from appliance.storage.tables import Job, VectorStore
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Access, Scope, Search, StoredChunk


@pytest.fixture
async def made(tmp_path):
    async with stack(tmp_path) as running:
        yield running


def long_text(words: int) -> str:
    return " ".join(f"word{i}" for i in range(words))


@pytest.fixture
async def often_tidied(tmp_path, monkeypatch):
    """What is otherwise done every minute is done at once."""
    monkeypatch.setattr(ingest, "_TIDY_SECONDS", 0.05)
    async with stack(tmp_path) as running:
        yield running


async def jobs_left(made: Stack) -> int:
    async with made.database.session(write=False) as session:
        return await session.scalar(select(func.count()).select_from(Job)) or 0


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
        await until(lambda: _embedding(made))
        await made.knowledge.remove_store(store)
        assert await jobs_left(made) == 0
        assert await made.backend.count(store) == 0
        with pytest.raises(NotFound):
            await made.search(store, "word1")
        assert made.blobs.path(files[0]).exists()


async def _embedding(made: Stack) -> bool:
    """Whether a call of the embedder is held."""
    return len(made.embedder.calls) > 4


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
        await until(lambda: _embedding(made))
        await made.knowledge.set_attributes(store, file, {"colour": "blue"})
        made.embedder.release()
        await made.settled(store, file)
        chunks = await made.knowledge.content(store, file, Scope())
        assert {chunk.attributes["colour"] for chunk in chunks} == {"blue"}
        assert (await made.row(store, file)).attributes == {"colour": "blue"}
        await made.knowledge.set_attributes(store, file, {"colour": "green"})
        chunks = await made.knowledge.content(store, file, Scope())
        assert {chunk.attributes["colour"] for chunk in chunks} == {"green"}


async def test_a_cancelled_file_stops_and_is_cleaned_up(tmp_path) -> None:
    async with stack(tmp_path, ScriptedEmbedder(batch_size=10, hold_from=4)) as made:
        store = await made.make_store()
        files = [await made.upload(long_text(50_000)) for _ in range(4)]
        for file in files:
            await made.attach(store, file)
        await until(lambda: _embedding(made))
        async with made.database.session() as session:
            await store_files.cancel(session, store, files)
        made.knowledge.wake()

        async def clean() -> bool:
            return await jobs_left(made) == 0

        await until(clean)
        assert [(await made.row(store, file)).status for file in files] == ["cancelled"] * 4
        assert await made.backend.count(store) == 0


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
        await until(lambda: _embedding(made))
    async with stack(tmp_path) as again:
        row = await again.settled(store, file)
        assert (row.status, row.chunks) == ("completed", 200)
        assert await again.backend.count(store) == 200


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


@given(st.text(alphabet="ab \n", max_size=200), st.integers(2, 40))
def test_sections_cover_the_text_in_order_within_the_limit(text: str, limit: int) -> None:
    ends = [0]
    while ends[-1] < len(text):
        ends.append(section_end(text, ends[-1], limit))
    assert all(0 < after - before <= limit for before, after in itertools.pairwise(ends))


async def test_a_text_of_several_sections_has_the_chunks_of_one(made, monkeypatch) -> None:
    store = await made.make_store()
    text = long_text(2000)
    whole = await made.knowledge.content(store, await made.add(store, text), Scope())
    monkeypatch.setattr(indexing, "section_end", lambda text, start: section_end(text, start, 3000))
    chunks = await made.knowledge.content(store, await made.add(store, text), Scope())
    assert [(c.position, c.start, c.end, c.text) for c in chunks] == [
        (c.position, c.start, c.end, c.text) for c in whole
    ]
    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks)
    assert " ".join(chunk.text for chunk in chunks) == text


async def test_a_section_without_a_place_to_cut_is_cut_all_the_same(made, monkeypatch) -> None:
    monkeypatch.setattr(indexing, "section_end", lambda text, start: section_end(text, start, 50))
    store = await made.make_store()
    chunks = await made.knowledge.content(store, await made.add(store, "x" * 170), Scope())
    assert "".join(chunk.text for chunk in chunks) == "x" * 170


async def test_chunks_are_embedded_while_those_before_are_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(indexing, "WRITE_CHUNKS", 4)
    async with stack(tmp_path) as made:
        upsert, goes_on = made.backend.upsert, asyncio.Event()

        async def held(*arguments: object) -> None:
            await goes_on.wait()
            await upsert(*arguments)

        monkeypatch.setattr(made.backend, "upsert", held)
        store = await made.make_store()
        file = await made.upload(long_text(2000))
        await made.attach(store, file)
        await until(lambda: len(made.embedder.calls) == 2)
        assert await made.backend.count(store) == 0
        goes_on.set()
        row = await made.settled(store, file)
        assert (row.status, row.chunks) == ("completed", await made.backend.count(store))


async def _numbers(noted: list[int], count: int, fails_at: int | None = None):
    for number in range(count):
        noted.append(number)
        if number == fails_at:
            raise RuntimeError("made in vain")
        yield number


async def test_one_item_is_made_ahead_and_no_more() -> None:
    noted: list[int] = []
    items = one_ahead(_numbers(noted, 5))
    for number in range(3):
        assert await anext(items) == number
        await asyncio.sleep(0)  # whatever can run now has run
        await asyncio.sleep(0)
        assert noted == list(range(number + 2))
    await items.aclose()
    assert noted == [0, 1, 2, 3]


async def test_items_made_ahead_all_come_and_a_failure_comes_in_its_place() -> None:
    assert [number async for number in one_ahead(_numbers([], 4))] == [0, 1, 2, 3]
    items = one_ahead(_numbers([], 4, fails_at=2))
    assert [await anext(items), await anext(items)] == [0, 1]
    with pytest.raises(RuntimeError, match="made in vain"):
        await anext(items)


async def test_a_failure_ahead_of_an_end_is_nobodys() -> None:
    items = one_ahead(_numbers([], 4, fails_at=1))
    assert await anext(items) == 0
    await items.aclose()


async def test_items_made_ahead_are_closed_though_their_end_is_cancelled_too() -> None:
    numbers = _numbers([], 4)
    items = one_ahead(numbers)
    assert await anext(items) == 0
    await asyncio.sleep(0)  # the next one is made, and waits
    await asyncio.sleep(0)
    closing = asyncio.create_task(items.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert numbers.ag_frame is None  # closed; this test has it in hand, so nothing else did that


async def test_an_item_that_ends_slowly_ends_by_itself_when_its_end_is_cancelled_too() -> None:
    begun, told, may_end, ended = (asyncio.Event() for _ in range(4))

    async def slowly() -> AsyncGenerator[int, None]:
        yield 0
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            told.set()
            await may_end.wait()
            ended.set()

    items = one_ahead(slowly())
    assert await anext(items) == 0
    async with asyncio.timeout(20):
        await begun.wait()
        closing = asyncio.create_task(items.aclose())
        await told.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not ended.is_set()
        may_end.set()
        await ended.wait()


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
