"""Authentication and authorization of every route, bound to the handler that was matched, never to a path.

Each route names the action it needs in ``opt``; a route without one does not get into the app. ``PUBLIC`` is for the
probes, which carry no data, and for what leads to a credential, as sign-ins and metadata do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from appliance.audit import ORIGIN, Origin
from appliance.http.addresses import client_address, headers_of
from appliance.http.hosts import check_host, check_page
from appliance.http.repeats import check_repeated
from appliance.http.request_id import request_id_of
from appliance.http.requests import any_model, runtime
from appliance.permissions import PUBLIC
from appliance.types import ANONYMOUS

ACTION = "action"
ALSO = "also"
"""In the ``opt`` of a route: an action that lets its callers in too; the handler decides how far they get."""
OTHER_ACTIONS = "other_actions"
"""In the ``opt`` of a route that serves several methods: the actions of those that need another, by method."""
DEFERS = "defers"
"""In the ``opt`` of the core's own routes: what asks for a model is authorized in the pipeline, for that model."""
_NONE: Mapping[str, str] = {}


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Find the caller and check the route's action. Raises BadRequest, Unauthenticated, Forbidden."""
    scope = connection.scope
    server = runtime(connection).config.server
    headers = headers_of(scope, server)
    state = scope.setdefault("state", {})
    state["began"] = time.perf_counter()
    state["headers"] = headers
    state["request_id"] = request_id = request_id_of(headers)
    ORIGIN.set(Origin(request_id, client_address(scope, server)))
    pipeline = runtime(connection).pipeline
    check_repeated(scope, headers, server, pipeline.trail)
    if server.enforce_allowed_hosts:
        check_host(headers, server)
    headers[":method"] = cast("Any", scope)["method"]  # as HTTP/2 has it; no header of HTTP/1.1 can have this name
    action = handler.opt.get(OTHER_ACTIONS, _NONE).get(headers[":method"]) or handler.opt.get(ACTION)
    if action == PUBLIC:
        scope["user"] = ANONYMOUS
        return
    principal = await pipeline.authenticate(headers, scope["query_string"])
    scope["user"] = principal
    if principal is ANONYMOUS:
        check_page(headers[":method"], headers, server)
    resource = scope["path"]
    if action == "models.use":
        if handler.opt.get(DEFERS):
            return
        resource = any_model(principal, resource)
    also = handler.opt.get(ALSO)
    if also is None or not await pipeline.may(principal, also, resource):
        await pipeline.authorize(principal, str(action), resource)
