"""Case O-40: a plugin that breaks, at boot or in a request, and what holds for the others."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from itertools import permutations

import pytest
from distributions import offer  # noqa: F401 - a fixture
from inline import InputHook, Notebook, Slots, Spans, provides
from loopback import HELLO, assert_openai_error, build_app, chunks_of, raw_answer, request_bytes

from appliance.errors import PluginError
from appliance.stalls import StallWatch
from appliance.testing import Emit

HOOKS_THAT_ARE_NOT_ASYNC = [
    "engines",
    "admitters",
    "recorders",
    "settings",
    "telemetry",
    "lifespan",
    "commands",
    "on_error",
]


class RaisesAfterYield:
    @asynccontextmanager
    async def admit(self, call):
        yield
        raise ZeroDivisionError("secret of the plugin")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("order", list(permutations(["limits", "tracing", "raiser"])), ids="-".join)
async def test_o40_slot_and_span_are_released_when_a_plugin_raises_after_its_yield(box, order, stream, caplog):
    slots, spans, notebook = Slots(1), Spans(), Notebook()
    plugins = {
        "limits": provides(admitters=[slots]),
        "tracing": provides(telemetry=spans, recorders=[notebook]),
        "raiser": provides(admitters=[RaisesAfterYield()]),
    }
    async with box([Emit("a")], **{name: plugins[name] for name in order}) as b:
        body = {"model": "m", "messages": HELLO, "stream": stream}
        for _ in range(2):
            status, _, raw = await raw_answer(b.url, request_bytes("/v1/chat/completions", body))
            assert status == (200 if stream else 500)
            assert "internal error" in chunks_of(raw)[-1]["error"]["message"] if stream else b"internal error" in raw
            assert b"secret" not in raw
            assert b"[DONE]" not in raw
    assert (slots.held, slots.given) == (0, 2)
    assert {span.ended for span in spans.spans} == {1}
    calls = [span for span in spans.spans if span.name.startswith("/v1")]
    assert len(calls) == 2
    assert all(isinstance(span.error, ZeroDivisionError) for span in calls)
    assert [(r.outcome, r.status) for r in notebook.records] == [("error", 500)] * 2
    assert "plugin raiser failed to release a request" in caplog.text


async def test_o40_an_admitter_that_raises_on_entry_is_named_too(box, caplog):
    class Breaks:
        def admit(self, call):
            return self

        async def __aenter__(self):
            raise KeyError("x")

        async def __aexit__(self, *exc):
            raise AssertionError("never entered")

    slots = Slots(1)
    async with box(None, limits=provides(admitters=[slots]), breaks=provides(admitters=[Breaks()])) as b:
        assert_openai_error(await b.chat(), 500)
    assert slots.held == 0
    assert "plugin breaks failed to admit a request" in caplog.text


def test_o40_a_plugin_that_raises_at_import_stops_the_start_with_name_and_cause(tmp_path, offer):  # noqa: F811
    offer("brokenone", "raise OSError('no card found')")
    with pytest.raises(PluginError, match=r"plugin brokenone failed to import: OSError: no card found"):
        build_app(tmp_path, None, {"plugins": ["brokenone"]})


def test_o40_a_plugin_that_lacks_a_package_says_which(tmp_path, offer):  # noqa: F811
    offer("hungry", "import no_such_package_at_all")
    with pytest.raises(PluginError, match="plugin hungry needs the Python package no_such_package_at_all; install it"):
        build_app(tmp_path, None, {"plugins": ["hungry"]})


def test_o40_a_hook_with_an_unknown_argument_stops_the_start(tmp_path):
    with pytest.raises(PluginError, match=r"plugin curious: .*request.*see docs/plugins.md"):
        build_app(tmp_path, curious=provides(admitters=lambda request: []))


def test_o40_two_plugins_with_an_engine_of_one_name_stop_the_start(tmp_path):
    engines = {"mine": lambda spec, context: None}
    with pytest.raises(PluginError, match="plugins one and two both provide the engine mine; remove one"):
        build_app(tmp_path, one=provides(engines=engines), two=provides(engines=engines))


@pytest.mark.parametrize("hook", HOOKS_THAT_ARE_NOT_ASYNC)
def test_o40_an_async_hook_is_refused_at_the_start(tmp_path, hook):
    async def implementation():
        return []

    with pytest.raises(PluginError, match=f"plugin modern: appliance_{hook} must be a plain function, not async"):
        build_app(tmp_path, modern=provides(**{hook: implementation}))


def test_o40_a_plain_hook_that_returns_a_coroutine_is_refused_at_the_start(tmp_path):
    async def later(answer):
        return answer

    with pytest.raises(PluginError, match="plugin sly: appliance_admitters must be a plain function, not async"):
        build_app(tmp_path, sly=provides(admitters=lambda: later([])))


async def test_o40_the_coroutine_of_on_call_finished_is_awaited(box):
    finished = []

    async def on_call_finished(record):
        await asyncio.sleep(0.01)
        finished.append(record.outcome)

    async with box(None, notes=provides(on_call_finished=on_call_finished)) as b:
        await b.chat()
    assert finished == ["success"]


async def test_o40_one_failing_watcher_hides_a_call_from_no_other_and_is_named(box, caplog):
    finished = []

    def broken(record):
        raise RuntimeError("disk")

    plugins = {
        "first": provides(on_call_finished=lambda record: finished.append("first")),
        "broken": provides(on_call_finished=broken),
        "last": provides(on_call_finished=lambda record: finished.append("last")),
    }
    async with box(None, **plugins) as b:
        assert (await b.chat()).status_code == 200
    assert finished == ["first", "last"]
    assert "plugin broken failed in appliance_on_call_finished" in caplog.text


async def test_o40_blocking_code_is_told_with_its_place_and_the_server_goes_on(box, caplog):
    def block(call):
        time.sleep(1.8)
        return call

    async with box(None, slow=provides(input_filters=[InputHook(block)])) as b:
        blocked = asyncio.create_task(b.chat())
        await asyncio.sleep(0.05)
        assert (await b.client.get("/livez")).status_code == 200
        assert (await blocked).status_code == 200
    assert "blocking code in" in caplog.text
    assert "test_cases_plugins.py" in caplog.text


async def test_a_loop_that_turns_is_never_told_of(caplog):
    """For longer than the limit, unless the machine itself stood still for as long."""
    longest, before = 0.0, time.monotonic()
    async with StallWatch(1.5):
        for _ in range(200):
            await asyncio.sleep(0.01)
            longest, before = max(longest, time.monotonic() - before), time.monotonic()
    assert not [record for record in caplog.records if record.name == "appliance.stalls"] or longest > 1
