import asyncio
import time

import msgspec
import pytest
from limits_kit import Clock, call_of, limits
from redis_server import RedisServer

from appliance.plugin import BadRequest, CallRecord, ConfigError, RateLimited, Usage, convert
from appliance.testing import ScriptedPlugin, make_runtime
from appliance.testing.contracts.admitter import AdmitterContract
from appliance_plugins.limits import LimitsSettings
from appliance_plugins.limits.admitter import STEP, Limits
from appliance_plugins.limits.lines import Clock as RealClock
from appliance_plugins.limits.shared import RedisLedger

DAY = 86_400


async def admit(admitter: Limits, *args, **kwargs) -> None:
    async with admitter.admit(call_of(*args, **kwargs)):
        pass


async def finished(admitter: Limits, call, usage: Usage | None, error: BaseException | None = None, tokens: int = 0):
    """A whole call that came to this usage, or ended with an error after so many events."""
    record = CallRecord(call=call)
    lease = admitter.admit(call)
    lease.follow(record)
    admission = await lease.__aenter__()
    record.tokens = tokens
    if usage is not None:
        record.usage = usage
    await lease.__aexit__(type(error) if error else None, error, None)
    return admission


def remaining(admission, what: str) -> int:
    return int(admission.headers[f"x-ratelimit-remaining-{what}"])


class TestLimitsByKeyKeepTheContract(AdmitterContract):
    places = 2

    @pytest.fixture
    def admitter(self):
        return limits(key={"max_concurrent": 2})


class TestLimitsInAllKeepTheContract(AdmitterContract):
    places = 3

    @pytest.fixture
    def admitter(self):
        return limits(max_concurrent=3, key={"max_concurrent": 5})


class TestNoLimitsKeepTheContract(AdmitterContract):
    @pytest.fixture
    def admitter(self):
        return limits()


class TestBudgetsKeepTheContract(AdmitterContract):
    """A call of the contract may take 106 tokens: what failed ones do not give back would soon be missed."""

    places = 2

    @pytest.fixture
    def admitter(self):
        return limits(answer_tokens=100, tenant={"max_concurrent": 2, "tokens_per_day": 10**5})


class TestLimitsOnRedisKeepTheContract(AdmitterContract):
    places = 2

    @pytest.fixture
    async def admitter(self, redis: RedisServer):
        clock = RealClock()
        async with RedisLedger(redis.url, timeout=20.0) as ledger:
            yield limits(clock, ledger, key={"max_concurrent": 2, "tokens_per_day": 10**6})


async def test_callers_have_places_of_their_own_but_share_the_whole():
    admitter = limits(max_concurrent=3, key={"max_concurrent": 2})
    async with admitter.admit(call_of("a")), admitter.admit(call_of("a")):
        with pytest.raises(RateLimited, match="this key has 2 requests running"):
            await admit(admitter, "a")
        async with admitter.admit(call_of("b")):
            with pytest.raises(RateLimited, match="busy"):
                await admit(admitter, "c")
    assert admitter.ledger.slots == {}


async def test_a_minutes_requests_may_come_at_once_and_then_evenly():
    clock = Clock()
    admitter = limits(clock, key={"requests_per_minute": 6})
    for _ in range(6):
        await admit(admitter)
    with pytest.raises(RateLimited) as caught:
        await admit(admitter)
    assert caught.value.retry_after == pytest.approx(10)
    assert caught.value.code == "rate_limit_exceeded"
    clock.now += 10
    await admit(admitter)
    with pytest.raises(RateLimited):
        await admit(admitter)
    await admit(admitter, "another caller")


async def test_what_is_made_for_another_call_takes_tokens_and_no_request_and_no_place():
    admitter = limits(key={"max_concurrent": 1, "requests_per_minute": 1, "tokens_per_day": 1_000})
    inner = msgspec.structs.replace(call_of(max_tokens=50), within="search")
    async with admitter.admit(call_of(max_tokens=50)):
        admission = await finished(admitter, inner, Usage(100, 50))
        assert set(admission.headers) >= {"x-ratelimit-remaining-tokens"}
        again = msgspec.structs.replace(call_of(max_tokens=900), within="search")
        with pytest.raises(RateLimited, match="tokens"):
            await finished(admitter, again, None)
    alone = limits(max_concurrent=1)
    async with alone.admit(call_of()), alone.admit(inner):
        pass


async def test_a_days_requests_end_at_midnight_utc():
    clock = Clock()
    admitter = limits(clock, key={"requests_per_day": 2})
    await admit(admitter)
    await admit(admitter)
    clock.now += DAY / 2 - 1
    with pytest.raises(RateLimited) as caught:
        await admit(admitter)
    assert caught.value.retry_after == pytest.approx(1)
    clock.now += 1
    await admit(admitter)


async def test_a_months_spending_ends_with_the_month():
    clock = Clock()  # noon of 15 January
    admitter = limits(clock, tenant={"spend_per_month": 1.0})
    await finished(admitter, call_of(max_tokens=1000), Usage(0, 100_000))
    clock.now += 16 * DAY
    with pytest.raises(RateLimited, match="1 of spending a month") as caught:
        await admit(admitter, max_tokens=1000)
    assert caught.value.code == "budget_exceeded"
    assert caught.value.retry_after == pytest.approx(DAY / 2)
    clock.now += DAY / 2
    await admit(admitter, max_tokens=1000)


async def test_refused_requests_use_up_nothing():
    clock = Clock()
    admitter = limits(clock, key={"requests_per_minute": 60, "requests_per_day": 70})
    for _ in range(60):
        await admit(admitter)
    for _ in range(500):
        with pytest.raises(RateLimited):
            await admit(admitter)
    clock.now += 10
    for _ in range(10):
        await admit(admitter)


async def test_a_budget_is_debited_with_all_a_call_may_take_and_settled_to_what_it_took():
    admitter = limits(key={"tokens_per_day": 1000})
    async with admitter.admit(call_of(max_tokens=900)):
        with pytest.raises(RateLimited, match="left of 1000 tokens a day"):
            await admit(admitter, max_tokens=200)
        held = await finished(admitter, call_of(max_tokens=10), Usage(20, 10))
        assert remaining(held, "tokens") == 1000 - 906 - 16
        held = await finished(admitter, call_of(max_tokens=10), Usage(20, 10))
        assert remaining(held, "tokens") == 1000 - 906 - 30 - 16


@pytest.mark.parametrize(
    ("error", "tokens", "stream", "left"),
    [
        (RuntimeError("502"), 0, False, 1000),  # nothing came
        (RuntimeError("broke off"), 7, True, 1000 - 6 - 7),  # what was seen
        (asyncio.CancelledError(), 7, True, 1000 - 6 - 7),
        (asyncio.CancelledError(), 0, True, 1000 - 6),  # the prompt was read
        (asyncio.CancelledError(), 0, False, 1000 - 6 - 300),  # nobody knows
    ],
)
async def test_what_a_broken_call_did_not_take_comes_back(error, tokens, stream, left):
    admitter = limits(key={"tokens_per_day": 1000})
    await finished(admitter, call_of(stream=stream, max_tokens=300), None, error, tokens)
    probe = await finished(admitter, call_of(max_tokens=1), None)
    assert remaining(probe, "tokens") == left - 6 - 1


async def test_spend_is_counted_at_the_models_price():
    admitter = limits(key={"spend_per_day": 1.0})  # a million prompt tokens, or a hundred thousand of answers
    await finished(admitter, call_of(max_tokens=1000), Usage(400_000, 50_000))
    with pytest.raises(RateLimited, match="1 of spending a day"):
        await admit(admitter, max_tokens=10_001)
    await admit(admitter, max_tokens=9_999)


async def test_users_share_a_budget_over_their_keys_and_tenants_over_their_users():
    admitter = limits(user={"requests_per_day": 2}, tenant={"requests_per_day": 3})
    await admit(admitter, "key:1", user="ann")
    await admit(admitter, "key:2", user="ann")
    with pytest.raises(RateLimited, match="this user"):
        await admit(admitter, "key:3", user="ann")
    await admit(admitter, "key:4", user="bob")
    with pytest.raises(RateLimited, match="this tenant"):
        await admit(admitter, "key:5", user="eve")
    await admit(admitter, "key:5", user="eve", tenant="other")


async def test_a_name_under_tenants_or_users_has_its_own_allowance_instead():
    admitter = limits(
        tenant={"requests_per_day": 1},
        tenants={"big": {"requests_per_day": 3}, "free": {}},
        user={"requests_per_day": 1},
        users={"ann": {}},
    )
    for _ in range(3):
        await admit(admitter, tenant="big", user="ann")
    with pytest.raises(RateLimited):
        await admit(admitter, tenant="big", user="ann")
    for _ in range(20):
        await admit(admitter, tenant="free", user="ann")


async def test_a_keys_own_allowance_narrows_and_never_widens():
    admitter = limits(key={"requests_per_day": 3, "max_concurrent": 5})
    narrow, wide = {"requests_per_day": 1}, {"requests_per_day": 100, "max_concurrent": 1}
    await admit(admitter, "narrow", allowance=narrow)
    with pytest.raises(RateLimited):
        await admit(admitter, "narrow", allowance=narrow)
    for _ in range(3):
        await admit(admitter, "wide", allowance=wide)
    with pytest.raises(RateLimited):
        await admit(admitter, "wide", allowance=wide)
    async with admitter.admit(call_of("other", allowance=wide)):
        with pytest.raises(RateLimited, match="1 requests running"):
            await admit(admitter, "other", allowance=wide)


async def test_a_user_named_alike_in_another_tenant_is_someone_else():
    admitter = limits(user={"requests_per_day": 1})
    await admit(admitter, tenant="a", user="b:c")
    await admit(admitter, tenant="a:b", user="c")
    with pytest.raises(RateLimited):
        await admit(admitter, tenant="a", user="b:c")


async def test_a_request_over_the_whole_limit_is_told_so_instead_of_waiting_for_ever():
    admitter = limits(key={"tokens_per_minute": 1000})
    with pytest.raises(
        BadRequest, match="the request may take 5006 tokens, and this key has 1000 tokens a minute"
    ) as e:
        await admit(admitter, max_tokens=5000)
    assert e.value.param == "max_completion_tokens"


async def test_the_refusal_is_about_the_limit_that_takes_longest():
    admitter = limits(key={"requests_per_minute": 1, "requests_per_day": 1})
    await admit(admitter)
    with pytest.raises(RateLimited, match="1 requests a day"):
        await admit(admitter)


async def test_a_stream_of_open_length_gets_its_tokens_piece_by_piece():
    admitter = limits(answer_tokens=100, key={"tokens_per_day": 106 + 2 * STEP})
    record = CallRecord(call=call_of(stream=True))
    lease = admitter.admit(record.call)
    lease.follow(record)
    admission = await lease.__aenter__()
    assert admission.output_tokens == 100
    assert await admission.more(101) == 100 + STEP
    assert await admission.more(101 + STEP) == 100 + 2 * STEP
    with pytest.raises(RateLimited) as caught:
        await admission.more(101 + 2 * STEP)
    assert caught.value.code == "budget_exceeded"
    record.usage = Usage(6, 20)
    await lease.__aexit__(RateLimited, caught.value, None)
    assert remaining(await finished(admitter, call_of(max_tokens=1), None), "tokens") == 80 + 2 * STEP - 7


async def test_two_hundred_requests_at_once_never_overspend():
    admitter = limits(key={"tokens_per_minute": 10_600})

    async def hold(call):
        lease = admitter.admit(call)
        await lease.__aenter__()
        return lease

    held = await asyncio.gather(*(hold(call_of(max_tokens=100)) for _ in range(200)), return_exceptions=True)
    assert len([one for one in held if not isinstance(one, RateLimited)]) == 100


async def test_a_lease_left_twice_is_given_back_once():
    admitter = limits(max_concurrent=5)
    async with admitter.admit(call_of()):
        lease = admitter.admit(call_of())
        await lease.__aenter__()
        await lease.__aexit__(None, None, None)
        await lease.__aexit__(None, None, None)
        assert admitter.ledger.slots == {"all:0": 1}


@pytest.mark.parametrize("wrong", [{"key": {"max_concurrent": 0}}, {"user": {"spend_per_day": 0}}, {"fail": "maybe"}])
def test_a_limit_of_nothing_is_a_mistake(wrong):
    with pytest.raises(ConfigError, match="|".join(wrong)):
        convert(wrong, LimitsSettings, "plugin.limits")


def test_a_misspelled_limit_is_named():
    with pytest.raises(ConfigError, match="request_per_minute"):
        convert({"key": {"request_per_minute": 5}}, LimitsSettings, "plugin.limits")


async def test_a_lease_is_cheap():
    admitter = limits(RealClock(), max_concurrent=9, key={"max_concurrent": 9, "requests_per_minute": 10**9})
    call = call_of()
    begun = time.process_time()
    for _ in range(5_000):
        async with admitter.admit(call):
            pass
    assert (time.process_time() - begun) / 5_000 < 80e-6


def test_R19_the_clock_counts_on_whatever_the_system_time_becomes(monkeypatch):
    clock = RealClock()
    before = clock()
    for jump in (3600, -3600, DAY, -DAY):
        monkeypatch.setattr(time, "time", lambda jump=jump: before + jump)
        assert clock() == pytest.approx(before, abs=5)


@pytest.mark.parametrize("where", ["key", "user", "tenant", "users", "tenants"])
def test_a_limit_of_spend_needs_a_model_with_a_price(where, tmp_path):
    limit = {"spend_per_day": 5}
    config = {
        "plugins": ["limits"],
        "models": [{"name": "m", "engine": "scripted"}],
        "plugin": {"limits": {where: {"ann": limit} if where.endswith("s") else limit}},
    }
    with pytest.raises(ConfigError, match=rf"plugin\.limits\.{where}.*: no model has a price"):
        make_runtime(config, {"scripted": ScriptedPlugin()}, folder=tmp_path)
    priced = {**config, "models": [{"name": "m", "engine": "scripted", "price": {"input": 1}}]}
    make_runtime(priced, {"scripted": ScriptedPlugin()}, folder=tmp_path)


def test_a_redis_url_that_is_none_is_a_mistake(tmp_path):
    config = {"plugins": ["limits"], "plugin": {"limits": {"redis": "http://somewhere"}}}
    with pytest.raises(ConfigError, match=r"plugin\.limits\.redis"):
        make_runtime(config, folder=tmp_path)
