"""Dialects of providers: a token passes under its own profile and under no other (A10)."""

import time

import pytest
from oauth_kit import issuing, key, signed, trusting

from appliance.plugin import Principal, Unauthenticated
from appliance_auth.oauth.profiles import PROFILES

NOW = int(time.time())
TIMES = {"iat": NOW, "exp": NOW + 7200}
US = "https://api.example.org"
CLIENT = "0oa1client"

# The shapes are those that the providers document; names and numbers are made up.
ACCESS = {
    "rfc9068": (
        {"typ": "at+jwt"},
        {"sub": "5ba552d67", "client_id": CLIENT, "jti": "dbe39bf3a3ba4238", "scope": "inference", "auth_time": NOW},
    ),
    "keycloak": (
        {"typ": "JWT"},
        {
            "jti": "onrtac:33f9bd2c-6f21-4b4a",
            "sub": "f1b2c3d4-0000-4000-8000-000000000001",
            "typ": "Bearer",
            "azp": "chat-ui",
            "sid": "9c1b2b8e",
            "acr": "1",
            "allowed-origins": ["https://chat.example.org"],
            "realm_access": {"roles": ["default-roles-x", "chat-user"]},
            "resource_access": {"account": {"roles": ["view-profile"]}},
            "scope": "openid email inference",
            "email_verified": True,
            "preferred_username": "alice",
        },
    ),
    "auth0": (
        {"typ": "JWT"},
        {"sub": "auth0|5f7c8ec7c33c6c004bbafe82", "azp": CLIENT, "scope": "openid inference", "permissions": ["x"]},
    ),
    "entra": (
        {"typ": "JWT", "x5t": "abc"},
        {
            "nbf": NOW,
            "aio": "AXQAi/8TAAAA",
            "azp": "6e74172b-be56-4843-9ff4-e66a39bb12e3",
            "azpacr": "0",
            "name": "Alice",
            "oid": "690222be-ff1a-4d56-abd1-7e4f7d38e474",
            "preferred_username": "alice@example.org",
            "rh": "I",
            "scp": "inference files",
            "sub": "HKZpfaHyWadeOouYlitjrI-KffTm222X5rrV3xDqfKQ",
            "tid": "72f988bf-86f1-41af-91ab-2d7cd011db47",
            "uti": "fqiBqXLPj0eQa82S-IYFAA",
            "ver": "2.0",
        },
    ),
    "okta": (
        {"typ": None},
        {
            "ver": 1,
            "jti": "AT.0mP4JKAZX1iACIT4vbEDF7LpvDVjxypPMf0D7uX39RE",
            "cid": CLIENT,
            "uid": "00uid4BxXw6I6TV4m0g3",
            "scp": ["inference"],
            "auth_time": NOW,
            "sub": "alice@example.org",
        },
    ),
    "google": (
        {"typ": "JWT"},
        {
            "azp": "104029292853099978293",
            "email": "svc@project.iam.gserviceaccount.com",
            "email_verified": True,
            "sub": "104029292853099978293",
        },
    ),
}
ID_TOKENS = {
    "rfc9068": ({"typ": "JWT"}, {**ACCESS["rfc9068"][1], "nonce": "n"}),
    "keycloak": ({"typ": "JWT"}, {**ACCESS["keycloak"][1], "typ": "ID", "nonce": "n", "at_hash": "h"}),
    "auth0": ({"typ": "JWT"}, {"sub": "auth0|5f7c", "azp": US, "nonce": "n", "sid": "s"}),
    "entra": ({"typ": "JWT"}, {**ACCESS["entra"][1], "azp": None, "scp": None, "nonce": "n", "roles": ["x"]}),
    "okta": (
        {"typ": None},
        {"ver": 1, "jti": "ID.4eAWJOCMB3SX8XewDfVR", "sub": "00uid", "amr": ["pwd"], "at_hash": "h", "idp": "x"},
    ),
    "google": ({"typ": "JWT"}, {**ACCESS["google"][1], "azp": US, "at_hash": "h", "nonce": "n"}),
}


@pytest.fixture
async def issuer():
    async with issuing() as made:
        made.key = key("rsa", "RSA")
        made.publish(made.key)
        yield made


def token(issuer, shape, **changed) -> str:
    header, claims = shape
    full = {"iss": issuer.url, "aud": US, **TIMES, **claims, **changed}
    return signed(issuer.key, {name: value for name, value in full.items() if value is not None}, **header)


async def accepted(issuer, text: str, profile: str, **settings) -> Principal | None:
    async with trusting(issuer.settings(audience=US, profile=profile, **settings)) as tokens:
        try:
            return await tokens.authenticate({"authorization": f"Bearer {text}"})
        except Unauthenticated:
            return None


def test_every_profile_is_tested():
    assert ACCESS.keys() == ID_TOKENS.keys() == PROFILES.keys()


@pytest.mark.parametrize("shape", ACCESS)
async def test_A10_a_token_passes_under_the_profile_of_its_provider_and_under_no_other(issuer, shape):
    text = token(issuer, ACCESS[shape])
    assert {profile for profile in PROFILES if await accepted(issuer, text, profile)} == {shape}


@pytest.mark.parametrize("shape", ID_TOKENS)
async def test_A10_an_id_token_passes_under_none(issuer, shape):
    text = token(issuer, ID_TOKENS[shape])
    assert {profile for profile in PROFILES if await accepted(issuer, text, profile)} == set()


CLIENT_AUDIENCES = [US, [US], [US, "other"]]


@pytest.mark.parametrize("profile", ["auth0", "google"])
@pytest.mark.parametrize("audience", CLIENT_AUDIENCES, ids=range(3))
async def test_A10_where_only_the_audience_tells_a_token_for_its_own_client_is_an_id_token(issuer, profile, audience):
    assert await accepted(issuer, token(issuer, ACCESS[profile], aud=audience), profile)
    assert not await accepted(issuer, token(issuer, ACCESS[profile], aud=audience, azp=US), profile)


@pytest.mark.parametrize("claim", ["nonce", "at_hash", "c_hash"])
@pytest.mark.parametrize("profile", ["auth0", "google"])
async def test_A10_marks_of_a_login_make_an_id_token(issuer, profile, claim):
    assert not await accepted(issuer, token(issuer, ACCESS[profile], **{claim: "x"}), profile)


@pytest.mark.parametrize("kind", ["ID", "Refresh", "Offline", "Logout", None, ["Bearer"]])
async def test_A10_keycloaks_other_tokens_are_refused(issuer, kind):
    assert not await accepted(issuer, token(issuer, ACCESS["keycloak"], typ=kind), "keycloak")


SCOPES = {
    "rfc9068": {"inference"},
    "keycloak": {"inference"},
    "auth0": {"inference"},
    "entra": {"inference", "files"},
    "okta": {"inference"},
    "google": None,
}


@pytest.mark.parametrize("profile", SCOPES)
async def test_scopes_are_found_where_each_provider_puts_them(issuer, profile):
    caller = await accepted(issuer, token(issuer, ACCESS[profile]), profile)
    assert caller.scopes == SCOPES[profile]


async def test_keycloaks_realm_roles_are_found(issuer):
    caller = await accepted(
        issuer, token(issuer, ACCESS["keycloak"]), "keycloak", role_map={"chat-user": "knowledge-manager"}
    )
    assert caller.roles == ("user", "knowledge-manager")


async def test_an_entra_application_is_limited_by_its_roles_in_place_of_scopes(issuer):
    app = token(issuer, ACCESS["entra"], scp=None, roles=["Chat.Use"], idtyp="app")
    caller = await accepted(issuer, app, "entra", role_map={"Chat.Use": "user"}, default_roles=[])
    assert (caller.roles, caller.scopes) == (("user",), None)
    person_without_scopes = token(issuer, ACCESS["entra"], scp="", roles=["Chat.Use"])
    caller = await accepted(issuer, person_without_scopes, "entra")
    assert caller.scopes == frozenset()
