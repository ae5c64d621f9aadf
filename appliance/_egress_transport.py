"""The transport below every outgoing call: checks, resolves, connects to what it checked, and counts what comes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2

from appliance.egress import Egress, EgressError, EgressRefused, host_of
from appliance.errors import ConfigError


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Carries out requests by the rules of an ``Egress``.

    No connection is used twice: they belong to addresses, and one address may hold several hosts, each with a
    certificate of its own to be checked.
    """

    def __init__(self, rules: Egress, ca_file: Path | None) -> None:
        self._rules = rules
        self._inner = httpx2.AsyncHTTPTransport(
            verify=_trusting(ca_file) if ca_file else True,
            trust_env=False,
            limits=httpx2.Limits(max_connections=20, max_keepalive_connections=0),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One call. Raises EgressRefused, EgressError, and httpx2's errors for what the network does."""
        self._rules.check_parsed(request.url)
        deadline = asyncio.get_running_loop().time() + self._rules.timeout
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._connect(request, host_of(request.url))
        except TimeoutError:
            raise EgressError(f"{request.url.host} did not answer within {self._rules.timeout:g} s") from None
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise EgressRefused(f"{request.url.host} sent a compressed answer that nobody asked for")
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Capped(response, self._rules.max_bytes, deadline),
            extensions=response.extensions,
        )

    async def _connect(self, request: httpx2.Request, host: str) -> httpx2.Response:
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        addresses = await self._rules.addresses(host, port)
        for address in addresses:
            try:
                return await self._inner.handle_async_request(self._pinned(request, host, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if address == addresses[-1]:
                    raise
        raise httpx2.ConnectError("the host has no address", request=request)

    def _pinned(self, request: httpx2.Request, host: str, address: str) -> httpx2.Request:
        """The same request to an address; certificate and ``Host`` are still those of the name."""
        headers = request.headers.copy()
        headers["accept-encoding"] = "identity"
        limit = self._rules.timeout
        # TCP and TLS give up by themselves before the whole call does: a handshake that is cancelled from outside
        # would leave its socket open.
        timeouts = {"connect": limit * 0.4, "read": limit, "write": limit, "pool": limit}
        return httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host, "timeout": timeouts},
        )

    async def aclose(self) -> None:
        """Close what is open."""
        await self._inner.aclose()


class _Capped(httpx2.AsyncByteStream):
    """An answer's body that ends with an error once it is too long or too late."""

    def __init__(self, response: httpx2.Response, limit: int, deadline: float) -> None:
        self._response, self._left, self._deadline = response, limit, deadline

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._response.stream)  # type: ignore[arg-type]
        while (piece := await self._next(pieces)) is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise EgressError("the answer is larger than may be read")
            yield piece

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await anext(pieces, None)
        except TimeoutError:
            raise EgressError("the answer took too long") from None

    async def aclose(self) -> None:
        """Let go of the connection."""
        await self._response.aclose()


def _trusting(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ca_file} holds no certificates that can be read ({error}); name a PEM file") from None
