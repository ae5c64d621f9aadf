"""Queries by a model: one for one, or several that are searched beside it."""

from __future__ import annotations

import httpx
import pytest

from appliance.testing import Emit, Fail, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

SAID = "1. zebrafinch song\n- bird  voice\n\n* how finches sing\n4) too many\n5. for three"


async def search(folder, script, queries: list[str], **settings) -> list[str]:
    """What the answer says was searched for."""
    config = {
        "plugins": ["memory", "documents", "tokens"],
        "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": "memory", "rewrite_model": "m", **settings},
    }
    plugins = {"scripted_embedder": ScriptedEmbedder(), "scripted": ScriptedPlugin(script)}
    async with (
        serving(make_app(config, plugins, folder=folder)) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", timeout=30) as client,
    ):
        store = (await client.post("/vector_stores", json={})).json()["id"]
        body = {"query": queries, "rewrite_query": True}
        answer = await client.post(f"/vector_stores/{store}/search", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["search_query"]


async def test_several_queries_are_made_of_one_and_searched_beside_it(tmp_path) -> None:
    asked = ["how does that bird sound?"]
    found = await search(tmp_path, [Emit(SAID)], asked, rewrite_queries=3)
    assert found == [*asked, "zebrafinch song", "bird voice", "how finches sing"]


async def test_no_more_queries_are_searched_than_a_client_may_ask_for(tmp_path) -> None:
    asked = [f"question {i}" for i in range(14)]
    found = await search(tmp_path, [Emit(SAID)], asked, rewrite_queries=4)
    assert found == [*asked, "zebrafinch song", "bird voice"]


@pytest.mark.parametrize("script", [[Fail()], [Emit(" \n ")], [Emit("x" * 5_000)]], ids=range(3))
@pytest.mark.parametrize("count", [1, 3])
async def test_where_the_model_has_no_query_the_client_s_is_searched(tmp_path, script, count) -> None:
    assert await search(tmp_path, script, ["a question"], rewrite_queries=count) == ["a question"]
