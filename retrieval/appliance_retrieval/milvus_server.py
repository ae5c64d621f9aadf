"""What a Milvus server must be like before documents are put on it. Calls block; run them in threads.

Old versions let anybody in, whatever the password: by a header (CVE-2025-64513) and by the management port
(CVE-2026-26190, mended in 2.5.27 and 2.6.10). And every Milvus begins with the same user and password.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from appliance.plugin import ConfigError, StartError, is_loopback

log = logging.getLogger("appliance.milvus")
DEFAULT_TOKEN = "root:Milvus"  # noqa: S105 - it is what nobody's token may be
MANAGEMENT_PORT = 9091
_SAFE_SINCE = {(2, 5): 27, (2, 6): 10}
"""The first safe patch release of each line; those before are never, those after always safe."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_SECONDS = 1.0


def check_address(uri: str) -> None:
    """Raises ConfigError for what names no server, or more than one server: scheme, host and port."""
    try:
        parts = urlsplit(uri)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.username is None and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError(
            "plugin.milvus.uri: write it as https://host:19530, and user and password in plugin.milvus.token"
        )


def check_server(uri: str, token: str, connect: Callable[..., Any]) -> None:
    """Refuse a server that others get into; warn of one that stands open.

    ``connect`` makes a client; it takes the token by that name.

    Raises:
        StartError: it is too old, or its first password was never changed.
    """
    client = connect(token=token)
    try:
        version = str(client.get_server_version())
    finally:
        client.close()
    if is_unsafe(version):
        raise StartError(
            f"Milvus {version} at {uri} lets others in (CVE-2026-26190); update it to 2.5.27, 2.6.10 or later"
        )
    if token and _lets_in(connect, DEFAULT_TOKEN):
        raise StartError(
            f"Milvus at {uri} takes the password that every Milvus begins with; change that of root and switch "
            "common.security.authorizationEnabled on"
        )
    warn_of_open_doors(uri, with_token=bool(token))


def is_unsafe(version: str) -> bool:
    """Whether a Milvus of that version has one of the holes; what is no version of Milvus has not."""
    found = _VERSION.match(version)
    if found is None:
        return False
    major, minor, patch = map(int, found.groups())
    return (major, minor) < min(_SAFE_SINCE) or patch < _SAFE_SINCE.get((major, minor), 0)


@lru_cache(maxsize=64)
def warn_of_open_doors(uri: str, *, with_token: bool) -> None:
    """Say once what the server's operator should close."""
    host = urlsplit(uri).hostname or ""
    if not with_token:
        log.warning("Milvus at %s asks for no password: whoever reaches it reads every document", uri)
    if urlsplit(uri).scheme != "https" and not is_loopback(host):
        log.warning("documents go to Milvus at %s in the clear; set plugin.milvus.uri to https once it has TLS", uri)
    if _answers(host, MANAGEMENT_PORT):
        log.warning(
            "Milvus at %s can be managed without a password on port %d; close that port to others", uri, MANAGEMENT_PORT
        )


def _lets_in(connect: Callable[..., Any], token: str) -> bool:
    try:
        client = connect(token=token)
    except Exception:  # noqa: BLE001 - pymilvus raises what its parts raise; whatever it is, it is no entry
        return False
    try:
        client.list_collections()
    except Exception:  # noqa: BLE001 - see above
        return False
    finally:
        client.close()
    return True


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except OSError:
        return False
    return True
