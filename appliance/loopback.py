"""Which hosts are this machine itself: what is open to nobody else needs neither TLS nor a key."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str | None) -> bool:
    """Whether a URL's host is ``localhost`` or a loopback address (RFC 6761 section 6.3, RFC 6890 section 2.2.2)."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False
