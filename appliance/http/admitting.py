"""Limits of requests that ask no model: whoever makes or changes something that is kept is admitted first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from litestar import Response

from appliance.http.requests import HttpRequest, call_of, principal, runtime
from appliance.quotas import Reservation

Handler = Callable[[HttpRequest], Awaitable[Response[Any]]]


def admitted(handler: Handler, *, keeps: bool, uploads: bool) -> Handler:
    """The same handler, which counts as a request; ``keeps``: the tenant must have room for one object more.

    ``uploads``: for the announced bytes too.
    """

    @wraps(handler)
    async def answered(request: HttpRequest) -> Response[Any]:
        services, tenant = runtime(request), principal(request).tenant
        async with (
            services.pipeline.admitted(call_of(request.scope, "write", "", None)) as headers,
            services.quotas.reserving(tenant) as reserved,
        ):
            if keeps:
                await reserved.hold(objects=1, size=max(1, _announced(request)) if uploads else 0)
            request.scope["state"]["reserved"] = reserved
            response = await handler(request)
        response.headers.update(headers)
        return response

    return answered


def reservation(request: HttpRequest) -> Reservation:
    """What a request that keeps something has room for, until it is answered."""
    reserved: Reservation = request.scope["state"]["reserved"]
    return reserved


def _announced(request: HttpRequest) -> int:
    length = request.scope["state"]["headers"].get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 19 else 0
