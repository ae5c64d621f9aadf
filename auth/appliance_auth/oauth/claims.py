"""From verified claims to a caller: whoever they are to be here is decided by these lines alone.

Claims may be of any JSON type. One that is there but of no use refuses the token; none is guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from appliance.plugin import SCOPES, Forbidden, Principal
from appliance_auth.oauth.profiles import PROFILES
from appliance_auth.oauth.settings import TENANT, ClaimPath, IssuerSettings

Claims: TypeAlias = Mapping[str, Any]

_BY_NAME = {scope: scope for scope in SCOPES if scope != "*"}
"""Scopes that mean the same at an issuer; everything (``*``) is given by ``scope_map`` alone."""
_LONGEST_ID = 255
"""Characters; OpenID Connect Core section 2 holds ``sub`` to as many."""


class TokenRefused(Exception):
    """A token is not accepted; the words are for the log of the server and never for the client."""


class CallerMapping:
    """Makes callers of the claims of one issuer."""

    def __init__(self, settings: IssuerSettings) -> None:
        self._settings = settings
        defaults, given = PROFILES[settings.profile].claims, settings.claims
        self._user = _chosen(given.user, defaults.user)
        self._tenant = _chosen(given.tenant, defaults.tenant)
        self._groups = _chosen(given.groups, defaults.groups)
        self._roles = _chosen(given.roles, defaults.roles)
        self._scopes = _chosen(given.scopes, defaults.scopes)
        self._roles_may_replace_scopes = PROFILES[settings.profile].app_roles

    def principal(self, claims: Claims) -> Principal:
        """The caller.

        Raises:
            TokenRefused: a claim is of the wrong type, or nobody is named.
            Forbidden: the claims name a tenant that is not served.
        """
        who = self._identity(claims)
        roles = strings(value_at(claims, self._roles), "roles")
        return Principal(
            id=who,
            user=who,
            tenant=self._tenant_of(claims),
            groups=tuple(dict.fromkeys(strings(value_at(claims, self._groups), "groups"))),
            roles=self._roles_of(roles),
            scopes=self._scopes_of(claims, roles),
        )

    def _identity(self, claims: Claims) -> str:
        """Issuer and subject: only together are they unique, and nothing else stays with a person."""
        user = value_at(claims, self._user)
        if user is not None:
            return f"user:{self._settings.issuer}|{identifier(user, 'user')}"
        if self._user != "sub":
            raise TokenRefused("the claim for the user is missing")
        # A service that introspection knows by its client id alone. Its name is no subject, so it cannot pose as one.
        return f"client:{self._settings.issuer}|{identifier(claims.get('client_id'), 'client_id')}"

    def _roles_of(self, claimed: list[str]) -> tuple[str, ...]:
        mapped = (self._settings.role_map[value] for value in claimed if value in self._settings.role_map)
        return tuple(dict.fromkeys([*self._settings.default_roles, *mapped]))

    def _scopes_of(self, claims: Claims, roles: list[str]) -> frozenset[str] | None:
        """``None`` where scopes limit nothing: the profile or the settings know of none."""
        if not self._scopes:
            return None
        value = value_at(claims, self._scopes)
        if value is None and self._roles_may_replace_scopes and roles:
            return None
        given = value.split() if isinstance(value, str) else strings(value, "scopes")
        mapped = {self._settings.scope_map.get(scope) or _BY_NAME.get(scope) for scope in given}
        return frozenset(scope for scope in mapped if scope)

    def _tenant_of(self, claims: Claims) -> str:
        value = value_at(claims, self._tenant)
        if value is None:
            return self._settings.tenant
        name = identifier(value, "tenant")
        found = self._settings.tenant_map.get(name) if self._settings.tenant_map else name
        if found is None or not TENANT.fullmatch(found):
            raise Forbidden("your organisation is not served here; ask the operator to add it to tenant_map")
        return found


def value_at(claims: Claims, path: ClaimPath) -> Any:
    """The claim at a path, ``None`` where there is none. A name with dots in it goes before a dotted path."""
    if isinstance(path, str):
        if path in claims:
            return claims[path]
        path = tuple(path.split("."))
    value: Any = claims
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if path else None


def strings(value: Any, what: str) -> list[str]:
    """A text or a list of texts as a list; nothing is an empty one. Raises TokenRefused."""
    if value is None:
        return []
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise TokenRefused(f"{what} is no list of texts")
    return found


def identifier(value: Any, what: str) -> str:
    """A text that can stand in logs and databases. Raises TokenRefused."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_ID or not value.isprintable():
        raise TokenRefused(f"{what} is no usable name")
    return value


def _chosen(given: ClaimPath | None, default: ClaimPath | None) -> ClaimPath:
    return given if given is not None else default or ""
