"""What is set under ``plugin.login``, and what of it is refused at the start."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from appliance.plugin import Config, ConfigError, Strict, convert, is_loopback
from appliance_auth.oauth.settings import IssuerSettings, OAuthSettings

_WHERE = "plugin.login"


class LoginSettings(Strict, frozen=True):
    """The block ``plugin.login``: ``client_id`` is for sign-ins with a browser, ``cli_client_id`` at a terminal.

    Which roles, groups and tenant people have here is up to the issuer's entry under ``plugin.oauth``.
    """

    issuer: str = ""
    """One of ``plugin.oauth.issuers``; may be left out if there is just one."""
    public_url: str = ""
    """How browsers see this server, as ``https://appliance.example``; the redirect URI is this + ``/auth/callback``."""
    loopback_http: bool = False
    """Allow a ``public_url`` by plain http on this machine; its cookies then lack ``Secure`` and ``__Host-``."""
    client_id: str = ""
    client_secret: str | None = None
    scope: str = "openid profile"
    idle: Annotated[int, msgspec.Meta(ge=60, le=86_400)] = 3600
    """Seconds without a request after which a session is over."""
    lifetime: Annotated[int, msgspec.Meta(ge=60, le=604_800)] = 43_200
    """Seconds after which a session is over in any case, and groups and roles are asked for anew."""
    cli_client_id: str | None = None
    """A public client that may use the device flow."""
    cli_scope: str = "openid profile offline_access"
    cli_resource: str | None = None
    """What command lines name as the resource (RFC 8707), by default ``auth.resource``; empty for none."""

    def __repr__(self) -> str:
        """The secret stays out of tracebacks."""
        return f"LoginSettings(issuer={self.issuer!r}, client_id={self.client_id!r})"


def issuer_of(settings: LoginSettings, config: Config) -> IssuerSettings:
    """The entry of ``plugin.oauth`` that people sign in at. Raises ConfigError."""
    if "oauth" not in config.plugins:
        raise ConfigError("plugins: login takes callers from an issuer of the plugin oauth; list oauth too")
    issuers = convert(config.plugin.get("oauth", {}), OAuthSettings, "plugin.oauth").issuers
    if not settings.issuer and len(issuers) == 1:
        return issuers[0]
    found = next((issuer for issuer in issuers if issuer.issuer == settings.issuer), None)
    if found is None:
        known = ", ".join(issuer.issuer for issuer in issuers) or "none"
        raise ConfigError(f"{_WHERE}.issuer: name one of plugin.oauth.issuers ({known})")
    return found


def check(settings: LoginSettings) -> None:
    """Refuse what would be unsafe or could not work. Raises ConfigError."""
    if not settings.client_id and not settings.cli_client_id:
        raise ConfigError(f"{_WHERE}: give client_id for browsers, cli_client_id for terminals, or both")
    if not settings.client_id:
        return
    if "openid" not in settings.scope.split():
        raise ConfigError(f"{_WHERE}.scope: must hold openid, or the issuer does not say who signed in")
    parts = urlsplit(settings.public_url)
    if parts.scheme not in ("https", "http") or not parts.netloc or settings.public_url != origin(settings.public_url):
        raise ConfigError(f"{_WHERE}.public_url: must be scheme and host alone, as https://appliance.example")
    if parts.scheme == "http" and not (settings.loopback_http and is_loopback(parts.hostname)):
        raise ConfigError(f"{_WHERE}.public_url: must be https (loopback_http allows http, on this machine only)")


def origin(url: str) -> str:
    """A URL's origin as browsers write it in ``Origin`` (RFC 6454 section 6.2)."""
    parts = urlsplit(url)
    default = {"https": ":443", "http": ":80"}.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(default)}"
