"""A search of a vector store takes the same path as a chat: limits, filters, records."""

import httpx
import pytest
from loopback import http_client, openai_client

from appliance.plugin import CallRecord, hookimpl
from appliance.testing import make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens", "limits", "wordlist", "prometheus"],
    "models": [{"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory", "chunk_size": 100, "chunk_overlap": 0},
    "plugin": {
        # Three writes fill the store, and four searches are left.
        "limits": {"key": {"requests_per_day": 7, "max_concurrent": 1}},
        "wordlist": {"block": ["kumquat"], "mask": ["email"]},
        "prometheus": {"public": True},
    },
}


class Notes:
    """A recorder."""

    def __init__(self) -> None:
        self.records: list[CallRecord] = []

    @hookimpl
    def appliance_on_call_finished(self, record):
        self.records.append(record)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
async def base(tmp_path, notes):
    app = make_app(CONFIG, {"scripted_embedder": ScriptedEmbedder(), "notes": notes}, folder=tmp_path)
    async with serving(app) as url:
        yield url


@pytest.fixture
async def store(base):
    """Its id, and a file in it: one passage with a blocked term, one with an address."""
    async with openai_client(f"{base}/v1") as client:
        made = await client.vector_stores.create()
        words = " ".join(f"word{i}" for i in range(90))
        text = f"A kumquat tree. {words}\n\nzebrafinch writes to ann@example.org {words}"
        file = await client.files.create(file=("a.txt", text.encode()), purpose="assistants")
        done = await client.vector_stores.files.create_and_poll(file.id, vector_store_id=made.id, poll_interval_ms=30)
        assert done.status == "completed"
        yield made.id, file.id


async def search(base: str, store: str, query: str) -> httpx.Response:
    async with http_client(base_url=f"{base}/v1", timeout=20) as client:
        return await client.post(f"/vector_stores/{store}/search", json={"query": query})


async def test_a_search_counts_as_a_request_and_says_what_is_left(base, store):
    for left in (3, 2, 1, 0):
        reply = await search(base, store[0], "zebrafinch")
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
    refused = await search(base, store[0], "zebrafinch")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"


async def test_filters_see_the_question_and_the_passages(base, store):
    blocked = await search(base, store[0], "where is the kumquat")
    assert (blocked.status_code, blocked.json()["error"]["param"]) == (400, "query[0]")
    masked = (await search(base, store[0], "zebrafinch bob@example.org")).json()
    assert masked["search_query"] == ["zebrafinch ***"]
    texts = [part["text"] for result in masked["data"] for part in result["content"]]
    assert any("zebrafinch writes to ***" in text for text in texts)
    assert not any("kumquat" in text or "ann@example.org" in text for text in texts)


async def test_the_indexed_text_of_a_file_passes_the_filters_too(base, store):
    async with http_client(base_url=f"{base}/v1") as client:
        content = (await client.get(f"/vector_stores/{store[0]}/files/{store[1]}/content")).json()
    text = " ".join(part["text"] for part in content["data"])
    assert "zebrafinch writes to ***" in text
    assert "kumquat" not in text


async def test_a_search_is_recorded_also_when_it_is_refused(base, store, notes):
    await search(base, store[0], "zebrafinch")
    await search(base, store[0], "kumquat")
    good, bad = notes.records
    assert (good.call.operation, good.call.model, good.outcome, good.status) == ("search", "words", "success", 200)
    assert good.call.passages
    assert good.call.queries == ("zebrafinch",)
    assert (bad.outcome, bad.status, bad.error_type) == ("refused", 400, "Blocked")
    async with http_client(base_url=base) as client:
        metrics = (await client.get("/metrics")).text
    assert 'appliance_requests_total{model="words",operation="search",outcome="success"} 1.0' in metrics
    assert "appliance_requests_in_flight 0.0" in metrics


async def test_a_search_that_fails_gives_its_place_back(base, store):
    for _ in range(2):
        assert (await search(base, "vs_nobody", "zebrafinch")).status_code == 404
    assert (await search(base, store[0], "zebrafinch")).status_code == 200
