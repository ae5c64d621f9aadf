"""A provider that answers the code's exchange with anything but what it should: nobody is signed in, nothing breaks."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import loopback
import pytest
from login_kit import settings
from oauth_kit import FakeIssuer, issuing, key, signed

CLIENT = "web"


class Flow:
    """Sign-ins up to the callback; the provider's answer to the code is the test's."""

    def __init__(self, box: loopback.Box, issuer: FakeIssuer) -> None:
        self.box, self.issuer = box, issuer
        self.nonce = ""

    async def begin(self) -> str:
        begun = await self.box.client.get("/auth/login?next=/ui")
        query = parse_qs(urlsplit(begun.headers["location"]).query)
        self.nonce = query["nonce"][0]
        return query["state"][0]

    async def end(self, state: str, answer: Any) -> httpx.Response:
        self.issuer.answers["/token"] = answer if isinstance(answer, tuple) else json.dumps(answer).encode()
        return await self.box.client.get(f"/auth/callback?{urlencode({'code': 'c', 'state': state})}")

    def id_token(self, signer: Any = None, **claims: Any) -> str:
        good = {"aud": CLIENT, "nonce": self.nonce, "client_id": None, "scope": None, "roles": ["admin"]}
        return signed(signer or self.issuer.key, self.issuer.claims(**good | claims), typ="JWT")

    def tokens(self, **changes: Any) -> dict[str, Any]:
        return {"access_token": "at", "token_type": "Bearer", "id_token": self.id_token()} | changes


@pytest.fixture
async def flow(tmp_path: Path) -> AsyncIterator[Flow]:
    async with issuing() as issuer:
        issuer.metadata(authorization_endpoint=f"{issuer.url}/auth", token_endpoint=f"{issuer.url}/token")
        config = settings(issuer.settings(role_map={"admin": "admin"}), (CLIENT, "secret"))
        async with loopback.box(tmp_path, config=config) as box:
            yield Flow(box, issuer)


def half(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:16]).rstrip(b"=").decode()


async def test_a_provider_that_does_its_part_signs_somebody_in(flow: Flow) -> None:
    state = await flow.begin()
    done = await flow.end(state, flow.tokens(id_token=flow.id_token(at_hash=half("at"))))
    assert (done.status_code, done.headers["location"]) == (303, "/ui")
    assert (await flow.box.client.get("/auth/session")).json()["roles"] == ["admin", "user"]


async def test_A21_an_id_token_that_does_not_fit_signs_nobody_in(flow: Flow) -> None:
    await flow.begin()
    old_nonce = flow.nonce
    for change in (
        {"nonce": old_nonce},
        {"nonce": None},
        {"aud": "other"},
        {"iss": "https://attacker.example"},
        {"exp": 1},
        {"at_hash": half("another token")},
        {"sub": {"a": 1}},
        {"roles": {"a": 1}},
        {"signer": key("unpublished")},
    ):
        state = await flow.begin()
        answer = await flow.end(state, flow.tokens(id_token=flow.id_token(**change)))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "login_failed"), change
        assert (await flow.box.client.get("/auth/session")).status_code == 401


async def test_an_unusable_answer_of_the_token_endpoint_is_a_503_or_400_and_tells_no_details(flow: Flow) -> None:
    for answer, status in (
        ((500, b"secret detail"), 503),
        ((200, b"<html>secret detail"), 503),
        ((200, b"[]"), 503),
        ((200, b"\xff"), 503),
        ((200, b'{"a":' * 5000), 503),
        ((200, b"x" * 100_000), 503),
        ((302, b"https://attacker.example/"), 503),
        ((401, b'{"error": "invalid_client", "error_description": "secret detail"}'), 503),
        ((400, b'{"error": "invalid_grant"}'), 400),
        ((400, b'{"error": {"secret detail": 1}}'), 503),
        ((200, b"{}"), 400),
        (flow.tokens(expires_in=["x"]), 503),
        (flow.tokens(id_token=None), 400),
        (flow.tokens(id_token=["x"]), 400),
        (flow.tokens(id_token="x" * 20_000), 400),
        (flow.tokens(access_token={"a": 1}, id_token="x"), 400),
    ):
        found = await flow.end(await flow.begin(), answer)
        assert found.status_code == status, answer
        assert "secret detail" not in found.text
        assert (await flow.box.client.get("/auth/session")).status_code == 401


async def test_A21_metadata_of_another_issuer_begin_no_sign_in(flow: Flow) -> None:
    flow.issuer.metadata(issuer="https://attacker.example", authorization_endpoint="https://attacker.example/auth")
    assert (await flow.box.client.get("/auth/login")).status_code == 503


@pytest.mark.parametrize(
    "endpoint", [None, "", "/auth", "javascript:alert(1)", "http://[", "ftp://id.example/"], ids=str
)
async def test_a_provider_without_a_usable_endpoint_begins_no_sign_in(flow: Flow, endpoint: str | None) -> None:
    flow.issuer.metadata(authorization_endpoint=endpoint)
    answer = await flow.box.client.get("/auth/login")
    assert answer.status_code == 503
    assert "log says why" in answer.json()["error"]["message"]
