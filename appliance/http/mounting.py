"""The handlers of the route table, as Litestar takes them, with all that surrounds each."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cache, wraps
from typing import Any, cast

from litestar import Request, Response
from litestar.handlers import ASGIRouteHandler, BaseRouteHandler, HTTPRouteHandler
from litestar.response import Stream
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from appliance.errors import MethodNotAllowed
from appliance.http import audit, hot
from appliance.http.admitting import admitted
from appliance.http.errors import FORM
from appliance.http.guard import ACTION, ALSO, DEFERS, OTHER_ACTIONS
from appliance.http.idempotency import idempotent
from appliance.http.request_id import answer_headers
from appliance.http.requests import HttpRequest
from appliance.http.routes import TABLE, Entry, Handler
from appliance.permissions import PUBLIC


def route_handlers(public_docs: bool) -> list[BaseRouteHandler]:
    """Litestar's handlers for the whole table; each app has its own."""
    return [copy(handler) for handler in _made(public_docs)]


@cache
def _made(public_docs: bool) -> list[BaseRouteHandler]:
    """Made once, with what Litestar reads in their signatures: half the time that it takes to build an app."""
    made = _of_table(public_docs)
    for handler in made:
        handler.parsed_fn_signature  # noqa: B018 - it keeps it, and so do its copies
    return made


def _of_table(public_docs: bool) -> list[BaseRouteHandler]:
    mounts = {entry.path: entry for entry in TABLE if isinstance(entry.handler, hot.Route)}
    plain = [entry for entry in TABLE if entry.path not in mounts]
    beside = [entry for entry in TABLE if entry.path in mounts and entry is not mounts[entry.path]]
    return [
        *(_mount(entry, [other for other in beside if other.path == path]) for path, entry in mounts.items()),
        *(_handler(entry, public_docs) for entry in plain),
    ]


def _mount(entry: Entry, beside: list[Entry]) -> BaseRouteHandler:
    """A hot route. Litestar gives a mount every method, so what else is on its path is told apart here."""
    route = entry.handler
    if not isinstance(route, hot.Route):
        raise TypeError(f"{entry.path} is no hot route")
    others = {method: other for other in beside for method in _methods(other)}
    actions = {method: other.action for method, other in others.items()}
    opt: dict[str, Any] = {ACTION: entry.action, OTHER_ACTIONS: actions, FORM: route.form, DEFERS: True}
    apps = {method: _as_app(_wrapped(other)) for method, other in others.items()}
    app = _by_method({entry.method: route, **apps}) if apps else route.__call__
    return ASGIRouteHandler(entry.path, opt=opt, copy_scope=False)(app)


def _by_method(apps: Mapping[str, ASGIApp]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found = apps.get(cast("Any", scope)["method"])
        if found is None:
            raise MethodNotAllowed("this path does not take that method; see GET /openapi.json", allow=", ".join(apps))
        await found(scope, receive, send)

    return app


def _as_app(handler: Handler) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request: HttpRequest = Request(cast("HTTPScope", scope), receive, send)
        response = await handler(request)
        await response.to_asgi_response(None, request)(scope, receive, send)

    return app


def _handler(entry: Entry, public_docs: bool) -> BaseRouteHandler:
    action = PUBLIC if public_docs and entry.action == "docs.read" else entry.action
    opt = {ACTION: action, DEFERS: True, **({ALSO: entry.also} if entry.also else {})}
    route = HTTPRouteHandler(entry.path, http_method=_methods(entry), opt=opt, status_code=200)  # type: ignore[arg-type]
    return route(_wrapped(entry))


def _methods(entry: Entry) -> list[str]:
    """RFC 9110 section 9.1: who takes GET takes HEAD; the server leaves out the body."""
    return ["GET", "HEAD"] if entry.method == "GET" else [entry.method]


def _wrapped(entry: Entry) -> Handler:
    """An ordinary handler with all that surrounds it."""
    if isinstance(entry.handler, hot.Route):
        raise TypeError(f"{entry.path} is a hot route")
    handler = audit.reporting(entry.handler, entry.audit) if entry.audit else entry.handler
    if entry.method == "POST" and entry.action.endswith(".write"):
        handler = admitted(handler, keeps=entry.keeps, uploads=entry.form is not None)
    if entry.takes_key:
        handler = idempotent(handler)
    return _with_headers(handler)


def identified(app: ASGIApp) -> ASGIApp:
    """A middleware for routes of plugins, of whatever kind: the same two headers in their answers."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = list(message["headers"])
                names = {name.lower() for name, _ in sent}
                added = answer_headers(scope.get("state", {})).items()
                message["headers"] = sent + [(n.encode(), v.encode()) for n, v in added if n.encode() not in names]
            await send(message)

        await app(scope, receive, send_on)

    return answered


def _with_headers(handler: Handler) -> Handler:
    """The same handler, its answers carrying the request's id and how long it took."""

    @wraps(handler)
    async def answered(request: HttpRequest) -> Response[Any]:
        response = await handler(request)
        response.headers.update(answer_headers(request.scope["state"]))
        if request.method == "HEAD" and isinstance(response, Stream):
            response.iterator = ()  # RFC 9110 section 9.3.2: nobody gets what it would read
        return response

    return answered
