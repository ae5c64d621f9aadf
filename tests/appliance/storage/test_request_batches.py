"""Batches, uploads and kept answers in the database: several processes at once, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select, update

from appliance.errors import BadRequest, Conflict, NotFound
from appliance.storage import files, idempotency, request_batches, uploads
from appliance.storage.database import Database
from appliance.storage.ids import now, now_us
from appliance.storage.keys import KeyStore
from appliance.storage.request_batches import LeaseLost
from appliance.storage.tables import ApiKey, File
from appliance.storage.tables.batches import Batch, BatchResult
from appliance.storage.tables.idempotency import KeptAnswer
from appliance.storage.tables.uploads import PendingUpload

NO_TOKENS = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "reasoning_tokens": 0}


def a_batch(number: int, status: str = "in_progress", file_id: str = "file-1", tenant: str = "a") -> Batch:
    return Batch(
        id=f"batch_{number}", tenant=tenant, created_us=now_us(), status=status, endpoint="/v1/embeddings",
        input_file_id=file_id, times={}, expires_at=now() + 100, principal={"id": "key:1"}, lease_expires=0,
        total=10, completed=0, failed=0, **NO_TOKENS,
    )  # fmt: skip


async def add(database: Database, *rows: object) -> None:
    async with database.session() as session:
        session.add_all(rows)


async def claimed(database: Database, owner: str, limit: int = 100) -> list[Batch]:
    async with database.session() as session:
        return list(await request_batches.claim(session, owner, limit))


def result(batch: Batch, line: int, *, ok: bool = True) -> BatchResult:
    return BatchResult(batch_id=batch.id, tenant=batch.tenant, line=line, ok=ok, output=b"{}\n")


async def test_no_two_processes_get_the_same_batch(several) -> None:
    await add(several[0], *(a_batch(i, tenant=f"t{i}") for i in range(20)))
    taken = await asyncio.gather(*(claimed(database, f"p{i}", 8) for i, database in enumerate(several)))
    ids = [batch.id for batches in taken for batch in batches]
    assert len(ids) == len(set(ids))
    rest = [batch.id for i, database in enumerate(several) for batch in await claimed(database, f"p{i}")]
    assert len(set(ids) | set(rest)) == len(ids) + len(rest) == 20


async def test_B13_a_tenant_with_many_batches_leaves_places_to_the_others(database) -> None:
    await add(database, *(a_batch(i) for i in range(8)), a_batch(8, tenant="b"))
    first = await claimed(database, "p1", 8)
    assert [batch.tenant for batch in first].count("a") == request_batches.MAX_RUNNING
    assert [batch.id for batch in first if batch.tenant == "b"] == ["batch_8"]
    assert await claimed(database, "p2") == []
    async with database.session() as session:
        assert not await request_batches.due(session)


async def test_a_batch_is_free_when_its_lease_is_over_or_given_back(database) -> None:
    await add(database, a_batch(1), a_batch(2))
    first = await claimed(database, "p1")
    assert await claimed(database, "p2") == []
    async with database.session() as session:
        assert not await request_batches.due(session)
        await request_batches.let_go(session, "p1", [first[0].id])
        await request_batches.let_go(session, "p2", [first[1].id])
        assert await request_batches.due(session)
    assert [batch.id for batch in await claimed(database, "p2")] == [first[0].id]
    async with database.session() as session:
        assert await request_batches.renew(session, "p1", [batch.id for batch in first]) == {first[1].id}


async def test_lines_are_kept_and_counted_together_and_only_by_the_owner(database) -> None:
    await add(database, a_batch(1))
    (mine,) = await claimed(database, "p1")
    async with database.session() as session:
        await request_batches.record(session, mine, [result(mine, 1), result(mine, 2, ok=False)], {"input_tokens": 7})
    async with database.session() as session:
        await session.execute(update(Batch).values(lease_expires=0))
    (theirs,) = await claimed(database, "p2")
    for late in (
        lambda session: request_batches.record(session, mine, [result(mine, 3)], NO_TOKENS),
        lambda session: request_batches.move(session, mine, "in_progress", "finalizing"),
        lambda session: request_batches.finish(session, mine, "completed", []),
    ):
        with pytest.raises(LeaseLost):
            async with database.session() as session:
                await late(session)
    async with database.session() as session:
        assert await request_batches.done(session, theirs.id) == {1, 2}
        row = await session.get(Batch, theirs.id)
        assert row is not None
        assert (row.completed, row.failed, row.input_tokens, row.status) == (1, 1, 7, "in_progress")


async def test_a_batch_that_is_over_leaves_nothing_of_its_lines_and_no_principal(database) -> None:
    await add(database, a_batch(1))
    (mine,) = await claimed(database, "p1")
    async with database.session() as session:
        await request_batches.record(session, mine, [result(mine, i) for i in range(5)], NO_TOKENS)
        assert [row.line for row in await request_batches.results(session, mine.id, 1, 2)] == [2, 3]
    async with database.session() as session:
        await request_batches.finish(session, mine, "completed", [], output_file_id="file-2")
    async with database.session() as session:
        row = await session.get(Batch, mine.id)
        assert row is not None
        assert (row.status, row.principal, row.owner, set(row.times)) == ("completed", None, None, {"completed_at"})
        assert await session.scalar(select(func.count()).select_from(BatchResult)) == 0


async def test_a_cancellation_that_comes_first_is_seen_by_who_works_on_it(database) -> None:
    await add(database, a_batch(1, "validating"))
    (mine,) = await claimed(database, "p1")
    async with database.tenant("a") as session:
        assert (await request_batches.cancel(session, mine.id, None)).status == "cancelling"
    async with database.session() as session:
        assert await request_batches.renew(session, "p1", [mine.id]) == set()
        assert not await request_batches.move(session, mine, "validating", "in_progress", total=3)
    assert (mine.status, set(mine.times)) == ("cancelling", {"cancelling_at"})


@pytest.mark.parametrize("end", ["revoked", "expired", "revoked before anybody worked on it"])
async def test_a_batch_ends_with_the_key_that_started_it(database, end) -> None:
    keys = KeyStore(database)
    (dead, _), (other, _) = [await keys.create(name=name, tenant="a", expires_in=1000) for name in ("x", "y")]
    batches = a_batch(1), a_batch(2), a_batch(3), a_batch(4, "finalizing")
    for batch, key in zip(batches, (dead, other, None, dead), strict=True):
        batch.principal = {"id": "key:1", "key": key.id} if key else {"id": "user:1"}
    await add(database, *batches)

    async def kill() -> None:
        if end == "expired":
            async with database.session() as session:
                await session.execute(update(ApiKey).where(ApiKey.id == dead.id).values(expires_at=now()))
        else:
            await keys.revoke(dead.id)

    if end.endswith("worked on it"):
        await kill()
    mine = await claimed(database, "p1")
    if not end.endswith("worked on it"):
        assert {batch.status for batch in mine} == {"in_progress", "finalizing"}
        await kill()
    async with database.session() as session:
        wanted = await request_batches.renew(session, "p1", [batch.id for batch in mine])
    assert wanted == {"batch_2", "batch_3", "batch_4"}
    async with database.session() as session:
        row = await session.get(Batch, "batch_1")
        assert row is not None
        assert (row.status, set(row.times)) == ("cancelling", {"cancelling_at"})


async def test_a_file_is_deleted_or_a_batch_reads_it_but_never_both(several) -> None:
    for i in range(20):
        file_id = f"file-{i}"
        async with several[0].tenant("a") as session:
            session.add(files.new(file_id, "a", "batch", size=1, sha256=""))

        async def begin(i=i, file_id=file_id) -> None:
            async with several[1].tenant("a") as session:
                await files.get(session, file_id, keep=True)
                session.add(a_batch(i, "validating", file_id))

        async def delete(file_id=file_id) -> None:
            async with several[2].tenant("a") as session:
                await files.remove(session, file_id)

        outcomes = await asyncio.gather(begin(), delete(), return_exceptions=True)
        assert sum(isinstance(outcome, NotFound | Conflict) for outcome in outcomes) == 1, outcomes
        async with several[3].session(write=False) as session:
            there = await session.get(File, file_id) is not None
            read = await session.get(Batch, f"batch_{i}") is not None
        assert there == read


async def test_of_many_claims_of_one_key_one_succeeds(several) -> None:
    async def claim(database: Database) -> KeptAnswer:
        async with database.tenant("a") as session:
            return await idempotency.claim(session, "k")

    outcomes = await asyncio.gather(*(claim(several[i % 4]) for i in range(20)), return_exceptions=True)
    assert sum(isinstance(outcome, KeptAnswer) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19


async def test_who_lost_a_claim_keeps_no_answer(database) -> None:
    async def claim() -> KeptAnswer:
        async with database.tenant("a") as session:
            row = await idempotency.claim(session, "k")
            await session.flush()
            return row

    first = await claim()
    async with database.session() as session:
        await session.execute(update(KeptAnswer).values(lease_expires=0))
    second = await claim()
    async with database.tenant("a") as session:
        await idempotency.keep(session, first, "f1", {}, b"first")
        await idempotency.let_go(session, first)
        await idempotency.keep(session, second, "f2", {"x": "y"}, b"second")
    assert (await claim()).body == b"second"


async def test_parts_that_come_at_once_never_hold_more_than_twice_the_file(several) -> None:
    row = PendingUpload(
        id="upload_1", filename="a", purpose="assistants", bytes=10, status="pending", created_us=now_us(),
        expires_at=now() + 100,
    )  # fmt: skip
    async with several[0].tenant("a") as session:
        session.add(row)

    async def part(i: int) -> None:
        async with several[i % 4].tenant("a") as session:
            await uploads.add_part(session, "upload_1", None, f"part_{i}", 4)

    outcomes = await asyncio.gather(*(part(i) for i in range(12)), return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 5
    assert sum(isinstance(outcome, BadRequest) for outcome in outcomes) == 7
