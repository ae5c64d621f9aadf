"""The whole appliance over each vector store that lies elsewhere: answers from documents, and what an outage does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from class_stores import BROKEN
from eventually import until
from loopback import Box, assert_openai_error
from milvus_bridge import BridgedClient
from milvus_server import MilvusServer
from pinecone_standin import KEY, PineconeStandIn
from postgres import Postgres
from relay import Relay
from sqlalchemy import select

from appliance.storage.tables import Job
from appliance.testing.scripted_embedder import ScriptedEmbedder

pytestmark = pytest.mark.slow


@dataclass
class Backend:
    """Settings of a vector store, and its server's switch."""

    settings: dict[str, Any]
    cut: Callable[[], Awaitable[None]]
    mend: Callable[[], Awaitable[None]]


@asynccontextmanager
async def class_path(name: str, filter_: dict[str, str]) -> AsyncIterator[Backend]:
    async def cut() -> None:
        BROKEN.add("yes")

    async def mend() -> None:
        BROKEN.clear()

    yield Backend({"class": f"class_stores.{name}", **filter_}, cut, mend)
    BROKEN.clear()


@asynccontextmanager
async def pgvector(server: Postgres) -> AsyncIterator[Backend]:
    url = server.database().replace("+asyncpg", "")
    elsewhere = await asyncpg.connect(f"{url.rpartition('/')[0]}/postgres")
    name = url.rpartition("/")[2]

    async def cut() -> None:
        await elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await elsewhere.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1", name)

    async def mend() -> None:
        await elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    yield Backend({"url": url, "timeout": 10}, cut, mend)
    await elsewhere.close()


@asynccontextmanager
async def pinecone() -> AsyncIterator[Backend]:
    standin = PineconeStandIn()

    async def cut() -> None:
        standin.failing = 403  # the SDK does not try again

    async def mend() -> None:
        standin.failing = None

    async with standin.serving() as url:
        yield Backend({"api_key": KEY, "url": url}, cut, mend)


@asynccontextmanager
async def milvus() -> AsyncIterator[Backend]:
    with MilvusServer() as server:
        async with Relay(server.port) as relay:
            yield Backend({"uri": f"http://127.0.0.1:{relay.port}"}, relay.gone, relay.heal)


@pytest.fixture
async def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    if request.param == "pgvector":
        made = pgvector(request.getfixturevalue("pgvector_server"))
    elif request.param == "pinecone":
        made = pinecone()
    elif request.param == "milvus":
        monkeypatch.setattr("pymilvus.MilvusClient", BridgedClient)
        made = milvus()
    elif request.param == "langchain":
        made = class_path("LangChainStore", {"filter": "function"})
    else:
        made = class_path("LlamaIndexStore", {})
    async with made as found:
        yield found


@pytest.mark.parametrize("backend", ["langchain", "llamaindex", "milvus", "pgvector", "pinecone"], indirect=True)
async def test_documents_are_answered_from_and_an_outage_is_503_until_it_is_over(
    box: Any, backend: Backend, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["backend"]
    config = {
        "plugins": [name, "documents", "tokens"],
        "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": name},
        "plugin": {name: backend.settings},
    }
    async with box(config=config, scripted_embedder=ScriptedEmbedder()) as b:
        store = await b.openai.vector_stores.create(name="kb")
        await b.openai.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=("a.txt", b"The zebrafinch sings at dawn."), poll_interval_ms=50
        )
        found = await search(b, store.id)
        assert [part["text"] for hit in found.json()["data"] for part in hit["content"]] == [
            "The zebrafinch sings at dawn."
        ]
        tool = {"type": "file_search", "vector_store_ids": [store.id]}
        assert (await b.chat(tools=[tool])).status_code == 200
        answered = len(b.engine.diaries)
        await backend.cut()
        for answer in (await search(b, store.id), await b.chat(tools=[tool]), await b.chat(tools=[tool], stream=True)):
            assert assert_openai_error(answer, 503)["code"] == "retrieval_unavailable"
        assert len(b.engine.diaries) == answered, "nothing is answered without the documents"
        file = await b.openai.files.create(file=("b.txt", b"The wallaby sleeps."), purpose="assistants")
        await b.openai.vector_stores.files.create(store.id, file_id=file.id)
        await until(lambda: tried(b, store.id, file.id))
        await backend.mend()

        async def completed() -> bool:
            entry = await b.openai.vector_stores.files.retrieve(file.id, vector_store_id=store.id)
            assert entry.status != "failed"
            return entry.status == "completed"

        await until(completed, 30)
        assert (await search(b, store.id)).status_code == 200


async def search(b: Box, store: str) -> Any:
    return await b.client.post(f"/v1/vector_stores/{store}/search", json={"query": "zebrafinch"})


async def tried(b: Box, store: str, file: str) -> bool:
    """Whether the file's job met the outage, and was put back."""
    async with b.runtime.database.session(write=False) as session:
        return any(job.not_before > 0 for job in (await session.scalars(select(Job).where(Job.file_id == file))).all())


async def test_where_the_operator_wants_it_chats_are_answered_without_documents_and_say_so(box: Any) -> None:
    config = {
        "plugins": ["langchain", "documents", "tokens"],
        "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": "langchain", "if_unavailable": "answer"},
        "plugin": {"langchain": {"class": "class_stores.LangChainStore", "filter": "function"}},
    }
    async with (
        class_path("LangChainStore", {}) as backend,
        box(config=config, scripted_embedder=ScriptedEmbedder()) as b,
    ):
        store = await b.openai.vector_stores.create(name="kb")
        await b.openai.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=("a.txt", b"The zebrafinch sings."), poll_interval_ms=50
        )
        tool = {"type": "file_search", "vector_store_ids": [store.id]}
        assert "x-appliance-ungrounded" not in (await b.chat(tools=[tool])).headers
        await backend.cut()
        for stream in (False, True):
            answer = await b.chat(tools=[tool], stream=stream)
            assert (answer.status_code, answer.headers["x-appliance-ungrounded"]) == (200, "true")
            assert "hello" in answer.text
            assert "file_citation" not in answer.text
        response = await b.client.post("/v1/responses", json={"model": "m", "input": "hi", "tools": [tool]})
        assert (response.status_code, response.headers["x-appliance-ungrounded"]) == (200, "true")
        assert_openai_error(await search(b, store.id), 503)
        unknown = await b.chat(tools=[{"type": "file_search", "vector_store_ids": ["vs_unknown"]}])
        assert_openai_error(unknown, 404)
