"""JWT access tokens: what they are, whether the signature holds, and whether they are for us, now (RFC 9068 section 4).

joserfc does the cryptography. What is accepted is decided here: the algorithm is one that the issuer's configuration
allows and that its key fits; keys that a token brings along (``jwk``, ``jku``, ``x5u``, ``x5c``) are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from joserfc import jwk, jws
from joserfc.errors import JoseError

from appliance_auth.oauth.claims import Claims, TokenRefused
from appliance_auth.oauth.profiles import PROFILES, Profile
from appliance_auth.oauth.settings import ALGORITHMS, IssuerSettings

MAX_BYTES = 16 * 2**10
_MAX_HEADER_BYTES = 4 * 2**10
_SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_NO_EXTENSION = ("crit", "zip", "enc", "b64")
"""A token that needs one of these is not what it seems to us: encrypted, compressed, or signed in another way."""


class _Registry(jws.JWSRegistry):
    """joserfc's limits, widened for certificates in headers, and unknown header parameters ignored (RFC 7515 4)."""

    max_header_length = _MAX_HEADER_BYTES

    def __init__(self, algorithms: Collection[str]) -> None:
        super().__init__(algorithms=algorithms, strict_check_header=False)


_READER = _Registry(ALGORITHMS)
_VERIFIERS = {name: _Registry((name,)) for name in ALGORITHMS}


class Jwt:
    """A token taken apart, nothing of it believed yet."""

    def __init__(self, signed: jws.CompactSignature, claims: Claims) -> None:
        self._signed = signed
        self.header: Mapping[str, Any] = signed.protected
        self.claims = claims

    @classmethod
    def read(cls, token: str) -> Jwt | None:
        """``None`` for what is no JWT in the compact form, as opaque tokens are not."""
        if not _SHAPE.fullmatch(token):
            return None
        try:
            signed = jws.extract_compact(token.encode("ascii"), registry=_READER)
            claims = msgspec.json.decode(signed.payload, type=dict[str, Any])
        except (JoseError, ValueError, TypeError, RecursionError, msgspec.MsgspecError):
            return None
        return cls(signed, claims) if isinstance(signed.protected, dict) else None

    def algorithm(self, allowed: Collection[str]) -> str:
        """The header's ``alg``. Raises TokenRefused for one that is not allowed, and for headers that need more."""
        if any(name in self.header for name in _NO_EXTENSION):
            raise TokenRefused("the header asks for an extension")
        algorithm = self.header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in allowed:
            raise TokenRefused("the algorithm is not allowed")
        return algorithm

    def key_id(self) -> str | None:
        """The header's ``kid``. Raises TokenRefused if it is no text."""
        kid = self.header.get("kid")
        if kid is not None and not isinstance(kid, str):
            raise TokenRefused("the key id is no text")
        return kid

    def verify(self, key: jwk.Key, algorithm: str) -> None:
        """Check the signature. Raises TokenRefused."""
        try:
            valid = jws.validate_compact(self._signed, key, registry=_VERIFIERS[algorithm])
        except (JoseError, ValueError, TypeError) as error:
            raise TokenRefused(f"the signature cannot be checked: {type(error).__name__}") from None
        if not valid:
            raise TokenRefused("the signature is wrong")


def check_type(header: Mapping[str, Any], profile: Profile) -> None:
    """The header ``typ``, in any case, with or without ``application/`` (RFC 7515 section 4.1.9)."""
    given = header.get("typ")
    plain = given.lower().removeprefix("application/") if isinstance(given, str) else given
    if not (plain is None or isinstance(plain, str)) or plain not in profile.types:
        raise TokenRefused("typ is not that of an access token")


def check_claims(claims: Claims, settings: IssuerSettings, now: float) -> float:
    """Check a verified JWT's claims; returns when it ends, in seconds since 1970. Raises TokenRefused."""
    profile = PROFILES[settings.profile]
    missing = next((name for name in profile.required if claims.get(name) is None), None)
    if missing:
        raise TokenRefused(f"{missing} is missing")
    if not profile.is_access_token(claims):
        raise TokenRefused(f"it is no access token by the profile {settings.profile}")
    expires = check_times(claims, settings.leeway, now)
    if expires is None:
        raise TokenRefused("exp is missing")
    check_audience(claims, settings.audiences)
    check_actor(claims, settings.actors)
    return expires


def check_times(claims: Claims, leeway: float, now: float) -> float | None:
    """``exp``, ``nbf`` and ``iat`` against the clock; the end with its leeway, ``None`` without ``exp``."""
    expires, begins, issued = (_time(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is not None and now >= expires + leeway:
        raise TokenRefused("it has expired")
    if (begins is not None and now < begins - leeway) or (issued is not None and now < issued - leeway):
        raise TokenRefused("it is not valid yet")
    return None if expires is None else expires + leeway


def check_audience(claims: Claims, ours: frozenset[str]) -> None:
    """``aud``, a text or a list of them, holds a name of ours (RFC 7519 section 4.1.3)."""
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, list) or not any(isinstance(name, str) and name in ours for name in named):
        raise TokenRefused("it is for another audience")


def check_actor(claims: Claims, allowed: Collection[str] | None) -> None:
    """Who acts now may act; those who acted before are history (RFC 8693 section 4.1)."""
    if (actor := claims.get("act")) is None:
        return
    subject = actor.get("sub") if isinstance(actor, dict) else None
    if not isinstance(subject, str) or (allowed is not None and subject not in allowed):
        raise TokenRefused("the one who acts for another may not")


def _time(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"{name} is no number")
    return min(max(value, -1e12), 1e12)  # whole numbers of any length are JSON, but not floats
