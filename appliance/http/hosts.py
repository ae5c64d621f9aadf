"""Keeps web pages out while nobody is asked for a key, and where the configuration says so always.

A page in the browser of somebody on this machine can reach ``localhost``: under its own name, once that name resolves
to 127.0.0.1 (DNS rebinding), or by a form or a beacon, for which no browser asks the server first (CSRF). The first
shows in ``Host``, the second in ``Sec-Fetch-Site`` and ``Origin``, which no page can change (W3C Fetch Metadata; WHATWG
Fetch, "Origin header").
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache

from appliance.config import ServerConfig
from appliance.errors import BadRequest, Forbidden

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/?#@]+)(?::\d+)?")
_SAFE = ("GET", "HEAD", "OPTIONS")


def check_host(headers: Mapping[str, str], server: ServerConfig) -> None:
    """``server.enforce_allowed_hosts``: names are compared literally, and with ``Host`` alone.

    Raises:
        BadRequest: there is no host; RFC 9112 section 3.2 wants one. Forbidden: another host is meant.
    """
    host = headers.get("host")
    if host is None:
        raise BadRequest("the header Host is missing; send it, a proxy must pass it on", code="missing_host")
    if not _is_ours(host, server):
        raise Forbidden(
            f"the host {host[:80]!r} is not served; use another name or add it to server.allowed_hosts",
            code="host_not_allowed",
        )


def check_page(method: str, headers: Mapping[str, str], server: ServerConfig) -> None:
    """Raises Forbidden for a request without a credential that a foreign page may have made."""
    host = headers.get("host")
    if host is not None and not _is_ours(host, server):
        raise Forbidden(
            f"without API keys the host {host[:80]!r} is not served; add it to server.allowed_hosts or create a key "
            "(appliance keys create)",
            code="host_not_allowed",
        )
    if method in _SAFE or _is_own_page(host, headers, server):
        return
    origin = headers.get("origin", "of another site")
    raise Forbidden(
        f"without API keys the page {origin[:80]!r} may not call this server; list it under server.cors_origins or "
        "create a key (appliance keys create)",
        code="origin_not_allowed",
    )


def _is_own_page(host: str | None, headers: Mapping[str, str], server: ServerConfig) -> bool:
    """Whether no page made the request, or one of this very origin or a configured one; another port is another origin.

    The browser's own word comes before the comparison, since a proxy may have changed ``Host``; it gives that word only
    to ``https`` and loopback.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin in server.cors_origins or "*" in server.cors_origins:
        return True
    if site is not None:
        return site in ("same-origin", "none")
    return origin is None or origin.partition("://")[2] == host


@lru_cache(maxsize=64)
def _is_ours(authority: str, server: ServerConfig) -> bool:
    """Whether no foreign name can be behind it: an address cannot be rebound."""
    found = _AUTHORITY.fullmatch(authority)
    name = found[1].lower().rstrip(".") if found else ""
    if name == "localhost" or name.endswith(".localhost") or name in _names(server):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "*" in server.allowed_hosts
    return True


def _names(server: ServerConfig) -> set[str]:
    return {server.host.lower(), *(name.lower() for name in server.allowed_hosts)}
