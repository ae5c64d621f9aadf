"""The rows of files in vector stores, on SQLite and PostgreSQL, while two change them at once."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import update

from appliance.knowledge import sealing
from appliance.storage import jobs, store_files
from appliance.storage.tables import File, Job, StoreFile, VectorStore
from appliance.types import Access
from appliance_retrieval.memory import MemoryStore

STORE, FILE = "vs_a", "file-a"
LOOK_SECONDS = 0.5
"""How long a change that should wait gets to show that it does not."""


async def being_indexed(database) -> None:
    async with database.session() as session:
        session.add(
            VectorStore(
                id=STORE, tenant="default", name="", labels={}, last_active_at=0, embedder="m", removing=False,
                created_us=1,
            )
        )  # fmt: skip
        session.add(File(id=FILE, tenant="default", filename="a", purpose="", bytes=1, sha256="", created_us=1))
        await session.flush()
        session.add(
            StoreFile(
                store_id=STORE, file_id=FILE, tenant="default", version=1, status="in_progress", attributes={},
                chunk_size=100, chunk_overlap=0, chunks=0, usage_bytes=0, created_us=1,
            )
        )  # fmt: skip
        await session.flush()
        session.add(Job(store_id=STORE, file_id=FILE, tenant="default", version=1))


async def test_b15_readers_that_change_while_a_file_is_completed_are_still_to_be_written(database, monkeypatch) -> None:
    await being_indexed(database)
    report, changes = sealing._report, []

    async def change() -> None:
        async with database.session() as session:
            await store_files.set_access(session, STORE, FILE, Access(users=("ada",)))

    async def held(session, written) -> None:
        changes.append(asyncio.create_task(change()))
        done, _ = await asyncio.wait(changes, timeout=LOOK_SECONDS)
        assert not done
        await report(session, written)

    monkeypatch.setattr(sealing, "_report", held)
    async with database.session() as session:
        (work,) = await jobs.claim(session, "worker", 1, "memory")
    sealer = sealing.Sealer(database, MemoryStore(), lambda: True, lambda: None)
    assert await sealer._complete([sealing.Written(work, 1, 1, (), work.attributes, work.readers)]) == []
    await asyncio.gather(*changes)
    async with database.session(write=False) as session:
        row = await store_files.find(session, *work.key)
    assert (row.status, row.stale, row.readers) == ("completed", True, ("user:ada",))


@pytest.mark.parametrize("removed", [VectorStore, StoreFile])
async def test_a_job_of_what_is_being_removed_is_not_due(database, removed) -> None:
    await being_indexed(database)
    async with database.session() as session:
        assert await jobs.due(session, "memory")
        await session.execute(update(removed).values(removing=True))
    async with database.session() as session:
        assert not await jobs.due(session, "memory")
        assert await jobs.claim(session, "worker", 1, "memory") == []


async def test_whoever_gives_up_waiting_for_the_group_that_is_sealed_is_told_so_and_cuts_nothing_short(
    database,
) -> None:
    await being_indexed(database)
    async with database.session() as session:
        (work,) = await jobs.claim(session, "worker", 1, "memory")
    sealed, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def seal(self, collection: str) -> None:
            sealed.set()
            await go_on.wait()

    sealer = sealing.Sealer(database, Slow(), lambda: True, lambda: None)
    sealer.start()
    (running,) = (task for task in asyncio.all_tasks() if task.get_name() == "sealer")
    sealer.add(sealing.Written(work, 1, 1, (), work.attributes, work.readers))
    async with asyncio.timeout(30):
        await sealed.wait()
        stopping = asyncio.create_task(sealer.stop())
        await asyncio.sleep(0)  # it waits for the group now
        stopping.cancel()
        await asyncio.wait({stopping})
        assert stopping.cancelled()
        go_on.set()
        await asyncio.wait({running})
    async with database.session(write=False) as session:
        row = await store_files.find(session, *work.key)
    assert row.status == "completed"
