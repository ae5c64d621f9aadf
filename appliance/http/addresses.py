"""Where a request comes from: the connection's other end, or whom a trusted proxy names.

A proxy is believed in two things, what is in ``server.forwarded_header`` and in ``server.client_certificate_header``,
and only where its own address is in ``server.trusted_proxies``. Nothing else that a proxy or client says of itself is
read: no ``X-Forwarded-Host`` or ``-Proto`` (public URLs are configured), no ``X-Real-IP``, ``X-User-*`` or ``baggage``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from appliance.config import ServerConfig

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PAIR = rf'({_NAME})=({_NAME}|"(?:[^"\\]|\\.)*")'
_PAIRS = re.compile(_PAIR)
_ELEMENT = re.compile(rf"\s*(?:{_PAIR})?(?:;(?:{_PAIR})?)*\s*")
_PORT = re.compile(r"\[([^\]]*)\](?::\d+)?|([^:]*):\d+")


def peer_of(scope: Any) -> str:
    """The other end of the connection; empty for a unix socket."""
    client = scope.get("client")
    return client[0] if client else ""


def headers_of(scope: Any, server: ServerConfig) -> dict[str, str]:
    """The headers by name, without a client's certificate that no trusted proxy vouches for."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if server.client_certificate_header and not is_proxy(peer_of(scope), server):
        headers.pop(server.client_certificate_header.lower(), None)
    return headers


def is_proxy(address: str, server: ServerConfig) -> bool:
    """Whether this is one of ``server.trusted_proxies``."""
    return bool(server.trusted_proxies) and _within(address, server.trusted_proxies)


def client_address(scope: Any, server: ServerConfig) -> str:
    """The client's address, as the nearest proxy names it that is not itself named by a stranger.

    Read from the right: each proxy appends whom it was asked by, and what is left of the first stranger is his word.
    An entry that is no address ends the search at the proxy that wrote it.
    """
    address = peer_of(scope)
    if not is_proxy(address, server):
        return address
    for entry in _forwarded(scope["headers"], server.forwarded_header):
        found = _address(entry)
        if found is None:
            break
        address = found
        if not is_proxy(address, server):
            break
    return address


def _forwarded(headers: Sequence[tuple[bytes, bytes]], name: str) -> Iterator[str]:
    """Who asked whom, the last first; several headers of the name count as one list (RFC 9110 section 5.3)."""
    wanted = name.encode()
    lines = [value.decode("latin-1") for key, value in headers if key == wanted]
    for line in reversed(lines):
        yield from reversed(line.split(",") if name != "forwarded" else _elements(line))


def _elements(line: str) -> list[str]:
    """The ``for`` of each element of a ``Forwarded`` header (RFC 7239 section 4).

    A line that breaks the grammar tells nothing: with a quote that it leaves open a client could swallow what a proxy
    appends.
    """
    found: list[str] = []
    at = 0
    while True:
        element = _ELEMENT.match(line, at)
        end = element.end() if element else at
        if element is None or (end < len(line) and line[end] != ","):
            return [""]
        values = {pair[1].lower(): pair[2] for pair in _PAIRS.finditer(element[0])}
        found.append(re.sub(r"\\(.)", r"\1", values.get("for", "").strip('"')))
        if end == len(line):
            return found
        at = end + 1


def _address(entry: str) -> str | None:
    """An entry without its port, in its usual spelling; ``None`` where it is hidden, unknown or nonsense."""
    text = entry.strip()
    with_port = _PORT.fullmatch(text)
    if with_port:
        text = with_port[1] or with_port[2] or ""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


@lru_cache(maxsize=4096)
def _within(address: str, networks: tuple[str, ...]) -> bool:
    plain = _address(address)
    return plain is not None and any(ip_address(plain) in network for network in _parsed(networks))


@lru_cache(maxsize=8)
def _parsed(networks: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(network) for network in networks)
