"""Opaque tokens: the issuer is asked what they are (RFC 7662)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
from authlib.integrations.httpx_client import AsyncOAuth2Client

from appliance.plugin import Circuit, Egress, EgressError, Unavailable
from appliance_auth.oauth.claims import Claims, TokenRefused
from appliance_auth.oauth.jwt import check_actor, check_audience, check_times
from appliance_auth.oauth.metadata import Discovery
from appliance_auth.oauth.settings import IntrospectionSettings, IssuerSettings

log = logging.getLogger("appliance.oauth")
_RETRY_SECONDS = 5.0
_HINT = "access_token"
_OF_ONE_TOKEN = (400, 413, 414, 422, 431)
"""Statuses by which a server says what it thinks of a request, and nothing of how it is itself."""
_ACCESS = (None, "bearer", "access_token")
"""``token_type`` of an access token that needs no proof; absent, it is one too."""


class _NotTaken(EgressError):
    """The issuer does not take a question with this token; another may be fine."""


class Introspection:
    """Asks one issuer."""

    def __init__(
        self,
        issuer: IssuerSettings,
        settings: IntrospectionSettings,
        discovery: Discovery,
        egress: Egress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer, self._settings, self._discovery, self._egress = issuer, settings, discovery, egress
        self._circuit = Circuit(clock)
        self._client: Any = AsyncOAuth2Client(  # it has no types
            settings.client_id,
            settings.client_secret,
            token_endpoint_auth_method=settings.auth_method,
            **egress.client_options(),
        )

    def may_be_mine(self, token: str) -> bool:
        """Whether this issuer is asked about a token."""
        return token.startswith(self._settings.prefix)

    async def ask(self, token: str) -> Claims | None:
        """What the issuer says of an active token; ``None`` for one that it does not know, or no more.

        Raises:
            Unavailable: it cannot be asked, or has failed the last few who did. Nobody is let in on a guess.
        """
        if not self._circuit.passes():
            raise _unavailable(self._circuit.retry_after)
        try:
            answer = await self._answer(token)
        except (
            EgressError,
            httpx2.HTTPError,
            OSError,
            msgspec.MsgspecError,
            UnicodeDecodeError,
            RecursionError,
        ) as error:
            if not isinstance(error, _NotTaken):  # else anybody could keep all others out, by tokens that are too long
                self._circuit.note(ok=False)
            log.warning("%s cannot be asked about tokens: %s", self._issuer.issuer, _told(error))
            raise _unavailable(self._circuit.retry_after or _RETRY_SECONDS) from None
        self._circuit.note(ok=True)
        return answer if answer.get("active") is True else None

    async def close(self) -> None:
        """Close the client."""
        await self._client.aclose()

    async def _answer(self, token: str) -> dict[str, Any]:
        endpoint = self._settings.endpoint or (await self._discovery.metadata()).introspection_endpoint
        if endpoint is None:
            raise EgressError("its metadata names no introspection endpoint; set introspection.endpoint")
        self._egress.check(endpoint)
        response = await self._client.introspect_token(endpoint, token=token, token_type_hint=_HINT)
        if response.status_code in _OF_ONE_TOKEN:
            raise _NotTaken(f"it answered {response.status_code}")
        if response.status_code != 200:
            raise EgressError(f"it answered {response.status_code}")
        return msgspec.json.decode(response.content, type=dict[str, Any])


def check_answer(claims: Claims, settings: IssuerSettings, now: float) -> float:
    """Check what was said of an active token; returns until when that may be remembered. Raises TokenRefused."""
    kind = claims.get("token_type")
    if not (kind is None or isinstance(kind, str)) or (kind and kind.lower()) not in _ACCESS:
        raise TokenRefused("it is no bearer token")
    if claims.get("iss", settings.issuer) != settings.issuer:
        raise TokenRefused("it is another issuer's")
    check_audience(claims, settings.audiences)
    check_actor(claims, settings.actors)
    expires = check_times(claims, settings.leeway, now)
    remembered = now + (settings.introspection.cache_seconds if settings.introspection else 0.0)
    return remembered if expires is None else min(remembered, expires)


def _unavailable(retry_after: float) -> Unavailable:
    return Unavailable(
        "tokens cannot be checked now, for the identity provider does not answer; try again", retry_after=retry_after
    )


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, EgressError) else type(error).__name__
