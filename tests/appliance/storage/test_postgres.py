"""PostgreSQL: servers that die and come back, and what several processes do at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
from eventually import eventually
from loopback import assert_openai_error, http_client
from postgres import Postgres
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError

from appliance.errors import BadRequest, NotFound, StartError, Unavailable
from appliance.storage import files, jobs, store_files, stores
from appliance.storage.database import Database
from appliance.storage.ids import now_us
from appliance.storage.tables import File, Job, StoreFile
from appliance.storage.tenancy import TenantSession
from appliance.testing import make_app, serving

SIZES = {"attributes": {}, "chunk_size": 100, "chunk_overlap": 0}


def a_file(file_id: str, filename: str = "a.txt") -> File:
    return File(id=file_id, filename=filename, purpose="assistants", bytes=1, sha256="", created_us=now_us())


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """A server of these tests' own, to be killed."""
    with Postgres() as started:
        yield started


@pytest.fixture
def server(mortal: Postgres) -> Postgres:
    """The same, running."""
    if not mortal.running:
        mortal.start()
    return mortal


async def a_store(session: TenantSession, name: str = "s") -> str:
    row = stores.new(name, "words")
    session.add(row)
    await session.flush()
    return row.id


async def test_a_server_that_dies_is_a_503_until_it_is_back(server) -> None:
    database = Database(server.database())
    await database.start()
    async with database.tenant("a") as session:
        session.add(a_file("file-kept"))
    await asyncio.to_thread(server.kill)
    for _ in range(3):  # first the pooled connection, then new ones
        with pytest.raises(Unavailable, match="out of reach"):
            await database.ping()
    await asyncio.to_thread(server.start)
    async with database.tenant("a", write=False) as session:
        assert (await files.get(session, "file-kept")).tenant == "a"
    await database.stop()


async def test_a_server_that_dies_in_a_transaction_is_a_503_and_takes_it_back(server) -> None:
    database = Database(server.database())
    await database.start()

    async def lose() -> None:
        async with database.tenant("a") as session:
            session.add(a_file("file-lost"))
            await session.flush()
            await asyncio.to_thread(server.kill)
            session.add(a_file("file-lost-too"))

    with pytest.raises(Unavailable):
        await lose()
    await asyncio.to_thread(server.start)
    async with database.tenant("a", write=False) as session:
        assert await session.scalar(select(func.count()).select_from(File)) == 0
    await database.stop()


async def test_a_server_that_dies_in_a_statement_is_a_503(server) -> None:
    database = Database(server.database())
    await database.start()

    async def ask() -> None:
        async with database.session(write=False) as session:
            await session.execute(text("SELECT pg_sleep(30)"))

    async def asked() -> int | None:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)' AND state = 'active'")
        async with database.session(write=False) as session:
            return await session.scalar(query)

    asking = asyncio.create_task(ask())
    await eventually(asked)
    await asyncio.to_thread(server.kill)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(asking, 20)
    await database.stop()


async def test_a_server_that_cannot_be_used_stops_the_start_in_one_line_without_the_password(server) -> None:
    url = server.database()
    wrong = {
        "Connect call failed": url.replace(f":{server.port}/", ":1/"),
        "password authentication failed": url.replace(server.password, "hunter2"),
        "does not exist": f"{url}nosuch",
    }
    for reason, bad in wrong.items():
        with pytest.raises(StartError, match=reason) as told:
            await Database(bad).start()
        assert "\n" not in str(told.value)
        assert "check database" in str(told.value)
        assert "hunter2" not in str(told.value)
        assert server.password not in str(told.value)


async def test_requests_get_503_and_readyz_says_why_while_the_server_is_away(server, tmp_path) -> None:
    app = make_app({"database": server.database()}, folder=tmp_path)
    async with serving(app) as base, http_client(base_url=base, timeout=20) as client:
        made = await client.post("/v1/files", files={"file": ("a.txt", b"a")}, data={"purpose": "assistants"})
        assert (await client.get("/readyz")).status_code == 200
        await asyncio.to_thread(server.kill)
        for method, path in (("GET", "/v1/files"), ("GET", f"/v1/files/{made.json()['id']}"), ("GET", "/v1/files/x")):
            answer = await client.request(method, path)
            assert assert_openai_error(answer, 503)["code"] == "unavailable"
            assert answer.headers["retry-after"] == "1"
        refused = await client.post("/v1/files", files={"file": ("b.txt", b"b")}, data={"purpose": "assistants"})
        assert_openai_error(refused, 503)
        unready = await client.get("/readyz")
        assert (unready.status_code, set(unready.json()["problems"])) == (503, {"database"})
        assert "out of reach" in unready.json()["problems"]["database"]
        assert (await client.get("/livez")).status_code == 200
        await asyncio.to_thread(server.start)
        assert (await client.get("/readyz")).status_code == 200
        assert [file["filename"] for file in (await client.get("/v1/files")).json()["data"]] == ["a.txt"]
        assert len([path for path in (tmp_path / "data" / "files").glob("??/*") if path.is_file()]) == 1


async def test_a_nul_character_is_the_clients_fault(postgres, tmp_path) -> None:
    app = make_app({"database": postgres.database()}, folder=tmp_path)
    async with serving(app) as base, http_client(base_url=base, timeout=20) as client:
        for path in ("/v1/files/file-%00", "/v1/files?purpose=%00", "/v1/files?after=%00"):
            assert_openai_error(await client.get(path), 400)
    database = Database(postgres.database())
    await database.start()
    with pytest.raises(BadRequest, match="NUL"):
        async with database.tenant("a") as session:
            session.add(a_file("file-a", "a\0b"))
    await database.stop()


async def test_errors_of_the_database_hold_no_values(postgres) -> None:
    database = Database(postgres.database())
    await database.start()

    async def add() -> None:
        async with database.tenant("a") as session:
            session.add(a_file("file-a", "private words"))

    await add()
    with pytest.raises(IntegrityError, match="INSERT") as told:
        await add()
    assert "private words" not in str(told.value)
    await database.stop()


# -- on both databases -------------------------------------------------------------------------------------


async def test_attaching_a_file_in_several_places_at_once_makes_one_row_and_one_job(several) -> None:
    async with several[0].tenant("a") as session:
        store = await a_store(session)
        session.add(a_file("file-a"))

    async def attach(database: Database) -> int:
        async with database.tenant("a") as session:
            return (await store_files.attach(session, store, "file-a", **SIZES)).version

    assert len(set(await asyncio.gather(*(attach(database) for database in several * 4)))) == 1
    async with several[0].session(write=False) as session:
        for table in (StoreFile, Job):
            assert await session.scalar(select(func.count()).select_from(table)) == 1


async def test_a_file_that_is_deleted_meanwhile_is_not_found_and_leaves_no_attachment(several) -> None:
    rounds = 15
    async with several[0].tenant("a") as session:
        store = await a_store(session)
        session.add_all([a_file(f"file-{i}") for i in range(rounds)])

    async def attach(i: int) -> bool:
        try:
            async with several[1].tenant("a") as session:
                await store_files.attach(session, store, f"file-{i}", **SIZES)
        except NotFound:
            return False
        return True

    async def delete(i: int) -> bool:
        try:
            async with several[2].tenant("a") as session:
                await files.remove(session, f"file-{i}")
        except IntegrityError:  # as DELETE /v1/files takes it: the file is in a store
            return False
        return True

    for i in range(rounds):
        attached, deleted = await asyncio.gather(attach(i), delete(i))
        assert attached != deleted


async def test_a_job_is_claimed_by_exactly_one_of_several_workers(several) -> None:
    async with several[0].tenant("a") as session:
        store = await a_store(session)
        session.add_all([a_file(f"file-{i}") for i in range(60)])
        await session.flush()
        for i in range(60):
            await store_files.attach(session, store, f"file-{i}", **SIZES)
    claimed: list[str] = []

    async def work(name: str, database: Database) -> None:
        while True:
            async with database.session() as session:
                found = await jobs.claim(session, name, 3, "memory")
                await asyncio.sleep(random.random() / 500)  # others get in between
            if not found:
                return
            claimed.extend(job.file_id for job in found)

    await asyncio.gather(*(work(f"worker-{i}", database) for i, database in enumerate(several)))
    # One that met only locked rows went home early; nothing is left for all that, and nothing was taken twice.
    await work("last", several[0])
    assert sorted(claimed) == sorted(f"file-{i}" for i in range(60))


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_hold_every_row_once_in_either_direction(database, order: str) -> None:
    from appliance.http.requests import Page

    async with database.tenant("a") as session:
        moment = now_us()
        for i in range(23):
            row = a_file(f"file-{i:02}")
            row.created_us = moment + i // 5  # several rows of one moment
            session.add(row)
    expected = [f"file-{i:02}" for i in (range(23) if order == "asc" else reversed(range(23)))]
    seen: list[str] = []
    async with database.tenant("a", write=False) as session:
        more = True
        while more:
            rows, more = await files.page(session, Page(limit=4, order=order, after=seen[-1] if seen else None))
            seen += [row.id for row in rows]
        assert seen == expected
        back = expected[-1:]
        more = True
        while more:
            rows, more = await files.page(session, Page(limit=4, order=order, before=back[0]))
            back = [row.id for row in rows] + back
        assert back == expected
