"""The queue of ingestions, on SQLite and PostgreSQL: whose turn it is."""

from __future__ import annotations

from sqlalchemy import update

from appliance.storage import jobs, progress
from appliance.storage.database import Database
from appliance.storage.jobs import Work
from appliance.storage.tables import File, Job, StoreFile, VectorStore

BACKEND = "memory"


async def attached(database: Database, tenant: str, *names: str, attempts: int = 0) -> None:
    """Files of a tenant in its store, with their jobs."""
    store_id = f"vs_{tenant}"
    async with database.session() as session:
        if await session.get(VectorStore, store_id) is None:
            session.add(
                VectorStore(
                    id=store_id, tenant=tenant, name="", labels={}, last_active_at=0, embedder="m", removing=False,
                    created_us=1,
                )
            )  # fmt: skip
        session.add_all(
            File(id=name, tenant=tenant, filename=name, purpose="", bytes=1, sha256="", created_us=1) for name in names
        )
        await session.flush()
        session.add_all(
            StoreFile(
                store_id=store_id, file_id=name, tenant=tenant, version=1, status="in_progress", attributes={},
                chunk_size=100, chunk_overlap=0, chunks=0, usage_bytes=0, created_us=1,
            )
            for name in names
        )  # fmt: skip
        await session.flush()
        session.add_all(
            Job(store_id=store_id, file_id=name, tenant=tenant, version=1, attempts=attempts) for name in names
        )


async def claimed(database: Database, limit: int = 1) -> list[Work]:
    async with database.session() as session:
        return await jobs.claim(session, "worker", limit, BACKEND)


async def names(database: Database, limit: int = 1) -> list[str]:
    return [work.file_id for work in await claimed(database, limit)]


async def ended(database: Database, work: Work) -> None:
    async with database.session() as session:
        await jobs.end(session, work)


async def test_a_file_of_one_tenant_does_not_wait_for_all_that_another_has_attached(database) -> None:
    await attached(database, "a", *(f"a{number}" for number in range(6)))
    await attached(database, "b", "b0", "b1")
    first, second = await claimed(database, 2)
    assert [first.file_id, second.file_id] == ["a0", "a1"]
    await ended(database, first)
    assert await names(database) == ["b0"]
    await ended(database, second)
    assert await names(database, 2) == ["a2", "a3"]
    assert await names(database, 2) == ["b1", "a4"]


async def test_the_queue_is_shown_in_the_order_of_its_turns(database) -> None:
    await attached(database, "a", "a0", "a1")
    await attached(database, "b", "b0")
    await claimed(database)
    async with database.session(write=False) as session:
        shown = await progress.ingestions(session, 10)
    assert [entry.file_id for entry in shown] == ["a0", "b0", "a1"]


async def test_what_was_put_back_comes_behind_what_is_new(database) -> None:
    await attached(database, "a", "old")
    (work,) = await claimed(database)
    async with database.session() as session:
        await jobs.put_back(session, work, delay=0, counted=False)
    await attached(database, "a", "new")
    assert await names(database) == ["new"]
    assert await names(database) == ["old"]


async def test_what_may_be_killing_the_worker_comes_behind_the_files_of_all_tenants(database) -> None:
    await attached(database, "b", "killer", attempts=jobs.DOUBTFUL_ATTEMPTS)
    await attached(database, "b", "interrupted", attempts=1)
    await attached(database, "a", "a0", "a1")
    assert [*await names(database), *await names(database)] == ["a0", "interrupted"]
    assert [*await names(database), *await names(database)] == ["a1", "killer"]


async def test_a_job_of_a_store_that_another_vector_store_holds_waits(database) -> None:
    await attached(database, "a", "a0")
    async with database.session() as session:
        (await session.get(VectorStore, "vs_a")).backend = "another"
    assert await names(database) == []
    async with database.session(write=False) as session:
        assert not await jobs.due(session, BACKEND)
        assert await jobs.due(session, "another")


async def test_only_leases_of_what_is_under_way_are_renewed(database) -> None:
    """So whatever ends work unseen, the file is taken up again."""
    await attached(database, "a", "held", "lost")
    held, _ = await claimed(database, 2)
    async with database.session() as session:
        await session.execute(update(Job).values(lease_expires=1))
        await jobs.renew(session, "another", [held.key])
        await jobs.renew(session, "worker", [])
        await jobs.renew(session, "worker", [held.key])
    assert await names(database, 2) == ["lost"]
