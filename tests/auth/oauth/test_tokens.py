"""JWT access tokens: who gets in, and who does not (RFC 9068, RFC 8725)."""

import asyncio
import hashlib
import hmac
import json
import time

import pytest
from oauth_kit import AUDIENCE, b64, bearer, issuing, key, signed, trusting

from appliance.plugin import Principal, Unauthenticated
from appliance.testing.contracts.authenticator import AuthenticatorContract


@pytest.fixture
async def issuer():
    async with issuing() as made:
        made.publish(made.key, key("rsa", "RSA"), key("okp", "OKP"))
        yield made


@pytest.fixture
async def tokens(issuer):
    async with trusting(issuer.settings(algorithms=["RS256", "PS256", "ES256", "Ed25519"])) as made:
        yield made


async def accepted(tokens, token: str) -> Principal | None:
    """The caller, ``None`` for a token that is refused."""
    try:
        return await tokens.authenticate(bearer(token))
    except Unauthenticated:
        return None


class TestAccessTokensKeepTheContract(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self, tokens):
        return tokens

    @pytest.fixture
    def good_headers(self, issuer):
        return bearer(issuer.token())

    @pytest.fixture
    def bad_headers(self, issuer):
        expired, other = issuer.token(exp=1), issuer.token(aud="other")
        forged = signed(key("stranger"), issuer.claims(), kid="one")
        return [*map(bearer, (expired, other, forged, issuer.token(iat=None), "x" * 20_000)), bearer("ü.ü.ü")]


async def test_A3_a_refusal_says_invalid_token_and_nothing_of_the_token(issuer, tokens):
    for token in (issuer.token(exp=1, sub="canary"), issuer.token(aud="canary"), "canary." * 3000):
        with pytest.raises(Unauthenticated) as caught:
            await tokens.authenticate(bearer(token))
        assert caught.value.challenge == "invalid_token"
        assert "canary" not in str(caught.value)


async def test_a_good_token_makes_a_caller(issuer, tokens):
    caller = await accepted(tokens, issuer.token(groups=["a", "b", "a"], roles=["admin"]))
    assert caller == Principal(
        id=f"user:{issuer.url}|alice",
        user=f"user:{issuer.url}|alice",
        groups=("a", "b"),
        roles=("user",),
        scopes=frozenset({"inference", "files"}),
    )


@pytest.mark.parametrize("kind", ["EC", "RSA", "OKP"])
async def test_every_kind_of_key_works(issuer, tokens, kind):
    name = {"EC": "one", "RSA": "rsa", "OKP": "okp"}[kind]
    assert await accepted(tokens, issuer.token(key(name, kind)))


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt", "Application/At+Jwt"])
async def test_A4_an_access_token_says_that_it_is_one_in_any_case(issuer, tokens, typ):
    assert await accepted(tokens, issuer.token(header={"typ": typ}))


@pytest.mark.parametrize(
    "typ", [None, "JWT", "", "at", "jwt+at", "logout+jwt", "application/jwt", 7, True, [], ["at+jwt"], {}]
)
async def test_A4_whatever_says_something_else_is_none(issuer, tokens, typ):
    assert await accepted(tokens, issuer.token(header={"typ": typ})) is None


async def test_A4_an_id_token_is_no_access_token(issuer, tokens):
    id_token = issuer.token(header={"typ": "JWT"}, nonce="n", at_hash="h", client_id=None, scope=None)
    assert await accepted(tokens, id_token) is None


AUDIENCES = [
    (AUDIENCE, True),
    (["other", AUDIENCE], True),
    ("other", False),
    ([], False),
    (None, False),
    ("rag", False),
    ("rag-api-2", False),
    ("RAG-API", False),
    ([7, AUDIENCE], True),
    ([[AUDIENCE]], False),
    ({AUDIENCE: 1}, False),
    (f"{AUDIENCE} other", False),
]


@pytest.mark.parametrize(("audience", "good"), AUDIENCES, ids=range(len(AUDIENCES)))
async def test_O_14_A5_a_token_for_another_application_is_refused(issuer, tokens, audience, good):
    assert bool(await accepted(tokens, issuer.token(aud=audience))) is good


async def test_A5_two_servers_of_one_issuer_each_take_their_own_tokens_only(issuer):
    async with (
        trusting(issuer.settings(audience="chat")) as chat,
        trusting(issuer.settings(audience="mail")) as mail,
    ):
        for_chat, for_mail = issuer.token(aud="chat"), issuer.token(aud="mail")
        assert await accepted(chat, for_chat)
        assert await accepted(mail, for_mail)
        assert await accepted(chat, for_mail) is None
        assert await accepted(mail, for_chat) is None


async def test_A5_the_issuer_is_compared_letter_by_letter(issuer, tokens):
    near = [issuer.url + "/", issuer.url.upper(), issuer.url.replace("127.0.0.1", "localhost"), issuer.url + ":80"]
    for name in [*near, issuer.url[:-1], "", f" {issuer.url}", [issuer.url], {"iss": issuer.url}, 5]:
        assert await accepted(tokens, issuer.token(iss=name)) is None


async def test_several_issuers_are_taken_side_by_side(issuer):
    """A list of issuers where one was expected refuses everything in some libraries."""
    async with issuing() as second:
        second.key = key("two")
        second.publish(second.key)
        async with trusting(issuer.settings(), second.settings()) as tokens:
            first_caller = await accepted(tokens, issuer.token())
            second_caller = await accepted(tokens, second.token())
            assert first_caller.id != second_caller.id
            assert await accepted(tokens, issuer.token(key("two"))) is None


async def test_A6_the_key_of_one_issuer_verifies_no_token_of_another_under_the_same_id(issuer):
    async with issuing() as second:
        impostor = key("impostor")
        document = {"keys": [{**impostor.as_dict(private=False), "kid": "one"}]}
        second.answers["/jwks"] = json.dumps(document).encode()
        async with trusting(issuer.settings(), second.settings()) as tokens:
            assert await accepted(tokens, signed(impostor, second.claims(), kid="one"))
            assert await accepted(tokens, signed(impostor, issuer.claims(), kid="one")) is None
            assert await accepted(tokens, signed(issuer.key, second.claims(), kid="one")) is None


async def test_A6_each_issuer_has_its_own_algorithms(issuer):
    """A key of another kind that an issuer publishes besides is good for nothing there."""
    async with issuing() as second:
        rsa = key("rsa", "RSA")
        for each in (issuer, second):
            each.publish(each.key, rsa)
        settings = issuer.settings(algorithms=["ES256"]), second.settings(algorithms=["RS256"])
        async with trusting(*settings) as tokens:
            assert await accepted(tokens, issuer.token())
            assert await accepted(tokens, issuer.token(rsa)) is None
            assert await accepted(tokens, second.token(rsa))
            assert await accepted(tokens, second.token()) is None


async def test_A9_callers_are_issuer_and_subject_whatever_else_a_token_says(issuer):
    async with issuing() as second, trusting(issuer.settings(), second.settings()) as tokens:
        callers = {
            (await accepted(tokens, each.token(sub=sub, email="a@b.example", name="A", preferred_username="a"))).id
            for each in (issuer, second)
            for sub in ("alice", "bob")
        }
        assert len(callers) == 4


NOW = int(time.time())
TIMES = {
    "expired half a minute ago, within the leeway": ({"exp": -30}, True),
    "expired over a minute ago": ({"exp": -61}, False),
    "begins in half a minute": ({"nbf": 30}, True),
    "begins later": ({"nbf": 70}, False),
    "issued in the future": ({"iat": 70}, False),
    "fractions of seconds": ({"exp": 100.5}, True),
}


@pytest.mark.parametrize("case", TIMES)
async def test_O_14_A7_times_hold_within_a_minute(issuer, tokens, case):
    shifts, good = TIMES[case]
    claims = {name: time.time() + shift for name, shift in shifts.items()}
    assert bool(await accepted(tokens, issuer.token(**claims))) is good


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", ["9999999999", True, [9999999999], {}, -1e400, "", float("nan"), float("inf")])
async def test_O_14_A7_a_time_that_is_no_number_is_refused(issuer, tokens, name, value):
    assert await accepted(tokens, issuer.token(**{name: value})) is None


@pytest.mark.parametrize("digits", [30, 400, 4000])
async def test_A7_numbers_of_any_length_break_nothing(issuer, tokens, digits):
    await accepted(tokens, issuer.token(exp=10**digits))
    assert await accepted(tokens, issuer.token(nbf=10**digits)) is None
    assert await accepted(tokens, issuer.token(exp=-(10**digits))) is None


@pytest.mark.parametrize("name", ["iss", "sub", "aud", "exp", "iat", "client_id", "jti"])
async def test_A7_what_rfc_9068_requires_must_be_there(issuer, tokens, name):
    assert await accepted(tokens, issuer.token(**{name: None})) is None


async def test_a_remembered_token_ends_when_it_expires(issuer, monkeypatch):
    async with trusting(issuer.settings(leeway=0)) as tokens:
        token = issuer.token(exp=int(time.time()) + 100)
        assert await accepted(tokens, token)
        later = time.time() + 101
        monkeypatch.setattr(time, "time", lambda: later)
        assert await accepted(tokens, token) is None


async def test_a_remembered_token_costs_no_second_check(issuer, tokens, monkeypatch):
    token = issuer.token()
    first = await accepted(tokens, token)
    monkeypatch.setattr("appliance_auth.oauth.issuer.check_claims", None)
    assert await accepted(tokens, token) is first


async def test_A13_tokens_that_begin_alike_are_not_the_same(issuer, tokens):
    alice, bob = issuer.token(sub="alice"), issuer.token(sub="bob")
    assert alice[:60] == bob[:60]
    assert (await accepted(tokens, alice)).id != (await accepted(tokens, bob)).id
    assert await accepted(tokens, alice[:-4] + "AAAA") is None
    assert (await accepted(tokens, alice)).id.endswith("|alice")


async def test_the_memory_is_bounded(issuer, tokens, monkeypatch):
    monkeypatch.setattr(tokens._accepted, "_limit", 10)
    for i in range(30):
        assert await accepted(tokens, issuer.token(jti=f"id-{i}"))
    assert len(tokens._accepted) == 10


async def test_A8_a_token_over_16_kib_is_refused(issuer, tokens):
    assert await accepted(tokens, issuer.token(pad="x" * 20_000)) is None
    assert await accepted(tokens, issuer.token(pad="x" * 8_000))


async def test_A8_encrypted_tokens_are_refused(tokens):
    header = b64({"alg": "RSA-OAEP-256", "enc": "A256GCM", "zip": "DEF", "kid": "rsa"})
    assert (
        await accepted(tokens, f"{header}.{b64(b'k' * 256)}.{b64(b'i' * 12)}.{b64(b'c' * 64)}.{b64(b't' * 16)}") is None
    )


def hmac_signed(secret: bytes, claims, **header) -> str:
    signing_input = f"{b64({'typ': 'at+jwt', 'alg': 'HS256', 'kid': 'rsa', **header})}.{b64(claims)}"
    return f"{signing_input}.{b64(hmac.new(secret, signing_input.encode(), hashlib.sha256).digest())}"


def forgeries(issuer) -> dict[str, str]:
    """Tokens that the issuer's key did not sign as they stand, or that ask for another way of checking."""
    good, claims = issuer.token(), issuer.claims()
    head, body, signature = good.split(".")
    rsa, stranger = key("rsa", "RSA"), key("stranger")
    rsa_jwk, rsa_pem = rsa.as_dict(private=False), rsa.as_pem(private=False)
    theirs = stranger.as_dict(private=False)
    rs_token = issuer.token(rsa)
    admin = b64({**claims, "sub": "admin"})
    none = {"typ": "at+jwt", "alg": "none", "kid": "one"}
    return {
        "HS256 with the PEM public key": hmac_signed(rsa_pem, claims),
        "HS256 with the PEM public key, stripped": hmac_signed(rsa_pem.strip(), claims),
        "HS256 with the JWK": hmac_signed(json.dumps(rsa_jwk).encode(), claims),
        "HS256 with the compact JWK": hmac_signed(json.dumps(rsa_jwk, separators=(",", ":")).encode(), claims),
        "HS256 with the modulus": hmac_signed(rsa_jwk["n"].encode(), claims),
        "HS256 with nothing": hmac_signed(b"", claims),
        "HS384 named, HS256 made": hmac_signed(rsa_pem, claims, alg="HS384"),
        "none, no signature": f"{b64(none)}.{body}.",
        "none with the old signature": f"{b64(none)}.{body}.{signature}",
        "None": f"{b64({**none, 'alg': 'None'})}.{body}.",
        "NONE": f"{b64({**none, 'alg': 'NONE'})}.{body}.",
        "nOnE": f"{b64({**none, 'alg': 'nOnE'})}.{body}.",
        "an empty algorithm": f"{b64({**none, 'alg': ''})}.{body}.{signature}",
        "no algorithm": f"{b64({'typ': 'at+jwt', 'kid': 'one'})}.{body}.{signature}",
        "a list of algorithms": f"{b64({**none, 'alg': ['ES256', 'none']})}.{body}.{signature}",
        "a stranger under our key id": signed(stranger, claims, kid="one"),
        "a stranger's RSA under our key id": signed(key("rsa-stranger", "RSA"), claims, kid="rsa"),
        "a stranger with its key along": signed(stranger, claims, kid="one", jwk=theirs),
        "a stranger's own key id and key": signed(stranger, claims, jwk=theirs),
        "a stranger with a link to its key": signed(stranger, claims, jku=f"{issuer.url}/evil"),
        "a stranger with a certificate's link": signed(stranger, claims, x5u=f"{issuer.url}/evil"),
        "a stranger with a certificate": signed(stranger, claims, x5c=["MIIB"]),
        "a stranger with a thumbprint": signed(stranger, claims, kid="one", **{"x5t#S256": "x"}),
        "a stranger without a key id": signed(stranger, claims, kid=None),
        "a key id that is a path": signed(stranger, claims, kid="../../../dev/null"),
        "a key id that is SQL": signed(stranger, claims, kid="' UNION SELECT 'x' --"),
        "a key id that is no text": signed(issuer.key, claims, kid=["one"]),
        "a key id that is a number": signed(issuer.key, claims, kid=1),
        "the other key's id": signed(issuer.key, claims, kid="rsa"),
        "another algorithm of the same key": signed(rsa, claims, alg="PS256"),
        "an algorithm that is not allowed": signed(rsa, claims, alg="RS512"),
        "an unknown critical extension": signed(issuer.key, claims, crit=["exp2"], exp2=1),
        "a known critical extension": signed(issuer.key, claims, crit=["b64"], b64=True),
        "critical, not a list": signed(issuer.key, claims, crit="b64"),
        "an unencoded payload": signed(issuer.key, claims, crit=["b64"], b64=False),
        "compressed": signed(issuer.key, claims, zip="DEF"),
        "other claims under the signature": f"{head}.{admin}.{signature}",
        "another header over the signature": f"{b64({**none, 'alg': 'ES256', 'x': 1})}.{body}.{signature}",
        "no signature": f"{head}.{body}.",
        "a signature of zeros": f"{head}.{body}.{b64(bytes(64))}",
        "a DER signature's length": f"{head}.{body}.{b64(bytes(70))}",
        "half a signature": f"{head}.{body}.{signature[:40]}",
        "the signature of another token": f"{head}.{body}.{issuer.token(sub='bob').split('.')[2]}",
        "an RSA signature on an EC header": f"{head}.{body}.{rs_token.split('.')[2]}",
        "an RSA signature of ones": f"{'.'.join(rs_token.split('.')[:2])}.{b64(bytes([1]) * 256)}",
        "padding": f"{head}=.{body}.{signature}",
        "a line break": f"{head}.{body}\n.{signature}",
        "four parts": f"{good}.{signature}",
        "two parts": f"{head}.{body}",
        "JSON serialization": json.dumps({"protected": head, "payload": body, "signature": signature}),
        "a header that is a list": f"{b64('[]')}.{body}.{signature}",
        "a header that is a number": f"{b64('5')}.{body}.{signature}",
        "a header that is a list with alg": f"{b64(json.dumps(['alg', 'b64', 'crit']))}.{body}.{signature}",
        "a header that is a text with alg": f"{b64(json.dumps('alg b64 crit'))}.{body}.{signature}",
        "a header nested deep": f"{b64('[' * 3000)}.{body}.{signature}",
        "a header that is not UTF-8": f"{b64(bytes([255, 254]))}.{body}.{signature}",
        "claims that are a list": signed(issuer.key, b"[]"),
        "claims that are null": signed(issuer.key, b"null"),
        "claims nested deep": signed(issuer.key, b'{"a":' * 2000 + b"1" + b"}" * 2000),
        "claims that are not UTF-8": signed(issuer.key, b'{"sub":"\xff"}'),
        "claims that are not JSON": signed(issuer.key, b"sub=alice"),
        "NaN among the claims": signed(issuer.key, json.dumps({**claims, "x": float("nan")}).encode()),
    }


FORGERIES = 62


async def test_O_12_A6_no_forgery_gets_in_and_nothing_is_fetched_for_it(issuer, tokens):
    assert await accepted(tokens, issuer.token())
    cases = forgeries(issuer)
    assert len(cases) == FORGERIES
    got_in = [name for name, token in cases.items() if await accepted(tokens, token) is not None]
    assert got_in == []
    assert issuer.requests["/evil"] == 0
    assert await accepted(tokens, issuer.token(sub="bob")), "good tokens are taken still"


async def test_A6_keys_that_a_good_token_brings_along_are_not_looked_at(issuer, tokens):
    stranger = key("stranger").as_dict(private=False)
    token = issuer.token(header={"jwk": stranger, "jku": f"{issuer.url}/evil", "x5c": ["MIIB"]})
    assert await accepted(tokens, token)
    assert issuer.requests["/evil"] == 0


@pytest.mark.parametrize(
    ("act", "actors", "good"),
    [
        ({"sub": "agent"}, None, True),
        ({"sub": "agent"}, ["agent"], True),
        ({"sub": "agent", "act": {"sub": "evil"}}, ["agent"], True),
        ({"sub": "evil", "act": {"sub": "agent"}}, ["agent"], False),
        ({"sub": "agent"}, [], False),
        ({}, None, False),
        ("agent", None, False),
        ([{"sub": "agent"}], None, False),
        ({"sub": ["agent"]}, ["agent"], False),
    ],
    ids=range(9),
)
async def test_A24_only_the_one_who_acts_now_decides(issuer, act, actors, good):
    async with trusting(issuer.settings(actors=actors)) as tokens:
        caller = await accepted(tokens, issuer.token(act=act))
        assert bool(caller) is good
        assert not good or caller.id.endswith("|alice")


async def test_an_api_key_and_a_strangers_token_are_left_to_others(issuer, tokens):
    assert await tokens.authenticate(bearer("sk-app-" + "a" * 40)) is None
    assert await tokens.authenticate({"x-api-key": issuer.token()}) is None
    assert await tokens.authenticate(bearer(issuer.token(iss="https://elsewhere.example"))) is None


async def test_many_callers_with_one_new_token_at_once_all_get_in(issuer, tokens):
    token = issuer.token()
    callers = await asyncio.gather(*(accepted(tokens, token) for _ in range(50)))
    assert len(set(callers)) == 1
    assert issuer.requests["/jwks"] == 1
