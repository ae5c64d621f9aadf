"""Models that answer from vector stores of their own are there for those who have these stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from inline import Everything, Keys, provides
from loopback import assert_openai_error, box
from statements import noted

from appliance.plugin import Principal
from appliance.storage.database import Database
from appliance.testing import Emit
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "docs", "alias_of": "m", "vector_stores": ["handbook"]},
        {"name": "both", "alias_of": "m", "vector_stores": ["handbook", "archive"]},
        {"name": "words", "embedder": "scripted_embedder"},
    ],
    "retrieval": {"vector_store": "memory"},
}
CALLERS = {
    "a": Principal(id="a", tenant="a"),
    "b": Principal(id="b", tenant="b"),
    "kept": Principal(id="kept", tenant="a", stores=frozenset({"archive"})),
}


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Database]]:
    """A client of an app, and the app's database."""
    plugins = {
        "scripted_embedder": ScriptedEmbedder(),
        "keys": provides(authenticators=[Keys(CALLERS)], authorizers=[Everything()]),
    }
    async with box(folder, [Emit("fine")], CONFIG, **plugins) as b:
        yield b.client, b.runtime.database


async def listed(client: httpx.AsyncClient, caller: str) -> list[str]:
    reply = await client.get("/v1/models", headers={"authorization": f"Bearer {caller}"})
    return [model["id"] for model in reply.json()["data"]]


async def make(client: httpx.AsyncClient, caller: str, name: str) -> str:
    headers = {"authorization": f"Bearer {caller}"}
    reply = await client.post("/v1/vector_stores", json={"name": name}, headers=headers)
    store: str = reply.raise_for_status().json()["id"]
    return store


async def test_a_model_is_listed_for_those_tenants_that_have_its_stores(tmp_path):
    async with served(tmp_path) as (client, _):
        assert await listed(client, "a") == ["m", "words"]
        await make(client, "b", "archive")
        store = await make(client, "a", "handbook")
        assert await listed(client, "a") == ["m", "docs", "words"]
        await make(client, "a", "archive")
        assert await listed(client, "a") == ["m", "docs", "both", "words"]
        assert await listed(client, "b") == ["m", "words"], "another tenant's store is none"
        assert await listed(client, "kept") == ["m", "words"], "neither is one out of the key's reach"
        headers = {"authorization": "Bearer a"}
        await client.delete(f"/v1/vector_stores/{store}", headers=headers)
        assert await listed(client, "a") == ["m", "words"]


async def test_one_model_is_there_as_it_is_in_the_list_and_to_chat_with(tmp_path):
    async with served(tmp_path) as (client, _):
        await make(client, "a", "handbook")
        for caller in CALLERS:
            headers = {"authorization": f"Bearer {caller}"}
            names = await listed(client, caller)
            for model in ("m", "docs", "both"):
                one = await client.get(f"/v1/models/{model}", headers=headers)
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                chat = await client.post("/v1/chat/completions", json=body, headers=headers)
                expected = 200 if model in names else 404
                assert (one.status_code, chat.status_code) == (expected, expected), (caller, model)
                if expected == 404:
                    assert_openai_error(one, 404)


async def test_the_list_looks_for_all_stores_at_once(tmp_path):
    async with served(tmp_path) as (client, database):
        statements: list[str] = []
        with noted(database, statements.append):
            await listed(client, "a")
        assert len([each for each in statements if "vector_stores" in each]) == 1
