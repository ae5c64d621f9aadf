"""Limits of requests that ask no model: whoever makes or changes something that is kept is admitted first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from litestar import Response

from appliance.http.requests import HttpRequest, call_of, principal, runtime

Handler = Callable[[HttpRequest], Awaitable[Response[Any]]]


def admitted(handler: Handler, *, keeps: bool, uploads: bool) -> Handler:
    """The same handler, which counts as a request; ``keeps``: the tenant must have room for one object more.

    ``uploads``: for the announced bytes too.
    """

    @wraps(handler)
    async def answered(request: HttpRequest) -> Response[Any]:
        services = runtime(request)
        async with services.pipeline.admitted(call_of(request.scope, "write", "", None)) as headers:
            if keeps:
                await services.quotas.check(principal(request).tenant, _announced(request) if uploads else None)
            response = await handler(request)
        response.headers.update(headers)
        return response

    return answered


def _announced(request: HttpRequest) -> int:
    length = request.scope["state"]["headers"].get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0
