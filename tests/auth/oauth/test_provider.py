"""Against a real OpenID provider (npm oidc-provider): services and people, introspection, rotation, outage."""

import time
from contextlib import asynccontextmanager

import oidc as oidc_provider
import pytest
from loopback import http_client
from oauth_kit import bearer

from appliance.testing import Emit, ScriptedPlugin, make_app, serving

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def settings(provider, **changed):
    claims = {"tenant": "tenant", "roles": "roles", "groups": "groups"}
    roles = {"user": "user", "knowledge-manager": "knowledge-manager", "admin": "admin"}
    common = {"issuer": provider.issuer, "audience": oidc_provider.API, "loopback_http": True}
    return {**common, "claims": claims, "role_map": roles, "default_roles": [], **changed}


def opaque(provider, **changed):
    client_id, client_secret = provider.resource_server
    introspection = {"client_id": client_id, "client_secret": client_secret, **changed}
    return settings(provider, audience=oidc_provider.OPAQUE_API, introspection=introspection)


@asynccontextmanager
async def client_of(issuer, folder):
    config = {
        "plugins": ["oauth", "rbac"],
        "models": [{"name": "m", "engine": "scripted"}],
        "plugin": {"oauth": {"issuers": [issuer]}},
    }
    app = make_app(config, {"scripted": ScriptedPlugin([Emit("fine")])}, folder=folder)
    async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
        client.authenticate = app.state.runtime.pipeline.authenticate
        yield client


@pytest.fixture
async def client(oidc, tmp_path):
    async with client_of(settings(oidc), tmp_path) as made:
        yield made


@pytest.fixture
def own(tmp_path):
    """A provider that a test may stop."""
    with oidc_provider.started(tmp_path / "provider") as provider:
        yield provider


async def status(client, token: str) -> int:
    return (await client.post("/v1/chat/completions", json=BODY, headers=bearer(token))).status_code


async def test_a_service_gets_in_by_client_credentials(client, oidc):
    token = await oidc.client_credentials("inference")
    assert await status(client, token) == 200
    caller = await client.authenticate(bearer(token))
    assert (caller.tenant, caller.roles, caller.scopes) == ("acme", ("user",), {"inference"})
    assert await status(client, await oidc.client_credentials("files")) == 403


async def test_a_person_is_who_the_claims_say(client, oidc):
    caller = await client.authenticate(bearer(await oidc.user_token("bob", "openid inference files")))
    assert caller.id == caller.user == f"user:{oidc.issuer}|bob"
    assert (caller.tenant, caller.groups, caller.roles) == ("acme", ("sales",), ("knowledge-manager",))
    assert caller.scopes == {"inference", "files"}


async def test_A4_the_id_token_and_the_refresh_token_of_a_login_are_refused(client, oidc):
    tokens = await oidc.user_tokens("alice")
    assert await status(client, tokens["access_token"]) == 200
    assert await status(client, tokens["id_token"]) == 401
    assert await status(client, tokens["refresh_token"]) == 401


async def test_A5_a_token_for_another_resource_is_refused(client, oidc):
    assert await status(client, await oidc.client_credentials("inference", "https://mail.example/")) == 401


async def test_A13_opaque_tokens_are_introspected_and_revoked_ones_refused_within_a_minute(oidc, tmp_path, monkeypatch):
    async with client_of(opaque(oidc), tmp_path) as client:
        token = await oidc.user_token("alice", "openid inference", oidc_provider.OPAQUE_API)
        assert token.count(".") == 0
        assert await status(client, token) == 200
        caller = await client.authenticate(bearer(token))
        assert (caller.id, caller.roles) == (f"user:{oidc.issuer}|alice", ("user",))
        await oidc.revoke(token)
        later = time.time() + 60
        monkeypatch.setattr(time, "time", lambda: later)
        assert await status(client, token) == 401


async def test_A13_a_service_with_an_opaque_token_gets_in(oidc, tmp_path):
    async with client_of(opaque(oidc), tmp_path) as client:
        token = await oidc.client_credentials("inference", oidc_provider.OPAQUE_API)
        assert await status(client, token) == 200
        assert await status(client, token + "x") == 401


async def test_A13_wrong_credentials_of_our_own_are_503_not_an_open_door(oidc, tmp_path):
    async with client_of(opaque(oidc, client_secret="wrong"), tmp_path) as client:
        assert await status(client, await oidc.client_credentials("inference", oidc_provider.OPAQUE_API)) == 503


async def test_O_13_R20_rotation_and_outages_of_the_provider(own, tmp_path):
    async with client_of(settings(own), tmp_path / "app") as client:
        before = await own.client_credentials()
        assert await status(client, before) == 200
        fetched = await own.requests("/jwks")
        own.freeze()
        assert await status(client, before) == 200, "known keys need nobody"
        own.thaw()
        own.stop()
        assert await status(client, before) == 200
        own.start()
        await own.rotate(drop=True)
        after = await own.client_credentials()

        assert fetched == 1
        assert await status(client, after) == 200, "with the next request"
        assert await status(client, before) == 401
