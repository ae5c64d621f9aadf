"""The plugin's hooks: sessions as credentials, the routes of a sign-in, and the commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from litestar.handlers import BaseRouteHandler

from appliance.plugin import AppContext, Authenticator, Lifespan, SessionStore, hookimpl
from appliance_auth.login.commands import CliClient, login, logout, token, whoami
from appliance_auth.login.cookies import CookieJar
from appliance_auth.login.sessions import BrowserSessions
from appliance_auth.login.settings import LoginSettings, check, issuer_of

if TYPE_CHECKING:
    from appliance_auth.login.provider import Provider


class Plugin:
    """One instance an app, so that the hooks share one provider."""

    def __init__(self) -> None:
        self._provider: Provider | None = None

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.login``."""
        return LoginSettings

    @hookimpl
    def appliance_authenticators(self, settings: LoginSettings, context: AppContext) -> Sequence[Authenticator]:
        """Sessions as credentials."""
        check(settings)
        return [_sessions(settings, context)] if settings.client_id else []

    @hookimpl
    def appliance_routes(self, settings: LoginSettings, context: AppContext) -> Sequence[BaseRouteHandler]:
        """``/auth/...``."""
        from appliance_auth.login.routes import Routes, cli_route, session_route

        check(settings)
        routes = [session_route()]
        if settings.cli_client_id:
            routes.append(cli_route(_cli_client(settings, settings.cli_client_id, context)))
        if settings.client_id:
            sessions, jar = _sessions(settings, context), _jar(settings)
            browser = Routes(self._shared(settings, context), _store(settings, context), sessions, jar, context.audit)
            routes += browser.handlers()
        return routes

    @hookimpl
    def appliance_lifespan(self) -> Lifespan:
        """Closes the provider's connections."""
        return self._life()

    @hookimpl
    def appliance_commands(self, cli: click.Group) -> None:
        """``appliance login``, ``logout``, ``whoami``, ``token``."""
        for command in (login, logout, whoami, token):
            cli.add_command(command)

    def _shared(self, settings: LoginSettings, context: AppContext) -> Provider:
        from appliance_auth.login.provider import Provider

        if self._provider is None:
            self._provider = Provider(settings, issuer_of(settings, context.config), Path(context.config.folder))
        return self._provider

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if self._provider:
                await self._provider.close()


def _jar(settings: LoginSettings) -> CookieJar:
    return CookieJar(secure=settings.public_url.startswith("https://"))


def _store(settings: LoginSettings, context: AppContext) -> SessionStore:
    return SessionStore(context.database, idle=settings.idle, lifetime=settings.lifetime)


def _sessions(settings: LoginSettings, context: AppContext) -> BrowserSessions:
    return BrowserSessions(_store(settings, context), _jar(settings), settings.public_url)


def _cli_client(settings: LoginSettings, client_id: str, context: AppContext) -> CliClient:
    issuer = issuer_of(settings, context.config).issuer
    resource = context.config.auth.resource if settings.cli_resource is None else settings.cli_resource
    return CliClient(issuer=issuer, client_id=client_id, scope=settings.cli_scope, resource=resource)
