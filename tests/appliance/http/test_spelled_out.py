"""Scores and log probabilities tell of documents and models what an answer does not: only with permission."""

from __future__ import annotations

import json

import pytest
import pytest_asyncio
from eventually import eventually
from inline import Keys, provides
from loopback import http_client

from appliance.plugin import Principal
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["rbac", "memory", "documents", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted", "pass_fields": ["prompt_logprobs"]},
        {"name": "words", "embedder": "scripted_embedder"},
    ],
    "retrieval": {"vector_store": "memory"},
    "auth": {"roles": {"reader": ["models.use", "stores.search"]}},
}
CALLERS = {
    "manager": Principal(id="m", roles=("knowledge-manager",)),
    "reader": Principal(id="r", roles=("reader",)),
    "narrow": Principal(id="n", roles=("reader", "user"), scopes=frozenset({"files"})),
}
HELLO = [{"role": "user", "content": "zebrafinch"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory):
    plugins = {
        "scripted": ScriptedPlugin([Emit("a "), Emit("finch [1]")]),
        "scripted_embedder": ScriptedEmbedder(),
        "keys": provides(authenticators=[Keys(CALLERS)]),
    }
    app = make_app(CONFIG, plugins, folder=tmp_path_factory.mktemp("app"))
    async with serving(app) as url, http_client(base_url=url, timeout=20) as made:
        yield made


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(client):
    """A store with one document."""
    manager = as_("manager")
    file = (await client.post("/v1/files", headers=manager, files={"file": ("a.txt", b"The zebrafinch sings.")},
                              data={"purpose": "assistants"})).json()["id"]  # fmt: skip
    made = (await client.post("/v1/vector_stores", headers=manager, json={"file_ids": [file]})).json()["id"]

    async def ready() -> bool:
        return (await client.get(f"/v1/vector_stores/{made}", headers=manager)).json()["status"] == "completed"

    await eventually(ready, 10)
    return made


LOGPROBS = {
    "chat": (CHAT, {"messages": HELLO, "logprobs": True}),
    "chat with alternatives": (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 5}),
    "completion": (TEXT, {"prompt": "zebrafinch", "logprobs": 0}),
    "completion of the prompt": (TEXT, {"prompt": "zebrafinch", "logprobs": 1, "echo": True}),
    "a field that is passed on": (CHAT, {"messages": HELLO, "prompt_logprobs": 1}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", LOGPROBS)
async def test_B17_log_probabilities_need_permission(client, what, stream):
    path, body = LOGPROBS[what]
    body = {"model": "m", "stream": stream, **body}
    refused = await client.post(path, json=body, headers=as_("reader"))
    assert refused.status_code == 403
    assert "logprobs.read" in refused.json()["error"]["message"]
    assert (await client.post(path, json=body, headers=as_("manager"))).status_code == 200


@pytest.mark.parametrize("body", [{}, {"logprobs": None}, {"logprobs": False}])
@pytest.mark.parametrize("stream", [False, True])
async def test_B17_who_asks_for_none_gets_none(client, stream, body):
    body = {"model": "m", "messages": HELLO, "stream": stream, **body}
    answer = await client.post(CHAT, json=body, headers=as_("reader"))
    assert answer.status_code == 200
    assert all(found is None for found in values_of("logprobs", answer.text))


async def test_B17_a_search_shows_scores_to_those_who_may_see_them(client, store):
    path, body = f"/v1/vector_stores/{store}/search", {"query": "zebrafinch"}
    found = {name: (await client.post(path, json=body, headers=as_(name))).json()["data"] for name in CALLERS}
    assert all("zebrafinch" in results[0]["content"][0]["text"] for results in found.values())
    assert found["manager"][0]["score"] > 0
    assert found["narrow"][0]["score"] > 0
    assert "score" not in found["reader"][0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["reader", "manager"])
async def test_B17_citations_tell_no_scores(client, store, stream, name):
    tools = [{"type": "file_search", "vector_store_ids": [store]}]
    answer = await client.post(
        CHAT, json={"model": "m", "messages": HELLO, "tools": tools, "stream": stream}, headers=as_(name)
    )
    assert "file_citation" in answer.text
    assert values_of("score", answer.text) == []


def values_of(key: str, text: str) -> list[object]:
    """What a key has as its value, anywhere in a plain or streamed answer."""
    found: list[object] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            found.extend(item for name, item in value.items() if name == key)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            walk(item)

    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: {", "{"))]
    for line in lines:
        walk(json.loads(line))
    assert lines
    return found
