"""``context.front``: the app's routes for plugins that speak another protocol, with a client's manners."""

from __future__ import annotations

import asyncio
import json

import pytest
from eventually import eventually
from inline import Everything, provides
from loopback import build_app

from appliance.context import AppContext
from appliance.errors import PluginError, Unavailable
from appliance.front import Asked, Front
from appliance.testing import Emit
from appliance.testing.scripted import Hold
from appliance.types import Principal

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
CHAT = Asked("POST", "/v1/chat/completions", body=BODY)


@pytest.fixture
def started(tmp_path):
    """An app's context and engine, by ``async with started(script) as (context, engine)``."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def start(script, config=None, **plugins):
        app, plugin = build_app(tmp_path, script, config, **plugins)
        runtime = app.state.runtime
        await runtime.start()
        try:
            await runtime.start_engines()
            yield runtime, plugin.engine
        finally:
            await runtime.stop()

    return start


async def test_a_route_answers_as_it_does_by_http(started) -> None:
    async with started([Emit("hello")]) as (runtime, _):
        asked = Asked("GET", "/v1/models", [("X-Request-Id", "mine")])
        async with runtime.context.front.ask(asked) as reply:
            assert reply.status == 200
            assert reply.headers["x-request-id"] == "mine"
            assert json.loads(await reply.read())["data"][0]["id"] == "m"


async def test_a_header_of_any_text_goes_through_as_utf_8(started) -> None:
    async with started([]) as (runtime, _):
        asked = Asked("GET", "/v1/models", [("X-Note", "5 \u20ac"), ("X-Request-Id", "mine")])
        async with runtime.context.front.ask(asked) as reply:
            assert (reply.status, reply.headers["x-request-id"]) == (200, "mine")


@pytest.mark.parametrize(("proxy", "seen"), [("10.0.0.1", "good"), ("10.0.0.2", "nobody")])
async def test_A23_a_certificate_counts_from_a_trusted_proxy_only(started, proxy, seen) -> None:
    class Noting:
        enabled = True

        async def authenticate(self, headers):
            return Principal(id=headers.get("client-cert", "nobody"), tenant="a")

    server = {"client_certificate_header": "Client-Cert", "trusted_proxies": ["10.0.0.1"]}
    asked = Asked("POST", "/Health/Check", [("client-cert", "good")], client=(proxy, 5))
    keys = provides(authenticators=[Noting()], authorizers=[Everything()])
    async with started([], {"server": server}, keys=keys) as (runtime, _):
        assert (await runtime.context.front.authorize(asked, None)).id == seen


async def test_leaving_a_stream_early_stops_the_engine_before_the_block_is_left(started) -> None:
    async with started([Emit("a"), Hold(asyncio.Event())]) as (runtime, engine):
        async with runtime.context.front.ask(CHAT) as reply:
            await anext(aiter(reply.chunks))
            assert engine.running == 1
        assert engine.running == 0
        assert engine.diaries[0].events == ["start", "abort"]


async def test_a_reader_that_does_not_read_holds_the_route_up_and_can_still_leave(started) -> None:
    async with started([Emit("x")] * 100 + [Hold(asyncio.Event())]) as (runtime, engine):
        async with runtime.context.front.ask(CHAT):
            await eventually(lambda: engine.running == 1)
        assert engine.running == 0
        assert engine.diaries[0].events[-1] == "abort"


async def test_a_stop_waits_for_what_runs_and_takes_nothing_new(started) -> None:
    gate = asyncio.Event()
    async with started([Emit("a"), Hold(gate), Emit("b")]) as (runtime, _):
        front = runtime.context.front
        async with front.ask(CHAT) as reply:
            chunks = aiter(reply.chunks)
            await anext(chunks)
            settling = asyncio.create_task(front.settle(20))
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="shutting down"):
                async with front.ask(CHAT):
                    pass
            assert not settling.done()
            gate.set()
            assert b"[DONE]" in b"".join([chunk async for chunk in chunks])
        await settling


def test_before_the_app_stands_it_says_so() -> None:
    with pytest.raises(PluginError, match="before the app stood"):
        _ = Front().guarded
    assert AppContext.__dataclass_fields__["front"]
