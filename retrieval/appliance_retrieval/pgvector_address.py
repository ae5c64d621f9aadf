"""Where the PostgreSQL of the vectors is, and whether it is known to be that one."""

from __future__ import annotations

import logging
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from appliance.plugin import ConfigError, is_loopback

log = logging.getLogger("appliance.pgvector")
_CHECKED = frozenset({"verify-ca", "verify-full"})
"""Of libpq's ``sslmode``: those that look at the server's certificate. The default, ``prefer``, does not."""


def dsn_of(url: str) -> str:
    """A URL as asyncpg reads it; SQLAlchemy's names the driver, and calls ``sslmode`` ``ssl``. Raises ConfigError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise ConfigError("plugin.pgvector.url: set it, as postgresql://user@host/name; database is not PostgreSQL")
    query = parse_qsl(parts.query, keep_blank_values=True)
    renamed = [("sslmode" if name == "ssl" else name, value) for name, value in query]
    return f"postgresql://{parts.netloc}{parts.path}" + (f"?{urlencode(renamed)}" if renamed else "")


def warn_of_unchecked(dsn: str) -> None:
    """Say once a start that documents may go to whoever answers there."""
    parts = urlsplit(dsn)
    options = dict(parse_qsl(parts.query))
    # Several hosts are separated by commas, which urlsplit leaves alone; a socket is a path, or no host at all.
    places = unquote(parts.netloc.rpartition("@")[2]) or options.get("host", "")
    hosts = [_host(place) for place in places.split(",")]
    far = [host for host in hosts if host and not host.startswith("/") and not is_loopback(host)]
    if far and options.get("sslmode") not in _CHECKED:
        log.warning(
            "the certificate of PostgreSQL at %s is not checked; add ?sslmode=verify-full to plugin.pgvector.url",
            ", ".join(far),
        )


def _host(place: str) -> str:
    """As asyncpg (0.32) reads a place, in the address and in ``?host=``: ``name:5432``, ``[::1]:5432`` or a path."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place if place.startswith("/") else place.partition(":")[0]
