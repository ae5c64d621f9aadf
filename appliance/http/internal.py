"""Requests of the server to itself: a hot route answers without a connection, exactly as it answers a client."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from appliance.audit import ORIGIN, Origin
from appliance.batches.results import Answered
from appliance.http.chat import HOT_ROUTES
from appliance.http.responses import RESPONSES_ROUTE
from appliance.types import Principal

if TYPE_CHECKING:
    from appliance.runtime import Runtime

ROUTES = {route.path: route for route in (*HOT_ROUTES, RESPONSES_ROUTE)}
"""Routes that can be asked, by path."""


async def ask(runtime: Runtime, path: str, body: bytes, principal: Principal, request_id: str) -> Answered:
    """Have a route answer a body on behalf of a principal, who is not authenticated again. Never streams."""
    ORIGIN.set(Origin(request_id))
    scope: Any = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "user": principal,
        "litestar_app": SimpleNamespace(state=SimpleNamespace(runtime=runtime)),
        "state": {"request_id": request_id, "headers": {}, "began": time.perf_counter(), "background": True},
    }
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        """The body, and then nothing: nobody leaves."""
        return messages.pop() if messages else await asyncio.Future()

    async def send(message: Any) -> None:
        sent.append(message)

    await ROUTES[path](scope, receive, send)
    headers = dict(sent[0]["headers"])
    retry_after = headers.get(b"retry-after")
    return Answered(
        status=sent[0]["status"],
        body=b"".join(message["body"] for message in sent[1:]),
        retry_after=float(retry_after) if retry_after else None,
        again=headers.get(b"x-should-retry") != b"false",
    )
