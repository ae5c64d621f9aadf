"""An app that people sign in to, with the real provider, and a browser that can be stopped on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import loopback
from oidc import API, Browser, OidcProvider

PUBLIC = "http://127.0.0.1:1"
"""What the app believes to be its address; tests carry the answers of the provider to where it is."""


def issuer(oidc: OidcProvider) -> dict[str, Any]:
    """The entry of ``plugin.oauth.issuers`` for the real provider."""
    return {
        "issuer": oidc.issuer,
        "audience": API,
        "loopback_http": True,
        "claims": {"tenant": "tenant"},
        "role_map": {"user": "user", "admin": "admin"},
        "default_roles": [],
    }


def settings(entry: dict[str, Any], client: tuple[str, str], **login: Any) -> dict[str, Any]:
    """A configuration with sign-ins at an issuer."""
    defaults = {
        "public_url": PUBLIC,
        "loopback_http": True,
        "client_id": client[0],
        "client_secret": client[1],
        "cli_client_id": OidcProvider.cli,
        "cli_scope": "openid profile offline_access inference",
        "cli_resource": API,
    }
    return {
        "plugins": ["api_keys", "oauth", "rbac", "login"],
        "plugin": {"oauth": {"issuers": [entry]}, "login": defaults | login},
    }


@dataclass
class Console:
    """The served app, seen by somebody's browser."""

    box: loopback.Box
    browser: Browser

    @property
    def client(self) -> httpx.AsyncClient:
        return self.browser.client

    @property
    def url(self) -> str:
        return self.box.url

    async def answer(self, then: str = "/") -> str:
        """Sign in at the provider; the address that it sends the browser back to, not yet visited."""
        came_to = await self.browser.sign_in(f"{self.url}/auth/login?next={then}", stop_at=PUBLIC)
        assert came_to.startswith(f"{PUBLIC}/auth/callback?")
        return came_to.replace(PUBLIC, self.url)

    async def sign_in(self, then: str = "/") -> httpx.Response:
        """The whole of it; what the callback answers."""
        return await self.client.get(await self.answer(then))

    async def session(self) -> httpx.Response:
        return await self.client.get(f"{self.url}/auth/session")

    async def post(self, path: str, headers: dict[str, str] | None = None, **request: Any) -> httpx.Response:
        """A POST as a page of this server makes it, or with other headers."""
        sent = {"origin": PUBLIC} if headers is None else headers
        return await self.client.post(f"{self.url}{path}", headers=sent, **request)

    async def chat(self, headers: dict[str, str] | None = None) -> httpx.Response:
        """A question, asked from such a page."""
        body = {"model": "m", "messages": loopback.HELLO}
        return await self.post("/v1/chat/completions", headers, json=body)


@asynccontextmanager
async def console(
    folder: Path, oidc: OidcProvider, account: str = "alice", *, metadata: dict[str, Any] | None = None, **login: Any
) -> AsyncIterator[Console]:
    """Serve the app, give somebody a browser. ``metadata`` is the client's at the provider."""
    public = login.get("public_url", PUBLIC)
    client = await oidc.register(f"{public}/auth/callback", **(metadata or {}))
    async with loopback.box(folder, config=settings(issuer(oidc), client, **login)) as box, Browser(account) as browser:
        yield Console(box, browser)
