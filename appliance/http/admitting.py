"""Limits of requests that ask no model: whoever makes or changes something that is kept is admitted first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from litestar import Response

from appliance.http.forms import OVERHEAD
from appliance.http.requests import HttpRequest, call_of, principal, runtime

Handler = Callable[[HttpRequest], Awaitable[Response[Any]]]


def admitted(handler: Handler, *, keeps: bool, uploads: bool) -> Handler:
    """The same handler, which counts as a request; ``keeps``: it makes an object, for which its tenant must have room.

    ``uploads``: a form brings a file, for which there must be room too, as far as its length is announced. That is
    looked at before anything is read; what is kept, the handler's own transaction counts.
    """

    @wraps(handler)
    async def answered(request: HttpRequest) -> Response[Any]:
        services = runtime(request)
        async with services.pipeline.admitted(call_of(request.scope, "write", "", None)) as headers:
            size = _announced(request) if uploads else 0
            await services.quotas.check(principal(request).tenant, objects=int(keeps), size=size)
            response = await handler(request)
        response.headers.update(headers)
        return response

    return answered


def _announced(request: HttpRequest) -> int:
    """How many bytes the file of a form has at least."""
    length = request.scope["state"]["headers"].get("content-length", "")
    return max(0, int(length) - OVERHEAD) if length.isascii() and length.isdigit() and len(length) < 19 else 0
