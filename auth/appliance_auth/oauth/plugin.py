"""The plugin's hooks: an authenticator, the metadata route, and the keys kept fresh."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from litestar import Response
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from appliance.plugin import (
    RESOURCE_METADATA,
    ROLES,
    SCOPES,
    AppContext,
    Authenticator,
    Lifespan,
    hookimpl,
    resource_metadata_path,
)
from appliance_auth.oauth.authenticator import OAuthTokens
from appliance_auth.oauth.issuer import Issuer
from appliance_auth.oauth.settings import OAuthSettings, check


class Plugin:
    """One instance an app, so that the hooks share issuers and authenticator."""

    def __init__(self) -> None:
        self._issuers: list[Issuer] = []
        self._tokens: OAuthTokens | None = None

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.oauth``."""
        return OAuthSettings

    @hookimpl
    def appliance_authenticators(self, settings: OAuthSettings, context: AppContext) -> Sequence[Authenticator]:
        """Access tokens as credentials."""
        return [self._shared(settings, context)]

    @hookimpl
    def appliance_routes(self, settings: OAuthSettings, context: AppContext) -> Sequence[BaseRouteHandler]:
        """What a client needs to know to get a token (RFC 9728), where ``auth.resource`` says who we are."""
        resource = context.config.auth.resource
        if resource is None:
            return []
        body = msgspec.json.encode(_document(resource, settings, context.config.auth.realm))

        async def show() -> Response[bytes]:
            return Response(body, media_type="application/json", headers={"cache-control": "public, max-age=300"})

        paths = list(dict.fromkeys([RESOURCE_METADATA, resource_metadata_path(resource)]))
        return [HTTPRouteHandler(paths, http_method="GET", opt={"action": "public"}, status_code=200)(show)]

    @hookimpl
    def appliance_lifespan(self, settings: OAuthSettings, context: AppContext) -> Lifespan:
        """Fetches keys while the server runs."""
        return _life(self._shared(settings, context), self._issuers)

    def _shared(self, settings: OAuthSettings, context: AppContext) -> OAuthTokens:
        if self._tokens is None:
            auth = context.config.auth
            check(settings, frozenset(ROLES) | frozenset(auth.roles))
            self._issuers = [Issuer(each, Path(context.config.folder)) for each in settings.issuers]
            self._tokens = OAuthTokens(self._issuers, context.config.server.client_certificate_header)
        return self._tokens


def _document(resource: str, settings: OAuthSettings, name: str) -> dict[str, object]:
    """RFC 9728 section 2."""
    return {
        "resource": resource,
        "resource_name": name,
        "authorization_servers": [issuer.issuer for issuer in settings.issuers],
        "scopes_supported": sorted(SCOPES.keys() - {"*"}),
        "bearer_methods_supported": ["header"],
    }


@asynccontextmanager
async def _life(tokens: OAuthTokens, issuers: Sequence[Issuer]) -> AsyncIterator[None]:
    """The server starts whether or not the issuers answer."""
    for issuer in issuers:
        issuer.open()
    fetching = [asyncio.create_task(issuer.keys.keep_fresh()) for issuer in issuers]
    try:
        yield
    finally:
        for task in fetching:
            task.cancel()
        await asyncio.wait(fetching)
        await tokens.close()
        for issuer in issuers:
            await issuer.close()
