"""The issuer's keys: rotation, outages, load, and what of a key set is used (A11, O-13, R20)."""

import asyncio
import json
import logging

import pytest
from eventually import eventually
from oauth_kit import Clock, b64, bearer, issuing, key, public, signed, trusting

from appliance.plugin import EgressError, Unauthenticated, Unavailable
from appliance_auth.oauth.keys import MAX_KEYS, MAX_STALE_SECONDS, PAUSE_SECONDS, Keys, KeySet


@pytest.fixture
async def issuer():
    async with issuing() as made:
        yield made


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def tokens(issuer, clock):
    async with trusting(issuer.settings(), clock=clock) as made:
        yield made


async def status(tokens, token: str) -> int:
    """What the caller would get."""
    try:
        return 200 if await tokens.authenticate(bearer(token)) else 401
    except (Unauthenticated, Unavailable) as error:
        return error.status


async def failing(_):
    return 500, b"oops"


async def test_O_13_A11_a_rotated_key_works_with_the_next_request_and_the_old_one_no_more(issuer, tokens):
    old = issuer.token()
    assert await status(tokens, old) == 200
    issuer.publish(key("two"))
    assert await status(tokens, issuer.token(key("two"))) == 200
    assert await status(tokens, old) == 401, "also the token that was remembered"


async def test_O_13_without_a_new_key_to_look_for_a_withdrawn_one_goes_with_the_next_refresh(issuer, tokens):
    old = issuer.token()
    assert await status(tokens, old) == 200
    issuer.publish(key("two"))
    await tokens._issuers[issuer.url].keys.refresh()
    assert await status(tokens, old) == 401


async def test_O_13_R20_while_the_keys_cannot_be_fetched_known_ones_hold_for_a_day(issuer, tokens, clock, caplog):
    known = issuer.token()
    assert await status(tokens, known) == 200
    issuer.answers["/jwks"] = failing
    clock.now += PAUSE_SECONDS
    with caplog.at_level(logging.WARNING):
        assert await status(tokens, issuer.token(key("two"))) == 503, "it may be good: nobody can tell"
    assert "cannot be fetched" in caplog.text
    assert await status(tokens, known) == 200
    assert await status(tokens, issuer.token(sub="somebody new")) == 200
    clock.now += MAX_STALE_SECONDS
    assert await status(tokens, known) == 503
    issuer.publish(issuer.key)
    clock.now += PAUSE_SECONDS
    assert await status(tokens, known) == 200


async def test_R20_an_unknown_key_is_503_while_fetching_fails_and_401_after_it_worked(issuer, tokens, clock):
    forged = signed(key("stranger"), issuer.claims())
    issuer.answers["/jwks"] = failing
    assert await status(tokens, forged) == 503
    issuer.publish(issuer.key)
    clock.now += PAUSE_SECONDS
    assert await status(tokens, forged) == 401


async def test_R20_an_issuer_that_is_down_at_the_start_is_asked_again(issuer, tokens, clock):
    answer = issuer.answers.pop("/.well-known/openid-configuration")
    assert await status(tokens, issuer.token()) == 503
    issuer.answers["/.well-known/openid-configuration"] = answer
    assert await status(tokens, issuer.token()) == 503, "not at every request"
    clock.now += PAUSE_SECONDS
    assert await status(tokens, issuer.token()) == 200


async def test_R20_a_black_hole_delays_new_keys_only(issuer, tokens, clock, monkeypatch):
    known = issuer.token()
    assert await status(tokens, known) == 200
    asked, over = asyncio.Event(), asyncio.Event()

    async def silent(_):
        asked.set()
        await over.wait()
        return 500, b""

    issuer.answers["/jwks"] = silent
    clock.now += PAUSE_SECONDS
    waiting = asyncio.create_task(status(tokens, issuer.token(key("two"))))
    async with asyncio.timeout(20):
        await asked.wait()
        assert await status(tokens, known) == 200
        assert await status(tokens, issuer.token(sub="bob")) == 200
        over.set()
        assert await waiting == 503


async def test_A11_ten_thousand_forged_key_ids_in_a_minute_cause_two_fetches_at_most(issuer, tokens, clock):
    _, claims, signature = signed(key("stranger"), issuer.claims()).split(".")
    for i in range(10_000):
        clock.now += 60 / 10_001
        header = b64({"typ": "at+jwt", "alg": "ES256", "kid": f"forged-{i}"})
        assert await status(tokens, f"{header}.{claims}.{signature}") == 401
    assert issuer.requests["/jwks"] <= 2
    assert await status(tokens, issuer.token()) == 200


async def test_A11_requests_share_one_fetch(issuer, tokens):
    others = [issuer.token(sub=f"user-{i}") for i in range(50)]
    assert set(await asyncio.gather(*(status(tokens, token) for token in others))) == {200}
    assert issuer.requests["/jwks"] == 1


async def test_A11_keys_are_fetched_in_the_background_before_anybody_asks(issuer):
    async def fetch() -> bytes:
        issuer.requests["background"] += 1
        return public(issuer.key)

    keys = Keys("issuer", fetch, ["ES256"])
    background = asyncio.create_task(keys.keep_fresh())
    try:
        await eventually(lambda: keys.known)
        assert await keys.find("one", "ES256")
        assert issuer.requests["background"] == 1
    finally:
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
        await keys.close()


async def test_A11_the_background_tries_again_soon_after_a_failure(clock, monkeypatch):
    delays: list[float] = []
    answers = iter([EgressError("down")] * 7 + [public(key("one"))])

    async def fetch() -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        if len(delays) == 8:
            raise asyncio.CancelledError

    monkeypatch.setattr("appliance_auth.oauth.keys.asyncio.sleep", sleep)
    keys = Keys("issuer", fetch, ["ES256"], clock)
    with pytest.raises(asyncio.CancelledError):
        await keys.keep_fresh()
    assert delays == [2, 4, 8, 16, 30, 30, 30, 300]
    await keys.close()


async def test_A11_a_key_set_of_over_64_kib_is_not_read(issuer, tokens):
    issuer.answers["/jwks"] = public(issuer.key)[:-1] + b" " * 65_536 + b"}"
    assert await status(tokens, issuer.token()) == 503


USELESS = {
    "too many keys": json.dumps({"keys": [{"kty": "EC"}] * (MAX_KEYS + 1)}).encode(),
    "no keys member": b"{}",
    "keys that are no list": b'{"keys": {}}',
    "a key that is no object": b'{"keys": [5]}',
    "not JSON": b"<html>",
    "not UTF-8": b'{"keys": ["\xff"]}',
    "nested deep": b'{"keys": [' + b"[" * 20_000,
    "nothing": b"",
}


@pytest.mark.parametrize("case", USELESS)
def test_A11_what_is_no_key_set_is_refused_whole(case):
    with pytest.raises(EgressError):
        KeySet(USELESS[case], ["ES256"])


def odd_keys() -> dict[str, dict]:
    ec, rsa = key("ec").as_dict(private=False), key("rsa", "RSA").as_dict(private=False)
    small = "w" + "A" * 170
    return {
        "a private EC key": key("ec").as_dict(private=True),
        "a private RSA key": key("rsa", "RSA").as_dict(private=True),
        "a symmetric key": {"kty": "oct", "k": "c2VjcmV0", "kid": "ec"},
        "for encryption": {**ec, "use": "enc"},
        "for deriving": {**ec, "key_ops": ["deriveKey"]},
        "of another algorithm": {**ec, "alg": "ES384"},
        "of an algorithm that is not allowed": {**rsa, "alg": "RS512"},
        "RSA of 1024 bits": {**rsa, "n": small},
        "RSA of 16384 bits": {**rsa, "n": "w" + "A" * 2730},
        "RSA without a modulus": {"kty": "RSA", "kid": "rsa", "e": "AQAB"},
        "of an unknown kind": {"kty": "AKP", "kid": "ec", "alg": "ML-DSA-44", "pub": "x"},
        "of an unknown curve": {**ec, "crv": "P-192"},
        "off the curve": {**ec, "x": "AAAA"},
        "no coordinates": {"kty": "EC", "crv": "P-256", "kid": "ec"},
        "coordinates that are numbers": {**ec, "x": 1, "y": 2},
        "without a kind": {"kid": "ec"},
        "a kind that is a list": {**ec, "kty": ["EC"]},
        "key_ops that is a number": {**ec, "key_ops": 5},
        "a kid that is a number": {**ec, "kid": 5},
        "an alg that is a list": {**ec, "alg": ["ES256"]},
        "a use that is a list": {**ec, "use": ["sig"]},
    }


@pytest.mark.parametrize("case", odd_keys())
def test_A11_a_key_that_cannot_be_used_is_left_out_and_the_others_stay(case):
    good = key("good").as_dict(private=False)
    document = json.dumps({"keys": [odd_keys()[case], good]}).encode()
    keys = KeySet(document, ["RS256", "ES256"])
    assert keys.find("good", "ES256")
    assert not any(keys.find(kid, alg) for kid in ("ec", "rsa", 5) for alg in ("RS256", "ES256"))


def test_a_private_key_that_is_published_is_told_of(caplog):
    KeySet(json.dumps({"keys": [key("ec").as_dict(private=True)]}).encode(), ["ES256"])
    assert "publishes a private key" in caplog.text
    assert key("ec").as_dict(private=True)["d"] not in caplog.text


def test_a_key_serves_the_algorithms_that_it_fits_and_no_others():
    keys = KeySet(public(key("rsa", "RSA"), key("ec")), ["RS256", "PS256", "ES256", "ES384"])
    fits = {(kid, alg) for kid in ("rsa", "ec") for alg in ("RS256", "PS256", "ES256", "ES384") if keys.find(kid, alg)}
    assert fits == {("rsa", "RS256"), ("rsa", "PS256"), ("ec", "ES256")}


async def test_a_token_without_a_key_id_is_checked_by_the_only_key_there_is(issuer, tokens, clock):
    nameless = issuer.token(header={"kid": None})
    assert await status(tokens, nameless) == 200
    issuer.publish(issuer.key, key("two"))
    await tokens._issuers[issuer.url].keys.refresh()
    assert await status(tokens, nameless) == 401
