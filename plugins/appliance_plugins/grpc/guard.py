"""Who may call what: every call of every service has a line here, or the server does not start.

A call that is answered by a route (``ROUTE``) is guarded there, by the permission that docs/api.md names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from appliance.plugin import ApplianceError, Front, PluginError
from appliance_plugins.grpc.calls import Context, abort, asked_by, failure

ROUTE = "route"
KNOWN = "known"
"""Anybody with a credential, whatever it allows."""

_INFERENCE, _OPEN = "appliance.v1.Inference", "inference.GRPCInferenceService"
_HEALTH, _REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
ACCESS: Mapping[str, Mapping[str, str]] = {
    _INFERENCE: {
        "Chat": ROUTE,
        "StreamChat": ROUTE,
        "Complete": ROUTE,
        "StreamComplete": ROUTE,
        "Embed": ROUTE,
        "Rerank": ROUTE,
        "Search": ROUTE,
        "ListModels": ROUTE,
    },
    _OPEN: {
        "ServerLive": KNOWN,
        "ServerReady": KNOWN,
        "ServerMetadata": KNOWN,
        "ModelReady": "models.read",
        "ModelMetadata": "models.read",
        "ModelInfer": KNOWN,  # and then its route, but nothing is said of the tensors to somebody unknown
        "ModelStreamInfer": KNOWN,
    },
    _HEALTH: {"Check": KNOWN, "List": KNOWN, "Watch": KNOWN},
    _REFLECTION: {"ServerReflectionInfo": "docs.read"},
}


def check_declared(services: Iterable[ServiceDescriptor]) -> None:
    """Raises PluginError for a call without a line in ``ACCESS``."""
    for service in services:
        for method in service.methods:
            if method.name not in ACCESS.get(service.full_name, {}):
                raise PluginError(
                    f"plugin grpc: the call {service.full_name}/{method.name} names no permission; give it one in "
                    "grpc/guard.py"
                )


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Asks who calls, for each call that no route guards."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Put the question before the call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None  # UNIMPLEMENTED, whatever the name looks like
        path = handler_call_details.method
        _, service, method = path.split("/")
        action = ACCESS[service][method]
        return handler if action == ROUTE else _guarded(handler, self._gate(action, path))

    def _gate(self, action: str, path: str) -> Callable[[Context], Awaitable[None]]:
        async def gate(context: Context) -> None:
            try:
                await self._front.authorize(asked_by(context, "POST", path), None if action == KNOWN else action)
            except ApplianceError as error:
                await abort(context, failure(error))

        return gate


def _guarded(handler: Any, gate: Callable[[Context], Awaitable[None]]) -> Any:
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    async def one(request: Any, context: Context) -> Any:
        await gate(context)
        return await behaviour(request, context)

    async def many(request: Any, context: Context) -> AsyncIterator[Any]:
        await gate(context)
        async for answer in behaviour(request, context):
            yield answer

    takes = "stream" if handler.request_streaming else "unary"
    gives = "stream" if handler.response_streaming else "unary"
    make = getattr(grpc, f"{takes}_{gives}_rpc_method_handler")
    return make(many if handler.response_streaming else one, handler.request_deserializer, handler.response_serializer)
