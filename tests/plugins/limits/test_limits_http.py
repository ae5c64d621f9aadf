"""The ``limits`` plugin in a served app: no path keeps a place."""

import asyncio

import httpx
import pytest
from eventually import eventually

from appliance.plugin import Call, EngineTimeout, hookimpl
from appliance.testing import Emit, Fail, ScriptedPlugin, Wait, make_app, serving

MODELS = ("good", "timeout", "broken", "late", "halfway", "hooked", "cut")
CONFIG = {
    "plugins": ["limits", "prometheus"],
    "models": [{"name": name, "engine": "scripted"} for name in MODELS],
    "plugin": {"limits": {"key": {"max_concurrent": 2}}, "prometheus": {"public": True}},
}


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
async def client():
    app = make_app(CONFIG, {"scripted": ScriptedPlugin(script), "broken_filter": BrokenFilter()})
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=20) as made:
        yield made


async def post(client, json):
    return await client.post("/v1/chat/completions", json=json)


async def leave(client, model, seconds):
    """Ask for a stream and go away, before or after its first token."""
    try:
        async with client.stream(
            "POST", "/v1/chat/completions", json=body(model, stream=True), timeout=seconds
        ) as reply:
            async for line in reply.aiter_lines():
                if "one" in line:
                    return
    except httpx.ReadTimeout:
        pass


GROUPS = {
    "a backend timeout": lambda c: post(c, body("timeout")),
    "a backend 502": lambda c: post(c, body("broken")),
    "a stream that breaks off": lambda c: post(c, body("cut", stream=True)),
    "a validation error": lambda c: post(c, body("good", temperature="hot")),
    "an unknown model": lambda c: post(c, body("nobody")),
    "a disconnect before the first token": lambda c: leave(c, "late", 0.1),
    "a disconnect in mid-stream": lambda c: leave(c, "halfway", 5),
    "an exception in a plugin": lambda c: post(c, body("hooked")),
    "an exception in a plugin while streaming": lambda c: post(c, body("hooked", stream=True)),
}


@pytest.mark.parametrize("what", GROUPS)
async def test_O_32_two_places_are_free_after_three_times(client, what):
    for _ in range(3):
        await GROUPS[what](client)

        async def free() -> bool:
            return "appliance_requests_in_flight 0.0" in (await client.get("/metrics")).text

        await eventually(free)
    both = await asyncio.gather(post(client, body("good")), post(client, body("good", stream=True)))
    assert [reply.status_code for reply in both] == [200, 200]
    assert all("fine" in reply.text for reply in both)


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
