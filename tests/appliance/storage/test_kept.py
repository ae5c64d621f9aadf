"""R30, D6: quotas hold for several processes that share a database, also where they write at the same time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from eventually import until
from sqlalchemy import Boolean, column, func, select, table

from appliance.config import LimitsConfig, TenantConfig
from appliance.errors import IngestionError, QuotaExceeded, Unavailable
from appliance.quotas import Quotas
from appliance.storage import conversations, files, jobs, kept, store_files, stores, uploads
from appliance.storage.database import Database
from appliance.storage.ids import new_id, now, now_us
from appliance.storage.tables import File
from appliance.storage.tables.batches import Batch
from appliance.storage.tables.completions import StoredCompletion
from appliance.storage.tables.responses import Conversation, ConversationItem, StoredResponse
from appliance.storage.tables.uploads import PendingUpload
from appliance.storage.tenancy import WHOLE_TENANT

SIZES = {"attributes": {}, "chunk_size": 100, "chunk_overlap": 0}


_LOCKS = table("pg_locks", column("locktype"), column("granted", Boolean), column("database"))
_DATABASES = table("pg_database", column("oid"), column("datname"))
_WAITING = (
    select(func.count())
    .select_from(_LOCKS.join(_DATABASES, _DATABASES.c.oid == _LOCKS.c.database))
    .where(_LOCKS.c.locktype == "advisory", ~_LOCKS.c.granted, _DATABASES.c.datname == func.current_database())
)


def a_file(size: int = 1) -> File:
    return files.new(new_id("file-"), "a.txt", "assistants", size=size, sha256="")


def a_conversation() -> Conversation:
    return Conversation(id=new_id("conv_"), created_us=now_us(), labels={})


def an_upload(status: str = "pending") -> PendingUpload:
    return PendingUpload(
        id=new_id("upload_"),
        filename="a",
        purpose="assistants",
        bytes=10,
        status=status,
        created_us=now_us(),
        expires_at=now() + 100,
    )


def quotas_of(database: Database, **limits: int) -> Quotas:
    return Quotas(database, LimitsConfig(**limits))


async def create(quotas: Quotas, size: int = 1) -> bool:
    """Keep a file more, as a request does: look, then write and count."""
    try:
        await quotas.check("a", objects=1, size=size)
        async with quotas.database.tenant("a") as session:
            session.add(a_file(size))
            await quotas.confirm(session, size=True)
    except QuotaExceeded:
        return False
    return True


async def keep_store(quotas: Quotas, tenant: str = "a", **narrowed: Any) -> None:
    async with quotas.database.tenant(tenant, **narrowed) as session:
        session.add(stores.new("mine", "words"))
        await quotas.confirm(session)


async def keep_conversation(quotas: Quotas, items: int) -> None:
    async with quotas.database.tenant("a") as session:
        row = a_conversation()
        session.add(row)
        await session.flush()
        await conversations.append(session, row, [{"id": f"i{number}"} for number in range(items)])
        await quotas.confirm(session)


async def objects(database: Database, tenant: str = "a") -> int:
    async with database.session(write=False) as session:
        return await kept.number(session, kept.OBJECTS, tenant)


@pytest.mark.parametrize(
    ("limits", "size", "room"), [({"max_stored_objects": 5}, 1, 5), ({"max_stored_bytes": 70}, 10, 7)]
)
async def test_r30_d6_what_several_processes_create_at_once_fills_a_quota_exactly(several, limits, size, room) -> None:
    each = [quotas_of(database, **limits) for database in several]
    made = await asyncio.gather(*(create(quotas, size) for quotas in each for _ in range(6)))
    assert sum(made) == room, "nobody is refused while there is room, and nobody gets in without"
    assert await objects(several[0]) == room


async def test_r30_d6_chunks_that_several_workers_write_at_once_fill_a_quota_exactly(several) -> None:
    each = [quotas_of(database, max_stored_chunks=10) for database in several]
    async with several[0].tenant("a") as session:
        store = stores.new("s", "words")
        rows = [a_file() for _ in range(12)]
        session.add_all([store, *rows])
        await session.flush()
        for row in rows:
            await store_files.attach(session, store.id, row.id, **SIZES)
    async with several[0].session() as session:
        works = await jobs.claim(session, "worker", 12, "memory")
    assert len(works) == 12

    async def hold(number: int) -> bool:
        try:
            await each[number % 4].hold_chunks(works[number], 2)
        except IngestionError:
            return False
        return True

    assert sum(await asyncio.gather(*map(hold, range(12)))) == 5
    async with several[0].session(write=False) as session:
        assert await kept.number(session, kept.CHUNKS, "a") == 10


@pytest.mark.parametrize("ending", ["commits", "dies"])
async def test_r30_who_counts_waits_until_the_one_before_has_committed_or_is_gone(postgres, ending) -> None:
    url = postgres.database()
    async with Database(url) as one, Database(url) as two, one.session(write=False) as watch:
        first, second = quotas_of(one, max_stored_objects=1), quotas_of(two, max_stored_objects=1)
        held = AsyncExitStack()
        session = await held.enter_async_context(one.tenant("a"))
        session.add(a_file())
        await first.confirm(session)
        number = await session.scalar(select(func.pg_backend_pid()), execution_options=WHOLE_TENANT)
        waiting = asyncio.create_task(create(second))
        await until(lambda: watch.scalar(_WAITING))
        await keep_store(second, "b")
        if ending == "dies":
            await watch.scalar(select(func.pg_terminate_backend(number, 5000)))
            with pytest.raises(Unavailable):
                await held.aclose()
        else:
            await held.aclose()
        assert await waiting == (ending == "dies")
        assert await objects(two) == 1


async def test_d6_every_object_counts_once_and_bytes_are_those_of_files_and_parts(database) -> None:
    moment = now_us()
    async with database.tenant("a") as session:
        file, conversation, upload = a_file(100), a_conversation(), an_upload()
        session.add_all([file, conversation, upload, an_upload("completed"), stores.new("s", "words")])
        await session.flush()
        session.add_all(
            [
                StoredResponse(id="r", created_us=moment, status="completed", body={}, input=[]),
                StoredCompletion(id="c", created_us=moment, model="m", body={}, messages=[], labels={}),
                Batch(
                    id="b",
                    created_us=moment,
                    status="failed",
                    endpoint="",
                    input_file_id=file.id,
                    times={},
                    expires_at=1,
                ),
            ]
        )
        await conversations.append(session, conversation, [{"id": "i1"}, {"id": "i2"}])
        await uploads.add_part(session, upload.id, None, "part_1", 7)
    async with database.session(write=False) as session:
        assert await kept.number(session, kept.OBJECTS, "a") == 9
        assert await kept.number(session, kept.BYTES, "a") == 107
        assert await kept.number(session, kept.OBJECTS, "b") == await kept.number(session, kept.BYTES, "b") == 0


async def test_r30_an_upload_that_becomes_a_file_needs_no_room(database) -> None:
    async with database.tenant("a") as session:
        upload = an_upload()
        session.add(upload)
        await session.flush()
        await uploads.add_part(session, upload.id, None, "part_1", 10)
    assert await objects(database) == 1
    async with database.tenant("a") as session:
        row = await uploads.get(session, upload.id, None, lock=True)
        session.add(a_file(10))
        await uploads.end(session, row, "completed", "f")
        await quotas_of(database, max_stored_objects=1, max_stored_bytes=10).confirm(session, size=True)
    assert await objects(database) == 1


async def test_b2_who_reaches_only_some_of_a_tenant_counts_all_of_it_and_nothing_of_another(database) -> None:
    quotas = quotas_of(database, max_stored_objects=2)
    for tenant in ("a", "b", "b"):
        async with database.tenant(tenant) as session:
            session.add(stores.new("hidden", "words"))
    narrowed: dict[str, Any] = {"stores": frozenset({"mine"}), "readers": frozenset({"user:x"})}
    await keep_store(quotas, **narrowed)
    with pytest.raises(QuotaExceeded, match="more than 2 objects"):
        await keep_store(quotas, **narrowed)
    assert await objects(database) == 2


async def test_d6_a_tenant_over_a_quota_that_was_lowered_still_keeps_what_grows_in_other_ways(database) -> None:
    async with database.tenant("a") as session:
        session.add(a_file(100))
    quotas = Quotas(database, LimitsConfig(max_stored_bytes=50), {"b": TenantConfig(max_stored_bytes=1000)})
    await keep_conversation(quotas, 0)
    assert not await create(quotas)
    assert await objects(database) == 2


async def test_without_a_quota_nothing_is_counted_and_nobody_waits(database) -> None:
    async with database.tenant("a") as session:
        row = a_conversation()
        session.add(row)
        await quotas_of(database).confirm(session, size=True)
        assert row in session.new, "it is not even written yet"
    assert await objects(database) == 1


async def test_r30_what_is_refused_at_the_end_leaves_nothing_of_its_transaction(database) -> None:
    with pytest.raises(QuotaExceeded):
        await keep_conversation(quotas_of(database, max_stored_objects=3), 3)
    async with database.session(write=False) as session:
        for table in (Conversation, ConversationItem):
            assert await session.scalar(select(func.count()).select_from(table)) == 0
