"""``WWW-Authenticate``: what a client without a good credential is told, so that it can get one by itself.

RFC 6750 section 3 has the error codes; RFC 9728 section 5.1 the address of our metadata, which exists where
``auth.resource`` is set. No claim and no part of a credential is ever in it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from appliance.config import AuthConfig
from appliance.errors import Forbidden, InvalidCredentials, RequestError, Unauthenticated

RESOURCE_METADATA = "/.well-known/oauth-protected-resource"


def challenge(error: RequestError, auth: AuthConfig) -> str | None:
    """The header's value for an error; ``None`` for one that no other credential would help."""
    if isinstance(error, Unauthenticated):
        return _bearer(auth, error=error.challenge)
    if isinstance(error, InvalidCredentials):
        return _bearer(auth, error="invalid_request")
    if isinstance(error, Forbidden) and error.code == Forbidden.code:
        return _bearer(auth, error="insufficient_scope", scope=error.scope)
    return None


def metadata_url(resource: str) -> str:
    """Where a resource's metadata is: the well-known part goes between host and path (RFC 9728 section 3.1)."""
    parts = urlsplit(resource)
    return f"{parts.scheme}://{parts.netloc}{resource_metadata_path(resource)}"


def resource_metadata_path(resource: str) -> str:
    """The path of a resource's metadata."""
    return RESOURCE_METADATA + urlsplit(resource).path.rstrip("/")


def _bearer(auth: AuthConfig, **parameters: str | None) -> str:
    given = {"realm": auth.realm, **parameters}
    if auth.resource:
        given["resource_metadata"] = metadata_url(auth.resource)
    return "Bearer " + ", ".join(f'{name}="{_quoted(value)}"' for name, value in given.items() if value is not None)


def _quoted(value: str) -> str:
    """The inside of a quoted string (RFC 9110 section 5.6.4), printable ASCII only."""
    plain = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in value)
    return plain.replace("\\", "\\\\").replace('"', '\\"')
