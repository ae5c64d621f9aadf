"""Opaque tokens: what the issuer says counts, for a minute at most (A13, RFC 7662)."""

import asyncio
import base64
import json
import time

import pytest
from oauth_kit import AUDIENCE, Clock, bearer, issuing, key, trusting

from appliance.plugin import Unauthenticated, Unavailable

CLIENT = {"client_id": "appliance", "client_secret": "s3cret"}


@pytest.fixture
async def issuer():
    async with issuing() as made:
        knowing(made, {})
        yield made


def knowing(issuer, tokens: dict[str, dict]) -> None:
    """Let the issuer's introspection know these tokens; it is the caller's to change."""

    async def introspect(form) -> bytes:
        issuer.requests["token:" + form["token"]] += 1
        return json.dumps(tokens.get(form["token"], {"active": False})).encode()

    issuer.answers["/introspect"] = introspect


def active(issuer, **changed) -> dict:
    claims = {"active": True, "iss": issuer.url, "sub": "alice", "aud": AUDIENCE, "scope": "inference", **changed}
    return {name: value for name, value in claims.items() if value is not None}


def settings(issuer, **changed):
    return issuer.settings(introspection={**CLIENT, **changed})


async def caller(tokens, token: str) -> str | int | None:
    """The caller's id, or the status of the refusal."""
    try:
        found = await tokens.authenticate(bearer(token))
    except (Unauthenticated, Unavailable) as error:
        return error.status
    return found.id if found else None


async def test_A13_an_active_token_makes_a_caller(issuer):
    knowing(issuer, {"opaque": active(issuer)})
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"
        assert await caller(tokens, "unknown") is None


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_the_appliance_says_who_it_is_as_configured(issuer, method):
    forms: list[dict] = []

    async def introspect(form) -> bytes:
        forms.append(form)
        return json.dumps(active(issuer)).encode()

    issuer.answers["/introspect"] = introspect
    async with trusting(settings(issuer, auth_method=method)) as tokens:
        assert await caller(tokens, "opaque")
    basic = "Basic " + base64.b64encode(b"appliance:s3cret").decode()
    assert (issuer.headers[-1].get("authorization") == basic) is (method == "client_secret_basic")
    assert (forms[0].get("client_secret") == "s3cret") is (method == "client_secret_post")
    assert forms[0]["token_type_hint"] == "access_token"


ANSWERS = {
    "inactive": {"active": False},
    "active as a text": {"active": "true"},
    "active as a number": {"active": 1},
    "nothing of active": {"active": None},
    "another audience": {"aud": "other"},
    "no audience": {"aud": None},
    "another issuer": {"iss": "https://evil.example"},
    "an issuer that is no text": {"iss": 5},
    "expired": {"exp": 1},
    "an end that is no number": {"exp": "9999999999"},
    "not valid yet": {"nbf": 9_999_999_999},
    "a refresh token": {"token_type": "refresh_token"},
    "bound to a key": {"token_type": "DPoP"},
    "a type that is no text": {"token_type": ["Bearer"]},
    "a proof that is not taken": {"cnf": {"jkt": "x"}},
    "scopes of the wrong type": {"scope": 5},
    "nobody": {"sub": None},
    "a subject that is no text": {"sub": 7},
    "an actor that is none": {"act": 5},
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_A13_what_is_not_good_for_us_is_refused(issuer, case):
    knowing(issuer, {"opaque": active(issuer, **ANSWERS[case])})
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, "opaque") in (401, None)


@pytest.mark.parametrize("token_type", [None, "Bearer", "bearer", "access_token"])
async def test_access_tokens_by_any_of_their_names_are_taken(issuer, token_type):
    knowing(issuer, {"opaque": active(issuer, token_type=token_type)})
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"


async def test_a_service_without_a_subject_is_its_client_id_and_can_pose_as_no_user(issuer):
    knowing(issuer, {"opaque": active(issuer, sub=None, client_id="alice"), "hers": active(issuer, client_id="alice")})
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, "opaque") == f"client:{issuer.url}|alice"
        assert await caller(tokens, "hers") == f"user:{issuer.url}|alice"


async def test_A13_a_revoked_token_is_refused_within_a_minute_and_asked_about_once_until_then(issuer, monkeypatch):
    known = {"opaque": active(issuer, exp=int(time.time()) + 3600)}
    knowing(issuer, known)
    async with trusting(settings(issuer)) as tokens:
        for _ in range(5):
            assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"
        assert issuer.requests["/introspect"] == 1
        known["opaque"] = {"active": False}
        later = time.time() + 60
        monkeypatch.setattr(time, "time", lambda: later)
        assert await caller(tokens, "opaque") is None


async def test_A13_an_answer_is_not_remembered_beyond_the_tokens_end(issuer, monkeypatch):
    knowing(issuer, {"opaque": active(issuer, exp=int(time.time()) + 10)})
    async with trusting({**settings(issuer), "leeway": 0}) as tokens:
        assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"
        later = time.time() + 11
        monkeypatch.setattr(time, "time", lambda: later)
        assert await caller(tokens, "opaque") == 401
        assert issuer.requests["/introspect"] == 2


async def test_A13_no_memory_at_all_is_possible(issuer):
    knowing(issuer, {"opaque": active(issuer)})
    async with trusting(settings(issuer, cache_seconds=0)) as tokens:
        for _ in range(3):
            assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"
    assert issuer.requests["/introspect"] == 3


async def test_A13_tokens_that_share_their_beginning_are_different_tokens(issuer):
    start = "x" * 40
    knowing(issuer, {start + "alice": active(issuer), start + "bob": active(issuer, sub="bob")})
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, start + "alice") == f"user:{issuer.url}|alice"
        assert await caller(tokens, start + "bob") == f"user:{issuer.url}|bob"
        assert await caller(tokens, start) is None
        assert await caller(tokens, start + "carol") is None


async def test_requests_with_one_token_share_one_question_and_unknown_ones_are_not_asked_about_again_at_once(issuer):
    knowing(issuer, {"opaque": active(issuer)})
    async with trusting(settings(issuer)) as tokens:
        found = await asyncio.gather(*(caller(tokens, "opaque") for _ in range(30)))
        assert set(found) == {f"user:{issuer.url}|alice"}
        for _ in range(3):
            assert await caller(tokens, "unknown") is None
    assert issuer.requests["token:opaque"] == issuer.requests["token:unknown"] == 1


async def broken(_):
    return 500, b"oops"


async def denied(_):
    return 401, b'{"error": "invalid_client"}'


OUTAGES = {
    "500": broken,
    "it does not know us": denied,
    "not JSON": b"<html>",
    "no object": b"[]",
    "not UTF-8": b'{"active": "\xff"}',
    "too large": b'{"active": true, "x": "' + b"x" * 70_000 + b'"}',
    "a redirect": (302, b"/introspect-2"),
    "gone": (404, b""),
}


@pytest.mark.parametrize("case", OUTAGES)
async def test_A13_an_outage_is_503_and_never_open_and_nobody_remembers_it(issuer, case):
    issuer.answers["/introspect"] = OUTAGES[case]
    issuer.answers["/introspect-2"] = json.dumps(active(issuer)).encode()
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, "opaque") == 503
        knowing(issuer, {"opaque": active(issuer)})
        assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"


async def test_A13_a_black_hole_is_503_and_leaves_the_others_alone(issuer, monkeypatch):
    monkeypatch.setattr("appliance_auth.oauth.issuer._CALL_SECONDS", 2.0)
    over = asyncio.Event()

    async def silent(form) -> bytes:
        if form["token"] == "opaque":
            await over.wait()
        return json.dumps(active(issuer)).encode()

    issuer.answers["/introspect"] = silent
    async with trusting(settings(issuer)) as tokens:
        waiting = asyncio.create_task(caller(tokens, "opaque"))
        assert await caller(tokens, "other") == f"user:{issuer.url}|alice"
        assert await caller(tokens, issuer.token()) == f"user:{issuer.url}|alice"
        assert await waiting == 503
        over.set()


async def test_R20_after_five_failures_nobody_waits_and_one_caller_at_a_time_tries_again(issuer):
    clock, entered, over = Clock(), asyncio.Event(), asyncio.Event()
    issuer.answers["/introspect"] = broken
    async with trusting(settings(issuer), clock=clock) as tokens:
        for i in range(20):
            assert await caller(tokens, f"opaque-{i}") == 503
        assert issuer.requests["/introspect"] == 5
        with pytest.raises(Unavailable) as refused:
            await tokens.authenticate(bearer("opaque"))
        assert refused.value.retry_after == 10

        async def silent(_):
            entered.set()
            await over.wait()
            return 500, b"oops"

        issuer.answers["/introspect"] = silent
        clock.now += 10
        trying = asyncio.create_task(caller(tokens, "first"))
        await asyncio.wait_for(entered.wait(), 20)
        assert await caller(tokens, "second") == 503, "the first tries for all"
        over.set()
        assert await trying == 503
        assert issuer.requests["/introspect"] == 6
        assert await caller(tokens, "third") == 503, "the pause begins anew"
        knowing(issuer, {"opaque": active(issuer)})
        assert await caller(tokens, "opaque") == 503
        clock.now += 10
        assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"
        for i in range(5):
            assert await caller(tokens, f"unknown-{i}") is None, "everybody may ask again"
        assert await caller(tokens, issuer.token()) == f"user:{issuer.url}|alice"


async def test_R20_failures_that_are_not_in_a_row_keep_nobody_out(issuer):
    async with trusting(settings(issuer), clock=Clock()) as tokens:
        for i in range(12):
            issuer.answers["/introspect"] = broken
            assert await caller(tokens, f"opaque-{i}") == 503
            knowing(issuer, {f"opaque-{i}": active(issuer)})
            assert await caller(tokens, f"opaque-{i}") == f"user:{issuer.url}|alice"


@pytest.mark.parametrize("status", [400, 413, 414, 422, 431])
async def test_R20_tokens_that_an_issuer_does_not_take_keep_no_other_out(issuer, status):
    async def choosy(form):
        return (200, json.dumps(active(issuer)).encode()) if form["token"] == "opaque" else (status, b"no")

    issuer.answers["/introspect"] = choosy
    async with trusting(settings(issuer), clock=Clock()) as tokens:
        for i in range(12):
            assert await caller(tokens, f"odd-{i}") == 503
        assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"


async def test_several_issuers_are_asked_in_order_until_one_knows_the_token(issuer):
    async with issuing() as second:
        second.key = key("two")
        knowing(second, {"theirs": active(second)})
        knowing(issuer, {"ours": active(issuer)})
        async with trusting(settings(issuer), settings(second)) as tokens:
            assert await caller(tokens, "ours") == f"user:{issuer.url}|alice"
            assert await caller(tokens, "theirs") == f"user:{second.url}|alice"
            assert second.requests["token:ours"] == 0
            issuer.answers["/introspect"] = broken
            assert await caller(tokens, "unknown") == 503, "the one that is down might know it"


async def test_with_a_prefix_an_issuer_is_only_asked_about_its_own_tokens(issuer):
    async with issuing() as second:
        knowing(second, {"b_x": active(second)})
        async with trusting(settings(issuer, prefix="a_"), settings(second, prefix="b_")) as tokens:
            assert await caller(tokens, "b_x") == f"user:{second.url}|alice"
            assert await caller(tokens, "c_x") is None
    assert issuer.requests["/introspect"] == 0


async def test_api_keys_and_jwts_are_never_sent_to_introspection(issuer):
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, "sk-app-" + "a" * 40) is None
        assert await caller(tokens, issuer.token()) == f"user:{issuer.url}|alice"
        assert await caller(tokens, issuer.token(aud="other")) == 401
        assert await caller(tokens, issuer.token(iss="https://elsewhere.example")) is None
    assert issuer.requests["/introspect"] == 0


async def test_the_endpoint_can_be_named_in_the_configuration(issuer):
    knowing(issuer, {"opaque": active(issuer)})
    issuer.answers["/other"] = issuer.answers.pop("/introspect")
    del issuer.answers["/.well-known/openid-configuration"]
    async with trusting(settings(issuer, endpoint=f"{issuer.url}/other")) as tokens:
        assert await caller(tokens, "opaque") == f"user:{issuer.url}|alice"


async def test_A12_metadata_cannot_send_tokens_elsewhere(issuer):
    async with issuing() as evil:
        knowing(evil, {"opaque": active(issuer)})
        issuer.metadata(introspection_endpoint=evil.url.replace("127.0.0.1", "localhost") + "/introspect")
        async with trusting(settings(issuer)) as tokens:
            assert await caller(tokens, "opaque") == 503
        assert evil.requests["/introspect"] == 0


ODD = ["http://[", "https://[x]/", "http://127.0.0.1:99999/", "", "/introspect", "file:///etc/passwd", "http://a b/"]


@pytest.mark.parametrize("endpoint", ODD)
async def test_A12_an_endpoint_that_is_no_address_is_an_outage_not_an_error(issuer, endpoint):
    issuer.metadata(introspection_endpoint=endpoint)
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, "opaque") == 503


async def test_every_character_that_a_token_may_have_is_sent_as_it_is(issuer):
    odd = "".join(chr(code) for code in range(0x21, 0x7F))
    knowing(issuer, {odd: active(issuer)})
    async with trusting(settings(issuer)) as tokens:
        assert await caller(tokens, odd) == f"user:{issuer.url}|alice"


def test_the_clients_secret_is_in_no_repr():
    from appliance.plugin import convert
    from appliance_auth.oauth.settings import IssuerSettings

    made = convert({"issuer": "https://a", "audience": "b", "introspection": CLIENT}, IssuerSettings, "")
    assert "s3cret" not in repr(made)
