"""The rows of second collections, on SQLite and PostgreSQL: what is to do, how far it is, and the switch."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, select

from appliance.storage import jobs, reindexes, stores
from appliance.storage.database import Database
from appliance.storage.tables import File, Job, RebuiltFile, Reindex, StoreFile, VectorStore

STORE, NEW = "vs_a", {"new-weights"}


async def fill(database: Database, *file_ids: str, status: str = "completed") -> None:
    async with database.session() as session:
        if await session.get(VectorStore, STORE) is None:
            session.add(
                VectorStore(
                    id=STORE, tenant="default", name="", labels={}, last_active_at=0, embedder="old", removing=False,
                    fingerprint="old-weights", dimensions=64, created_us=1,
                )
            )  # fmt: skip
        for number, file_id in enumerate(file_ids):
            session.add(
                File(
                    id=file_id, tenant="default", filename=f"{file_id}.txt", purpose="assistants", bytes=1, sha256="",
                    created_us=number,
                )
            )  # fmt: skip
            await session.flush()
            session.add(
                StoreFile(
                    store_id=STORE, file_id=file_id, tenant="default", version=number + 1, status=status, attributes={},
                    chunk_size=100, chunk_overlap=0, chunks=5, usage_bytes=500, created_us=number,
                )
            )  # fmt: skip


async def begin(database: Database, *, skip_failed: bool = False) -> None:
    async with database.session() as session:
        store = await session.get(VectorStore, STORE, with_for_update=True)
        reindexes.begin(
            session,
            store,
            embedder="new",
            fingerprint="new-weights",
            dimensions=32,
            keep_seconds=60,
            skip_failed=skip_failed,
        )


async def due(database: Database, fingerprints=NEW) -> list[str]:
    async with database.session(write=False) as session:
        return [file_id for _, file_id in await reindexes.due(session, 10, fingerprints, "memory")]


async def take(database: Database, file_id: str) -> jobs.Work | None:
    async with database.session() as session:
        return await reindexes.claim(session, (STORE, file_id), NEW, "memory")


async def finish(database: Database, file_id: str, chunks: int = 3) -> None:
    work = await take(database, file_id)
    assert work is not None
    async with database.session() as session:
        await reindexes.complete(session, work, chunks=chunks, usage_bytes=chunks * 10)


async def whole(database: Database) -> bool:
    async with database.session(write=False) as session:
        return STORE in await reindexes.whole(session, NEW, "memory")


async def switch(database: Database) -> None:
    async with database.session() as session:
        store = await session.get(VectorStore, STORE, with_for_update=True)
        row = await reindexes.find(session, STORE, lock=True)
        await reindexes.switch(session, store, row)


async def files(database: Database) -> dict[str, tuple[str, int, int, str | None]]:
    async with database.session(write=False) as session:
        rows = (await session.scalars(select(StoreFile))).all()
        return {row.file_id: (row.status, row.chunks, row.usage_bytes, row.error_code) for row in rows}


async def test_what_is_to_do_is_every_completed_file_that_is_not_whole(database) -> None:
    await fill(database, "file-a", "file-b")
    await fill(database, "file-c", status="in_progress")
    await fill(database, "file-d", status="failed")
    assert await due(database) == []
    await begin(database)
    assert await due(database) == ["file-a", "file-b"]
    assert await due(database, {"other-weights"}) == []
    work = await take(database, "file-a")
    assert (work.collection, work.generation, work.fingerprint, work.attempts, work.is_rebuild) == (
        "vs_a_1",
        1,
        "new-weights",
        1,
        True,
    )
    assert await due(database) == ["file-b", "file-a"]  # begun once: after the others
    async with database.session() as session:
        await reindexes.complete(session, work, chunks=3, usage_bytes=30)
    assert await due(database) == ["file-b"]
    assert await take(database, "file-a") is None
    assert await take(database, "file-c") is None
    assert not await whole(database)
    async with database.session() as session:  # gone with its row
        await session.execute(delete(StoreFile).where(StoreFile.file_id == "file-b"))
    assert await whole(database)


async def test_a_file_that_comes_back_later_or_failed_is_not_to_do(database) -> None:
    await fill(database, "file-a", "file-b")
    await begin(database)
    first, second = await take(database, "file-a"), await take(database, "file-b")
    async with database.session() as session:
        await reindexes.put_back(session, first, delay=100, counted=False)
        await reindexes.fail(session, second, "invalid_file", "no text")
        row = await reindexes.find(session, STORE)
        progress = await reindexes.progress(session, row)
    assert (progress.done, progress.total, progress.failed, progress.failures) == (0, 2, 1, [("file-b", "no text")])
    assert await due(database) == []
    assert not await whole(database)
    async with database.session() as session:
        await reindexes.try_again(session, row)
    assert await due(database) == ["file-b"]


async def test_the_switch_exchanges_the_collections_with_their_figures_and_back(database) -> None:
    await fill(database, "file-a", "file-b", "file-c")
    await begin(database, skip_failed=True)
    await finish(database, "file-a")
    await finish(database, "file-b", 4)
    failing = await take(database, "file-c")
    async with database.session() as session:
        await reindexes.fail(session, failing, "invalid_file", "no text")
    assert await whole(database)
    await switch(database)
    assert await files(database) == {
        "file-a": ("completed", 3, 30, None),
        "file-b": ("completed", 4, 40, None),
        "file-c": ("failed", 0, 0, "invalid_file"),
    }
    async with database.session(write=False) as session:
        store, row = await session.get(VectorStore, STORE), await reindexes.find(session, STORE)
        assert (store.collection, store.embedder, store.fingerprint, store.dimensions) == (
            "vs_a_1",
            "new",
            "new-weights",
            32,
        )
        assert (row.collection, row.embedder, row.dimensions, row.status) == (STORE, "old", 64, "kept")
        assert {(one.file_id, one.chunks, one.done) for one in await reindexes.held(session, row)} == {
            (f"file-{letter}", 5, True) for letter in "abc"
        }
        assert await reindexes.names(session, STORE) == ["vs_a_1", "vs_a"]
    await switch(database)
    assert set((await files(database)).values()) == {("completed", 5, 500, None)}
    async with database.session() as session:
        assert await reindexes.names(session, STORE) == ["vs_a", "vs_a_1"]
        await reindexes.end(session, STORE)
        assert await reindexes.names(session, STORE) == ["vs_a"]
        assert (await session.scalars(select(RebuiltFile))).all() == []


async def test_a_collection_that_two_drop_takes_no_newer_one_along(database) -> None:
    await fill(database, "file-a")
    await begin(database)
    async with database.session(write=False) as session:
        first = await reindexes.find(session, STORE)
    async with database.session() as session:
        await reindexes.dropped(session, first)
    await begin(database)
    await finish(database, "file-a")
    async with database.session() as session:
        await reindexes.dropped(session, first)
        second = await reindexes.find(session, STORE)
        assert second.generation == first.generation + 1
        assert [one.done for one in await reindexes.held(session, second)] == [True]
        await reindexes.dropped(session, second)
        assert await reindexes.names(session, STORE) == [STORE]
        assert (await session.scalars(select(RebuiltFile))).all() == []


async def test_a_claimed_job_knows_its_collection_and_whether_another_model_comes(database) -> None:
    await fill(database, "file-a", status="in_progress")
    async with database.session() as session:
        session.add(Job(store_id=STORE, file_id="file-a", tenant="default", version=1))
    await begin(database)
    async with database.session() as session:
        (work,) = await jobs.claim(session, "worker", 5, "memory")
    assert (work.collection, work.generation, work.replaced, work.is_rebuild) == (STORE, 0, True, False)
    async with database.session() as session:
        assert await jobs.let_go_of_store(session, STORE) == ["file-a"]
        assert await jobs.let_go_of_store(session, STORE) == []


async def test_a_store_takes_its_second_collection_along_when_it_goes(database) -> None:
    await fill(database, "file-a")
    await begin(database)
    await take(database, "file-a")
    async with database.session() as session:
        await stores.remove(session, STORE)
        for table in (Reindex, RebuiltFile):
            assert (await session.scalars(select(table))).all() == []
        assert await reindexes.names(session, STORE) == []


@pytest.mark.parametrize(("name", "store"), [("vs_a", "vs_a"), ("vs_a_1", "vs_a"), ("vs_Zk3x_12", "vs_Zk3x")])
def test_a_collection_is_named_after_its_store(name: str, store: str) -> None:
    assert stores.is_ours(name)
    assert stores.store_of(name) == store
