"""What an identity provider signs for us as a client: ID tokens, and logout tokens.

OpenID Connect Core section 3.1.3.7, Back-Channel Logout section 2.6. Signature, algorithm and times are checked as for
access tokens; ``typ`` and claims keep the kinds apart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any

from appliance_auth.oauth.claims import Claims, TokenRefused, identifier
from appliance_auth.oauth.jwt import MAX_BYTES, Jwt, check_audience, check_times
from appliance_auth.oauth.keys import Keys
from appliance_auth.oauth.settings import IssuerSettings

_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
_HASHES: Mapping[str, str] = {"256": "sha256", "384": "sha384", "512": "sha512"}
_EDWARDS = ("Ed25519", "EdDSA")


class ClientTokens:
    """Checks what an issuer signs for one of its clients. Methods raise TokenRefused, and Unavailable without keys."""

    def __init__(self, issuer: IssuerSettings, client_id: str, keys: Keys) -> None:
        self._issuer, self._client_id, self._keys = issuer, client_id, keys

    async def id_token(self, token: object, *, nonce: str, access_token: str) -> Claims:
        """The claims of an ID token that answers the sign-in of ``nonce`` and came along with ``access_token``."""
        jwt = await self._verified(token, (None, "jwt"))
        claims = jwt.claims
        given = claims.get("nonce")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
            raise TokenRefused("the ID token answers another sign-in")
        if "iat" not in claims:
            raise TokenRefused("iat is missing")
        identifier(claims.get("sub"), "sub")
        self._check_party(claims)
        _check_hash(claims.get("at_hash"), access_token, jwt.header["alg"])
        return claims

    async def logout_token(self, token: str) -> tuple[str | None, str | None]:
        """Whose sessions end: the subject, the issuer's session, or both."""
        claims = (await self._verified(token, ("logout+jwt",))).claims
        events = claims.get("events")
        if not isinstance(events, dict) or not isinstance(events.get(_LOGOUT_EVENT), dict) or "nonce" in claims:
            raise TokenRefused("it is no logout token")
        subject, sid = (identifier(claims[name], name) if name in claims else None for name in ("sub", "sid"))
        if subject is None and sid is None:
            raise TokenRefused("it names no session")
        return subject, sid

    async def _verified(self, token: object, types: tuple[str | None, ...]) -> Jwt:
        jwt = Jwt.read(token) if isinstance(token, str) and len(token) <= MAX_BYTES else None
        if jwt is None:
            raise TokenRefused("it is no JWT")
        kind = jwt.header.get("typ")
        if (kind.lower().removeprefix("application/") if isinstance(kind, str) else kind) not in types:
            raise TokenRefused("it is of another type")
        algorithm = jwt.algorithm(self._issuer.algorithms)
        key = await self._keys.find(jwt.key_id(), algorithm)
        if key is None:
            raise TokenRefused("its key is not known")
        jwt.verify(key, algorithm)
        if jwt.claims.get("iss") != self._issuer.issuer:
            raise TokenRefused("it is another issuer's")
        check_audience(jwt.claims, frozenset({self._client_id}))
        if check_times(jwt.claims, self._issuer.leeway, time.time()) is None:
            raise TokenRefused("exp is missing")
        return jwt

    def _check_party(self, claims: Claims) -> None:
        """With several audiences ``azp`` says which of them asked (section 3.1.3.7, items 4 and 5)."""
        audience, party = claims.get("aud"), claims.get("azp")
        alone = isinstance(audience, str) or (isinstance(audience, list) and len(audience) == 1)
        if party != self._client_id and not (party is None and alone):
            raise TokenRefused("it was made for another client")


def _check_hash(given: Any, access_token: str, algorithm: str) -> None:
    """``at_hash``, where there is one (section 3.1.3.6): no other access token was put beside the ID token."""
    if given is None:
        return
    name = "sha512" if algorithm in _EDWARDS else _HASHES.get(algorithm[2:])
    if name is None:
        raise TokenRefused("at_hash cannot be checked for this algorithm")
    digest = hashlib.new(name, access_token.encode()).digest()
    expected = base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), expected):
        raise TokenRefused("at_hash is that of another access token")
