import asyncio
import time
from collections.abc import Mapping

import httpx
import pytest
from eventually import eventually
from loopback import http_client
from prometheus_client.parser import text_string_to_metric_families

from appliance.plugin import Call, CallRecord, ChatRequest, Gauge, Gauges, Usage
from appliance.testing import Emit, Fail, ScriptedPlugin, Wait, make_app, serving
from appliance.testing.contracts.admitter import AdmitterContract
from appliance_observability._metrics import CallMetrics


def record(*, model: str = "m", stream: bool = True, **fields) -> CallRecord:
    call = Call(id="r", operation="chat", model=model, request=ChatRequest(model=model, messages=[]), stream=stream)
    return CallRecord(**{"call": call, "started": 100.0, "finished": 102.0, **fields})


def samples(text: str) -> dict[tuple[str, frozenset], float]:
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(text: str, name: str, labels: Mapping[str, str] | None = None) -> float:
    """The sum of all series of a name that have these labels."""
    wanted = set((labels or {}).items())
    return sum(number for (each, its), number in samples(text).items() if each == name and wanted <= its)


def exposition(metrics: CallMetrics) -> str:
    return metrics.exposition()[0].decode()


class TestInFlightKeepsTheContract(AdmitterContract):
    @pytest.fixture
    def admitter(self):
        return CallMetrics(["m"])


async def test_o35_first_token_time_is_only_of_streams_that_had_one():
    metrics = CallMetrics(["m"])
    await metrics.record(record(first_token=100.5, last_token=102.0, tokens=16))
    await metrics.record(record(stream=False, first_token=None))
    await metrics.record(record(first_token=None, outcome="aborted"))
    text = exposition(metrics)
    assert value(text, "appliance_time_to_first_token_seconds_count") == 1
    assert value(text, "appliance_time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert value(text, "appliance_inter_token_seconds_sum") == pytest.approx(0.1)
    assert value(text, "appliance_request_duration_seconds_count") == 3


async def test_o35_tokens_are_counted_once_also_of_calls_that_broke_off():
    metrics = CallMetrics(["m"])
    await metrics.record(record(tokens=7, usage=Usage(10, 8, 4)))
    await metrics.record(record(tokens=3, outcome="aborted"))
    text = exposition(metrics)
    kinds = {kind: value(text, "appliance_tokens_total", {"kind": kind}) for kind in ("prompt", "completion", "cached")}
    assert kinds == {"prompt": 10, "completion": 11, "cached": 4}


async def test_o34_unknown_models_share_one_series():
    metrics = CallMetrics(["m"])
    await metrics.record(record())
    await metrics.record(record(model="nobody 0"))
    before = len(samples(exposition(metrics)))
    for i in range(500):
        await metrics.record(record(model=f"nobody {i}"))
    text = exposition(metrics)
    assert len(samples(text)) == before
    assert value(text, "appliance_requests_total", {"model": "other"}) == 501


async def test_apps_do_not_share_metrics():
    one, other = CallMetrics(["m"]), CallMetrics(["m"])
    await one.record(record())
    assert value(exposition(other), "appliance_requests_total") == 0


async def test_gauges_that_other_parts_offer_are_read_at_each_scrape():
    gauges, depth = Gauges(), {"m": 1.0}
    metrics = CallMetrics(["m"], gauges)
    gauges.add(Gauge(name="appliance_depth", help="How deep.", label="model", read=lambda: depth))
    assert value(exposition(metrics), "appliance_depth", {"model": "m"}) == 1
    depth["m"] = 7
    assert value(exposition(metrics), "appliance_depth", {"model": "m"}) == 7
    with pytest.raises(ValueError, match="appliance_depth"):
        gauges.add(Gauge(name="appliance_depth", help="", label="model", read=dict))


async def test_how_long_calls_waited_to_be_admitted_is_told_by_model():
    metrics = CallMetrics(["m"])
    await metrics.record(record(queued=2.0))
    await metrics.record(record(queued=0.0, outcome="refused"))
    text = exposition(metrics)
    assert value(text, "appliance_queue_wait_seconds_count", {"model": "m"}) == 2
    assert value(text, "appliance_queue_wait_seconds_sum", {"model": "m"}) == 2


async def test_o35_buckets_reach_past_an_hour_long_request():
    metrics = CallMetrics(["m"])
    await metrics.record(record(finished=3600.0))
    bucket = {"le": "3600.0"}
    assert value(exposition(metrics), "appliance_request_duration_seconds_bucket", bucket) == 1


async def test_recording_is_cheap():
    metrics = CallMetrics(["m"])
    each = record(first_token=100.5, last_token=102.0, tokens=16, usage=Usage(10, 16, 5))
    begun = time.process_time()
    for _ in range(5_000):
        await metrics.record(each)
    assert (time.process_time() - begun) / 5_000 < 150e-6


CONFIG = {
    "plugins": ["prometheus"],
    "models": [{"name": name, "engine": "scripted"} for name in ("good", "bad", "slow", "halfway")],
}
CONFIG["plugin"] = {"prometheus": {"public": True}}


def script(call: Call):
    if call.model == "slow":
        return [Wait(30), Emit("late")]
    if call.model == "halfway":
        return [Wait(0.1), Emit("word "), Wait(0.01), Emit("word "), Wait(30)]
    pieces = [Wait(0.1), *(step for _ in range(20) for step in (Emit("word "), Wait(0.01)))]
    return [*pieces[:4], Fail()] if call.model == "bad" else pieces


async def ask(client: httpx.AsyncClient, model: str, *, stream: bool, words: int = 1000) -> None:
    """Ask, and leave after so many words."""
    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        async for line in reply.aiter_lines():
            words -= "word" in line
            if words == 0:
                return


async def leave_at_once(client: httpx.AsyncClient, plugin: ScriptedPlugin, times: int) -> None:
    """Ask for a stream so many times, and leave when the engine works on all of them."""
    asking = [asyncio.create_task(ask(client, "slow", stream=True)) for _ in range(times)]
    await eventually(lambda: plugin.engines["slow"].running == times)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def metrics_when(client: httpx.AsyncClient, total: float) -> str:
    """The metrics once that many calls are over."""

    async def settled() -> str | None:
        text = (await client.get("/metrics")).text
        over = value(text, "appliance_requests_total") >= total and value(text, "appliance_requests_in_flight") == 0
        return text if over else None

    return await eventually(settled)


async def test_o35_outcomes_and_times_add_up_over_http():
    plugin = ScriptedPlugin(script)
    began = time.monotonic()
    async with serving(make_app(CONFIG, {"scripted": plugin})) as url, http_client(base_url=url) as client:
        client.timeout = 20
        calls = [ask(client, "good", stream=True) for _ in range(10)]
        calls += [ask(client, "good", stream=False) for _ in range(10)]
        calls += [ask(client, "halfway", stream=True, words=2) for _ in range(5)]
        calls += [leave_at_once(client, plugin, 5)]
        calls += [ask(client, "bad", stream=True) for _ in range(3)]
        await asyncio.gather(*calls)
        text = await metrics_when(client, 33)
    took = time.monotonic() - began
    outcomes = {
        kind: value(text, "appliance_requests_total", {"outcome": kind}) for kind in ("success", "aborted", "error")
    }
    assert outcomes == {"success": 20, "aborted": 10, "error": 3}
    first_tokens = value(text, "appliance_time_to_first_token_seconds_count")
    assert first_tokens == 18
    assert 0.1 <= value(text, "appliance_time_to_first_token_seconds_sum") / first_tokens < took
    assert (
        0.005
        < value(text, "appliance_inter_token_seconds_sum") / value(text, "appliance_inter_token_seconds_count")
        < took
    )
    assert value(text, "appliance_requests_in_flight") == 0


async def test_metrics_want_a_credential_like_all_other_routes(tmp_path):
    config = {"plugins": ["api_keys", "rbac", "prometheus"], "models": [], "plugin": {"api_keys": {"refresh": 0}}}
    app = make_app(config, folder=tmp_path)
    async with serving(app) as url, http_client(base_url=url) as client:
        assert (await client.get("/metrics")).status_code == 200
        from appliance.plugin import KeyStore

        store = KeyStore(app.state.runtime.database)
        _, inference = await store.create(name="a", scopes=["inference"])
        _, scraper = await store.create(name="b", roles=["operator"], scopes=["metrics"])

        async def guarded() -> bool:
            return (await client.get("/metrics")).status_code == 401

        await eventually(guarded)
        assert (await client.get("/metrics", headers={"authorization": f"Bearer {inference}"})).status_code == 403
        reply = await client.get("/metrics", headers={"authorization": f"Bearer {scraper}"})
        assert reply.status_code == 200
        assert reply.headers["content-type"].count("charset") == 1
