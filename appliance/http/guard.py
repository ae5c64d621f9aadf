"""Authentication and authorization of every route, bound to the handler that was matched, never to a path.

Each route names the action it needs in ``opt``; a route without one does not get into the app. ``PUBLIC`` is for
the probes, which carry no data.
"""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from appliance.http.request_id import request_id_of
from appliance.http.tools import runtime
from appliance.types import ANONYMOUS

ACTION = "action"
PUBLIC = "public"


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Find the caller and check the route's action. Raises Unauthenticated, Forbidden."""
    scope = connection.scope
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    state = scope.setdefault("state", {})
    state["headers"] = headers
    state["request_id"] = request_id_of(headers)
    action = handler.opt.get(ACTION)
    if action == PUBLIC:
        scope["user"] = ANONYMOUS
        return
    pipeline = runtime(connection).pipeline
    principal = await pipeline.authenticate(headers)
    scope["user"] = principal
    # The hot routes ask for their model in the pipeline.
    if action != "models.use":
        await pipeline.authorize(principal, str(action), scope["path"])
