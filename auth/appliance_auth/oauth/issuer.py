"""One issuer at work: its keys, its introspection, and whom its tokens make."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.plugin import Egress, Principal, egress_hosts
from appliance_auth.oauth.certificates import bound_to
from appliance_auth.oauth.claims import CallerMapping, TokenRefused
from appliance_auth.oauth.introspection import Introspection, check_answer
from appliance_auth.oauth.jwt import Jwt, check_claims, check_type
from appliance_auth.oauth.keys import Keys, KeySet
from appliance_auth.oauth.metadata import Discovery
from appliance_auth.oauth.profiles import PROFILES
from appliance_auth.oauth.settings import IssuerSettings

_CALL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A token that was found good: whose it is, until when, and on which keys that rests.

    ``expires`` is in seconds since 1970; ``thumbprint`` that of the certificate it needs, ``None`` for a bearer token.
    """

    principal: Principal
    expires: float
    thumbprint: str | None = None
    issuer: Issuer | None = None
    keys: KeySet | None = None

    def holds(self, now: float) -> bool:
        """Whether it is good still: in time, and its issuer's keys have not changed since."""
        return now < self.expires and (self.issuer is None or self.issuer.keys.known is self.keys)


class Issuer:
    """Built at the start; asks nobody before it is asked."""

    def __init__(self, settings: IssuerSettings, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._profile = PROFILES[settings.profile]
        self._egress = egress_for(settings, folder)
        self._discovery = Discovery(settings.issuer, self._egress, settings.jwks_uri)
        self.keys = Keys(settings.issuer, self._discovery.jwks, settings.algorithms, clock)
        self.mapping = CallerMapping(settings)
        self._clock = clock
        self.introspection: Introspection | None = None

    def open(self) -> None:
        """Make what belongs to a running server. Raises ConfigError for a ``ca_file`` that cannot be read."""
        self._egress.open()
        if self.settings.introspection and self.introspection is None:
            self.introspection = Introspection(
                self.settings, self.settings.introspection, self._discovery, self._egress, self._clock
            )

    async def accept(self, token: Jwt) -> Accepted:
        """Check a JWT that names this issuer.

        Raises:
            TokenRefused: it is not good. Forbidden: it is, but its tenant is not served. Unavailable: no keys.
        """
        check_type(token.header, self._profile)
        algorithm = token.algorithm(self.settings.algorithms)
        key = await self.keys.find(token.key_id(), algorithm)
        if key is None:
            raise TokenRefused("its key is not known")
        token.verify(key, algorithm)
        expires = check_claims(token.claims, self.settings, time.time())
        principal = self.mapping.principal(token.claims)
        return Accepted(principal, expires, bound_to(token.claims), self, self.keys.known)

    async def look_up(self, token: str) -> Accepted | None:
        """Ask about an opaque token; ``None`` when it is not this issuer's. Raises as ``accept`` does."""
        if self.introspection is None or not self.introspection.may_be_mine(token):
            return None
        claims = await self.introspection.ask(token)
        if claims is None:
            return None
        until = check_answer(claims, self.settings, time.time())
        return Accepted(self.mapping.principal(claims), until, bound_to(claims))

    async def close(self) -> None:
        """Let go of everything."""
        await self.keys.close()
        await self._discovery.close()
        if self.introspection:
            await self.introspection.close()
            self.introspection = None
        await self._egress.close()


def egress_for(settings: IssuerSettings, folder: Path) -> Egress:
    """What may be called for an issuer: the hosts that the configuration names, and no others."""
    endpoint = settings.introspection.endpoint if settings.introspection else None
    return Egress(
        [
            *egress_hosts([settings.issuer, settings.jwks_uri, endpoint]),
            *PROFILES[settings.profile].hosts,
            *settings.allowed_hosts,
        ],
        loopback_http=settings.loopback_http,
        timeout=_CALL_SECONDS,
        ca_file=folder / settings.ca_file if settings.ca_file else None,
    )
