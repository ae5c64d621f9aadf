"""Tokens that are bound to a client certificate (RFC 8705 section 3), behind a proxy that ends the mutual TLS.

The header with the certificate reaches a plugin only from a trusted proxy: the core takes it away from everybody else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ssl
from collections.abc import Mapping
from urllib.parse import unquote

from appliance_auth.oauth.claims import Claims, TokenRefused


def bound_to(claims: Claims) -> str | None:
    """The certificate thumbprint a token is bound to. Raises TokenRefused for proofs that are not understood."""
    confirmation = claims.get("cnf")
    if confirmation is None:
        return None
    thumbprint = confirmation.get("x5t#S256") if isinstance(confirmation, dict) else None
    if not isinstance(thumbprint, str) or not thumbprint.isascii() or len(confirmation) != 1:
        raise TokenRefused("it is bound to a proof of possession that is not taken here")
    return thumbprint


def prove(thumbprint: str, headers: Mapping[str, str], header: str | None) -> None:
    """Check that the caller's certificate is the token's. Raises TokenRefused."""
    found = _thumbprint(headers.get(header, "")) if header else None
    if found is None or not hmac.compare_digest(found, thumbprint):
        raise TokenRefused("the client certificate is not the one it is bound to")


def _thumbprint(value: str) -> str | None:
    """SHA-256 of a certificate: ``:base64:`` of its DER (RFC 9440), or PEM, percent-encoded as nginx does."""
    try:
        if value.startswith(":") and value.endswith(":"):
            der = base64.b64decode(value.strip(":"), validate=True)
        else:
            der = ssl.PEM_cert_to_DER_cert(unquote(value))
    except (ValueError, binascii.Error):
        return None
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).rstrip(b"=").decode() if der else None
