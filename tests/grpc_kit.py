"""An app that answers by gRPC on a loopback port, and a channel to it with the calls of its services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from litestar import Litestar

from appliance.plugin import KeyStore
from appliance.runtime import Runtime
from appliance.storage.database import Database
from appliance.testing import Emit, ScriptedEngine, ScriptedPlugin, make_app, serving
from appliance.testing.scripted import Script
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance_plugins.grpc import Plugin, inference_pb2, open_inference_pb2

SECONDS = 20
"""For one call."""
SERVICES = {
    service.full_name: service
    for module in (inference_pb2, open_inference_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}
MODELS = [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}]


@dataclass
class GrpcBox:
    """A served app with what tests ask of it."""

    app: Litestar
    channel: grpc.aio.Channel
    address: str
    url: str
    engine: ScriptedEngine
    admin: str
    """A key that may do everything, where there are keys."""

    @property
    def runtime(self) -> Runtime:
        runtime: Runtime = self.app.state.runtime
        return runtime

    def call(
        self,
        method: str,
        request: Any,
        service: str = "appliance.v1.Inference",
        key: str | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """Begin a call, of whichever kind it is; a stream of requests is a list of them."""
        described = SERVICES[service].methods_by_name[method]
        takes = "stream" if described.client_streaming else "unary"
        gives = "stream" if described.server_streaming else "unary"
        begin = getattr(self.channel, f"{takes}_{gives}")(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(described.output_type).FromString,
        )
        credential = [("authorization", f"Bearer {key}")] if key else []
        return begin(_sent(request), metadata=(*credential, *metadata), timeout=SECONDS)


def empty(service: str, method: str) -> Any:
    """The call's request, with nothing in it; a list of one where requests are streamed."""
    described = SERVICES[service].methods_by_name[method]
    message = GetMessageClass(described.input_type)()
    return [message] if described.client_streaming else message


async def outcome(call: Any) -> grpc.StatusCode:
    """How a call ends, whichever kind it is; a stream is read up to its first message."""
    try:
        if hasattr(call, "__aiter__"):
            await anext(aiter(call))
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    except StopAsyncIteration:
        return grpc.StatusCode.OK
    return grpc.StatusCode.OK


async def _first_key(app: Litestar) -> str:
    """Made before the app starts: from the first key on callers are asked who they are."""
    database = Database(app.state.runtime.config.database_url)
    await database.start()
    try:
        return (await KeyStore(database).create(name="admin", roles=["admin"]))[1]
    finally:
        await database.stop()


def _sent(request: Any) -> Any:
    if not isinstance(request, list):
        return request

    async def each() -> AsyncIterator[Any]:
        for item in request:
            yield item

    return each()


@asynccontextmanager
async def grpc_box(
    folder: Path,
    script: Script | None = None,
    config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    **plugins: object,
) -> AsyncIterator[GrpcBox]:
    """Serve an app with one scripted model ``m`` and a scripted embedder ``words`` by HTTP and gRPC."""
    plugin, scripted = Plugin(), ScriptedPlugin(script if script is not None else [Emit("hello")])
    given = {"models": MODELS} | dict(config or {})
    given["plugins"] = [*given.get("plugins", ()), "grpc"]
    given["plugin"] = {"grpc": {"port": 0} | dict(settings or {})} | dict(given.get("plugin", {}))
    everything = {"scripted": scripted, "scripted_embedder": ScriptedEmbedder(), **plugins, "grpc": plugin}
    app = make_app(given, plugins=everything, folder=folder)
    admin = await _first_key(app) if "api_keys" in given["plugins"] else ""
    async with serving(app) as url:
        address = f"localhost:{plugin.port}"
        channel = grpc.aio.secure_channel(address, credentials) if credentials else grpc.aio.insecure_channel(address)
        async with channel:
            yield GrpcBox(app, channel, address, url, scripted.engine, admin)
