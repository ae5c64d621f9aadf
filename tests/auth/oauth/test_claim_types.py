"""Ten thousand signed tokens with claims of any type: never an error of ours (A7)."""

import json
from collections import Counter
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopback import http_client
from oauth_kit import AUDIENCE, Clock, bearer, issuing, key, signed, trusting

from appliance.plugin import Forbidden, Principal, Unauthenticated
from appliance.testing import Emit, ScriptedPlugin, make_app, serving

EXAMPLES, OVER_HTTP = 400, 200
CLAIMS = ["iss", "sub", "aud", "exp", "nbf", "iat", "jti", "client_id", "scope", "groups", "roles", "org", "cnf", "act"]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**63, -1, 0, "9999999999", AUDIENCE, "inference", "admin", "*", ""])
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=20)
)
NESTED = [nest(depth) for nest in (lambda n: "[" * n + "]" * n, lambda n: '{"a":' * n + "0" + "}" * n) for depth in
          (2, 60, 480, 1500)]  # fmt: skip
NUMBERS = ["1e309", "-1e309", "1E+999999", "1e-999", str(10**400), str(-(10**4000))]
AS_WRITTEN = {f"literal {number}": text for number, text in enumerate([*NUMBERS, *NESTED])}
"""JSON as it is written: numbers beyond every float, and what is nested deep."""
VALUES = st.sampled_from(sorted(AS_WRITTEN)) | st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
CHANGES = st.dictionaries(st.sampled_from(CLAIMS), VALUES, min_size=1, max_size=4)
HEADERS = st.dictionaries(st.sampled_from(["typ", "kid", "alg", "crit", "x5t", "jwk", "cty"]), VALUES, max_size=1)


def token(issuer, changes, header) -> str:
    """A token that the issuer did sign, whatever its claims. Huge numbers are written as they are."""
    payload = written(issuer.claims() | changes).encode("utf-8", "surrogatepass")
    return signed(key("okp", "OKP"), payload, **{"alg": "Ed25519", **header})


def written(claims) -> str:
    text = json.dumps(claims, allow_nan=True)
    for name, literal in AS_WRITTEN.items():
        text = text.replace(f'"{name}"', literal)
    return text


def options(issuer):
    return issuer.settings(
        algorithms=["Ed25519"], claims={"tenant": "org"}, tenant_map={"a": "acme"}, role_map={"admin": "operator"}
    )


@pytest.fixture
async def issuer():
    async with issuing() as made:
        made.key = key("okp", "OKP")
        made.publish(made.key)
        yield made


def run(step):
    """Drive a coroutine that has nothing to wait for, as the authenticator has once it knows the keys."""
    try:
        step.send(None)
    except StopIteration as done:
        return done.value
    step.close()
    raise AssertionError("it waited")


@pytest.mark.slow
async def test_A7_ten_thousand_tokens_with_claims_of_any_type_give_a_caller_or_a_refusal(issuer):
    """Each value stands in for each claim in turn, and once for two at a time."""
    outcomes: Counter[int] = Counter()
    async with trusting(options(issuer), clock=Clock()) as tokens:
        assert await tokens.authenticate(bearer(issuer.token()))
        # An unknown key is asked for once in a pause: from now on there is nothing to wait for.
        with pytest.raises(Unauthenticated):
            await tokens.authenticate(bearer(token(issuer, {}, {"kid": "unknown"})))

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(value=VALUES, other=VALUES, header=HEADERS)
        def check(value, other, header):
            changes = [{name: value} for name in CLAIMS] + [
                {first: value, second: other} for first, second in pairwise(CLAIMS)
            ]
            for changed in changes:
                outcomes[outcome(tokens, token(issuer, changed, {}))] += 1
            outcomes[outcome(tokens, token(issuer, {}, header))] += 1

        check()
    assert outcomes.total() >= 10_000
    assert {200, 401} <= outcomes.keys() <= {200, 401, 403}
    assert min(outcomes[200], outcomes[401]) > 500, outcomes


def outcome(tokens, text: str) -> int:
    return run(judged(tokens, text))


async def judged(tokens, text: str) -> int:
    try:
        found = await tokens.authenticate(bearer(text))
    except (Unauthenticated, Forbidden) as error:
        return error.status
    assert found is None or well_formed(found)
    return 200 if found else 401


def well_formed(caller: Principal) -> bool:
    texts = [caller.id, caller.tenant, *caller.groups, *caller.roles, *(caller.scopes or ())]
    return all(isinstance(text, str) for text in texts)


@pytest.mark.parametrize("name", CLAIMS)
async def test_A7_no_claim_is_too_large_a_number_or_nested_too_deep(issuer, name):
    """Each by itself, as a list of them, and in an object: what the ten thousand meet by chance."""
    async with trusting(options(issuer), clock=Clock()) as tokens:
        assert await tokens.authenticate(bearer(issuer.token()))
        for literal in AS_WRITTEN:
            for value in (literal, [literal], {"sub": literal}):
                assert outcome(tokens, token(issuer, {name: value}, {})) in (200, 401, 403)


async def test_A7_whatever_introspection_says_of_a_token_it_makes_a_caller_or_a_refusal(issuer):
    """Never an error, and no outage either: then one odd token could keep all others out."""
    said: list[bytes] = []

    @settings(max_examples=OVER_HTTP // 2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(changes=st.dictionaries(st.sampled_from([*CLAIMS, "active", "token_type"]), VALUES, min_size=1, max_size=3))
    def collect(changes):
        text = written(issuer.claims(active=True) | changes).encode()
        deep = b"[" * 400 in text or b'{"a":' * 400 in text
        with suppress(msgspec.MsgspecError, RecursionError):  # of what cannot be read nobody knows what it says
            msgspec.json.decode(text)
            said.extend([] if deep else [text])

    collect()

    async def introspect(form) -> bytes:
        return said[int(form["token"])]

    issuer.answers["/introspect"] = introspect
    asking = {"introspection": {"client_id": "appliance", "client_secret": "s3cret"}}
    seen: Counter[int] = Counter()
    async with trusting(options(issuer) | asking, clock=Clock()) as tokens:
        for number in range(len(said)):
            seen[await judged(tokens, str(number))] += 1
    assert seen.total() > 40
    assert {200, 401} <= seen.keys() <= {200, 401, 403}


async def test_A7_a_sample_of_them_over_http_gives_200_401_or_403(issuer, tmp_path):
    made: list[str] = []

    @settings(max_examples=OVER_HTTP, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(changes=CHANGES, header=st.just({}) | HEADERS)
    def collect(changes, header):
        made.append(token(issuer, changes, header))

    collect()
    config = {
        "plugins": ["oauth", "rbac"],
        "models": [{"name": "m", "engine": "scripted"}],
        "plugin": {"oauth": {"issuers": [options(issuer)]}},
    }
    app = make_app(config, {"scripted": ScriptedPlugin([Emit("fine")])}, folder=tmp_path)
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        seen = {(await client.get("/v1/models", headers=bearer(text))).status_code for text in made}
    assert seen <= {200, 401, 403}
    assert len(seen) > 1
