"""Puts the routes, the guard and the error handler into a Litestar app. Builds; starts nothing."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin

from appliance.errors import PluginError
from appliance.http.errors import handle
from appliance.http.guard import ACTION, DEFERS, guard
from appliance.http.mounting import identified, route_handlers
from appliance.http.routes import TABLE
from appliance.permissions import PERMISSIONS, PUBLIC
from appliance.runtime import Runtime


class _App(Litestar):
    """Litestar, which loads its pydantic support (0.2 s, 15 MiB) only where a plugin uses pydantic."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        if "pydantic" in sys.modules:
            return Litestar._get_default_plugins(plugins)
        return [*plugins, MsgspecDIPlugin()]


def create_app(runtime: Runtime, *, manage: bool = True) -> Litestar:
    """The ASGI app around a runtime. With ``manage`` its lifespan starts and stops the runtime, engines included."""
    config = runtime.config
    origins = list(config.server.cors_origins)
    app = _App(
        [
            *route_handlers(config.auth.public_docs),
            Router(
                "/",
                route_handlers=_plugin_routes(runtime),
                middleware=[identified],
                request_max_body_size=config.server.max_json_bytes,
            ),
        ],
        guards=[guard],
        exception_handlers={Exception: handle},
        lifespan=[_lifespan(runtime)] if manage else [],
        state=State({"runtime": runtime}),
        cors_config=CORSConfig(allow_origins=origins) if origins else None,
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,  # the core's routes count for themselves
        debug=False,
    )
    _check_actions(app)
    runtime.context.front.bind(app, runtime.pipeline, config.server)
    return app


def _lifespan(runtime: Runtime) -> Any:
    @asynccontextmanager
    async def life(_: Litestar) -> AsyncIterator[None]:
        await runtime.start()
        try:
            await runtime.start_engines()
            yield
        finally:
            await runtime.stop()

    return life


def _plugin_routes(runtime: Runtime) -> list[BaseRouteHandler]:
    """Routes of plugins, guarded like all others."""
    handlers = []
    paths = {entry.path for entry in TABLE}
    for name, handler in runtime.plugins.routes():
        if not handler.paths:
            raise PluginError(f"plugin {name}: a route has no path")
        taken = handler.paths & paths
        if taken:
            raise PluginError(f"plugin {name}: the path {min(taken)} exists already; choose another")
        paths |= handler.paths
        if DEFERS in handler.opt:
            raise PluginError(
                f"plugin {name}: the route {min(handler.paths)} may not set {DEFERS} in its opt; remove it"
            )
        _check_action(handler, f"plugin {name}: the route {min(handler.paths)}")
        handlers.append(handler)
    return handlers


def _check_actions(app: Litestar) -> None:
    """Deny by default, once more, over what Litestar really routes."""
    for route in app.routes:
        for handler in [getattr(route, "route_handler", None), *getattr(route, "route_handlers", [])]:
            if handler is not None and set(getattr(handler, "http_methods", ())) != {"OPTIONS"}:
                _check_action(handler, f"the route {route.path}")


def _check_action(handler: BaseRouteHandler, where: str) -> None:
    """Raises PluginError for a route that names no permission, or one that nobody can have."""
    action = handler.opt.get(ACTION)
    if action is None:
        raise PluginError(
            f'{where} names no permission; give it opt={{"{ACTION}": "admin"}} or another of docs/access.md'
        )
    if action != PUBLIC and action not in PERMISSIONS:
        raise PluginError(f"{where} needs the unknown permission {action!r}; name one of docs/access.md, or {PUBLIC}")
