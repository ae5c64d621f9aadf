"""Every route of the core in one table: it drives routing, permissions, the OpenAPI document and tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from litestar import Response
from litestar.handlers import ASGIRouteHandler, BaseRouteHandler, HTTPRouteHandler

from appliance.http import chat, health, models, openapi
from appliance.http.guard import ACTION, PUBLIC
from appliance.http.tools import HttpRequest
from appliance.wire import ChatRequest, CompletionRequest, EmbeddingRequest

Handler = Callable[[HttpRequest], Awaitable[Response[bytes]]]


@dataclass(frozen=True)
class Entry:
    """One operation: ``action`` is what the caller must be allowed, ``body`` and ``returns`` document it."""

    method: str
    path: str
    action: str
    summary: str
    handler: Handler | chat.Route
    body: type[Any] | None = None
    returns: type[Any] | None = None


_hot = {route.path: route for route in chat.HOT_ROUTES}

TABLE: tuple[Entry, ...] = (
    Entry("POST", "/v1/chat/completions", "models.use", "Answer a chat", _hot["/v1/chat/completions"], ChatRequest),
    Entry("POST", "/v1/completions", "models.use", "Complete a text", _hot["/v1/completions"], CompletionRequest),
    Entry("POST", "/v1/embeddings", "models.use", "Embed texts", _hot["/v1/embeddings"], EmbeddingRequest),
    Entry("GET", "/v1/models", "models.read", "List the models", models.list_models, None, models.ModelList),
    Entry(
        "GET", "/v1/models/{model_id:path}", "models.read", "Get a model", models.get_model, None, models.ModelObject
    ),
    Entry("GET", "/livez", PUBLIC, "Is the process alive?", health.livez, None, health.Health),
    Entry("GET", "/readyz", PUBLIC, "Can requests be answered?", health.readyz, None, health.Health),
    Entry("GET", "/openapi.json", "docs.read", "This document", openapi.document),
)


def route_handlers(public_docs: bool) -> list[BaseRouteHandler]:
    """Litestar's handlers for the whole table."""
    return [_handler(entry, public_docs) for entry in TABLE]


def _handler(entry: Entry, public_docs: bool) -> BaseRouteHandler:
    action = PUBLIC if public_docs and entry.action == "docs.read" else entry.action
    opt = {ACTION: action}
    if isinstance(entry.handler, chat.Route):
        return ASGIRouteHandler(entry.path, opt=opt, copy_scope=False)(entry.handler.__call__)
    return HTTPRouteHandler(entry.path, http_method=entry.method, opt=opt, status_code=200)(_with_id(entry.handler))  # type: ignore[arg-type]


def _with_id(handler: Handler) -> Handler:
    """The same handler, its answers carrying the request's id."""

    @wraps(handler)
    async def answered(request: HttpRequest) -> Response[bytes]:
        response = await handler(request)
        response.headers["x-request-id"] = request.scope["state"]["request_id"]
        return response

    return answered
