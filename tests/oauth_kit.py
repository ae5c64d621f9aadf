"""An authorization server under the tests' full control, on loopback, and an appliance that trusts it."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwk, jws

from appliance.plugin import convert
from appliance_auth.oauth.authenticator import OAuthTokens
from appliance_auth.oauth.issuer import Issuer
from appliance_auth.oauth.settings import IssuerSettings

AUDIENCE = "rag-api"
_ANY_HEADER = jws.JWSRegistry(
    strict_check_header=False, algorithms=["RS256", "ES256", "ES384", "PS256", "Ed25519", "HS256"]
)
_ANY_HEADER.max_header_length = 10**6


def key(name: str, kind: str = "EC") -> jwk.Key:
    """A private key whose ``kid`` is its name; the same one each time."""
    return _generated(name, kind)


@cache
def _generated(name: str, kind: str) -> jwk.Key:
    size: Any = {"EC": "P-256", "RSA": 2048, "OKP": "Ed25519"}[kind]
    return jwk.generate_key(kind, size, {"kid": name, "use": "sig"})


def algorithm_of(signer: jwk.Key) -> str:
    return {"EC": "ES256", "RSA": "RS256", "OKP": "Ed25519"}[signer.key_type]


def public(*keys: jwk.Key) -> bytes:
    """A JWKS document."""
    return json.dumps({"keys": [each.as_dict(private=False) for each in keys]}).encode()


def b64(data: bytes | str | Mapping[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(signer: jwk.Key, payload: bytes | Mapping[str, Any], **header: Any) -> str:
    """A JWS; header parameters that are ``None`` are left out, the payload may be any bytes."""
    full = {"typ": "at+jwt", "alg": algorithm_of(signer), "kid": signer.kid, **header}
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    head = {name: value for name, value in full.items() if value is not None}
    signing_input = f"{b64(head)}.{b64(data)}"
    signature = jws.JWSRegistry.algorithms[algorithm_of(signer)].sign(signing_input.encode(), signer)
    return f"{signing_input}.{b64(signature)}"


Answer = bytes | tuple[int, bytes] | Callable[[dict[str, str]], Awaitable[bytes | tuple[int, bytes]]]


class FakeIssuer:
    """Serves whatever ``answers`` holds by path, and counts. ``key`` signs what ``token`` makes."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.key = key("one")
        self.url = ""
        self.headers: list[dict[str, str]] = []
        self.answers: dict[str, Answer] = {}

    def publish(self, *keys: jwk.Key) -> None:
        """Serve these keys."""
        self.answers["/jwks"] = public(*keys)

    def metadata(self, **changed: Any) -> None:
        """Serve a discovery document."""
        document = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            "introspection_endpoint": f"{self.url}/introspect",
            **changed,
        }
        self.answers["/.well-known/openid-configuration"] = json.dumps(document).encode()

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Claims of a good RFC 9068 token; those that are ``None`` are left out."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "sub": "alice",
            "aud": AUDIENCE,
            "client_id": "app",
            "iat": now,
            "exp": now + 300,
            "jti": "id-1",
            "scope": "inference files",
        }
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    def token(self, signer: jwk.Key | None = None, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A signed access token."""
        return signed(signer or self.key, self.claims(**claims), **(header or {}))

    def settings(self, **changed: Any) -> dict[str, Any]:
        """An entry of ``plugin.oauth.issuers``."""
        return {"issuer": self.url, "audience": AUDIENCE, "loopback_http": True, **changed}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            path = first.split()[1]
            self.requests[path] += 1
            self.headers.append(headers)
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            await self._answer(path, form, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, form: dict[str, str], writer: asyncio.StreamWriter) -> None:
        answer = self.answers.get(path, (404, b"{}"))
        if callable(answer):
            answer = await answer(form)
        status, data = (200, answer) if isinstance(answer, bytes) else answer
        extra = f"location: {data.decode()}\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{extra}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode())
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def issuing() -> AsyncIterator[FakeIssuer]:
    """A fake issuer with metadata and one key."""
    issuer = FakeIssuer()
    handlers: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(issuer.handle(reader, writer))
        handlers.add(task)
        task.add_done_callback(handlers.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    issuer.metadata()
    issuer.publish(issuer.key)
    try:
        yield issuer
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def trusting(
    *issuers: Mapping[str, Any], clock: Callable[[], float] = time.monotonic, certificate_header: str | None = None
) -> AsyncIterator[OAuthTokens]:
    """The authenticator for these entries of ``plugin.oauth.issuers``, without background work."""
    entries = [convert(dict(each), IssuerSettings, "issuer") for each in issuers]
    made = [Issuer(entry, Path(), clock) for entry in entries]
    for issuer in made:
        issuer.open()
    tokens = OAuthTokens(made, certificate_header)
    try:
        yield tokens
    finally:
        await tokens.close()
        for issuer in made:
            await issuer.close()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
