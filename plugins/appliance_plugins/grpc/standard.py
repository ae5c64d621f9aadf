"""gRPC's own health service: the state of the server, and of each service, which is the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from appliance.plugin import Front, Unavailable
from appliance_plugins.grpc.calls import Context, asked_by

WATCH_SECONDS = 1.0
"""How often a watched state is looked at."""
_Status: Any = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """``grpc.health.v1.Health``, as ``/readyz`` says."""

    def __init__(self, front: Front, services: tuple[str, ...]) -> None:
        self._front = front
        self._services = ("", *services)

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> Any:  # noqa: N802
        """``SERVING`` or ``NOT_SERVING``; the status ``NOT_FOUND`` for an unknown service."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service; leave service empty")
        return _Status(status=await self._status(context))

    async def List(self, request: Any, context: Context) -> Any:  # noqa: N802
        """The state of all services."""
        status = _Status(status=await self._status(context))
        made: Any = health_pb2  # its type stubs do not know List yet
        return made.HealthListResponse(statuses=dict.fromkeys(self._services, status))

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[Any]:
        """The state now and at each change, until the client leaves."""
        told = None
        while True:
            known = request.service in self._services
            status = await self._status(context) if known else _Status.SERVICE_UNKNOWN
            if status != told:
                told = status
                yield _Status(status=status)
            await asyncio.sleep(WATCH_SECONDS)

    async def _status(self, context: Context) -> Any:
        try:
            async with self._front.ask(asked_by(context, "GET", "/readyz")) as reply:
                return _Status.SERVING if reply.status == 200 else _Status.NOT_SERVING
        except Unavailable:  # the server is about to stop
            return _Status.NOT_SERVING
