"""The ``limits`` plugin in a served app: no path keeps a place."""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import pytest
from eventually import eventually
from loopback import http_client

from appliance.plugin import Call, EngineTimeout, hookimpl
from appliance.testing import Emit, Fail, ScriptedPlugin, Wait, make_app, serving

MODELS = ("good", "timeout", "broken", "late", "halfway", "hooked", "cut")
CONFIG = {
    "plugins": ["limits", "prometheus"],
    "models": [{"name": name, "engine": "scripted"} for name in MODELS],
    "plugin": {"prometheus": {"public": True}},
}
BOTH = {"max_concurrent": 2, "tokens_per_minute": 10**9, "tokens_per_day": 10**9}


def script(call: Call):
    return {
        "timeout": [Fail(error=EngineTimeout("the engine did not answer in time; try again"))],
        "broken": [Fail()],
        "late": [Wait(30)],
        "halfway": [Emit("one "), Wait(30)],
        "cut": [Emit("one "), Fail()],
    }.get(call.model, [Wait(0.1), Emit("fine")])


class BrokenFilter:
    """A plugin that raises for one model while the answer streams."""

    @hookimpl
    def appliance_output_filters(self):
        return [self]

    async def filter_output(self, call, chunks):
        async for chunk in chunks:
            if call.model == "hooked":
                raise ValueError("a plugin broke")
            yield chunk


def body(model: str, **fields):
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


@pytest.fixture
def plugin():
    return ScriptedPlugin(script)


@pytest.fixture(params=["memory", "redis"])
async def client(request, plugin):
    limits = {"key": BOTH}
    if request.param == "redis":
        limits |= {"redis": request.getfixturevalue("redis").url, "redis_timeout": 5}
    config = {**CONFIG, "plugin": {**CONFIG["plugin"], "limits": limits}}
    app = make_app(config, {"scripted": plugin, "broken_filter": BrokenFilter()})
    async with serving(app) as url, http_client(base_url=url, timeout=20) as made:
        yield made


async def post(client, json):
    return await client.post("/v1/chat/completions", json=json)


async def leave(client, model, begun):
    """Ask for a stream, and go away once ``begun`` holds or, without it, after the first token."""

    async def read() -> None:
        async with client.stream("POST", "/v1/chat/completions", json=body(model, stream=True)) as reply:
            async for line in reply.aiter_lines():
                if "one" in line:
                    return

    reading = asyncio.create_task(read())
    if begun is None:
        await reading
    else:
        await eventually(begun)
        reading.cancel()
        await asyncio.wait([reading])


GROUPS = {
    "a backend timeout": lambda c, p: post(c, body("timeout")),
    "a backend 502": lambda c, p: post(c, body("broken")),
    "a stream that breaks off": lambda c, p: post(c, body("cut", stream=True)),
    "a validation error": lambda c, p: post(c, body("good", temperature="hot")),
    "an unknown model": lambda c, p: post(c, body("nobody")),
    "a disconnect before the first token": lambda c, p: leave(c, "late", lambda: p.engines["late"].running),
    "a disconnect in mid-stream": lambda c, p: leave(c, "halfway", None),
    "an exception in a plugin": lambda c, p: post(c, body("hooked")),
    "an exception in a plugin while streaming": lambda c, p: post(c, body("hooked", stream=True)),
}


@pytest.mark.parametrize("what", GROUPS)
async def test_O_32_two_places_are_free_after_three_times(client, plugin, what):
    async def two_places() -> bool:  # Redis hears a moment after the call that a place is free
        both = await asyncio.gather(post(client, body("good")), post(client, body("good", stream=True)))
        return all(reply.status_code == 200 and "fine" in reply.text for reply in both)

    for _ in range(3):
        await GROUPS[what](client, plugin)
        await eventually(two_places)

    async def nothing_runs() -> bool:
        return "appliance_requests_in_flight 0.0" in (await client.get("/metrics")).text

    await eventually(nothing_runs)


async def test_O_32_a_true_429_says_when_to_come_back(client):
    async with (
        client.stream("POST", "/v1/chat/completions", json=body("halfway", stream=True)),
        client.stream("POST", "/v1/chat/completions", json=body("halfway", stream=True)),
    ):
        refused = await post(client, body("good"))
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"

    async def admitted() -> bool:
        return (await post(client, body("good"))).status_code == 200

    await eventually(admitted)


# -- budgets, and what callers are told ----------------------------------------------------------------------


@asynccontextmanager
async def budgeted(script, **limits):
    """A served app with one scripted model and these limits: client and engine."""
    plugin = ScriptedPlugin(script)
    config = {
        "plugins": ["limits"],
        "models": [{"name": "good", "engine": "scripted", "price": {"input": 1, "output": 1000}}],
        "plugin": {"limits": limits},
    }
    async with (
        serving(make_app(config, {"scripted": plugin})) as url,
        http_client(base_url=url, timeout=20) as client,
    ):
        yield client, plugin.engine


def events(reply) -> list[str]:
    return [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]


async def test_every_answer_says_what_is_left():
    limits = {"key": {"requests_per_minute": 600, "requests_per_day": 5, "tokens_per_minute": 6000}}
    async with budgeted([Emit("fine")], **limits) as (client, _):
        plain = await post(client, body("good", max_completion_tokens=93))
        assert plain.headers["x-ratelimit-limit-requests"] == "5"
        assert plain.headers["x-ratelimit-remaining-requests"] == "4"
        assert re.fullmatch(r"(\d+h)?(\d+m)?\d+s", plain.headers["x-ratelimit-reset-requests"])
        assert plain.headers["x-ratelimit-limit-tokens"] == "6000"
        assert plain.headers["x-ratelimit-remaining-tokens"] == "5902"
        assert plain.headers["x-ratelimit-reset-tokens"] == "980ms"
        stream = await post(client, body("good", stream=True))
        assert stream.headers["x-ratelimit-remaining-requests"] == "3"
        wrong = await post(client, body("good", tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}]))
        assert (wrong.status_code, wrong.headers["x-ratelimit-remaining-requests"]) == (400, "2")
        for _ in range(2):
            await post(client, body("good"))
        refused = await post(client, body("good"))
        assert refused.status_code == 429
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"


async def test_answers_of_callers_without_limits_carry_no_such_headers():
    async with budgeted([Emit("fine")], max_concurrent=5) as (client, _):
        reply = await post(client, body("good"))
        assert not [name for name in reply.headers if name.startswith("x-ratelimit")]


async def test_B12_a_stream_stops_at_its_budget_with_an_error_event_and_so_does_the_engine():
    limits = {"answer_tokens": 10, "key": {"tokens_per_day": 50}}
    async with budgeted([Emit("word ")] * 500 + [Wait(30)], **limits) as (client, engine):
        reply = await post(client, body("good", stream=True))
        assert reply.status_code == 200
        *words, error = map(json.loads, events(reply))
        said = [one["choices"][0]["delta"].get("content") for one in words]
        assert said.count("word ") == 40
        assert [one["choices"][0]["finish_reason"] for one in words] == [None] * len(words)
        assert error["error"]["code"] == "budget_exceeded"
        assert error["error"]["type"] == "rate_limit_error"
        assert "50 tokens a day" in error["error"]["message"]
        assert engine.diaries[0].events == ["start", "abort"]
        assert (await post(client, body("good", stream=True))).status_code == 429


async def test_a_stream_that_says_how_long_it_may_be_is_reserved_whole_and_never_cut():
    limits = {"answer_tokens": 10, "key": {"tokens_per_day": 70}}
    async with budgeted([Emit("word ")] * 60, **limits) as (client, _):
        reply = await post(client, body("good", stream=True, max_completion_tokens=60))
        assert events(reply)[-1] == "[DONE]"


async def test_a_plain_answer_without_a_maximum_gets_what_is_reserved_as_its_maximum():
    limits = {"answer_tokens": 10, "key": {"tokens_per_day": 1000}}
    async with budgeted([Emit("fine")], **limits) as (client, engine):
        await post(client, body("good", n=2))
        assert engine.diaries[-1].call.request.max_completion_tokens == 10
        await post(client, body("good", max_tokens=33))
        assert engine.diaries[-1].call.request.max_completion_tokens is None
        assert engine.diaries[-1].call.request.max_tokens == 33
    async with budgeted([Emit("fine")], key={"requests_per_day": 10}) as (client, engine):
        await post(client, body("good"))
        assert engine.diaries[-1].call.request.max_completion_tokens is None


async def test_B12_money_stops_a_stream_too():
    # 1000 a million tokens of answers: a token is 0.001.
    limits = {"answer_tokens": 5, "key": {"spend_per_month": 0.02}}
    async with budgeted([Emit("word ")] * 100, **limits) as (client, _):
        *words, error = map(json.loads, events(await post(client, body("good", stream=True))))
        assert "0.02 of spending a month" in error["error"]["message"]
        assert sum(one["choices"][0]["delta"].get("content") == "word " for one in words) == 15


async def test_what_was_not_used_comes_back_when_the_answer_is_over():
    limits = {"key": {"tokens_per_day": 1000}}
    async with budgeted([Emit("fine")], **limits) as (client, _):
        for _ in range(20):
            assert (await post(client, body("good", max_completion_tokens=900))).status_code == 200
        reply = await post(client, body("good", max_completion_tokens=900))
        # The engine counts a word of prompt and one of answer.
        assert reply.headers["x-ratelimit-remaining-tokens"] == str(1000 - 20 * 2 - 905)


async def test_days_survive_a_restart(tmp_path):
    config = {
        "plugins": ["limits"],
        "models": [{"name": "good", "engine": "scripted"}],
        "plugin": {"limits": {"key": {"requests_per_day": 2}}},
    }
    statuses = []
    for _ in range(3):
        app = make_app(config, {"scripted": ScriptedPlugin([Emit("fine")])}, folder=tmp_path)
        async with serving(app) as url, http_client(base_url=url) as client:
            statuses.append((await post(client, body("good"))).status_code)
    assert statuses == [200, 200, 429]


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_and_messages_are_limited_alike(stream):
    messages = body("good", max_tokens=5, stream=stream)
    responses = {"model": "good", "input": "hi", "stream": stream}
    async with budgeted([Emit("fine")], key={"requests_per_day": 2}) as (client, _):
        for left, (path, sent) in enumerate([("/v1/messages", messages), ("/v1/responses", responses)]):
            reply = await client.post(path, json=sent)
            assert (reply.status_code, reply.headers["x-ratelimit-remaining-requests"]) == (200, str(1 - left))
        for path, sent in (("/v1/messages", messages), ("/v1/responses", responses)):
            reply = await client.post(path, json=sent)
            assert (reply.status_code, reply.headers["x-ratelimit-remaining-requests"]) == (429, "0")
            assert int(reply.headers["retry-after"]) >= 1


async def test_a_responses_stream_stops_at_its_budget_as_failed():
    limits = {"answer_tokens": 10, "key": {"tokens_per_day": 50}}
    async with budgeted([Emit("word ")] * 500, **limits) as (client, _):
        reply = await client.post("/v1/responses", json={"model": "good", "input": "hi", "stream": True})
        last = json.loads(events(reply)[-1])
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "rate_limit_exceeded"  # OpenAI's type knows no other
        assert "50 tokens a day" in last["response"]["error"]["message"]
