"""Nothing acknowledged is lost or doubled, whatever is killed when: the real server, worker and Milvus Lite.

``make kills KILLS=1000`` kills more often, and shows how far it is.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from ports import reserved_port
from processes import kill_worker_at
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy import select
from worker_kit import install_plugin, write_config

from appliance.config import load
from appliance.context import AppContext
from appliance.plugins import Plugins
from appliance.storage.database import Database
from appliance.storage.tables import StoreFile
from appliance.types import Scope

DOCUMENTS = 200
KILLS, SEED = int(os.environ.get("KILLS", "50")), int(os.environ.get("KILLS_SEED", "20"))
IN_A_ROW = 15
"""Workers killed one after the other; one that dies 20 times without having been well for 30 s is given up."""
WORDS = 250
STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}


class Appliance:
    """The real ``appliance serve`` on a data folder, to be killed."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.config = write_config(folder, plugins=["milvus", "documents", "tokens", "scripted_embedder"],
                                   retrieval={"vector_store": "milvus"})  # fmt: skip
        self.socket = folder / "data" / "run" / "worker.sock"
        site = install_plugin(
            folder / "site", "scripted_embedder", "appliance.testing.scripted_embedder:scripted_embedder"
        )
        self.environment = {**os.environ, "PYTHONPATH": str(site)}
        self.log = (folder / "server.log").open("ab")
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = ("-m", "appliance", "serve", "--config", str(self.config), "--port", str(self.port))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=self.environment, stdout=self.log, stderr=self.log
        )

    async def keep_running(self) -> None:
        """Start it again whenever it ends, as a service manager would."""
        while True:
            await self.start()
            await self.process.wait()

    def kill_server(self) -> bool:
        if self.process is None or self.process.returncode is not None:
            return False
        self.process.kill()
        return True

    def kill_worker(self) -> bool:
        return kill_worker_at(self.socket)

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await asyncio.wait_for(self.process.wait(), 60)
        self.log.close()


async def insist(client: httpx.AsyncClient, method: str, path: str, **request) -> dict:
    """Repeat until the server acknowledges, as a client would; 409 and 4xx are errors."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            answer = await client.request(method, path, **request)
            assert answer.status_code < 400 or answer.status_code in (502, 503), answer.text
            if answer.status_code < 400:
                return answer.json()
        await asyncio.sleep(0.1)
    raise AssertionError(f"{path} was not acknowledged in time")


def text_of(number: int) -> str:
    return f"document{number} " + " ".join(f"word{number}x{i}" for i in range(WORDS - 1))


async def feed(
    client: httpx.AsyncClient, store: str, attached: dict[str, int], kills: list[str], killed: asyncio.Event
) -> None:
    """Upload and attach all documents, spread over the time of the killing."""
    for number in range(DOCUMENTS):
        while len(kills) < number * KILLS // DOCUMENTS - 1:
            killed.clear()
            await killed.wait()
        form = {"data": {"purpose": "assistants"}, "files": {"file": (f"{number}.txt", text_of(number).encode())}}
        file = (await insist(client, "POST", "/v1/files", **form))["id"]
        body = {"file_id": file, "chunking_strategy": STATIC}
        await insist(client, "POST", f"/v1/vector_stores/{store}/files", json=body)
        attached[file] = number


async def kill_at_random(
    appliance: Appliance, client: httpx.AsyncClient, kills: list[str], killed: asyncio.Event
) -> None:
    """Kill the worker or the server, mostly while they work, at times while they start."""
    chance = random.Random(SEED)
    with shown() as step:
        while len(kills) < KILLS:
            if chance.random() < 0.7:
                await ready(client)
            await asyncio.sleep(chance.uniform(0, 0.6))
            worn = len(kills) >= IN_A_ROW and "server" not in kills[-IN_A_ROW:]
            server = chance.random() < 0.3 or worn
            if appliance.kill_server() if server else appliance.kill_worker():
                kills.append("server" if server else "worker")
                killed.set()
                step()


@contextmanager
def shown() -> Iterator[Callable[[], None]]:
    """A bar for whoever looks at a terminal; gives what moves it on."""
    columns = TextColumn("killed"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("", total=KILLS)
        yield lambda: bars.advance(task)


async def ready(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if (await client.get("/readyz")).status_code == 200:
                return
        await asyncio.sleep(0.05)
    raise AssertionError("the appliance did not come back")


async def all_completed(client: httpx.AsyncClient, store: str) -> None:
    deadline = time.monotonic() + 90
    counts: dict = {}
    while time.monotonic() < deadline:
        counts = (await insist(client, "GET", f"/v1/vector_stores/{store}"))["file_counts"]
        if counts["completed"] == counts["total"]:
            return
        assert counts["failed"] == 0, counts
        await asyncio.sleep(0.3)
    raise AssertionError(f"not all files were completed: {counts}")


@pytest.mark.slow
@pytest.mark.timeout(600 + 10 * KILLS)
async def test_r16_random_kills_lose_nothing_and_double_nothing(tmp_path) -> None:
    with reserved_port() as port:
        await killed_at_random(tmp_path, Appliance(tmp_path, port))


async def killed_at_random(tmp_path: Path, appliance: Appliance) -> None:
    kills: list[str] = []
    attached: dict[str, int] = {}
    killed = asyncio.Event()
    keeper = asyncio.create_task(appliance.keep_running())
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{appliance.port}", timeout=30) as client:
            store = (await insist(client, "POST", "/v1/vector_stores", json={"name": "all"}))["id"]
            async with asyncio.TaskGroup() as group:
                group.create_task(feed(client, store, attached, kills, killed))
                group.create_task(kill_at_random(appliance, client, kills, killed))
            await all_completed(client, store)
            # By words alone: the vectors of the scripted embedder are alike for many of these texts.
            by_words = {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}}
            question = {"query": "document7", "ranking_options": by_words}
            hits = (await insist(client, "POST", f"/v1/vector_stores/{store}/search", json=question))["data"]
            assert attached[hits[0]["file_id"]] == 7
    finally:
        keeper.cancel()
        await asyncio.wait({keeper})
        await appliance.stop()
    assert Counter(kills).total() == KILLS
    await check(tmp_path, appliance, store, attached)


async def check(tmp_path: Path, appliance: Appliance, store: str, attached: dict[str, int]) -> None:
    """The oracle: every chunk id that must be there is, once, and no other."""
    sys.path.insert(0, appliance.environment["PYTHONPATH"])
    try:
        config = load(appliance.config)
        database = Database(config.database_url)
        plugins = Plugins(config)
    finally:
        sys.path.remove(appliance.environment["PYTHONPATH"])
    context = AppContext(config=config, database=database)
    plugins.bind(context)
    backend = plugins.vector_stores()["milvus"](context)
    await database.start()
    await backend.start()
    try:
        async with database.session(write=False) as session:
            rows = (await session.scalars(select(StoreFile).where(StoreFile.store_id == store))).all()
        assert {row.file_id for row in rows} == set(attached)
        assert {(row.status, row.chunks) for row in rows} == {("completed", 3)}
        for row in rows:
            chunks = await backend.chunks(store, row.file_id, scope=Scope())
            assert [chunk.id for chunk in chunks] == [f"{row.file_id}:{row.version}:{i}" for i in range(3)]
            assert " ".join(chunk.text for chunk in chunks) == text_of(attached[row.file_id])
        assert await backend.count(store) == 3 * DOCUMENTS
    finally:
        await backend.stop()
        await database.stop()
