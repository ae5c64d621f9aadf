"""Who may call what: every call of every service has a line here, or the server does not start.

A call that is answered by a route (``ROUTE``) is guarded there, by the permission that docs/api.md names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError

from appliance.plugin import ApplianceError, Front, PluginError
from appliance_plugins.grpc.calls import Context, abort, asked_by, failure

ROUTE = "route"
KNOWN = "known"
"""Anybody with a credential, whatever it allows."""
MESSAGE_SECONDS = 30.0
"""How long a call may take to bring its message: until then it holds one of ``max_concurrent_calls``."""

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
    """Asks who calls, before a message is read: a route asks again, for what it needs."""

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
        return _guarded(handler, self._gate(ACCESS[service][method], path))

    def _gate(self, action: str, path: str) -> Callable[[Context], Awaitable[None]]:
        async def gate(context: Context) -> None:
            try:
                needed = None if action in (KNOWN, ROUTE) else action
                await self._front.authorize(asked_by(context, "POST", path), needed)
            except ApplianceError as error:
                await abort(context, failure(error))

        return gate


def _guarded(handler: Any, gate: Callable[[Context], Awaitable[None]]) -> Any:
    """The same handler, which asks who calls before it reads anything.

    To gRPC each is one of a stream of requests: it would read the one request of the others whole, and wait for it as
    long as it takes, before it asks anybody.
    """
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    streamed, read = handler.request_streaming, handler.request_deserializer

    async def given(requests: Any, context: Context) -> Any:
        await gate(context)
        return requests if streamed else await _only(requests, read, context)

    async def one(requests: Any, context: Context) -> Any:
        return await behaviour(await given(requests, context), context)

    async def many(requests: Any, context: Context) -> AsyncIterator[Any]:
        async with aclosing(behaviour(await given(requests, context), context)) as found:
            async for answer in found:
                yield answer

    answers = many if handler.response_streaming else one
    gives = "stream" if handler.response_streaming else "unary"
    make = getattr(grpc, f"stream_{gives}_rpc_method_handler")
    return make(answers, read if streamed else None, handler.response_serializer)


async def _only(requests: AsyncIterator[bytes], read: Callable[[bytes], Any], context: Context) -> Any:
    """The one message of a call."""
    try:
        async with asyncio.timeout(MESSAGE_SECONDS):
            return read(await anext(requests))
    except TimeoutError:
        told = f"the call brought no message within {MESSAGE_SECONDS:.0f} seconds; send it again"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, told)
    except StopAsyncIteration:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call brought no message; send one")
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the message cannot be read; make it by the .proto file")
    raise AssertionError("abort raises")
