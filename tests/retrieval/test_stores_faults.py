"""The way to a vector database fails in each of its ways, for each plugin that has one (R21).

Nothing is ever answered as if from documents: a search is found or 503, a chat has its passages or is 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from eventually import eventually
from loopback import Box, assert_openai_error
from milvus_bridge import BridgedClient
from milvus_server import MilvusServer
from pinecone_standin import KEY, PineconeStandIn
from postgres import Postgres
from relay import Relay

from appliance import circuit
from appliance.testing.scripted_embedder import ScriptedEmbedder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TIMEOUT = 2.0
BOUND = 30.0
"""Within this a search has to end: it looks twice, and a client may try once more."""
FAULTS = ("gone", "slow", "reset", "garble", "lose")


@asynccontextmanager
async def milvus(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[int, Callable[[int], dict[str, Any]]]]:
    monkeypatch.setattr("pymilvus.MilvusClient", BridgedClient)
    with MilvusServer() as server:
        yield server.port, lambda relayed: {"uri": f"http://127.0.0.1:{relayed}"}


@asynccontextmanager
async def pgvector(server: Postgres) -> AsyncIterator[tuple[int, Callable[[int], dict[str, Any]]]]:
    url = server.database().replace("+asyncpg", "")
    port = httpx.URL(url).port
    assert port is not None
    yield port, lambda relayed: {"url": url.replace(f":{port}/", f":{relayed}/")}


@asynccontextmanager
async def pinecone() -> AsyncIterator[tuple[int, Callable[[int], dict[str, Any]]]]:
    standin = PineconeStandIn()
    async with standin.serving() as url:

        def relayed(port: int) -> dict[str, Any]:
            standin.advertised = f"127.0.0.1:{port}"
            return {"api_key": KEY, "url": f"http://127.0.0.1:{port}"}

        yield httpx.URL(url).port or 0, relayed


@pytest.fixture(params=["milvus", "pgvector", "pinecone"])
async def served(
    request: pytest.FixtureRequest, box: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Box, Relay]]:
    """An app whose vector database is reached through a relay."""
    monkeypatch.setattr(circuit, "PAUSE_SECONDS", 0.5)
    name: str = request.param
    made: Any = {
        "milvus": lambda: milvus(monkeypatch),
        "pgvector": lambda: pgvector(request.getfixturevalue("pgvector_server")),
        "pinecone": pinecone,
    }[name]()
    async with made as (port, settings), Relay(port) as relay:
        config = {
            "plugins": [name, "documents", "tokens"],
            "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
            "retrieval": {"vector_store": name},
            "plugin": {name: {**settings(relay.port), "timeout": TIMEOUT}},
        }
        async with box(config=config, scripted_embedder=ScriptedEmbedder()) as b:
            yield b, relay


async def test_r21_every_fault_is_a_503_in_time_and_over_once_it_is_over(served: tuple[Box, Relay]) -> None:
    b, relay = served
    store = await b.openai.vector_stores.create(name="kb")
    await b.openai.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("a.txt", b"The zebrafinch sings at dawn."), poll_interval_ms=50
    )
    question = {
        "messages": [{"role": "user", "content": "zebrafinch"}],
        "tools": [{"type": "file_search", "vector_store_ids": [store.id]}],
    }

    async def search() -> httpx.Response:
        return await b.client.post(f"/v1/vector_stores/{store.id}/search", json={"query": "zebrafinch"})

    async def found() -> bool:
        await asyncio.sleep(0.2)  # so that a wait of thirty seconds is no thousand searches
        answer = await search()
        return answer.status_code == 200 and "zebrafinch" in answer.text

    assert await found()
    await relay.late()
    assert await found(), "what is late is waited for"
    await relay.heal()
    for fault in FAULTS:
        await getattr(relay, fault)()
        answered = len(b.engine.diaries)
        for ask in (search, lambda: b.chat(**question, stream=True)):
            async with asyncio.timeout(BOUND):
                answer = await ask()
            if fault == "lose" and answer.status_code == 200:
                assert "zebrafinch" in answer.text or "file_citation" in answer.text, "a connection was made anew"
            else:
                assert assert_openai_error(answer, 503)["code"] == "retrieval_unavailable", fault
        if fault != "lose":
            assert len(b.engine.diaries) == answered, fault
        await relay.heal()
        await eventually(found, 30)
        assert "file_citation" in (await b.chat(**question)).text
