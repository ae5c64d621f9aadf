"""The plugin ``fair_queue``: what calls cost, whose they are, and how it does in a served app."""

from __future__ import annotations

import asyncio
import math
import time

import httpx
import msgspec
import pytest
from eventually import eventually
from inline import Everything, Keys, Notebook, provides
from loopback import MODEL, http_client

from appliance.config import parse
from appliance.plugin import (
    Call,
    CallRecord,
    ChatRequest,
    CompletionRequest,
    ConfigError,
    EmbeddingRequest,
    Message,
    Principal,
    RateLimited,
    Usage,
    convert,
)
from appliance.testing import Emit, Fail, Hold, ScriptedPlugin, Wait, make_app, make_runtime, serving
from appliance.testing.answers import chat_call
from appliance.testing.contracts.admitter import AdmitterContract
from appliance_plugins.fair_queue import FairQueues, FairQueueSettings, Lease, prompt_characters

CONFIG = """
models:
  - {name: m, engine: scripted}
  - {name: other, engine: scripted}
  - {name: alias, alias_of: m}
  - {name: embedder, embedder: onnx}
"""


def queues(tmp_path, **fields) -> FairQueues:
    return FairQueues(convert(fields, FairQueueSettings, "plugin.fair_queue"), parse(CONFIG, folder=tmp_path))


def lease(made: FairQueues, principal: Principal | None = None, **fields) -> Lease:
    request = ChatRequest(model="m", messages=[Message(role="user", content="x" * 400)], **fields)
    found = made.admit(
        Call(id="r", operation="chat", model="m", request=request, principal=principal or Principal(id="p"))
    )
    assert isinstance(found, Lease)
    return found


def call_to(model: str) -> Call:
    return msgspec.structs.replace(chat_call(), model=model)


class TestPlacesKeepTheContract(AdmitterContract):
    places = 2

    @pytest.fixture
    def admitter(self, tmp_path):
        return queues(tmp_path, max_running=2, reserved=0, max_queued=0)


class TestAQueueKeepsTheContract(AdmitterContract):
    @pytest.fixture
    def admitter(self, tmp_path):
        return queues(tmp_path)


# -- what a call costs -------------------------------------------------------------------------------------------


def test_a_call_is_guessed_by_its_size_and_what_it_may_answer(tmp_path):
    made = queues(tmp_path)
    assert lease(made, max_tokens=10).expected() == 100 + 2 * 10
    assert lease(made, max_completion_tokens=10, n=3).expected() == 100 + 2 * 30
    assert lease(made).expected() == 100 + 2 * 128


def test_the_guess_grows_with_the_stream_and_the_report_settles_it(tmp_path):
    made = lease(queues(tmp_path), max_tokens=10)
    record = CallRecord(call=chat_call())
    made.follow(record)
    record.tokens = 9
    assert made.expected() == 100 + 2 * 10
    record.tokens = 12
    assert made.expected() == 100 + 2 * 12
    record.usage = Usage(90, 11)
    assert made.spent() == 90 + 2 * 11


def test_an_answer_that_broke_off_costs_what_came_of_it(tmp_path):
    made = lease(queues(tmp_path), max_tokens=1000)
    record = CallRecord(call=chat_call(), tokens=3)
    made.follow(record)
    assert made.spent() == 100 + 2 * 3


async def test_the_next_guess_comes_nearer_to_what_answers_were_long(tmp_path):
    made = queues(tmp_path)
    for _ in range(100):
        place = lease(made, n=2)
        record = CallRecord(call=chat_call())
        place.follow(record)
        async with place:
            record.usage = Usage(100, 20)
    assert lease(made).expected() == pytest.approx(100 + 2 * 10, abs=1)


def test_each_prompt_of_a_call_is_guessed_an_answer_of_its_own(tmp_path):
    request = CompletionRequest(model="m", prompt=["x" * 200, "x" * 200], max_tokens=10)
    place = queues(tmp_path).admit(Call(id="r", operation="completion", model="m", request=request))
    assert place.expected() == 100 + 2 * 2 * 10


@pytest.mark.parametrize(
    ("request_", "characters"),
    [
        (CompletionRequest(model="m", prompt="abcd"), 4),
        (CompletionRequest(model="m", prompt=["ab", "cd"]), 4),
        (CompletionRequest(model="m", prompt=[7, 8, 9]), 12),
        (CompletionRequest(model="m", prompt=[[7, 8], [9]]), 12),
        (EmbeddingRequest(model="m", input=["abc"]), 3),
        (ChatRequest(model="m", messages=[Message(role="assistant", content=None)]), 0),
    ],
)
def test_every_kind_of_prompt_has_a_length(request_, characters):
    assert prompt_characters(request_) == characters


def test_a_million_token_ids_are_counted_in_no_time():
    begun = time.process_time()
    assert prompt_characters(CompletionRequest(model="m", prompt=list(range(1_000_000)))) == 4_000_000
    assert time.process_time() - begun < 0.2


# -- whose it is -------------------------------------------------------------------------------------------------


def test_callers_of_one_tenant_share_its_turn_unless_users_take_turns(tmp_path):
    one, two = Principal(id="k1", tenant="t", user="u1"), Principal(id="k2", tenant="t", user="u2")
    made = queues(tmp_path, weights={"t": 3.0})
    assert {(place.name, place.weight) for place in (lease(made, one), lease(made, two))} == {("t", 3.0)}
    made = queues(tmp_path, between="user")
    assert lease(made, one).name != lease(made, two).name
    assert (
        lease(made, Principal(id="x", tenant="a", user="b:c")).name
        != lease(made, Principal(id="x", tenant="a:b", user="c")).name
    )


def test_a_keys_own_priority_counts_before_that_of_its_roles(tmp_path):
    made = queues(tmp_path, priorities={"role:support": 10, "role:batch": -10, "key:abc": 3})
    assert lease(made, Principal(id="p", roles=("batch", "support"))).priority == 10
    assert lease(made, Principal(id="p", roles=("batch",))).priority == -10
    assert lease(made, Principal(id="p", key="abc", roles=("support",))).priority == 3
    assert lease(made).priority == 0


async def test_an_alias_waits_in_its_models_queue_and_other_models_do_not(tmp_path):
    made = queues(tmp_path, models={"m": 1}, reserved=0, max_queued=0)
    async with lease(made):
        with pytest.raises(RateLimited, match="busy"):
            async with made.admit(call_to("alias")):
                pass
        async with made.admit(call_to("other")), made.admit(call_to("embedder")):
            pass


async def test_what_is_made_for_a_call_that_has_its_place_waits_for_none(tmp_path):
    made = queues(tmp_path, max_running=1, reserved=0, max_queued=0)
    async with lease(made), made.admit(msgspec.structs.replace(call_to("m"), within="chat")):
        assert made.depths()["m"] == 0


async def test_what_is_made_for_a_search_which_has_no_place_waits_like_the_rest(tmp_path):
    made = queues(tmp_path, max_running=1, reserved=0, max_queued=0)
    for_a_search = msgspec.structs.replace(call_to("m"), within="search")
    async with lease(made):
        with pytest.raises(RateLimited, match="busy"):
            async with made.admit(for_a_search):
                pass
    async with made.admit(for_a_search):
        with pytest.raises(RateLimited, match="busy"):
            async with lease(made):
                pass


@pytest.mark.parametrize(
    "fields", [{"models": {"embedder": 3}}, {"models": {"nobody": 3}}, {"priorities": {"support": 1}}]
)
def test_settings_that_name_nothing_are_mistakes(tmp_path, fields):
    with pytest.raises(ConfigError, match=r"plugin\.fair_queue\.(models|priorities)\."):
        queues(tmp_path, **fields)


# -- in a served app ---------------------------------------------------------------------------------------------

TENANTS = Keys({name: Principal(id=name, tenant=name) for name in "ab"})


def guarded(**hooks: object) -> dict[str, object]:
    return {"keys": provides(authenticators=[TENANTS], authorizers=[Everything()], **hooks)}


def served(script, fair_queue, **plugins: object):
    config = {**MODEL, "plugins": ["fair_queue", "prometheus"]}
    config["plugin"] = {"fair_queue": fair_queue, "prometheus": {"public": True}}
    return make_app(config, {"scripted": ScriptedPlugin(script), **plugins})


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def first_token(client: httpx.AsyncClient, name: str) -> float:
    """Seconds until the first token; then the answer is read to its end."""
    begun, seen = time.perf_counter(), 0.0
    async with client.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}, headers=as_(name)) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if "word" in line and not seen:
                seen = time.perf_counter() - begun
    return seen


def p95(times: list[float]) -> float:
    """By nearest rank."""
    return sorted(times)[math.ceil(0.95 * len(times)) - 1]


@pytest.mark.slow
async def test_B13_a_flood_at_most_doubles_the_first_token_time_of_another_tenant():
    script = [Wait(0.25), *(step for _ in range(3) for step in (Emit("word "), Wait(0.02)))]
    app = served(script, {"max_running": 4, "reserved": 1}, **guarded())
    limits = httpx.Limits(max_connections=100)
    async with serving(app) as url, http_client(base_url=url, timeout=60, limits=limits) as client:
        unloaded = [await first_token(client, "b") for _ in range(20)]

        async def flood() -> None:
            while True:
                await first_token(client, "a")

        flooding = [asyncio.create_task(flood()) for _ in range(40)]
        try:
            await eventually(lambda: deep(client, 30))
            loaded = [await first_token(client, "b") for _ in range(20)]
            assert await depth(client) > 10, "the flood went on to the end"
        finally:
            for task in flooding:
                task.cancel()
            await asyncio.gather(*flooding, return_exceptions=True)
    assert p95(loaded) <= 2 * p95(unloaded)


async def depth(client: httpx.AsyncClient) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith('appliance_queue_depth{model="m"}'))


async def chat(client: httpx.AsyncClient, **options) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=BODY, headers=as_("a"), **options)


async def test_a_full_queue_is_a_429_with_retry_after_within_50_ms():
    """The quickest of twenty says how long it takes: others may have met a busy machine."""
    gate = asyncio.Event()
    app = served([Hold(gate), Emit("word")], {"max_running": 1, "reserved": 0, "max_queued": 1}, **guarded())
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        await client.get("/livez")
        taken = [asyncio.create_task(chat(client)) for _ in range(2)]
        await eventually(lambda: depth(client))
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            refused = await chat(client)
            times.append(time.perf_counter() - begun)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
        assert min(times) < 0.05 + 0.02, "20 ms are the client's"
        gate.set()
        assert [reply.status_code for reply in await asyncio.gather(*taken)] == [200, 200]


async def test_a_client_that_leaves_the_queue_is_out_of_it_at_once_and_costs_the_engine_nothing():
    gate = asyncio.Event()
    plugin = ScriptedPlugin([Hold(gate), Emit("word")])
    config = {**MODEL, "plugins": ["fair_queue", "prometheus"]}
    config["plugin"] = {"fair_queue": {"max_running": 1, "reserved": 0}, "prometheus": {"public": True}}
    async with (
        serving(make_app(config, {"scripted": plugin})) as url,
        http_client(base_url=url, timeout=20) as client,
    ):
        first = asyncio.create_task(chat(client))
        await eventually(lambda: plugin.engines and plugin.engine.running)
        gone = asyncio.create_task(chat(client))
        await eventually(lambda: depth(client))
        gone.cancel()
        await eventually(lambda: empty(client), 1)
        assert not first.done()
        gate.set()
        assert (await first).status_code == 200
        assert len(plugin.engine.diaries) == 1


async def empty(client: httpx.AsyncClient) -> bool:
    return await depth(client) == 0


async def deep(client: httpx.AsyncClient, calls: int) -> bool:
    return await depth(client) >= calls


BREAKS = {
    "an answer": ([Emit("word")], {}),
    "a failure": ([Fail()], {}),
    "a stream that breaks off": ([Emit("word"), Fail()], {"stream": True}),
    "a bad request": ([Emit("word")], {"temperature": "hot"}),
    "an unknown model": ([Emit("word")], {"model": "nobody"}),
}


@pytest.mark.parametrize("what", BREAKS)
async def test_O_32_the_place_comes_back_whatever_became_of_the_call(what):
    script, fields = BREAKS[what]
    app = served(script, {"max_running": 1, "reserved": 0, "max_queued": 0}, **guarded())
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        statuses = {
            (await client.post("/v1/chat/completions", json=BODY | fields, headers=as_("a"))).status_code
            for _ in range(3)
        }
    assert 429 not in statuses


@pytest.mark.parametrize("word", [None, "word"])
async def test_O_32_the_place_comes_back_when_the_client_leaves_before_and_in_mid_stream(word):
    plugin = ScriptedPlugin([Emit("word"), Wait(30)] if word else [Wait(30)])
    app = served(None, {"max_running": 1, "reserved": 0, "max_queued": 0}, **guarded(), scripted=plugin)

    async def read_to_the_word(client: httpx.AsyncClient) -> None:
        body = BODY | {"stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=as_("a")) as reply:
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                if word and word in line:
                    return

    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        for _ in range(3):
            reading = asyncio.create_task(read_to_the_word(client))
            if word:
                await reading
            else:
                await eventually(lambda: plugin.engine.running)
                reading.cancel()
                await asyncio.wait([reading])
            await eventually(lambda: in_flight(client, 0))


async def in_flight(client: httpx.AsyncClient, number: int) -> bool:
    return f"appliance_requests_in_flight {number}.0" in (await client.get("/metrics")).text


async def test_how_long_a_call_waited_is_in_its_record():
    notes = Notebook()
    gate = asyncio.Event()
    app = served([Hold(gate), Emit("word")], {"max_running": 1, "reserved": 0}, **guarded(recorders=[notes]))
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        calls = [asyncio.create_task(chat(client)) for _ in range(2)]
        await eventually(lambda: depth(client))
        await asyncio.sleep(0.3)
        gate.set()
        await asyncio.gather(*calls)
        first, second = sorted(notes.records, key=lambda record: record.queued)
        metrics = (await client.get("/metrics")).text
    assert first.queued < second.queued
    assert 0.3 <= second.queued <= second.duration
    assert 'appliance_queue_wait_seconds_count{model="m"} 2.0' in metrics


def test_the_plugin_is_made_from_its_settings():
    config = {**MODEL, "plugins": ["fair_queue"], "plugin": {"fair_queue": {"models": {"nobody": 1}}}}
    with pytest.raises(ConfigError, match="fair_queue"):
        make_runtime(config, {"scripted": ScriptedPlugin()})
