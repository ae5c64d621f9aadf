"""Queries by a model: one for one, or several that are searched beside it."""

from __future__ import annotations

import json

import msgspec
import pytest
from loopback import http_client

from appliance.config import parse
from appliance.errors import ConfigError
from appliance.knowledge.rewriting import earlier_turns
from appliance.plugin import ChatRequest
from appliance.testing import Emit, Fail, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

SAID = "1. zebrafinch song\n- bird  voice\n\n* how finches sing\n4) too many\n5. for three"


async def search(folder, script, queries: list[str], **settings) -> list[str]:
    """What the answer says was searched for."""
    config = {
        "plugins": ["memory", "documents", "tokens"],
        "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": "memory", "rewrite_model": "m", "rewrite_timeout": 60, **settings},
    }
    plugins = {"scripted_embedder": ScriptedEmbedder(), "scripted": ScriptedPlugin(script)}
    async with (
        serving(make_app(config, plugins, folder=folder)) as url,
        http_client(base_url=f"{url}/v1", timeout=30) as client,
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


def turns(*said: tuple[str, object]) -> list[str]:
    messages = [{"role": role, "content": text} for role, text in said]
    return earlier_turns(msgspec.convert({"model": "m", "messages": messages}, ChatRequest))


def test_what_was_said_before_the_question_is_read_and_nothing_else() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "this\none"}]
    said = [
        ("system", "secret"),
        ("user", parts),
        ("assistant", "a  bird"),
        ("tool", "42"),
        ("assistant", None),
        ("user", "how much?"),
        ("assistant", "let me look"),
        ("tool", "43"),
    ]
    assert turns(*said) == ["user: this one", "assistant: a bird"]
    assert turns(("user", "how much?")) == turns(("system", "no question")) == []


def test_of_a_long_conversation_the_newest_turns_are_read_and_of_each_its_beginning() -> None:
    said = [("user", f"{i} " + "x" * 10_000) for i in range(20)]
    read = turns(*said, ("user", "how much?"))
    assert [line.split()[1] for line in read] == ["14", "15", "16", "17", "18", "19"]
    assert all(len(line) < 650 for line in read)


@pytest.mark.parametrize(
    ("retrieval", "model", "told"),
    [
        ({"rewrite_chats": True}, {}, "retrieval.rewrite_chats: no model rewrites queries"),
        ({}, {"rewrite_query": True}, r"models\[0\].rewrite_query: no model rewrites queries"),
        ({"rewrite_model": "words", "rewrite_chats": True}, {}, "words must be a chat model"),
        ({"rewrite_model": "m", "rewrite_timeout": 0}, {}, r"retrieval\.rewrite_timeout"),
    ],
)
def test_rewriting_without_a_model_for_it_is_a_mistake(tmp_path, retrieval, model, told) -> None:
    config = {
        "models": [{"name": "m", "engine": "openai", **model}, {"name": "words", "embedder": "onnx"}],
        "retrieval": {"vector_store": "memory", **retrieval},
    }
    with pytest.raises(ConfigError, match=told):
        parse(json.dumps(config), folder=tmp_path)
