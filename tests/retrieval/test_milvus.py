from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.knowledge.separation import SeparateStores
from appliance.plugin import (
    AppContext,
    Config,
    ConfigError,
    InvalidFile,
    NotFound,
    OutOfSpace,
    RetrievalUnavailable,
    Scope,
    StartError,
    VectorStore,
)
from appliance.testing.contracts.vector_store import VectorStoreContract, chunk, vectors
from appliance_retrieval.milvus import MilvusSettings, MilvusStore, make_store
from appliance_retrieval.places import place_of

CHUNKS = 30
"""Chunks of each file that ``milvus_writer.py`` writes."""
FIVE: Any = {"limit": 5, "scope": Scope()}


class TestMilvusLite(VectorStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[VectorStore]:
        store = MilvusStore(str(tmp_path / "milvus.db"), run_dir=tmp_path / "run")
        await store.start()
        yield store
        await store.stop()


@pytest.mark.slow
class TestMilvusLiteForEachTenant(VectorStoreContract):
    """The same behind the face that keeps tenants apart."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[VectorStore]:
        async with separate(tmp_path) as store:
            yield store


@asynccontextmanager
async def separate(folder: Path, uri: str | None = None) -> AsyncIterator[SeparateStores]:
    """Milvus Lite for each tenant; a collection named ``b...`` is tenant b's, others are tenant a's."""
    context = AppContext(config=Config(folder=str(folder)), database=cast("Any", None))

    async def tenant_of(collection: str) -> str:
        return "b" if collection.startswith("b") else "a"

    async def tenants() -> list[str]:
        return ["a", "b"]

    store = SeparateStores(
        lambda tenant: make_store(MilvusSettings(uri=uri), dataclasses.replace(context, tenant=tenant)),
        tenant_of,
        tenants,
    )
    await store.start()
    yield store
    await store.stop()


async def test_b5_each_tenants_vectors_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    async with separate(tmp_path) as store:
        for collection, text in (("a1", "zebrafinch"), ("b1", "wallaby")):
            await store.create(collection, 2)
            await store.upsert(collection, [chunk(0, text)], vectors((1, 0)))
            await store.seal(collection)
            assert [hit.chunk.text for hit in await store.search_text(collection, text, limit=5, scope=Scope())]
        folders = {
            place_of(tenant): {
                path.name for path in (tmp_path / "data/milvus" / place_of(tenant)).glob("collections/*")
            }
            for tenant in ("a", "b")
        }
        assert folders == {place_of("a"): {"a1"}, place_of("b"): {"b1"}}
        await store.drop("b1")
        assert await store.count("a1") == 1
    async with separate(tmp_path) as again:
        assert await again.count("a1") == 1
        assert await again.count("b1") == 0


async def test_b5_on_a_server_each_tenant_has_a_database_of_its_own(tmp_path: Path) -> None:
    """Milvus Lite's own server, over TCP, in place of a Milvus server: it keeps databases apart, too."""
    from milvus_lite.adapter.grpc.server import start_server_in_thread
    from pymilvus import MilvusClient

    server, database, port = start_server_in_thread(str(tmp_path / "lite"), host="127.0.0.1")
    uri = f"http://127.0.0.1:{port}"
    try:
        for _ in range(2):  # made at first, found afterwards
            async with separate(tmp_path, uri) as store:
                for collection in ("a1", "b1"):
                    await store.create(collection, 2)
                    await store.upsert(collection, [chunk(0, collection)], vectors((1, 0)))
                    (found,) = await store.search_dense(collection, vectors((1, 0)), limit=5, scope=Scope())
                    assert found.chunk.text == collection
        for tenant in ("a", "b"):
            client = MilvusClient(uri, db_name=place_of(tenant))
            assert client.list_collections() == [f"{tenant}1"]
            client.close()
    finally:
        await asyncio.to_thread(server.stop(grace=1).wait)
        database.close()


async def test_a_tenants_store_that_cannot_be_opened_is_retrieval_unavailable_and_tried_again(tmp_path: Path) -> None:
    opened: list[str] = []

    def make(tenant: str) -> VectorStore:
        opened.append(tenant)
        if opened.count("b") == 1 and tenant == "b":
            return MilvusStore("http://127.0.0.1:9", run_dir=tmp_path, timeout=1.0)
        return MilvusStore(str(tmp_path / f"{tenant}.db"), run_dir=tmp_path / tenant)

    async def tenant_of(_: str) -> str:
        return "b"

    async def tenants() -> list[str]:
        return ["default", "b"]

    store = SeparateStores(make, tenant_of, tenants)
    await store.start()
    with pytest.raises(RetrievalUnavailable, match="try again"):
        await store.count("b1")
    assert await store.count("b1") == 0
    await store.stop()


def test_b10_no_two_tenants_share_a_place_and_no_name_leads_out_of_it() -> None:
    names = ["team-a", "team_a", "Team A", "TEAM-A", "", "../x", "/x", "x" * 255, "x" * 254, "\u212a", "k", "ü", "u"]
    places = {place_of(name) for name in names}
    assert len(places) == len(names)
    for place in places:
        assert re.fullmatch(r"t_[a-z0-9_]{1,60}", place)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MilvusStore]:
    store = MilvusStore(str(tmp_path / "milvus.db"), run_dir=tmp_path / "run")
    await store.start()
    await store.create("c", 2)
    yield store
    await store.stop()


async def fill(store: MilvusStore, count: int, file_id: str = "file-a") -> None:
    chunks = [chunk(i, f"word{i} common", file_id=file_id) for i in range(count)]
    await store.upsert("c", chunks, vectors(*((1, i) for i in range(count))))


def run_writer(folder: Path, mode: str, lifetime: float, after: str = "wrote") -> list[str]:
    """Run the writer until it dies or its time after the first line that begins so is over; the lines it printed."""
    command = [sys.executable, str(Path(__file__).with_name("milvus_writer.py")), str(folder), mode]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        first = list(until_line(process.stdout, after))
        killer = threading.Timer(lifetime, process.kill)
        killer.start()
        lines = [*first, *process.stdout]
        killer.cancel()
        process.wait(timeout=30)
    return [line.strip() for line in lines if line.strip()]


def until_line(lines: Iterable[str], beginning: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith(beginning):
            return


async def contents(folder: Path) -> Counter[tuple[str, int]]:
    """How often each chunk of each file is found, by the dense leg."""
    store = MilvusStore(str(folder), run_dir=folder.parent / "run")
    await store.start()
    hits = await store.search_dense("c", vectors((1, 0)), limit=16_000, scope=Scope())
    assert len(hits) == await store.count("c")
    await store.stop()
    return Counter((hit.chunk.file_id, hit.chunk.position) for hit in hits)


async def check_killed(folder: Path, lines: list[str]) -> None:
    found = await contents(folder)
    assert set(found.values()) <= {1}, "a chunk is there twice"
    for file_id in {line.split()[1] for line in lines if line.startswith("sealed")}:
        assert sum(found[file_id, position] for position in range(CHUNKS)) == CHUNKS, f"{file_id} lost chunks"


async def test_a_kill_between_segment_and_log_removal_doubles_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "milvus.db"
    for _ in range(2):
        lines = run_writer(folder, "after-manifest", lifetime=30)
        assert lines[0].startswith("wrote")
        await check_killed(folder, lines)


@pytest.mark.slow
async def test_kill_9_at_any_time_loses_nothing_sealed_and_doubles_nothing(tmp_path: Path) -> None:
    folder, dice, lines = tmp_path / "milvus.db", random.Random(7), []
    for after in ("wrote", "sealed") * 3:
        lines += run_writer(folder, "random", dice.uniform(0, 0.6), after)
        await check_killed(folder, lines)
    assert any(line.startswith("sealed") for line in lines)


async def test_a_torn_index_file_does_not_keep_a_collection_from_opening(tmp_path: Path, store: MilvusStore) -> None:
    await fill(store, 20)
    await store.seal("c")
    await store.stop()
    indexes = list(tmp_path.glob("milvus.db/collections/c/partitions/*/indexes/*"))
    for index in indexes:
        index.write_bytes(index.read_bytes()[:50])
    await store.start()
    assert len(await store.search_dense("c", vectors((1, 0)), limit=50, scope=Scope())) == 20


async def test_a_collection_whose_creation_was_killed_can_be_created(tmp_path: Path, store: MilvusStore) -> None:
    await store.stop()
    (tmp_path / "milvus.db" / "collections" / "half").mkdir()
    await store.start()
    await store.create("half", 2)
    assert await store.count("half") == 0


async def test_a_database_in_use_is_refused_with_the_fix(tmp_path: Path, store: MilvusStore) -> None:
    await fill(store, 1)
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom appliance_retrieval.milvus import MilvusStore\n"
        "asyncio.run(MilvusStore(sys.argv[1], run_dir=Path(sys.argv[2])).start())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "milvus.db"), str(tmp_path / "run")]
    second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, errors = await asyncio.wait_for(second.communicate(), 60)
    assert b"StartError" in errors
    assert b"is open in another process; stop that one or set plugin.milvus.uri" in errors
    assert store._database.lite is not None
    assert Path(store._database.lite.uri.removeprefix("unix:")).is_socket()
    assert await store.count("c") == 1


async def test_a_server_that_does_not_answer_is_refused_with_the_fix(tmp_path: Path) -> None:
    remote = MilvusStore("http://127.0.0.1:9", run_dir=tmp_path, timeout=1.0)
    with pytest.raises(StartError, match=r"plugin\.milvus\.uri"):
        await remote.start()
    await remote.stop()


async def test_a_milvus_server_is_reached_by_its_address(tmp_path: Path) -> None:
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    server, database, port = start_server_in_thread(str(tmp_path / "server"))
    remote = MilvusStore(f"http://127.0.0.1:{port}", run_dir=tmp_path / "run")
    await remote.start()
    await remote.create("c", 2)
    await fill(remote, 5)
    await remote.seal("c")
    assert len(await remote.search_dense("c", vectors((1, 0)), limit=9, scope=Scope())) == 5
    assert [hit.chunk.position for hit in await remote.search_text("c", "word3", limit=9, scope=Scope())] == [3]
    assert len(await remote.chunks("c", "file-a", scope=Scope())) == 5
    await remote.delete_file("c", "file-a")
    assert await remote.count("c") == 0
    await remote.stop()
    server.stop(grace=0).wait()
    database.close()


async def test_a_database_gone_at_run_time_is_retrieval_unavailable(store: MilvusStore) -> None:
    await fill(store, 1)
    assert store._database.lite is not None
    store._database.lite._server.stop(grace=0).wait(timeout=20)
    with pytest.raises(RetrievalUnavailable):
        await store.count("c")


async def test_a_server_gone_at_run_time_is_retrieval_unavailable_and_told_nothing_of_the_question(
    tmp_path: Path,
) -> None:
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    server, database, port = start_server_in_thread(str(tmp_path / "server"), host="127.0.0.1")
    remote = MilvusStore(f"http://127.0.0.1:{port}", run_dir=tmp_path / "run", timeout=5.0)
    await remote.start()
    await remote.create("c", 2)
    await fill(remote, 1)
    await asyncio.to_thread(server.stop(grace=0).wait)
    with pytest.raises(RetrievalUnavailable, match="does not answer") as caught:
        await remote.search_text("c", "secret question", limit=1, scope=Scope())
    assert "secret" not in str(caught.value)
    await remote.stop()
    database.close()


async def test_what_milvus_lite_refuses_is_retrieval_unavailable(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from milvus_lite.engine.collection import Collection

    await fill(store, 1)
    monkeypatch.setattr("appliance_retrieval.milvus.row_filter", lambda *_: "secret ==")
    for search in (store.search_dense("c", vectors((1, 0)), **FIVE), store.search_text("c", "word0", **FIVE)):
        with pytest.raises(RetrievalUnavailable) as caught:
            await search
        assert "secret" not in str(caught.value)
    monkeypatch.undo()
    lite = store._database.lite
    assert lite is not None
    monkeypatch.setattr(Collection, "_read_snapshot", lambda _: lite._db.get_collection("gone"))
    with pytest.raises(NotFound):
        await store.search_text("c", "word0", **FIVE)


async def test_a_stopped_store_is_retrieval_unavailable(tmp_path: Path) -> None:
    with pytest.raises(RetrievalUnavailable):
        await MilvusStore(str(tmp_path / "x.db"), run_dir=tmp_path).count("c")


async def test_milvus_lite_listens_on_a_private_socket_only(tmp_path: Path, store: MilvusStore) -> None:
    assert store._database.lite is not None
    socket = Path(store._database.lite.uri.removeprefix("unix:"))
    assert socket.is_socket()
    assert socket.parent.stat().st_mode & 0o077 == 0
    inodes = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    listening = {f"socket:[{line.split()[9]}]" for line in tcp_sockets() if line.split()[3] == "0A"}
    assert not inodes & listening


def tcp_sockets() -> list[str]:
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    return [line for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]


async def test_searches_during_writing_and_sealing_miss_nothing(store: MilvusStore) -> None:
    await fill(store, 200)
    enough = asyncio.Event()
    writing = asyncio.create_task(write_and_seal(store, enough))
    for _ in range(8):
        hits = await store.search_dense("c", vectors((1, 0)), limit=200, scope=Scope())
        assert len(hits) == 200
    assert not writing.done()
    enough.set()
    await writing


async def write_and_seal(store: MilvusStore, enough: asyncio.Event) -> None:
    for number in itertools.count():
        await fill(store, 150, f"file-{number}")
        await store.seal("c")
        if enough.is_set():
            return


async def test_a_cancelled_write_leaves_the_store_usable(store: MilvusStore) -> None:
    task = asyncio.create_task(fill(store, 500))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.delete_file("c", "file-a")
    assert await store.count("c") == 0


def context(folder: Path) -> AppContext:
    config = Config(folder=str(folder), data_dir="data")
    return AppContext(config=config, database=cast("Any", None))


async def test_the_default_is_a_folder_under_data_dir(tmp_path: Path) -> None:
    store = make_store(MilvusSettings(), context(tmp_path))
    await store.start()
    await store.create("c", 2)
    await store.stop()
    assert (tmp_path / "data" / "milvus.db" / "collections" / "c").is_dir()
    assert (tmp_path / "data" / "milvus.db").stat().st_mode & 0o077 == 0


def test_a_token_for_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plugin\.milvus\.token"):
        make_store(MilvusSettings(token="user:secret"), context(tmp_path))


async def test_a_run_folder_too_long_for_a_socket_is_no_obstacle(tmp_path: Path) -> None:
    store = MilvusStore(str(tmp_path / "milvus.db"), run_dir=tmp_path / ("long" * 30))
    await store.start()
    assert await store.count("c") == 0
    await store.stop()


async def test_a_full_disk_is_out_of_space(store: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from milvus_lite.engine.collection import Collection

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Collection, "insert", full)
    with pytest.raises(OutOfSpace, match="make room"):
        await fill(store, 1)


async def test_a_chunk_over_the_limit_of_milvus_says_so(store: MilvusStore) -> None:
    with pytest.raises(InvalidFile, match="max_chunk_size_tokens"):
        await store.upsert("c", [chunk(0, "é" * 40_000)], vectors((1, 0)))


async def test_words_match_by_their_stem(store: MilvusStore) -> None:
    await store.upsert("c", [chunk(0, "Köln: fluttering panels")], vectors((1, 0)))
    for query in ("KÖLN", "flutter", "panel"):
        assert len(await store.search_text("c", query, limit=1, scope=Scope())) == 1
