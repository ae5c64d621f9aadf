"""Three servers on one data folder and one PostgreSQL, asked in turn: they are one (O-16, O-25)."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from commands import appliance
from eventually import eventually
from processes import workers_at
from served import Served
from sqlalchemy import func, select
from worker_kit import install_plugin, write_config

from appliance.knowledge.messages import Presence
from appliance.storage.database import Database
from appliance.storage.tables import Job, StoreFile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NAMES = ("one", "two", "three")
STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}


class Replicas:
    """Three running servers behind a round-robin: each request is a new connection to the next one."""

    def __init__(self, folder: Path, database: str, running: ExitStack) -> None:
        self.folder, self.database, self._running = folder, database, running
        self.socket = folder / "data" / "run" / "worker.sock"
        self.config = write_config(
            folder,
            plugins=["scripted", "milvus", "documents", "tokens", "scripted_embedder", "api_keys", "rbac", "usage"],
            models=[{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
            retrieval={"vector_store": "milvus", "stores": [{"name": "handbook", "paths": ["handbook.md"]}]},
            database=database,
        )
        (folder / "handbook.md").write_text("the zebrafinch sings")
        self.servers: dict[str, Served] = {}
        self.admin = ""
        self._turn = itertools.count()

    def start(self, name: str) -> None:
        """Start a replica; it runs until the end."""
        self.servers[name] = self._running.enter_context(Served(self.config, "--replica", name, timeout=90))

    def key(self, *arguments: str) -> dict[str, Any]:
        """Make a key on the command line, beside the running servers."""
        return self.command("keys", "create", "--json", *arguments)

    def command(self, *arguments: str) -> dict[str, Any]:
        done = appliance(*arguments, "--config", self.config, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = msgspec.json.decode(done.stdout) if "--json" in arguments else {}
        return found

    async def ask(self, method: str, path: str, key: str, *, of: str | None = None, **request: Any) -> httpx.Response:
        """One request to the next replica, or to ``of``."""
        living = [name for name, server in self.servers.items() if server.process.poll() is None]
        url = self.servers[of or living[next(self._turn) % len(living)]].url
        async with httpx.AsyncClient(
            base_url=url, timeout=40, verify=False, headers={"authorization": f"Bearer {key}"}
        ) as client:
            return await client.request(method, path, **request)

    async def serving_worker(self) -> str:
        """The replica whose worker serves all."""
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=20) as client:
            answer = await client.post("/ready", content=msgspec.msgpack.encode({}))
        return msgspec.msgpack.decode(answer.content, type=Presence).replica

    def worker_of(self, name: str) -> int:
        """The process id of a replica's worker, below its guard."""
        return workers_at(self.socket, f"--replica={name}")[0]


@pytest.fixture(scope="module")
def replicas(tmp_path_factory, postgres) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("replicas")
    site = install_plugin(folder / "site", "scripted_embedder", "appliance.testing.scripted_embedder:scripted_embedder")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as running, ThreadPoolExecutor() as threads:
        patch.setenv("PYTHONPATH", str(site))
        made = Replicas(folder, postgres.database(), running)
        list(threads.map(made.start, NAMES))  # the threads stay: a server ends with the one that started it
        yield made


@pytest.fixture
async def key(replicas: Replicas) -> str:
    """An administrator's key, once every replica knows that there are keys."""
    if not replicas.admin:
        replicas.admin = str((await asyncio.to_thread(replicas.key, "--admin"))["key"])

    async def guarded() -> bool:
        answers = [await replicas.ask("GET", "/v1/models", "none", of=name) for name in NAMES]
        return all(answer.status_code == 401 for answer in answers)

    await eventually(guarded)
    return replicas.admin


async def test_o25_what_one_replica_makes_is_there_on_the_others_until_it_is_deleted(replicas, key) -> None:
    for number in range(50):
        file = await replicas.ask(
            "POST", "/v1/files", key, files={"file": (f"{number}.txt", b"zebrafinch")}, data={"purpose": "assistants"}
        )
        store = (await replicas.ask("POST", "/v1/vector_stores", key, json={"name": "s"})).json()["id"]
        one = f"/v1/vector_stores/{store}"
        assert (await replicas.ask("GET", one, key)).status_code == 200
        attached = await replicas.ask("POST", f"{one}/files", key, json={"file_id": file.json()["id"]})
        assert attached.status_code == 200, attached.text
        assert (await replicas.ask("POST", f"{one}/search", key, json={"query": "zebrafinch"})).status_code == 200
        assert len((await replicas.ask("GET", f"{one}/files", key)).json()["data"]) == 1
        assert store in {row["id"] for row in (await replicas.ask("GET", "/v1/vector_stores", key)).json()["data"]}
        assert (await replicas.ask("DELETE", one, key)).status_code == 200
        for name in NAMES:
            assert (await replicas.ask("GET", one, key, of=name)).status_code == 404


async def test_o25_files_and_answers_and_keys_of_one_replica_are_known_to_the_others(replicas, key) -> None:
    for number in range(10):
        form = {"files": {"file": (f"{number}.txt", b"zebrafinch")}, "data": {"purpose": "assistants"}}
        file = f"/v1/files/{(await replicas.ask('POST', '/v1/files', key, **form)).json()['id']}"
        assert (await replicas.ask("GET", f"{file}/content", key)).content == b"zebrafinch"
        asked = {"model": "m", "input": "hi"}
        first = (await replicas.ask("POST", "/v1/responses", key, json=asked)).json()["id"]
        follow_up = {"model": "m", "input": "and", "previous_response_id": first}
        second = await replicas.ask("POST", "/v1/responses", key, json=follow_up)
        assert second.status_code == 200, second.text
        for path in (file, f"/v1/responses/{first}", f"/v1/responses/{second.json()['id']}"):
            for name in NAMES:
                assert (await replicas.ask("GET", path, key, of=name)).status_code == 200
            assert (await replicas.ask("DELETE", path, key)).status_code == 200
            for name in NAMES:
                assert (await replicas.ask("GET", path, key, of=name)).status_code == 404
        gone = await replicas.ask("POST", "/v1/responses", key, json=follow_up)
        assert gone.status_code == 404
    made = await asyncio.to_thread(replicas.key, "--name", "new")
    for name in NAMES:
        assert (await replicas.ask("GET", "/v1/models", made["key"], of=name)).status_code == 200


async def test_b15_r30_a_deleted_document_is_found_cited_and_given_out_by_no_replica(replicas, key) -> None:
    store = (await replicas.ask("POST", "/v1/vector_stores", key, json={})).json()["id"]
    one = f"/v1/vector_stores/{store}"
    said = {"model": "m", "messages": [{"role": "user", "content": "wallaby"}]}
    asks: dict[str, tuple[str, dict[str, Any]]] = {
        "search": (f"{one}/search", {"query": "wallaby"}),
        "chat": ("/v1/chat/completions", said | {"tools": [{"type": "file_search", "vector_store_ids": [store]}]}),
    }

    async def shown(file: str) -> set[tuple[str, str]]:
        """By which replica it is shown, and how."""
        found = set()
        for name in NAMES:
            for kind, (path, body) in asks.items():
                answer = await replicas.ask("POST", path, key, of=name, json=body)
                assert answer.status_code == 200, answer.text
                found |= {(name, kind)} if file in answer.text else set()
            for kind, path in {"text": f"{one}/files/{file}/content", "download": f"/v1/files/{file}/content"}.items():
                if (await replicas.ask("GET", path, key, of=name)).status_code == 200:
                    found.add((name, kind))
        return found

    for detached_by, deleted_by in itertools.permutations(NAMES, 2):
        form = {"files": {"file": ("w.txt", b"the wallaby sleeps")}, "data": {"purpose": "assistants"}}
        file = (await replicas.ask("POST", "/v1/files", key, **form)).json()["id"]
        attached = await replicas.ask("POST", f"{one}/files", key, json={"file_id": file})
        assert attached.status_code == 200, attached.text

        async def completed(file: str = file) -> bool:
            return (await replicas.ask("GET", f"{one}/files/{file}", key)).json()["status"] == "completed"

        await eventually(completed)
        assert len(await shown(file)) == 4 * len(NAMES)
        gone = await replicas.ask("DELETE", f"{one}/files/{file}", key, of=detached_by)
        assert gone.status_code == 200, gone.text
        assert {kind for _, kind in await shown(file)} == {"download"}
        assert (await replicas.ask("DELETE", f"/v1/files/{file}", key, of=deleted_by)).status_code == 200
        assert await shown(file) == set()


async def test_a_configured_store_is_made_once_and_found_by_all(replicas, key) -> None:
    for name in NAMES:
        listed = (await replicas.ask("GET", "/v1/vector_stores?limit=100", key, of=name)).json()["data"]
        (handbook,) = [store for store in listed if store["name"] == "handbook"]
        assert handbook["file_counts"]["completed"] == handbook["file_counts"]["total"] == 1
        path = f"/v1/vector_stores/{handbook['id']}/search"
        found = (await replicas.ask("POST", path, key, of=name, json={"query": "zebrafinch"})).json()["data"]
        assert [hit["filename"] for hit in found] == ["handbook.md"]


async def test_o16_a_revoked_key_is_refused_by_every_replica_within_five_seconds(replicas, key) -> None:
    made = replicas.key("--admin", "--name", "leaving")
    for name in NAMES:
        assert (await replicas.ask("GET", "/v1/models", made["key"], of=name)).status_code == 200
    await asyncio.to_thread(replicas.command, "keys", "revoke", made["id"])

    async def refused() -> bool:
        answers = [await replicas.ask("GET", "/v1/models", made["key"], of=name) for name in NAMES]
        return all(answer.status_code == 401 for answer in answers)

    await eventually(refused, 5)
    for _ in range(40):
        assert (await replicas.ask("GET", "/v1/models", made["key"])).status_code == 401
    assert (await replicas.ask("GET", "/v1/models", key)).status_code == 200


async def test_one_worker_works_for_all_and_another_takes_its_place(replicas, key) -> None:
    """Kill the worker that serves, then the server of the next: every file ends completed, each chunk once."""
    store = (await replicas.ask("POST", "/v1/vector_stores", key, json={"name": "all"})).json()["id"]
    one, files = f"/v1/vector_stores/{store}", 40

    async def add(number: int) -> None:
        text = " ".join(f"word{number}x{i}" for i in range(250)).encode()
        form = {"files": {"file": (f"{number}.txt", text)}, "data": {"purpose": "assistants"}}
        file = (await replicas.ask("POST", "/v1/files", key, **form)).json()["id"]
        body = {"file_id": file, "chunking_strategy": STATIC}
        assert (await replicas.ask("POST", f"{one}/files", key, json=body)).status_code == 200

    for number in range(files):
        await add(number)
    first = await replicas.serving_worker()
    await asyncio.to_thread(os.kill, replicas.worker_of(first), signal.SIGKILL)
    # A search waits for the successor; none is refused.
    assert (await replicas.ask("POST", f"{one}/search", key, json={"query": "word7x7"})).status_code == 200
    second = await replicas.serving_worker()
    killed = replicas.servers[second].process
    killed.kill()
    await asyncio.to_thread(killed.wait, 20)

    async def done() -> bool:
        counts = (await replicas.ask("GET", one, key)).json()["file_counts"]
        assert counts["failed"] == 0, counts
        return counts["completed"] == files

    async def taken_over() -> bool:
        with suppress(httpx.TransportError):  # the third is not there yet, where the second had done everything
            return await replicas.serving_worker() != second
        return False

    await eventually(done, 90)
    await eventually(taken_over, 90)
    listed = (await replicas.ask("GET", f"{one}/files?limit=100", key)).json()["data"]
    for row in listed:
        content = (await replicas.ask("GET", f"{one}/files/{row['id']}/content", key)).json()
        words = " ".join(part["text"] for part in content["data"]).split()
        assert len(words) == len(set(words)) == 250
    hits = (await replicas.ask("POST", f"{one}/search", key, json={"query": "word7x7"})).json()["data"]
    assert hits[0]["filename"] == "7.txt"
    assert Counter(hit["filename"] for hit in hits)["7.txt"] <= 3
    for name in NAMES:
        if name != second:
            assert (await replicas.ask("GET", "/readyz", key, of=name)).status_code == 200
    database = Database(replicas.database)
    await database.start()
    async with database.session(write=False) as session:
        assert await session.scalar(select(func.count()).select_from(Job)) == 0
        chunks = select(func.sum(StoreFile.chunks)).where(StoreFile.store_id == store)
        assert await session.scalar(chunks) == 3 * files
    await database.stop()
    replicas.start(second)
    assert (await replicas.ask("GET", one, key, of=second)).status_code == 200


async def test_what_all_replicas_served_is_counted_once_and_their_audit_log_is_one_chain(replicas, key) -> None:
    made = await asyncio.to_thread(replicas.key, "--admin", "--user", "counter", "--name", "counter")
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    for name in NAMES * 4:
        answer = await replicas.ask("POST", "/v1/chat/completions", made["key"], of=name, json=chat)
        assert answer.status_code == 200

    async def counted() -> int:
        days = (await replicas.ask("GET", "/v1/usage", made["key"])).json()["data"]
        return sum(row["num_model_requests"] for day in days for row in day["results"])

    await eventually(lambda: _equals(counted, 4 * len(NAMES)))
    verified = await asyncio.to_thread(appliance, "audit", "verify", "--config", replicas.config, cwd=replicas.folder)
    assert verified.returncode == 0, verified.stdout + verified.stderr


async def _equals(count: Callable[[], Awaitable[int]], wanted: int) -> bool:
    found = await count()
    assert found <= wanted
    return found == wanted


def test_a_name_serves_once_and_a_server_without_one_does_not_join(replicas) -> None:
    living = next(name for name, server in replicas.servers.items() if server.process.poll() is None)
    taken = appliance("serve", "--config", replicas.config, "--port", "0", "--replica", living, cwd=replicas.folder)
    assert taken.returncode == 1
    assert f"--replica: {living} is taken" in taken.stderr
    alone = appliance("serve", "--config", replicas.config, "--port", "0", cwd=replicas.folder)
    assert alone.returncode == 1
    assert "--replica" in alone.stderr
