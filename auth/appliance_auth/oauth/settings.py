"""What is set under ``plugin.oauth``, and what of it is refused at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from appliance.plugin import SCOPES, ConfigError, EgressRefused, Strict, egress_hosts

ClaimPath: TypeAlias = str | tuple[str, ...]
"""A claim's name, a dotted path (``realm_access.roles``), or a path as a list; empty for none."""
ProfileName: TypeAlias = Literal["rfc9068", "keycloak", "auth0", "entra", "okta", "google"]

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")


class ClaimSettings(Strict, frozen=True):
    """Which claims say what; what is not set is as the profile has it."""

    user: ClaimPath | None = None
    tenant: ClaimPath | None = None
    groups: ClaimPath | None = None
    roles: ClaimPath | None = None
    scopes: ClaimPath | None = None


class IntrospectionSettings(Strict, frozen=True):
    """How opaque tokens are asked about (RFC 7662). ``endpoint`` is by default what the issuer's metadata says."""

    client_id: str
    client_secret: str
    endpoint: str | None = None
    auth_method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    prefix: str = ""
    """Only tokens that begin so are sent to this issuer."""
    cache_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 60.0
    """For how long an answer holds, at most; a revoked token is refused after this."""

    def __repr__(self) -> str:
        """The secret stays out of tracebacks."""
        return f"IntrospectionSettings(client_id={self.client_id!r})"


class IssuerSettings(Strict, frozen=True):
    """One authorization server whose tokens are taken."""

    issuer: str
    audience: str | tuple[str, ...]
    """What ``aud`` must hold: how this server is called at the issuer."""
    profile: ProfileName = "rfc9068"
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256")
    jwks_uri: str | None = None
    leeway: Annotated[float, msgspec.Meta(ge=0, le=60)] = 60.0
    """Seconds by which clocks may differ."""
    claims: ClaimSettings = ClaimSettings()
    scope_map: Mapping[str, str] = {}
    role_map: Mapping[str, str] = {}
    default_roles: tuple[str, ...] = ("user",)
    tenant: str = "default"
    tenant_map: Mapping[str, str] = {}
    actors: tuple[str, ...] | None = None
    """Who may act for others (``act.sub``); ``None`` is everybody whom the issuer lets."""
    introspection: IntrospectionSettings | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Further hosts that the issuer's metadata may name."""
    loopback_http: bool = False
    ca_file: str | None = None

    @property
    def audiences(self) -> frozenset[str]:
        """``audience`` as a set."""
        return frozenset([self.audience] if isinstance(self.audience, str) else self.audience)


class OAuthSettings(Strict, frozen=True):
    """The block ``plugin.oauth``."""

    issuers: tuple[IssuerSettings, ...] = ()


def check(settings: OAuthSettings, known_roles: frozenset[str]) -> None:
    """Refuse what would be unsafe or could not work. Raises ConfigError."""
    if not settings.issuers:
        raise ConfigError("plugin.oauth.issuers: list the issuers whose tokens are taken, or remove the plugin oauth")
    names = [issuer.issuer for issuer in settings.issuers]
    for i, issuer in enumerate(settings.issuers):
        where = f"plugin.oauth.issuers[{i}]"
        if names.index(issuer.issuer) != i:
            raise ConfigError(f"{where}.issuer: {issuer.issuer} is listed twice; join the two entries")
        _check_addresses(issuer, where)
        _check_audience(issuer, where)
        _check_algorithms(issuer, where)
        _check_roles(issuer, where, known_roles)
        _check_maps(issuer, where)


def _check_addresses(issuer: IssuerSettings, where: str) -> None:
    endpoint = issuer.introspection.endpoint if issuer.introspection else None
    for name, url in (("issuer", issuer.issuer), ("jwks_uri", issuer.jwks_uri), ("introspection.endpoint", endpoint)):
        if url is None:
            continue
        try:
            named, parts = list(egress_hosts([url])), urlsplit(url)
        except (EgressRefused, ValueError) as error:
            raise ConfigError(f"{where}.{name}: {error}") from None
        if parts.scheme not in ("https", "http") or not all(named) or parts.fragment:
            raise ConfigError(f"{where}.{name}: {url!r} is no https URL; write it out as the provider shows it")
        if parts.scheme == "http" and not issuer.loopback_http:
            raise ConfigError(f"{where}.{name}: must be https (loopback_http allows http, to this machine only)")


def _check_audience(issuer: IssuerSettings, where: str) -> None:
    if not issuer.audiences or not all(issuer.audiences):
        raise ConfigError(
            f"{where}.audience: name this server as the issuer knows it; without it any application's token would do"
        )


def _check_algorithms(issuer: IssuerSettings, where: str) -> None:
    if not issuer.algorithms:
        raise ConfigError(f"{where}.algorithms: list at least one, as RS256")
    for name in issuer.algorithms:
        if name.startswith("HS") or name.lower() == "none":
            raise ConfigError(
                f"{where}.algorithms: {name} needs no private key, so anybody could sign with the published one; "
                "use RS256, PS256 or ES256"
            )
        if name not in ALGORITHMS:
            raise ConfigError(f"{where}.algorithms: {name} is not known; take some of {', '.join(ALGORITHMS)}")


def _check_roles(issuer: IssuerSettings, where: str, known: frozenset[str]) -> None:
    given = {"default_roles": issuer.default_roles, "role_map": tuple(issuer.role_map.values())}
    for name, roles in given.items():
        unknown = next((role for role in roles if role not in known), None)
        if unknown is not None:
            raise ConfigError(f"{where}.{name}: there is no role {unknown}; take one of {', '.join(sorted(known))}")


def _check_maps(issuer: IssuerSettings, where: str) -> None:
    unknown = next((scope for scope in issuer.scope_map.values() if scope not in SCOPES), None)
    if unknown is not None:
        raise ConfigError(f"{where}.scope_map: there is no scope {unknown}; take one of {', '.join(sorted(SCOPES))}")
    for name, tenants in (("tenant", (issuer.tenant,)), ("tenant_map", tuple(issuer.tenant_map.values()))):
        odd = next((tenant for tenant in tenants if not TENANT.fullmatch(tenant)), None)
        if odd is not None:
            raise ConfigError(
                f"{where}.{name}: {odd!r} is no tenant's name; use letters, digits, dot, dash, underscore"
            )
