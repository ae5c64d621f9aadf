"""The store on a real Milvus server: see ``milvus_server.py``, and for what that one lacks ``milvus_bridge.py``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from milvus_bridge import BridgedClient
from milvus_server import MilvusServer
from relay import Relay

from appliance.plugin import (
    Comparison,
    NotFound,
    RetrievalUnavailable,
    Scope,
    StartError,
    StoredChunk,
)
from appliance.testing.contracts.vector_store import COLLECTION, EVERYONE, VectorStoreContract, chunk, vectors
from appliance_retrieval.milvus import MilvusStore

pytestmark = pytest.mark.slow
QUERY = vectors((1, 0))
SECRET = "a long secret"


@pytest.fixture(scope="module")
def server() -> Iterator[MilvusServer]:
    with MilvusServer() as server:
        yield server


@pytest.fixture
def bridged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymilvus.MilvusClient", BridgedClient)


@asynccontextmanager
async def opened(server: MilvusServer, folder: Path, url: str = "", **given: Any) -> AsyncIterator[MilvusStore]:
    """A store with an empty collection, which stays loaded for the next test: to make one takes seconds."""
    store = MilvusStore(url or server.url, run_dir=folder, **given)
    await store.start()
    await store.create(COLLECTION, 2)
    yield store
    await store.stop()
    server.empty()


@pytest.fixture
async def store(server: MilvusServer, bridged: None, tmp_path: Path) -> AsyncIterator[MilvusStore]:
    async with opened(server, tmp_path, timeout=10.0) as store:
        yield store


class TestMilvusServer(VectorStoreContract):
    @pytest.fixture
    async def relay(self, server: MilvusServer) -> AsyncIterator[Relay]:
        async with Relay(server.port) as relay:
            yield relay

    @pytest.fixture
    async def store(
        self, server: MilvusServer, relay: Relay, bridged: None, tmp_path: Path
    ) -> AsyncIterator[MilvusStore]:
        async with opened(server, tmp_path, f"http://127.0.0.1:{relay.port}", timeout=10.0) as store:
            yield store

    @pytest.fixture
    async def outage(self, relay: Relay) -> Callable[[], Awaitable[None]]:
        return relay.gone


async def write(store: MilvusStore, count: int, file_id: str = "file-a", collection: str = COLLECTION) -> None:
    chunks = [chunk(i, f"word{i}", file_id=file_id) for i in range(count)]
    await store.upsert(collection, chunks, vectors(*((1, i) for i in range(count))))


async def near(store: MilvusStore, collection: str = COLLECTION, **given: Any) -> list[str]:
    asked = {"limit": 1000, "scope": EVERYONE, **given}
    return [hit.chunk.id for hit in await store.search_dense(collection, QUERY, **asked)]


async def test_b7_a_server_older_than_2_5_stops_the_start(server: MilvusServer, tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"Milvus v2\.3\.5\S* at http://\S+ .*update it to 2\.5\.27, 2\.6\.10 or later"
    ):
        await MilvusStore(server.url, run_dir=tmp_path).start()


async def test_what_one_process_writes_another_finds_at_once(
    store: MilvusStore, server: MilvusServer, tmp_path: Path
) -> None:
    other = MilvusStore(server.url, run_dir=tmp_path)
    await other.start()
    for i in range(20):
        await write(store, 1, f"file-{i}")
        assert await other.count(COLLECTION) == i + 1
        await store.set_readers(COLLECTION, f"file-{i}", ("user:1",) if i % 2 else ("*",))
        assert len(await near(other)) == i // 2 + 1
    await other.stop()


async def test_files_are_sealed_faster_than_a_server_takes_orders_to_flush(store: MilvusStore) -> None:
    """One in ten seconds, here and by default everywhere since 2.4 (quotaAndLimits.flushRate)."""
    async with asyncio.timeout(8):
        for i in range(8):
            await write(store, 3, f"file-{i}")
            await store.seal(COLLECTION)
    assert len(await near(store)) == 24


async def test_more_rows_than_one_query_returns_are_all_there(store: MilvusStore) -> None:
    chunks = [chunk(i, file_id="file-a") for i in range(17_000)]
    await store.upsert(COLLECTION, chunks, vectors(*[(1, 0)] * len(chunks)))
    assert await store.count(COLLECTION) == len(chunks)
    assert list(await store.chunk_ids(COLLECTION)) == [each.id for each in chunks]
    page = await store.chunks(COLLECTION, "file-a", scope=EVERYONE, offset=16_900, limit=200)
    assert [each.position for each in page] == list(range(16_900, 17_000))


async def test_a_caller_may_be_in_many_groups_and_a_filter_may_name_many_values(store: MilvusStore) -> None:
    """As one chain, so many conditions take a server seconds to read."""
    rows = [chunk(i, readers=(f"group:{i}",), attributes={"n": i}) for i in range(3)]
    await store.upsert(COLLECTION, rows, vectors(*[(1, 0)] * 3))
    scope = Scope(readers=tuple(f"group:{i}" for i in range(1, 1000)))
    async with asyncio.timeout(4):
        assert sorted(await near(store, scope=scope)) == ["file-a:1", "file-a:2"]
    scope = Scope(readers=("group:1", "group:2"))
    many = tuple(range(2, 258))
    for where, expected in (
        (Comparison(key="n", type="in", value=many), ["file-a:2"]),
        (Comparison(key="n", type="nin", value=many), ["file-a:1"]),
    ):
        assert await near(store, scope=scope, where=where) == expected


async def test_a_collection_that_somebody_released_is_loaded_again(store: MilvusStore, server: MilvusServer) -> None:
    await write(store, 2)
    client = server.client()
    client.release_collection(COLLECTION)
    client.close()
    with pytest.raises(RetrievalUnavailable):
        await near(store)
    assert len(await near(store)) == 2


async def test_a_collection_that_somebody_dropped_is_gone_for_everyone(
    store: MilvusStore, server: MilvusServer, tmp_path: Path
) -> None:
    other = MilvusStore(server.url, run_dir=tmp_path)
    await other.start()
    await store.create("passing", 2)
    assert await near(other, "passing") == []
    await store.drop("passing")
    with pytest.raises(NotFound):
        await write(other, 1, collection="passing")
    assert await near(other, "passing") == []
    await store.create("passing", 3)
    await other.upsert("passing", [chunk(0)], vectors((1, 0, 0)))
    assert await store.count("passing") == 1
    await store.drop("passing")
    await other.stop()


async def test_b5_a_tenant_s_database_is_out_of_reach_of_another_s(
    server: MilvusServer, bridged: None, tmp_path: Path
) -> None:
    stores = [MilvusStore(server.url, run_dir=tmp_path, database=name) for name in ("t_a", "t_b")]
    for store in stores:
        await store.start()
    mine, theirs = stores
    await mine.create("kept", 2)
    await write(mine, 3, collection="kept")
    assert list(await theirs.collections()) == []
    assert await near(theirs, "kept") == []
    assert await theirs.count("kept") == 0
    with pytest.raises(NotFound):
        await write(theirs, 1, collection="kept")
    assert len(await near(mine, "kept")) == 3
    for store in stores:
        await store.drop("kept")
        await store.stop()


async def test_a_server_with_no_room_for_a_tenant_s_database_says_so(
    server: MilvusServer, bridged: None, tmp_path: Path
) -> None:
    names = [f"t_{number}" for number in range(70)]

    async def open_all() -> None:
        for name in names:
            store = MilvusStore(server.url, run_dir=tmp_path, database=name)
            await store.start()
            await store.stop()

    with pytest.raises(StartError, match=r"takes no more databases; raise its rootCoord\.maxDatabaseNum"):
        await open_all()
    client = server.client()
    for name in {*names, "t_a", "t_b"} & {*client.list_databases()}:
        client.drop_database(name)
    client.close()


async def test_a_silent_server_is_given_up_in_time_and_found_again(
    store: MilvusStore, server: MilvusServer, tmp_path: Path
) -> None:
    hasty = MilvusStore(server.url, run_dir=tmp_path, timeout=2.0)
    await hasty.start()
    assert await near(hasty) == []
    server.freeze()  # not for long: it would lose its lease
    try:
        async with asyncio.timeout(6):
            ended = await asyncio.gather(near(hasty), write(hasty, 1), return_exceptions=True)
    finally:
        server.thaw()
    assert [type(each) for each in ended] == [RetrievalUnavailable] * 2
    await until_answered(lambda: write(hasty, 1))
    assert await until_answered(lambda: near(hasty)) == ["file-a:0"]
    await hasty.stop()


async def test_a_cancelled_write_leaves_a_store_that_can_be_used(store: MilvusStore) -> None:
    writing = asyncio.create_task(write(store, 2000))
    while await store.count(COLLECTION) == 0:
        assert not writing.done()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await write(store, 5, "file-b")
    await store.delete_file(COLLECTION, "file-a")
    assert sorted(await near(store)) == [f"file-b:{i}" for i in range(5)]


async def test_kill_9_while_files_come_in_loses_nothing_acknowledged(store: MilvusStore, server: MilvusServer) -> None:
    acknowledged: list[StoredChunk] = []
    first = asyncio.Event()

    async def ingest() -> None:
        for number in range(100_000):
            chunks = [chunk(i, f"word{i}", file_id=f"file-{number}") for i in range(20)]
            await store.upsert(COLLECTION, chunks, vectors(*((1, i) for i in range(20))))
            await store.seal(COLLECTION)
            acknowledged.extend(chunks)
            first.set()

    async def search() -> None:
        while True:
            await near(store, limit=5)

    running = [asyncio.create_task(ingest()), asyncio.create_task(search())]
    await asyncio.wait_for(first.wait(), 20)
    server.kill()
    for ended in await asyncio.gather(*running, return_exceptions=True):
        assert isinstance(ended, RetrievalUnavailable)
    server.start()
    found = set(await until_answered(lambda: store.chunk_ids(COLLECTION)))
    assert {each.id for each in acknowledged} <= found
    assert len(await near(store, limit=16_000)) == await store.count(COLLECTION) == len(found)
    await write(store, 1, "file-after")
    assert "file-after:0" in await near(store, limit=16_000)


async def until_answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What it says once the server is back; each refusal on the way is the right one."""
    end = time.monotonic() + 40
    while True:
        try:
            return await ask()
        except RetrievalUnavailable:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


async def test_a_token_is_what_lets_in(bridged: None, tmp_path: Path) -> None:
    with MilvusServer(authorization=True) as guarded:

        async def refused(token: str) -> str:
            with pytest.raises(StartError) as error:
                await MilvusStore(guarded.url, run_dir=tmp_path, token=token, timeout=5.0).start()
            assert not token or token not in str(error.value)
            return str(error.value)

        assert "the password that every Milvus begins with" in await refused("root:Milvus")
        client = guarded.client(token="root:Milvus")
        client.update_password("root", "Milvus", SECRET)
        client.close()
        for wrong in ("", "root:Milvus", "root:wrong", "nobody:x"):
            assert "check plugin.milvus.uri and token" in await refused(wrong)
        store = MilvusStore(guarded.url, run_dir=tmp_path, token=f"root:{SECRET}", database="t_a")
        await store.start()
        assert list(await store.collections()) == []
        await store.stop()
