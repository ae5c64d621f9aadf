"""Usage of what is not a plain chat: documents in chats, searches, embeddings, tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from eventually import eventually
from loopback import build_app, http_client

from appliance.testing import Emit, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["usage", "memory", "documents", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted", "price": {"input": 1, "output": 2}},
        {"name": "words", "embedder": "scripted_embedder", "price": {"input": 3}},
    ],
    "retrieval": {"vector_store": "memory", "min_similarity": 0.0},
    "plugin": {"usage": {"interval": 60}},
}
LEAVE = "Everybody has thirty days of leave a year and may carry five of them over."


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app, _ = build_app(tmp_path, [Emit("yes")], CONFIG, scripted_embedder=ScriptedEmbedder())
    async with serving(app) as url, http_client(base_url=url, timeout=20) as made:
        yield made


@pytest.fixture
async def store(client: httpx.AsyncClient) -> str:
    """A vector store with one document, searchable."""
    form = {"purpose": (None, "assistants"), "file": ("leave.txt", LEAVE.encode())}
    file = (await client.post("/v1/files", files=form)).json()["id"]
    made = (await client.post("/v1/vector_stores", json={"file_ids": [file]})).json()["id"]

    async def indexed() -> bool:
        return (await client.get(f"/v1/vector_stores/{made}")).json()["file_counts"]["completed"] == 1

    await eventually(indexed, 20)
    return made


async def used(client: httpx.AsyncClient) -> dict[str, dict]:
    """Today's results by operation."""
    answer = await client.get("/v1/usage", params={"group_by": "operation,model"})
    assert answer.status_code == 200, answer.text
    return {result["operation"]: result for result in answer.json()["data"][-1]["results"]}


async def test_passages_before_the_model_count_as_retrieved_and_as_input(client, store: str) -> None:
    tools = [{"type": "file_search", "vector_store_ids": [store]}]
    body = {"model": "m", "messages": [{"role": "user", "content": "How many days of leave?"}], "tools": tools}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    chat = (await used(client))["chat"]
    assert (chat["num_model_requests"], chat["retrieved_passages"]) == (1, 1)
    words = len(LEAVE.split())
    # The scripted engine counts words: the passage's share of the characters is close to its share of them.
    assert abs(chat["retrieved_tokens"] - words) <= 5
    assert chat["input_tokens"] > words + 5
    assert chat["cost"] == pytest.approx((chat["input_tokens"] + 2 * chat["output_tokens"]) / 1_000_000)


async def test_a_search_counts_with_what_it_found(client, store: str) -> None:
    answer = await client.post(f"/v1/vector_stores/{store}/search", json={"query": "leave"})
    found = len(answer.json()["data"])
    assert found > 0
    search = (await used(client))["search"]
    assert (search["num_model_requests"], search["retrieved_passages"], search["model"]) == (1, found, "words")


async def test_embeddings_count_their_tokens_with_their_price(client) -> None:
    answer = await client.post("/v1/embeddings", json={"model": "words", "input": ["one two", "three"]})
    tokens = answer.json()["usage"]["prompt_tokens"]
    embeddings = (await used(client))["embeddings"]
    assert tokens > 0
    assert (embeddings["input_tokens"], embeddings["output_tokens"]) == (tokens, 0)
    assert embeddings["cost"] == pytest.approx(3 * tokens / 1_000_000)


async def test_tokenizing_counts_as_a_call_without_tokens(client) -> None:
    await client.post("/tokenize", json={"model": "m", "prompt": "a b"})
    tokenize = (await used(client))["tokenize"]
    assert (tokenize["num_model_requests"], tokenize["input_tokens"], tokenize["cost"]) == (1, 0, 0)


async def test_n_choices_count_all_their_tokens_and_the_prompt_once(client) -> None:
    body = {"model": "m", "n": 3, "messages": [{"role": "user", "content": "one two"}]}
    await client.post("/v1/chat/completions", json=body)
    chat = (await used(client))["chat"]
    assert (chat["num_model_requests"], chat["input_tokens"], chat["output_tokens"]) == (1, 2, 3)
