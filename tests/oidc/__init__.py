"""A real OpenID provider (npm ``oidc-provider``) on loopback, and people who sign in at it.

The fixture ``oidc`` is one for all tests; ``started`` makes more. ``npm ci --prefix tests/oidc`` installs it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
from loopback import http_client

from oidc.browser import Browser

__all__ = ["ANY_SCOPE", "API", "OPAQUE_API", "Browser", "OidcProvider", "started"]

API = "https://appliance.example/"
"""A resource whose tokens are JWTs by RFC 9068, as those of every other absolute URI."""
OPAQUE_API = "https://opaque.example/"
"""A resource whose tokens are opaque, as those of every URI with ``opaque`` in it."""
ANY_SCOPE = "openid profile email offline_access inference files metrics admin"

_HERE = Path(__file__).parent
_START_SECONDS = 30


class OidcProvider:
    """One issuer. Its accounts are alice, bob, carol and dave (provider.js says what it knows of them).

    Clients: ``service`` for its own sake, ``resource-server`` for introspection, ``cli`` (public, device flow) and
    ``web`` (code flow); ``register`` makes more, with redirect URIs of their own.
    """

    service = ("service", "service-secret")
    resource_server = ("resource-server", "resource-server-secret")
    web = ("web", "web-secret")
    cli = "cli"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.issuer = ""

    # -- its life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, after a stop at the same address and with the same keys; what it had issued is forgotten."""
        node = shutil.which("node")
        assert node, "the tests need Node.js; make test-deps installs it"
        assert (_HERE / "node_modules").is_dir(), "run npm ci --prefix tests/oidc, or make test-deps"
        with (self._folder / "provider.log").open("ab") as log:
            self._process = subprocess.Popen(
                [node, str(_HERE / "provider.js"), str(self._folder), str(self._port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.issuer = json.loads(self._first_line())["issuer"]
        self._port = urlsplit(self.issuer).port or 0

    def _first_line(self) -> bytes:
        assert self._process
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self.stop()
            raise AssertionError(f"oidc-provider did not start: {(self._folder / 'provider.log').read_text()}")
        return line

    def stop(self) -> None:
        """End it: connections are refused."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=10)
            self._process = None

    def freeze(self) -> None:
        """Connections are taken and never answered, until ``thaw``."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after ``freeze``."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    # -- steering ------------------------------------------------------------------------------------------

    async def rotate(self, *, drop: bool = False) -> str:
        """Sign with a new key from now on, whose ``kid`` it returns; ``drop``: the old ones are published no more."""
        return str((await self._steer("rotate", {"drop": drop}))["kid"])

    async def set_account(self, name: str, **claims: Any) -> None:
        """Set what is known of somebody (``tenant``, ``groups``, ``roles``, ...), new or known."""
        await self._steer("accounts", {name: claims})

    async def requests(self, path: str) -> int:
        """How often a path, as ``/jwks``, was asked for since the start."""
        return int((await self._steer("requests", {})).get(path, 0))

    async def _steer(self, command: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._json("POST", f"/test/{command}", json=body)

    async def _json(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        async with self.client() as client:
            response = await client.request(method, path, **request)
        assert response.is_success, response.text
        found: dict[str, Any] = response.json()
        return found

    def client(self) -> httpx.AsyncClient:
        """A client for its endpoints."""
        return http_client(base_url=self.issuer, timeout=20, verify=False)

    # -- tokens --------------------------------------------------------------------------------------------

    async def metadata(self) -> dict[str, Any]:
        """Its discovery document."""
        return await self._json("GET", "/.well-known/openid-configuration")

    async def jwks(self) -> dict[str, Any]:
        """Its public keys."""
        return await self._json("GET", "/jwks")

    async def token(self, auth: tuple[str, str], **form: str) -> dict[str, Any]:
        """What the token endpoint answers to this form."""
        return await self._json("POST", "/token", auth=auth, data=form)

    async def client_credentials(self, scope: str = "inference", resource: str = API) -> str:
        """An access token of the service ``service`` (tenant acme, role user)."""
        answer = await self.token(self.service, grant_type="client_credentials", scope=scope, resource=resource)
        return str(answer["access_token"])

    async def user_tokens(self, account: str, scope: str = ANY_SCOPE, resource: str = API) -> dict[str, Any]:
        """All tokens of somebody who signed in at the client ``web``: ``access_token``, ``id_token``, and so on."""
        verifier, redirect_uri = secrets.token_urlsafe(48), "http://127.0.0.1:1/callback"
        query = {
            "client_id": self.web[0],
            "response_type": "code",
            "redirect_uri": redirect_uri,
            "scope": scope,
            "resource": resource,
            "prompt": "consent",
            "code_challenge": _s256(verifier),
            "code_challenge_method": "S256",
        }
        async with Browser(account) as browser:
            came_to = await browser.sign_in(f"{self.issuer}/auth?{urlencode(query)}", stop_at=redirect_uri)
        code = parse_qs(urlsplit(came_to).query)["code"][0]
        return await self.token(
            self.web,
            grant_type="authorization_code",
            code=code,
            redirect_uri=redirect_uri,
            code_verifier=verifier,
            resource=resource,
        )

    async def user_token(self, account: str, scope: str = ANY_SCOPE, resource: str = API) -> str:
        """An access token of somebody."""
        return str((await self.user_tokens(account, scope, resource))["access_token"])

    async def introspect(self, token: str) -> dict[str, Any]:
        """What introspection says of a token."""
        return await self._json("POST", "/token/introspection", auth=self.resource_server, data={"token": token})

    async def revoke(self, token: str, auth: tuple[str, str] = web) -> None:
        """Revoke an opaque access token or a refresh token of that client."""
        async with self.client() as client:
            assert (await client.post("/token/revocation", auth=auth, data={"token": token})).is_success

    async def register(self, *redirect_uris: str, **metadata: Any) -> tuple[str, str]:
        """Register a confidential client for the code flow (RFC 7591); returns its id and secret."""
        body = {"redirect_uris": redirect_uris, "grant_types": ["authorization_code", "refresh_token"], **metadata}
        answer = await self._json("POST", "/reg", json=body)
        return answer["client_id"], answer.get("client_secret", "")


@contextmanager
def started(folder: Path) -> Iterator[OidcProvider]:
    """A provider that keeps its keys and its log in a folder, and ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    provider = OidcProvider(folder)
    try:
        provider.start()
        yield provider
    finally:
        provider.stop()


def _s256(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
