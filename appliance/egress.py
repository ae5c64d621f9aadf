"""The one client for calls to addresses that somebody else has a say in, as an identity provider's metadata.

Nothing may be called but the hosts on the list. A URL is parsed once; its host is resolved here, every address is
checked, and the connection is made to the very address that was checked, so that a second DNS answer changes nothing.
Redirects are not followed, the environment's proxies are not used, answers are capped in size and time.

A host written out on the list is the operator's own choice and may lie in a private network; one that only a pattern
matches may not. Link-local addresses and the metadata services of clouds are never called.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from appliance.errors import ApplianceError, PluginError
from appliance.loopback import is_loopback

if TYPE_CHECKING:
    import httpx2

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_ODD = re.compile(r"[^\x21-\x7e]|\\")
"""Readers of URLs disagree about these characters."""
_INTERNAL = tuple(
    map(
        ipaddress.ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "::1/128", "fc00::/7"),
    )
)
_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_6TO4 = ipaddress.ip_network("2002::/16")
_CLOUD_METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"))
)


class EgressError(ApplianceError):
    """A call failed, or its answer cannot be used. ``status`` is that of an answer other than 200."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EgressRefused(EgressError):
    """The call may not be made."""


class Egress:
    """A client for some hosts.

    ``hosts`` are names or addresses; ``*.example.com`` stands for every name below, ``*`` for every public host.
    ``loopback_http`` allows plain HTTP to this machine. ``max_bytes`` is the largest answer, ``timeout`` the seconds a
    whole call may take, ``ca_file`` a PEM file of certificate authorities in place of the system's.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        *,
        loopback_http: bool = False,
        max_bytes: int = 64 * 2**10,
        timeout: float = 10.0,
        ca_file: Path | None = None,
    ) -> None:
        listed = {host.lower().rstrip(".") for host in hosts}
        self._patterns = tuple(host.removeprefix("*") for host in listed if host.startswith("*"))
        self._named = frozenset(host for host in listed if not host.startswith("*"))
        self._loopback_http = loopback_http
        self._ca_file = ca_file
        self._client: httpx2.AsyncClient | None = None
        self.max_bytes = max_bytes
        self.timeout = timeout

    def check(self, url: str) -> None:
        """Whether a URL may be called, as far as that shows without asking DNS. Raises EgressRefused."""
        self.check_parsed(parsed(url))

    def check_parsed(self, url: httpx2.URL) -> None:
        """The same for a URL already taken apart."""
        host = host_of(url)
        if url.userinfo or not host or not 0 < (url.port or 443) < 65_536:
            raise EgressRefused("a URL that is called must name a host, a port that exists, and no user")
        if not (host in self._named or any(host.endswith(end) for end in self._patterns)):
            raise EgressRefused(f"the host {host} is not among those that may be called")
        if url.scheme != "https" and not (url.scheme == "http" and self._loopback_http and is_loopback(host)):
            raise EgressRefused(f"the host {host} may be called by https only")

    async def addresses(self, host: str, port: int) -> list[str]:
        """Where a host is, all of it checked. Raises EgressRefused, EgressError."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise EgressError(f"the host {host} cannot be resolved") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for address in addresses:
            if not permitted(ipaddress.ip_address(address), named=host in self._named):
                raise EgressRefused(f"the host {host} is at an address that may not be called")
        return addresses

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> bytes:
        """The body of a 200. Raises EgressRefused, and EgressError for everything else that comes."""
        import httpx2

        try:
            response = await self.open().get(parsed(url), headers=dict(headers or {}))
        except (httpx2.HTTPError, OSError) as error:
            raise EgressError(f"{url} cannot be reached: {type(error).__name__}") from error
        if response.status_code != 200:
            raise EgressError(f"{url} answered {response.status_code}", status=response.status_code)
        return response.content

    def open(self) -> httpx2.AsyncClient:
        """The client, made at the first call. Raises ConfigError for a ``ca_file`` that cannot be read."""
        import httpx2

        if self._client is None:
            self._client = httpx2.AsyncClient(**self.client_options())
        return self._client

    def client_options(self) -> dict[str, Any]:
        """Arguments that bind an ``httpx2.AsyncClient``, or a library's client made from it, to these rules."""
        from appliance._egress_transport import GuardedTransport

        return {
            "transport": GuardedTransport(self, self._ca_file),
            "trust_env": False,
            "follow_redirects": False,
            "timeout": self.timeout,
        }

    async def close(self) -> None:
        """Close the client. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def parsed(url: str) -> httpx2.URL:
    """A URL taken apart, once. Raises EgressRefused for one that is none, or that can be read in two ways."""
    try:
        import httpx2
    except ModuleNotFoundError:
        raise PluginError("outgoing calls need the Python package httpx2; pip install httpx2") from None
    if _ODD.search(url):
        raise EgressRefused("a URL holds only printable ASCII characters and no backslash; percent-encode the others")
    try:
        return httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise EgressRefused(f"that is no URL: {error}") from None


def host_of(url: httpx2.URL) -> str:
    """The host as it is resolved and compared: ASCII, lower case, no dot at the end, no brackets."""
    return url.raw_host.decode("ascii").lower().rstrip(".").strip("[]")


def permitted(address: Address, *, named: bool) -> bool:
    """Whether an address may be connected to; ``named`` is for hosts that the operator wrote out."""
    address = _meant(address)
    if address in _CLOUD_METADATA:
        return False
    return _is_public(address) or (named and any(address in network for network in _INTERNAL))


def _meant(address: Address) -> Address:
    """What an IPv6 form of an IPv4 address leads to (RFC 4291 section 2.5.5.2, RFC 6052)."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and (address not in _UNICAST or address in _6TO4):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def egress_hosts(urls: Iterable[str | None]) -> Iterator[str]:
    """The hosts of those URLs that are given, for a list of hosts."""
    for url in urls:
        if url:
            yield host_of(parsed(url))
