"""What both ledgers keep: the one in memory, and the one on a real Redis server."""

import asyncio
import math
import time

import pytest
from eventually import eventually
from limits_kit import Clock

from appliance_plugins.limits.ledger import Ledger, MemoryLedger
from appliance_plugins.limits.lines import Amounts, Kind, Line

LATE = time.time() + 10**9
DAY = Line("k:2d", Kind.TOKENS, 1000, "day", "key", LATE)
MINUTE = Line("k:2m", Kind.TOKENS, 600, "minute", "key")
REQUESTS = Line("k:1m", Kind.REQUESTS, 50, "minute", "key")
SLOTS = Line("k:0", Kind.SLOTS, 2, "", "key")
SPEND = Line("k:3m", Kind.SPEND, 10**13, "month", "key", LATE)
ALL = (DAY, MINUTE, REQUESTS, SLOTS, SPEND)


def near(values, began: float):
    """These values, less what a minute's bucket on Redis has leaked since then: ten tokens a second."""
    return pytest.approx(values, abs=1 + 10 * (time.monotonic() - began))


async def used(ledger: Ledger, line: Line) -> float:
    """What a line has used, asked by a debit that no line would allow."""
    taken = await ledger.take("asks", [line], Amounts(10**9, 10**9, 10**9, 10**15))
    assert not taken.ok
    return taken.used[0]


async def test_a_debit_goes_against_all_lines(ledger):
    began = time.monotonic()
    taken = await ledger.take("a", ALL, Amounts(1, 1, 100, 7))
    assert taken.ok
    assert taken.used == pytest.approx([100, 100, 1, 1, 7])
    assert [await used(ledger, line) for line in ALL] == near([100, 100, 1, 1, 7], began)


async def test_a_debit_that_one_line_refuses_goes_against_none(ledger):
    began = time.monotonic()
    assert (await ledger.take("a", ALL, Amounts(1, 1, 600, 5))).ok
    refused = await ledger.take("b", ALL, Amounts(1, 1, 401, 5))
    assert not refused.ok
    assert refused.used == near([600, 600, 1, 1, 5], began)
    assert [await used(ledger, line) for line in (DAY, SLOTS, SPEND)] == [600, 1, 5]


@pytest.mark.parametrize(
    ("line", "amounts", "expected"),
    [
        (DAY, Amounts(1, 1, 20, 0), 50),
        (REQUESTS, Amounts(1, 1, 0, 0), 50),
        (SPEND, Amounts(1, 1, 0, 10**12), 10),
        (SLOTS, Amounts(1, 1, 0, 0), 2),
    ],
)
async def test_B12_two_hundred_debits_at_once_never_overspend(ledger, line, amounts, expected):
    began = time.monotonic()
    taken = await asyncio.gather(*(ledger.take(f"call {i}", [line], amounts) for i in range(200)))
    # A minute's bucket leaks while Redis works: one more request in 1.2 s.
    leaked = (time.monotonic() - began) / 1.2 if line is REQUESTS else 0
    assert expected <= sum(one.ok for one in taken) <= expected + math.ceil(leaked)


async def test_settling_refunds_what_was_not_used_and_gives_the_place_back(ledger):
    began = time.monotonic()
    await ledger.take("a", ALL, Amounts(1, 1, 500, 50))
    await ledger.settle("a", ALL, Amounts(0, 0, -460, -20), elapsed=0.0)
    assert [await used(ledger, line) for line in ALL] == near([40, 40, 1, 0, 30], began)


async def test_settling_charges_what_went_beyond_the_reservation(ledger):
    await ledger.take("a", [DAY], Amounts(1, 1, 100, 0))
    await ledger.settle("a", [DAY], Amounts(0, 0, 1500, 0), elapsed=0.0)
    assert await used(ledger, DAY) == 1600
    assert not (await ledger.take("b", [DAY], Amounts(1, 1, 1, 0))).ok


async def test_places_are_given_back_to_the_next(ledger):
    assert (await ledger.take("a", [SLOTS], Amounts(1, 1))).ok
    assert (await ledger.take("b", [SLOTS], Amounts(1, 1))).ok
    assert not (await ledger.take("c", [SLOTS], Amounts(1, 1))).ok
    await ledger.settle("a", [SLOTS], Amounts(), elapsed=0.0)
    assert (await ledger.take("c", [SLOTS], Amounts(1, 1))).ok
    assert not (await ledger.take("d", [SLOTS], Amounts(1, 1))).ok


async def test_what_has_come_back_by_itself_is_not_refunded_again(ledger):
    """After a minute the bucket has leaked all of a reservation; a refund then would be a gift from later callers."""
    began = time.monotonic()
    await ledger.take("a", [MINUTE], Amounts(1, 1, 500, 0))
    await ledger.settle("a", [MINUTE], Amounts(0, 0, -500, 0), elapsed=40.0)
    assert await used(ledger, MINUTE) == near(400, began)


async def test_very_large_amounts_stay_exact(ledger):
    line = SPEND._replace(limit=2**52)
    await ledger.take("a", [line], Amounts(1, 1, 0, 2**51 + 1))
    await ledger.settle("a", [line], Amounts(0, 0, 0, -1), elapsed=0.0)
    refused = await ledger.take("b", [line], Amounts(1, 1, 0, 2**51 + 1))
    assert (refused.ok, refused.used[0]) == (False, 2**51)
    assert (await ledger.take("b", [line], Amounts(1, 1, 0, 2**51))).ok


async def test_names_of_callers_may_hold_anything(ledger):
    odd = DAY._replace(key="user:7:default:https://issuer/|a b\n{c}\u00e9")
    assert (await ledger.take("a", [odd], Amounts(1, 1, 600, 0))).ok
    assert not (await ledger.take("b", [odd], Amounts(1, 1, 600, 0))).ok
    assert (await ledger.take("b", [DAY], Amounts(1, 1, 600, 0))).ok


# -- in memory ---------------------------------------------------------------------------------------------


async def test_a_minutes_bucket_leaks_evenly():
    clock = Clock()
    ledger = MemoryLedger(clock)
    await ledger.take("a", [MINUTE], Amounts(1, 1, 600, 0))
    clock.now += 15
    assert await used(ledger, MINUTE) == pytest.approx(450)
    clock.now += 3600
    assert await used(ledger, MINUTE) == 0


async def test_a_day_that_is_over_takes_no_refund_and_is_forgotten():
    clock = Clock()
    ledger = MemoryLedger(clock)
    today = DAY._replace(ends=clock.now + 10)
    await ledger.take("a", [today], Amounts(1, 1, 500, 0))
    clock.now += 11
    await ledger.settle("a", [today], Amounts(0, 0, -500, 0), elapsed=11.0)
    assert ledger.dump() == {}


async def test_memory_holds_only_what_still_counts():
    clock = Clock()
    ledger = MemoryLedger(clock)
    for i in range(20_000):
        await ledger.take(f"{i}", [MINUTE._replace(key=f"caller {i}")], Amounts(1, 1, 60, 0))
        clock.now += 0.01
    # 60 of 600 tokens are back after 6 s: some 600 callers count at a time.
    assert ledger.size < 3000


# -- on Redis ----------------------------------------------------------------------------------------------


async def test_every_key_in_redis_goes_by_itself(redis, redis_ledger):
    await redis_ledger.take("a", ALL, Amounts(1, 1, 100, 7))
    with redis.client() as client:
        keys = list(client.scan_iter("*"))
        assert len(keys) == len(ALL) + 1
        assert all(client.pttl(key) > 0 for key in keys)
        await redis_ledger.settle("a", ALL, Amounts(), elapsed=0.0)
        assert not client.exists("appliance:limits:call:a", "appliance:limits:k:0")


async def test_a_settlement_that_arrives_twice_counts_once(redis_ledger):
    await redis_ledger.take("a", [DAY], Amounts(1, 1, 500, 0))
    for _ in range(2):
        await redis_ledger.settle("a", [DAY], Amounts(0, 0, -200, 0), elapsed=0.0)
    assert await used(redis_ledger, DAY) == 300


async def test_a_settlement_that_redis_refuses_holds_nothing_up(redis, redis_ledger):
    with redis.client() as client:
        client.set("appliance:limits:k:2m", "no hash")
        client.set("appliance:limits:call:bad", "1")
    await redis_ledger.settle("bad", [MINUTE], Amounts(0, 0, -5, 0), elapsed=0.0)
    await eventually(lambda: not redis_ledger.owed and not redis_ledger.away)
    assert (await redis_ledger.take("a", [DAY], Amounts(1, 1, 100, 0))).ok


async def test_a_debit_that_arrives_after_it_was_given_up_is_not_made(redis, redis_ledger, monkeypatch):
    """As when its connection was slower than the one that undoes it."""
    late = asyncio.Event()
    send = redis_ledger._take

    async def slow(**arguments):
        await late.wait()
        return await send(**arguments)

    monkeypatch.setattr(
        redis_ledger, "_take", lambda **arguments: asyncio.shield(asyncio.create_task(slow(**arguments)))
    )
    taking = asyncio.create_task(redis_ledger.take("a", [DAY, SLOTS], Amounts(1, 1, 900)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])
    with redis.client() as client:
        await eventually(lambda: client.get("appliance:limits:call:a") == "undone")
    late.set()
    await eventually(lambda: len(asyncio.all_tasks()) == 2)  # this one and the keeper
    monkeypatch.undo()
    assert (await used(redis_ledger, DAY), await used(redis_ledger, SLOTS)) == (0, 0)
