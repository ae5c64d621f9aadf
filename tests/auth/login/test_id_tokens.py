"""ID tokens and logout tokens: only those that fit in everything are taken."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwk, jws

from appliance.plugin import ApplianceError
from appliance_auth.login.attempt import Attempt, local_path
from appliance_auth.login.id_tokens import ClientTokens
from appliance_auth.oauth.claims import TokenRefused
from appliance_auth.oauth.keys import Keys
from appliance_auth.oauth.settings import IssuerSettings

ISSUER, CLIENT, NONCE, ACCESS = "https://id.example", "web", "nonce", "the access token"
ALGORITHMS = ("RS256", "ES256", "ES384", "Ed25519")
KEYS = {
    "RS256": jwk.RSAKey.generate_key(2048, {"kid": "rsa"}),
    "ES256": jwk.ECKey.generate_key("P-256", {"kid": "p256"}),
    "ES384": jwk.ECKey.generate_key("P-384", {"kid": "p384"}),
    "Ed25519": jwk.OKPKey.generate_key("Ed25519", {"kid": "ed"}),
    "HS256": jwk.OctKey.import_key(b"k" * 32),
}
JWKS = json.dumps({"keys": [key.as_dict(private=False) for name, key in KEYS.items() if name != "HS256"]}).encode()
LOGOUT = {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}, "sid": "s", "nonce": None}


def half_hash(name: str, text: str = ACCESS) -> str:
    digest = hashlib.new(name, text.encode()).digest()
    return base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=").decode()


def signed(algorithm: str = "RS256", header: dict[str, Any] | None = None, key: Any = None, **changes: Any) -> str:
    """A good ID token but for the changes; ``None`` leaves a claim or header out."""
    now = int(time.time())
    good = {
        "iss": ISSUER,
        "sub": "alice",
        "aud": CLIENT,
        "iat": now,
        "exp": now + 7200,
        "nonce": NONCE,
    }  # parameters are made when tests are collected
    claims = {name: value for name, value in (good | changes).items() if value is not None}
    key = key or KEYS[algorithm]
    wanted = {"alg": algorithm, "typ": "JWT", "kid": key.kid} | (header or {})
    headers = {name: value for name, value in wanted.items() if value is not None}
    registry = jws.JWSRegistry(algorithms=[*ALGORITHMS, "HS256"], strict_check_header=False)
    return jws.serialize_compact(headers, json.dumps(claims).encode(), key, registry=registry)


@pytest.fixture(scope="module")
def tokens() -> ClientTokens:
    async def fetch() -> bytes:
        return JWKS

    issuer = IssuerSettings(issuer=ISSUER, audience="api", algorithms=ALGORITHMS)
    return ClientTokens(issuer, CLIENT, Keys(ISSUER, fetch, ALGORITHMS))


async def checked(tokens: ClientTokens, token: object) -> Any:
    return await tokens.id_token(token, nonce=NONCE, access_token=ACCESS)


@pytest.mark.parametrize(
    "token",
    [
        signed(),
        signed("ES256"),
        signed("Ed25519"),
        signed(header={"typ": None}),
        signed(at_hash=half_hash("sha256")),
        signed("ES384", at_hash=half_hash("sha384")),
        signed("Ed25519", at_hash=half_hash("sha512")),
        signed(aud=[CLIENT]),
        signed(aud=[CLIENT, "other"], azp=CLIENT),
    ],
)
async def test_a_good_id_token_is_taken(tokens: ClientTokens, token: str) -> None:
    assert (await checked(tokens, token))["sub"] == "alice"


NOW = int(time.time())
BAD: dict[str, object] = {
    "nonce of another sign-in": signed(nonce="another"),
    "no nonce": signed(nonce=None),
    "nonce of another type": signed(nonce=[NONCE]),
    "another issuer": signed(iss="https://attacker.example"),
    "issuer with a slash": signed(iss=ISSUER + "/"),
    "another client": signed(aud="other"),
    "several clients, none named": signed(aud=[CLIENT, "other"]),
    "several clients, another named": signed(aud=[CLIENT, "other"], azp="other"),
    "one client, another named": signed(azp="other"),
    "expired": signed(exp=NOW - 3600),
    "no end": signed(exp=None),
    "no time": signed(iat=None),
    "from the future": signed(iat=NOW + 3600),
    "no subject": signed(sub=None),
    "empty subject": signed(sub=""),
    "subject of another type": signed(sub=7),
    "an access token": signed(header={"typ": "at+jwt"}),
    "a logout token": signed(header={"typ": "logout+jwt"}, **LOGOUT),
    "at_hash of another token": signed(at_hash=half_hash("sha256", "other")),
    "at_hash by another hash": signed("ES384", at_hash=half_hash("sha256")),
    "at_hash of another type": signed(at_hash=1),
    "at_hash that is empty": signed(at_hash=""),
    "unknown key": signed(key=jwk.RSAKey.generate_key(2048, {"kid": "unknown"})),
    "key of the same name": signed(key=jwk.RSAKey.generate_key(2048, {"kid": "rsa"})),
    "a shared secret": signed("HS256", header={"kid": "rsa"}),
    "none": base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode() + "." + signed().split(".")[1] + ".",
    "too long": signed(padding="x" * 20_000),
    "no JWT": "opaque",
    "nothing": None,
    "an object": {"iss": ISSUER},
}


@pytest.mark.parametrize("name", BAD)
async def test_A21_an_id_token_that_does_not_fit_is_refused(tokens: ClientTokens, name: str) -> None:
    with pytest.raises(TokenRefused):
        await checked(tokens, BAD[name])


async def test_A21_at_hash_of_an_algorithm_without_a_known_hash_is_refused(
    tokens: ClientTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Authlib took any at_hash there (CVE-2026-28498)."""
    from appliance_auth.login import id_tokens

    monkeypatch.setattr(id_tokens, "_EDWARDS", ())
    with pytest.raises(TokenRefused, match="cannot be checked"):
        await checked(tokens, signed("Ed25519", at_hash=half_hash("sha512")))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
CLAIMS = st.sampled_from(["iss", "sub", "aud", "iat", "exp", "nonce", "azp", "at_hash", "nbf", "events", "sid"])


@settings(max_examples=300, deadline=None)
@given(claims=st.dictionaries(CLAIMS, JSON, min_size=1, max_size=4), kind=st.sampled_from(["JWT", "logout+jwt"]))
async def test_claims_of_any_type_are_taken_or_refused_and_nothing_else(
    tokens: ClientTokens, claims: dict[str, Any], kind: str
) -> None:
    token = signed("ES256", header={"typ": kind}, **claims)
    try:
        await (checked(tokens, token) if kind == "JWT" else tokens.logout_token(token))
    except TokenRefused:
        pass
    except ApplianceError as error:
        pytest.fail(str(error))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, (None, "s")),
        ({"sid": None}, None),
        ({"sub": "alice", "sid": None}, ("alice", None)),
        ({"sub": "alice"}, ("alice", "s")),
    ],
    ids=str,
)
async def test_A25_a_logout_token_names_whose_sessions_end(
    tokens: ClientTokens, changes: dict[str, Any], named: tuple[str | None, str | None] | None
) -> None:
    token = signed(header={"typ": "logout+jwt"}, **(LOGOUT | {"sub": None} | changes))
    if named is None:
        with pytest.raises(TokenRefused, match="names no session"):
            await tokens.logout_token(token)
    else:
        assert await tokens.logout_token(token) == named


@pytest.mark.parametrize(
    "token",
    [
        signed(**LOGOUT),
        signed(header={"typ": "logout+jwt"}, **(LOGOUT | {"nonce": NONCE})),
        signed(header={"typ": "logout+jwt"}, **(LOGOUT | {"events": {}})),
        signed(header={"typ": "logout+jwt"}, **(LOGOUT | {"aud": "other"})),
        signed(header={"typ": "logout+jwt"}, **(LOGOUT | {"exp": NOW - 3600})),
        signed(header={"typ": "logout+jwt"}, **(LOGOUT | {"sid": 1})),
    ],
    ids=["typed JWT", "nonce", "no event", "another client", "expired", "odd sid"],
)
async def test_A25_what_is_no_logout_token_ends_nothing(tokens: ClientTokens, token: str) -> None:
    with pytest.raises(TokenRefused):
        await tokens.logout_token(token)


@pytest.mark.parametrize(
    "address",
    [
        None,
        "",
        "ui",
        "https://attacker.example/",
        "//attacker.example",
        "/\\attacker.example",
        "\\\\attacker.example",
        "/\t/attacker.example",
        "/\n/attacker.example",
        "/x\r\nset-cookie: a=b",
        "javascript:alert(1)",
        "/\xfc",
        "/" + "a" * 5000,
        " /x",
    ],
)
def test_A21_the_way_back_is_a_path_of_this_server(address: str | None) -> None:
    assert local_path(address) == "/"
    assert local_path("/ui/?tab=chat#x") == "/ui/?tab=chat#x"


def test_A21_state_nonce_and_verifier_are_of_one_browser_and_differ() -> None:
    one, other = Attempt.begin("/x"), Attempt.begin("/x")
    made = {attempt_value for each in (one, other) for attempt_value in (each.state, each.nonce, each.code_verifier)}
    assert len(made | {one.secret, other.secret}) == 8
    assert Attempt.from_cookie(one.cookie) == one
    for broken in (None, "", "x", one.cookie[1:], one.cookie + "=", one.cookie.replace(".", "-"), one.secret + ".//"):
        assert Attempt.from_cookie(broken) is None
    evil = base64.urlsafe_b64encode(b"//attacker.example").rstrip(b"=").decode()
    found = Attempt.from_cookie(f"{one.secret}.{evil}")
    assert found
    assert found.then == "/"
