"""The ``wordlist`` plugin in a served app."""

import asyncio
import json
import time

import pytest
from loopback import http_client

from appliance.testing import CallTool, Emit, Hold, ScriptedPlugin, Wait, make_app, serving

CONFIG = {
    "plugins": ["wordlist"],
    "models": [{"name": "m", "engine": "scripted"}],
    "plugin": {"wordlist": {"block": ["kumquat"], "mask": ["email"]}},
}


def body(text: str = "hi", *, stream: bool = True, **fields):
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}], **fields}


async def ask(script, json_body):
    plugin = ScriptedPlugin(script)
    async with serving(make_app(CONFIG, {"scripted": plugin})) as url, http_client(base_url=url) as client:
        reply = await client.post("/v1/chat/completions", json=json_body)
    return reply, plugin.engine


def choices(reply):
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    return [choice for event in events for choice in event["choices"]]


def said(reply) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in choices(reply))


def finishes(reply):
    return [choice["finish_reason"] for choice in choices(reply) if choice["finish_reason"]]


@pytest.mark.parametrize("pieces", [["kum", "quat"], list("kumquat"), ["KUM", "QUAT"]])
async def test_o39_a_blocked_stream_ends_well_formed_and_the_engine_is_stopped(pieces):
    script = [Emit("I like "), *map(Emit, pieces), Wait(30), Emit("never")]
    begun = time.monotonic()
    reply, engine = await ask(script, body())
    assert time.monotonic() - begun < 10
    assert said(reply) == "I like "
    assert finishes(reply) == ["content_filter"]
    assert reply.text.endswith("data: [DONE]\n\n")
    assert "kum" not in reply.text.lower()
    assert engine.diaries[0].events == ["start", "abort"]


@pytest.mark.parametrize("pieces", [["user@exa", "mple.test"], list("user@example.test")])
async def test_o39_a_masked_address_is_replaced_whole(pieces):
    reply, _ = await ask([Emit("To "), *map(Emit, pieces), Emit(" now")], body())
    assert said(reply) == "To *** now"
    assert finishes(reply) == ["stop"]


async def test_o39_tool_call_arguments_are_filtered():
    reply, _ = await ask([CallTool('{"fruit": "kum'), CallTool('quat"}')], body())
    assert finishes(reply) == ["content_filter"]
    assert "quat" not in reply.text


async def test_o39_ordinary_text_keeps_streaming_while_the_filter_is_on():
    seen = asyncio.Event()
    script = [*[Emit("word ")] * 5, Hold(seen), *[Emit("word ")] * 5]
    app = make_app(CONFIG, {"scripted": ScriptedPlugin(script)})
    words = 0
    async with (
        serving(app) as url,
        http_client(base_url=url, timeout=20) as client,
        client.stream("POST", "/v1/chat/completions", json=body()) as reply,
    ):
        async for line in reply.aiter_lines():
            words += line.count("word")
            if words:
                seen.set()
    assert words == 10


async def test_o39_a_plain_answer_is_filtered_the_same():
    reply, _ = await ask([Emit("I like kum"), Emit("quat jam")], body(stream=False))
    choice = reply.json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("I like ", "content_filter")


async def test_a_blocked_request_is_a_400_that_names_the_field():
    reply, engine = await ask([Emit("never")], body("a Kumquat please"))
    assert reply.status_code == 400
    assert reply.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": "messages[0].content",
        "code": "content_filter",
    }
    assert engine.diaries == []


async def test_the_engine_gets_the_masked_request():
    _, engine = await ask([Emit("ok")], body("I am user@example.test"))
    assert engine.diaries[0].call.request.messages[0].content == "I am ***"
