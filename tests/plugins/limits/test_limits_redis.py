"""Several replicas on a real Redis, one of which dies; and what happens when Redis does (R22)."""

import asyncio
import json
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
import yaml
from eventually import eventually
from limits_kit import call_of, limits
from loopback import http_client
from redis_server import RedisServer
from served import Served

from appliance.plugin import CallRecord, RateLimited, Unavailable, Usage
from appliance.testing import Emit, Hold, ScriptedPlugin, Wait, make_app, serving
from appliance_plugins.limits import shared
from appliance_plugins.limits.ledger import Away
from appliance_plugins.limits.lines import Amounts, Clock, Kind, Line
from appliance_plugins.limits.shared import RedisLedger

DAY = Line("k:2d", Kind.TOKENS, 1000, "day", "key", time.time() + 10**6)
SLOTS = Line("k:0", Kind.SLOTS, 2, "", "key")


def config(redis: RedisServer, **settings):
    return {
        "plugins": ["limits"],
        "models": [{"name": "m", "engine": "scripted"}],
        "plugin": {"limits": {"redis": redis.url, "redis_timeout": 5, **settings}},
    }


@asynccontextmanager
async def replicas(count: int, redis: RedisServer, script, **settings):
    """Clients of so many apps that share one Redis."""
    async with AsyncExitStack() as held:
        clients = []
        for _ in range(count):
            app = make_app(config(redis, **settings), {"scripted": ScriptedPlugin(script)})
            url = await held.enter_async_context(serving(app))
            clients.append(await held.enter_async_context(http_client(base_url=url, timeout=20)))
        yield clients


async def ask(client: httpx.AsyncClient, **fields) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return await client.post("/v1/chat/completions", json=body)


# -- together ------------------------------------------------------------------------------------------------


async def test_B12_replicas_count_together_and_never_overspend(redis):
    async with replicas(3, redis, [Emit("fine")], key={"requests_per_day": 50, "tokens_per_day": 10**6}) as clients:
        replies = await asyncio.gather(*(ask(clients[i % 3]) for i in range(90)))
        assert sorted({reply.status_code for reply in replies}) == [200, 429]
        assert sum(reply.status_code == 200 for reply in replies) == 50


async def test_places_are_shared_by_replicas(redis):
    async with replicas(2, redis, [Emit("one "), Wait(30)], max_concurrent=1) as (first, second):
        async with first.stream(
            "POST",
            "/v1/chat/completions",
            json={"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]},
        ) as stream:
            assert stream.status_code == 200
            assert (await ask(second)).status_code == 429

        async def free() -> bool:
            with redis.client() as client:
                return not client.keys("*all:0")

        await eventually(free)


@pytest.mark.slow
async def test_O_32_the_places_of_a_killed_replica_come_free_by_themselves(redis, tmp_path):
    """kill -9 while it holds both places of a key; its lease is four seconds long."""
    path = tmp_path / "appliance.yaml"
    slow = {"name": "m", "engine": "scripted", "options": {"delay": 20}}
    settings = {**config(redis, lease=4, key={"max_concurrent": 2}), "models": [slow], "data_dir": str(tmp_path)}
    path.write_text(yaml.safe_dump({**settings, "plugins": ["limits", "scripted"]}))
    async with replicas(1, redis, [Emit("fine")], lease=4, key={"max_concurrent": 2}) as (other,):
        with Served(path) as served:
            async with http_client(base_url=served.url, timeout=20) as client:
                held = [asyncio.create_task(ask(client)) for _ in range(2)]

                def full() -> bool:
                    with redis.client() as looking:
                        return sum(looking.zcard(key) for key in looking.keys("*:0")) == 2

                await eventually(full)
                await asyncio.sleep(5)  # longer than a lease: it is renewed while the process lives
                assert (await ask(other)).status_code == 429
                os.kill(served.process.pid, signal.SIGKILL)
                await asyncio.gather(*held, return_exceptions=True)

        async def served_again() -> bool:
            return (await ask(other)).status_code == 200

        await eventually(served_again)
        both = await asyncio.gather(ask(other), ask(other))
        assert [reply.status_code for reply in both] == [200, 200]


# -- without Redis (R22) ---------------------------------------------------------------------------------------

NOTHING, RATES, BUDGET = {}, {"requests_per_day": 1000, "max_concurrent": 9}, {"tokens_per_day": 10**6}


@pytest.mark.parametrize(
    ("fail", "allowance", "status", "fault"),
    [
        ("closed", NOTHING, 200, "stop"),
        ("closed", RATES, 503, "stop"),
        ("closed", BUDGET, 503, "stop"),
        ("open", NOTHING, 200, "stop"),
        ("open", RATES, 200, "stop"),
        ("open", BUDGET, 503, "stop"),
        ("closed", BUDGET, 503, "freeze"),
        ("open", RATES, 200, "freeze"),
    ],
)
async def test_R22_without_redis_callers_get_what_the_document_says(fail, allowance, status, fault):
    with RedisServer() as redis:
        settings = {"fail": fail, "redis_timeout": 1.5, "key": allowance}
        async with replicas(1, redis, [Emit("fine")], **settings) as (client,):
            assert (await ask(client)).status_code == 200
            getattr(redis, fault)()
            began = time.monotonic()
            replies = [await ask(client) for _ in range(20)]
            assert time.monotonic() - began < 15  # one time-out, not twenty
            assert {reply.status_code for reply in replies} == {status}
            if status == 503:
                error = replies[0].json()["error"]
                assert (error["code"], error["type"]) == ("limits_unavailable", "server_error")
                assert int(replies[0].headers["retry-after"]) >= 1
                assert redis.url not in replies[0].text
            ready = await client.get("/readyz")
            assert ready.status_code == (503 if fail == "closed" and allowance else 200)
            if fault == "stop":
                redis.start()
            else:
                redis.thaw()

            async def back() -> bool:
                reply = await ask(client)
                return reply.status_code == 200 and (await client.get("/readyz")).status_code == 200

            await eventually(back)


async def test_R22_open_still_counts_in_the_replica():
    with RedisServer() as redis:
        settings = {"fail": "open", "redis_timeout": 5, "key": {"requests_per_day": 3}}
        async with replicas(1, redis, [Emit("fine")], **settings) as (client,):
            redis.stop()
            statuses = [(await ask(client)).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]


async def test_a_replica_starts_without_redis_and_counts_as_soon_as_it_is_there():
    with RedisServer() as redis:
        redis.stop()
        async with replicas(1, redis, [Emit("fine")], redis_timeout=5, key=BUDGET) as (client,):
            assert (await ask(client)).status_code == 503
            redis.start()

            async def counted() -> bool:
                return (await ask(client)).status_code == 200

            await eventually(counted)


async def test_what_was_not_used_is_given_back_once_redis_answers_again():
    with RedisServer() as redis:
        async with RedisLedger(redis.url, timeout=1) as ledger:
            assert (await ledger.take("a", [DAY, SLOTS], Amounts(1, 1, 900))).ok
            redis.freeze()
            await ledger.settle("a", [DAY, SLOTS], Amounts(0, 0, -800), elapsed=1.0)
            assert (ledger.away, ledger.owed) == (True, 1)
            redis.thaw()
            await eventually(lambda: not ledger.away and not ledger.owed)
            taken = await ledger.take("b", [DAY, SLOTS], Amounts(1, 1, 100))
            assert taken.used == [200, 1]


async def test_a_stream_that_could_not_reserve_more_still_settles_what_it_had():
    with RedisServer() as redis:
        async with RedisLedger(redis.url, timeout=1) as ledger:
            assert (await ledger.take("a", [DAY, SLOTS], Amounts(1, 1, 300))).ok
            redis.freeze()
            with pytest.raises(Away):
                await ledger.take("a", [DAY], Amounts(1, 1, 64), again=True)
            await ledger.settle("a", [DAY, SLOTS], Amounts(0, 0, -200), elapsed=1.0)
            redis.thaw()
            await eventually(lambda: not ledger.away and not ledger.owed)
            taken = await ledger.take("b", [DAY, SLOTS], Amounts(1, 1, 100))
            # Whether Redis had made the debit of 64 when it froze is not known; if so it stays charged.
            assert taken.used in ([200, 1], [264, 1])


async def test_a_debit_whose_client_leaves_meanwhile_is_undone():
    with RedisServer() as redis:
        async with RedisLedger(redis.url, timeout=5) as ledger:
            await ledger.take("warm", [SLOTS], Amounts(1, 1))
            await ledger.settle("warm", [SLOTS], Amounts(), elapsed=0.0)
            redis.freeze()
            taking = asyncio.create_task(ledger.take("a", [DAY, SLOTS], Amounts(1, 1, 900)))
            await asyncio.sleep(0.05)  # on its way, unanswered
            taking.cancel()
            await asyncio.wait([taking])
            redis.thaw()
            await eventually(lambda: not ledger.owed)

            async def undone() -> bool:
                taken = await ledger.take("b", [DAY, SLOTS], Amounts(1, 1, 100))
                await ledger.settle("b", [DAY, SLOTS], Amounts(0, 0, -100), elapsed=0.0)
                return taken.ok and list(taken.used) == [100, 1]

            await eventually(undone)


async def test_a_stream_that_needs_more_of_its_budget_ends_with_an_error_while_redis_is_away():
    stopped = asyncio.Event()
    script = [Emit("word ")] * 5 + [Hold(stopped)] + [Emit("word ")] * 50
    with RedisServer() as redis:
        settings = {"redis_timeout": 5, "answer_tokens": 10, "key": BUDGET}
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        async with (
            replicas(1, redis, script, **settings) as (client,),
            client.stream("POST", "/v1/chat/completions", json=body) as reply,
        ):
            lines = reply.aiter_lines()
            await anext(lines)
            redis.stop()
            stopped.set()
            events = [line[6:] async for line in lines if line.startswith("data: ")]
    assert json.loads(events[-1])["error"]["code"] == "limits_unavailable"


async def test_a_redis_that_answers_and_takes_no_writes_is_away_until_it_does(monkeypatch, caplog):
    monkeypatch.setattr(shared, "_RETRY_SECONDS", 0.02)
    looks = 0
    look = RedisLedger._look

    async def counted(self):
        nonlocal looks
        await look(self)
        looks += 1

    monkeypatch.setattr(RedisLedger, "_look", counted)
    with RedisServer() as redis, redis.client() as client:
        async with RedisLedger(redis.url, timeout=5) as ledger:
            assert (await ledger.take("a", [DAY, SLOTS], Amounts(1, 1, 900))).ok
            client.replicaof("127.0.0.1", 1)  # of a server that is not there; copies may not be written
            with pytest.raises(Away):
                await ledger.take("b", [DAY, SLOTS], Amounts(1, 1, 10))
            await eventually(lambda: looks >= 3)
            assert ledger.away
            assert "answers again" not in caplog.text
            assert caplog.text.count("Redis fails") == 1
            client.replicaof("no", "one")
            await eventually(lambda: not ledger.away and not ledger.owed)
            assert (await ledger.take("c", [DAY, SLOTS], Amounts(1, 1, 100))).used == [1000, 2]


async def test_whatever_the_library_raises_redis_is_away_and_comes_back(redis, redis_ledger, monkeypatch):
    async def broken(**_):
        raise RuntimeError("the library is in a state that it has no error for")

    monkeypatch.setattr(redis_ledger, "_settle", broken)
    assert (await redis_ledger.take("a", [DAY, SLOTS], Amounts(1, 1, 900))).ok
    await redis_ledger.settle("a", [DAY, SLOTS], Amounts(0, 0, -800), elapsed=1.0)
    assert (redis_ledger.away, redis_ledger.owed) == (True, 1)
    monkeypatch.undo()
    await eventually(lambda: not redis_ledger.away and not redis_ledger.owed)
    assert (await redis_ledger.take("b", [DAY, SLOTS], Amounts(1, 1, 100))).used == [200, 1]


async def test_what_looks_after_redis_goes_on_whatever_befalls_it(redis, monkeypatch, caplog):
    pay, failures = RedisLedger._pay, iter([KeyError("a mistake of ours"), ValueError("another")])

    async def failing(self):
        for failure in failures:
            raise failure
        await pay(self)

    monkeypatch.setattr(RedisLedger, "_pay", failing)
    async with RedisLedger(redis.url, timeout=5, lease_seconds=0.3) as ledger:
        assert (await ledger.take("a", [SLOTS], Amounts(1, 1))).ok
        await eventually(lambda: caplog.text.count("looking after Redis failed") == 2)
        ledger._owed.append((["appliance:limits:call:x"], ["x", 0, 0, shared._pack([])]))
        await eventually(lambda: not ledger.owed)


async def test_a_cancellation_that_turns_into_a_fault_on_the_way_out_still_ends_it(redis, monkeypatch):
    waiting = asyncio.Event()

    async def lost(self):
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionResetError from None

    monkeypatch.setattr(RedisLedger, "_renew_all", lost)
    async with asyncio.timeout(20), RedisLedger(redis.url, timeout=5, lease_seconds=0.3):
        await waiting.wait()


async def test_an_engine_that_reports_nonsense_is_charged_and_its_place_comes_back(redis_ledger):
    admitter = limits(Clock(), redis_ledger, key={"max_concurrent": 1, "tokens_per_day": 10**12})
    for usage in (Usage(10**30, 10**40), Usage(-(10**30), -5), Usage(1, 1)):
        call = call_of()
        async with (lease := admitter.admit(call)):
            lease.follow(CallRecord(call=call, usage=usage))


async def test_a_server_that_is_no_redis_never_holds_requests_up():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with RedisLedger(f"redis://127.0.0.1:{port}", timeout=0.2) as ledger:
        admitter = limits(Clock(), ledger, key=RATES)
        began = time.monotonic()
        for _ in range(50):
            with pytest.raises(Unavailable):
                async with admitter.admit(call_of()):
                    pass
        assert time.monotonic() - began < 5  # one time-out, not fifty
    server.close()
    await server.wait_closed()


@pytest.mark.slow
async def test_leases_that_live_are_renewed_and_counted(redis):
    async with RedisLedger(redis.url, timeout=5, lease_seconds=4) as ledger:
        admitter = limits(Clock(), ledger, key={"max_concurrent": 1})
        async with admitter.admit(call_of()):
            await asyncio.sleep(5)
            with pytest.raises(RateLimited):
                async with admitter.admit(call_of()):
                    pass
        async with admitter.admit(call_of()):
            pass
