import asyncio
import time

import pytest

from appliance.plugin import ConfigError, Principal, RateLimited, convert
from appliance.testing.answers import chat_call
from appliance.testing.contracts.admitter import AdmitterContract
from appliance_plugins import limits
from appliance_plugins.limits import Limits, LimitsSettings


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def call_of(name: str):
    return chat_call(principal=Principal(id=name))


async def admit(admitter: Limits, name: str = "a") -> None:
    async with admitter.admit(call_of(name)):
        pass


class TestLimitsByKeyKeepTheContract(AdmitterContract):
    places = 2

    @pytest.fixture
    def admitter(self):
        return Limits(LimitsSettings(max_concurrent_per_key=2))


class TestLimitsInAllKeepTheContract(AdmitterContract):
    places = 3

    @pytest.fixture
    def admitter(self):
        return Limits(LimitsSettings(max_concurrent=3, max_concurrent_per_key=5))


class TestNoLimitsKeepTheContract(AdmitterContract):
    @pytest.fixture
    def admitter(self):
        return Limits(LimitsSettings())


async def test_callers_have_places_of_their_own_but_share_the_whole():
    admitter = Limits(LimitsSettings(max_concurrent=3, max_concurrent_per_key=2))
    async with admitter.admit(call_of("a")), admitter.admit(call_of("a")):
        with pytest.raises(RateLimited, match="2 requests running"):
            await admit(admitter, "a")
        async with admitter.admit(call_of("b")):
            with pytest.raises(RateLimited, match="busy"):
                await admit(admitter, "c")
    assert admitter.running == admitter.remembered == 0


async def test_a_minutes_requests_may_come_at_once_and_then_evenly():
    clock = Clock()
    admitter = Limits(LimitsSettings(requests_per_minute=6), clock)
    for _ in range(6):
        await admit(admitter)
    with pytest.raises(RateLimited) as caught:
        await admit(admitter)
    assert caught.value.retry_after == pytest.approx(10)
    clock.now += 10
    await admit(admitter)
    with pytest.raises(RateLimited):
        await admit(admitter)
    await admit(admitter, "another caller")
    clock.now += 3600
    for _ in range(6):
        await admit(admitter)
    with pytest.raises(RateLimited):
        await admit(admitter)


async def test_refused_requests_use_up_nothing():
    clock = Clock()
    admitter = Limits(LimitsSettings(requests_per_minute=60), clock)
    for _ in range(60):
        await admit(admitter)
    for _ in range(500):
        with pytest.raises(RateLimited):
            await admit(admitter)
    clock.now += 1
    await admit(admitter)


async def test_two_hundred_requests_at_once_never_overspend():
    admitter = Limits(LimitsSettings(requests_per_minute=50), Clock())
    outcomes = await asyncio.gather(*(admit(admitter) for _ in range(200)), return_exceptions=True)
    assert outcomes.count(None) == 50


async def test_a_lease_left_twice_is_given_back_once():
    admitter = Limits(LimitsSettings(max_concurrent=5))
    async with admitter.admit(call_of("a")):
        lease = admitter.admit(call_of("a"))
        await lease.__aenter__()
        await lease.__aexit__(None, None, None)
        await lease.__aexit__(None, None, None)
        assert admitter.running == 1


async def test_memory_stays_bounded_whatever_callers_come(monkeypatch):
    monkeypatch.setattr(limits, "_REMEMBERED", 100)
    clock = Clock()
    admitter = Limits(LimitsSettings(requests_per_minute=2), clock)
    for i in range(5000):
        await admit(admitter, f"caller {i}")
        assert admitter.remembered <= 100
    clock.now += 3600
    for i in range(101):
        await admit(admitter, f"later {i}")
    assert admitter.remembered <= 101


async def test_those_who_used_most_are_remembered_longest(monkeypatch):
    monkeypatch.setattr(limits, "_REMEMBERED", 10)
    admitter = Limits(LimitsSettings(requests_per_minute=3), Clock())
    for _ in range(3):
        await admit(admitter, "greedy")
    for i in range(200):
        await admit(admitter, f"caller {i}")
    with pytest.raises(RateLimited):
        await admit(admitter, "greedy")


@pytest.mark.parametrize("key", ["max_concurrent", "max_concurrent_per_key", "requests_per_minute"])
def test_a_limit_of_nothing_is_a_mistake(key):
    with pytest.raises(ConfigError, match=key):
        convert({key: 0}, LimitsSettings, "plugin.limits")


async def test_a_lease_is_cheap():
    admitter = Limits(LimitsSettings(max_concurrent=9, max_concurrent_per_key=9, requests_per_minute=10**9))
    call = call_of("a")
    begun = time.process_time()
    for _ in range(10_000):
        async with admitter.admit(call):
            pass
    assert (time.process_time() - begun) / 10_000 < 50e-6
