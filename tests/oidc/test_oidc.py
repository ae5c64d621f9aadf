"""The provider does what the other tests rely on."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from oidc import API, OPAQUE_API, Browser, OidcProvider, started


def parts(token: str) -> list[dict[str, Any]]:
    return [json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2]]


async def test_client_credentials_give_an_rfc_9068_token(oidc: OidcProvider) -> None:
    header, claims = parts(await oidc.client_credentials("inference"))
    assert header["typ"] == "at+jwt"
    assert claims["iss"] == oidc.issuer
    assert (claims["aud"], claims["scope"], claims["sub"], claims["tenant"]) == (API, "inference", "service", "acme")


async def test_a_person_signs_in_and_gets_tokens_with_groups_and_roles(oidc: OidcProvider) -> None:
    tokens = await oidc.user_tokens("alice")
    _, access = parts(tokens["access_token"])
    assert (access["sub"], access["groups"], access["roles"]) == ("alice", ["engineering"], ["user"])
    _, identity = parts(tokens["id_token"])
    assert identity["tenant"] == "acme"
    assert tokens["refresh_token"]


async def test_opaque_tokens_are_introspected_and_revoked(oidc: OidcProvider) -> None:
    token = await oidc.user_token("alice", resource=OPAQUE_API)
    found = await oidc.introspect(token)
    assert (found["active"], found["aud"], found["groups"]) == (True, OPAQUE_API, ["engineering"])
    await oidc.revoke(token)
    assert await oidc.introspect(token) == {"active": False}


async def test_the_device_flow_works(oidc: OidcProvider) -> None:
    async with oidc.client() as client, Browser("bob") as browser:
        start = (await client.post("/device/auth", data={"client_id": oidc.cli, "scope": "openid"})).json()
        grant = {
            "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
            "client_id": oidc.cli,
            "device_code": start["device_code"],
        }
        assert (await client.post("/token", data=grant)).json()["error"] == "authorization_pending"
        await browser.sign_in(start["verification_uri"], user_code=start["user_code"])
        assert parts((await client.post("/token", data=grant)).json()["id_token"])[1]["sub"] == "bob"


async def test_keys_rotate_and_survive_a_restart(tmp_path: Path) -> None:
    with started(tmp_path) as provider:
        (old,) = (key["kid"] for key in (await provider.jwks())["keys"])
        new = await provider.rotate()
        assert {key["kid"] for key in (await provider.jwks())["keys"]} == {old, new}
        assert parts(await provider.client_credentials())[0]["kid"] == new
        assert await provider.requests("/jwks") == 2

        issuer = provider.issuer
        provider.stop()
        with pytest.raises(httpx.ConnectError):
            await provider.jwks()
        provider.start()
        assert provider.issuer == issuer
        last = await provider.rotate(drop=True)
        assert [key["kid"] for key in (await provider.jwks())["keys"]] == [last]
