"""How the access tokens of known providers look, and how each is told from an ID token (RFC 8725 section 3.11).

RFC 9068 settles it by ``typ: at+jwt``, and is the default. The products came before it; each has its own marks. A token
is taken only under the profile that is configured for its issuer, so that no dialect widens another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from appliance_auth.oauth.settings import ClaimSettings, ProfileName

_ALWAYS = ("iss", "sub", "aud", "exp", "iat")
_ID_TOKEN_ONLY = ("nonce", "at_hash", "c_hash", "s_hash")
"""Claims of OpenID Connect Core sections 2 and 3.3.2.11 that bind an ID token to a login."""


@dataclass(frozen=True)
class Profile:
    """One dialect.

    ``types`` are the values of the header ``typ`` in lower case without ``application/``, ``None`` for none at all.
    ``required`` claims must be there. ``is_access_token`` tells by the claims. ``app_roles``: tokens of applications
    carry roles in place of scopes. ``hosts`` are further ones that the provider's metadata names.
    """

    types: frozenset[str | None]
    required: tuple[str, ...]
    is_access_token: Callable[[Mapping[str, Any]], bool]
    claims: ClaimSettings
    app_roles: bool = False
    hosts: tuple[str, ...] = ()


def _by_type(_: Mapping[str, Any]) -> bool:
    """RFC 9068 section 4: the header has said it."""
    return True


def _keycloak(claims: Mapping[str, Any]) -> bool:
    """Keycloak writes the kind into a claim: ``Bearer``, ``ID``, ``Refresh``, ``Logout``."""
    return claims.get("typ") == "Bearer"


def _auth0(claims: Mapping[str, Any]) -> bool:
    """Auth0's ID tokens are for the client; its subjects are ``connection|id``, or ``id@clients`` for services."""
    subject = claims.get("sub")
    ours = isinstance(subject, str) and ("|" in subject or subject.endswith("@clients"))
    return ours and not _for_its_client(claims) and not _from_a_login(claims)


def _entra(claims: Mapping[str, Any]) -> bool:
    """Entra's ID tokens name neither the calling application nor what it may do."""
    names_the_caller = "azp" in claims or "appid" in claims
    return names_the_caller and ("scp" in claims or "roles" in claims) and "nonce" not in claims


def _okta(claims: Mapping[str, Any]) -> bool:
    """Okta's ID tokens have no ``cid`` and no ``scp``, and ids that begin with ``ID.``."""
    token_id = claims.get("jti")
    return isinstance(claims.get("scp"), list) and isinstance(token_id, str) and not token_id.startswith("ID.")


def _google(claims: Mapping[str, Any]) -> bool:
    """Services identify themselves by a signed token for an audience of their choice; a person's login is for a client.

    Google's access tokens for people are opaque, and only Google's own services may look into them.
    """
    subject = claims.get("sub")
    numeric = isinstance(subject, str) and subject.isascii() and subject.isdigit()
    return numeric and not _for_its_client(claims) and not _from_a_login(claims)


def _for_its_client(claims: Mapping[str, Any]) -> bool:
    audience, client = claims.get("aud"), claims.get("azp")
    return client == audience or (isinstance(audience, list) and client in audience)


def _from_a_login(claims: Mapping[str, Any]) -> bool:
    return any(name in claims for name in _ID_TOKEN_ONLY)


_JWT = frozenset({"jwt"})

PROFILES: Mapping[ProfileName, Profile] = {
    "rfc9068": Profile(
        types=frozenset({"at+jwt"}),
        required=(*_ALWAYS, "client_id", "jti"),
        is_access_token=_by_type,
        claims=ClaimSettings(user="sub", groups="groups", roles="roles", scopes="scope"),
    ),
    "keycloak": Profile(
        types=frozenset({"jwt", "at+jwt"}),
        required=(*_ALWAYS, "azp", "jti"),
        is_access_token=_keycloak,
        claims=ClaimSettings(user="sub", groups="groups", roles="realm_access.roles", scopes="scope"),
    ),
    "auth0": Profile(
        types=_JWT,
        required=(*_ALWAYS, "azp"),
        is_access_token=_auth0,
        claims=ClaimSettings(user="sub", scopes="scope"),
    ),
    "entra": Profile(
        types=_JWT,
        required=(*_ALWAYS, "tid", "ver"),
        is_access_token=_entra,
        claims=ClaimSettings(user="sub", groups="groups", roles="roles", scopes="scp"),
        app_roles=True,
        hosts=("login.microsoftonline.com",),  # where the keys of issuers at sts.windows.net are
    ),
    "okta": Profile(
        types=frozenset({None}),
        required=(*_ALWAYS, "cid", "jti", "ver"),
        is_access_token=_okta,
        claims=ClaimSettings(user="sub", groups="groups", scopes="scp"),
    ),
    "google": Profile(
        types=_JWT,
        required=(*_ALWAYS, "azp"),
        is_access_token=_google,
        claims=ClaimSettings(user="sub"),
        hosts=("www.googleapis.com", "oauth2.googleapis.com"),
    ),
}
