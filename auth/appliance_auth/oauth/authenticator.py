"""The authenticator: bearer tokens in, callers out, with a memory of what was checked."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence

from appliance.plugin import KeyStore, Principal, Unauthenticated, Unavailable
from appliance_auth._asking import Memory, SingleFlight
from appliance_auth.oauth.certificates import prove
from appliance_auth.oauth.claims import TokenRefused
from appliance_auth.oauth.issuer import Accepted, Issuer
from appliance_auth.oauth.jwt import MAX_BYTES, Jwt

log = logging.getLogger("appliance.oauth")
_REMEMBERED = 10_000
_UNKNOWN_REMEMBERED = 1_000
_UNKNOWN_SECONDS = 10.0
"""For how long a token that no issuer knows is not asked about again."""


class OAuthTokens:
    """Recognises access tokens of the configured issuers; API keys are none and are never sent to an issuer."""

    def __init__(self, issuers: Sequence[Issuer], certificate_header: str | None = None) -> None:
        self._issuers = {issuer.settings.issuer: issuer for issuer in issuers}
        self._introspecting = [issuer for issuer in issuers if issuer.settings.introspection]
        self._certificate_header = certificate_header.lower() if certificate_header else None
        self._accepted: Memory[bytes, Accepted] = Memory(_REMEMBERED)
        self._unknown: Memory[bytes, float] = Memory(_UNKNOWN_REMEMBERED)
        self._asking: SingleFlight[bytes, Accepted | None] = SingleFlight()

    @property
    def enabled(self) -> bool:
        """Always: whoever lists the plugin wants callers to have tokens."""
        return True

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """The token's caller; ``None`` without a token of an issuer of ours.

        Raises:
            Unauthenticated: the token is not good. Forbidden: its tenant is not served.
            Unavailable: it cannot be checked now.
        """
        token = _bearer(headers)
        if token is None or token.startswith(KeyStore.prefix):
            return None
        if len(token) > MAX_BYTES or not token.isascii() or not token.isprintable() or " " in token:
            raise _refusal()
        # Of the whole token: two that begin alike are two tokens.
        digest = hashlib.sha256(token.encode("ascii")).digest()
        try:
            found = self._remembered(digest) or await self._recognised(token, digest)
            if found is not None and found.thumbprint is not None:
                prove(found.thumbprint, headers, self._certificate_header)
        except TokenRefused as reason:
            log.debug("a token was refused: %s", reason)
            raise _refusal(str(reason)) from None
        return found.principal if found else None

    async def close(self) -> None:
        """Give up what is under way."""
        await self._asking.close()

    def _remembered(self, digest: bytes) -> Accepted | None:
        found = self._accepted.get(digest)
        if found is not None and not found.holds(time.time()):
            self._accepted.forget(digest)
            return None
        return found

    async def _recognised(self, token: str, digest: bytes) -> Accepted | None:
        if (jwt := Jwt.read(token)) is not None:
            issuer = jwt.claims.get("iss")
            known = self._issuers.get(issuer) if isinstance(issuer, str) else None
            if known is None:
                return None
            found: Accepted | None = await known.accept(jwt)
        else:
            found = await self._asked(token, digest)
        if found is not None:
            self._accepted.put(digest, found)
        return found

    async def _asked(self, token: str, digest: bytes) -> Accepted | None:
        if not self._introspecting:
            return None
        unknown_until = self._unknown.get(digest)
        if unknown_until is not None and time.monotonic() < unknown_until:
            return None
        found = await self._asking.run(digest, lambda: self._ask_all(token))
        if found is None:
            self._unknown.put(digest, time.monotonic() + _UNKNOWN_SECONDS)
        return found

    async def _ask_all(self, token: str) -> Accepted | None:
        """In order, until one knows it. One that cannot be asked might have: then nobody can tell."""
        failed: Unavailable | None = None
        for issuer in self._introspecting:
            try:
                if (found := await issuer.look_up(token)) is not None:
                    return found
            except Unavailable as error:
                failed = error
        if failed is not None:
            raise failed
        return None


def _bearer(headers: Mapping[str, str]) -> str | None:
    value = headers.get("authorization", "")
    return value[7:].strip() or None if value[:7].lower() == "bearer " else None


def _refusal(reason: str = "") -> Unauthenticated:
    """The same words whatever is wrong: a forger learns nothing from them. The reason is for the audit log alone."""
    return Unauthenticated(challenge="invalid_token", reason=reason)
