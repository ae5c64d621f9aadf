"""Headers that may come once: of two, one reader would heed the first and another the last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from appliance.credentials import KEY_HEADERS
from appliance.errors import BadRequest, InvalidCredentials

if TYPE_CHECKING:
    from appliance.audit.trail import Trail
    from appliance.config import ServerConfig

_CREDENTIALS = (b"authorization", *(name.encode() for name in KEY_HEADERS))
_ONCE = (b"host", b"content-type", b"content-length", b"idempotency-key", *_CREDENTIALS)


def check_repeated(scope: Any, headers: Mapping[str, str], server: ServerConfig, trail: Trail) -> None:
    """Whether one of them is there twice; ``headers`` are those of the ASGI ``scope`` by name.

    Raises:
        InvalidCredentials: two credentials, which the audit log is told of. BadRequest: any other.
    """
    raw = scope["headers"]
    if len(headers) == len(raw):
        return
    names = [name for name, _ in raw]
    certificate = (server.client_certificate_header or "").lower()
    for name in (*_ONCE, certificate.encode()) if certificate in headers else _ONCE:
        if names.count(name) > 1:
            told = f"the header {name.decode()} is there twice; send it once"
            if name not in _CREDENTIALS:
                raise BadRequest(told, code="repeated_header")
            error = InvalidCredentials(told)
            trail.turned_away(error)
            raise error
