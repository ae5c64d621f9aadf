"""The gRPC server of one app: its services, its port, its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from appliance.plugin import AppContext, ConfigError, StartError
from appliance_plugins.grpc import inference_pb2, open_inference, open_inference_pb2, service
from appliance_plugins.grpc.guard import Guard, check_declared
from appliance_plugins.grpc.standard import Health

if TYPE_CHECKING:
    from appliance_plugins.grpc import GrpcSettings

log = logging.getLogger("appliance.grpc")
_MAX_METADATA_BYTES = 32 * 1024
_MAX_REPLY_BYTES = 256 * 2**20
_END_SECONDS = 1.0
"""For calls to say how they end: those that run have had ``server.shutdown_grace`` before, and ``Watch`` has no end."""
_LOOK_SECONDS = 0.1
"""How soon it is seen that a server is broken."""


@asynccontextmanager
async def serving(settings: GrpcSettings, context: AppContext) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port. Raises ConfigError, StartError."""
    kept = _Kept(settings, context)
    port = await kept.start(settings.port)
    log.info("gRPC listens on %s:%d%s", settings.host, port, "" if settings.tls_certificate else " without TLS")
    watch = asyncio.create_task(kept.watch(port))
    try:
        yield port
    finally:
        watch.cancel()
        await asyncio.wait({watch})
        await kept.stop()


class _Kept:
    """A server, and another one once it is broken.

    grpcio reads the name of each call in the one loop that takes all calls in, and a name that is no UTF-8 ends the
    loop (1.85): whoever reaches the port could end the service for everybody. Calls that run go on in the old server.
    """

    def __init__(self, settings: GrpcSettings, context: AppContext) -> None:
        self._settings, self._context = settings, context
        self._grace = context.config.server.shutdown_grace
        self._server: grpc.aio.Server | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> int:
        """Begin to listen; gives the port. Raises ConfigError, StartError."""
        made = _made(self._settings, self._context)
        found = _bind(made, self._settings, port, Path(self._context.config.folder))
        await made.start()
        self._server = made
        return found

    async def watch(self, port: int) -> None:
        """See to it that there is one, until cancelled."""
        while True:
            if self._server is not None and (reason := await _broken(self._server)):
                log.error("gRPC broke (%s) and is started again", reason)
                ending = asyncio.create_task(self._server.stop(self._grace))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
                self._server = None
            if self._server is None:
                try:
                    await self.start(port)
                except Exception as error:  # above all where the old one has not let go of the port yet
                    log.warning("%s", error, exc_info=None if isinstance(error, ConfigError | StartError) else error)
                    await asyncio.sleep(_LOOK_SECONDS)

    async def stop(self) -> None:
        """End the calls that run."""
        ending = [*self._ending, *([self._server.stop(_END_SECONDS)] if self._server else [])]
        await asyncio.gather(*ending, return_exceptions=True)


async def _broken(server: grpc.aio.Server) -> str:
    """What broke a server, once something has."""
    try:
        while await server.wait_for_termination(_LOOK_SECONDS):
            pass
    except Exception as error:  # noqa: BLE001 - whatever ended its loop
        return type(error).__name__
    return "it has ended"


def _made(settings: GrpcSettings, context: AppContext) -> grpc.aio.Server:
    """Raises PluginError for a call without a declared permission."""
    server: Any = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # a second server on the port is a mistake, not a helper
            ("grpc.max_receive_message_length", context.config.server.max_json_bytes),
            ("grpc.max_send_message_length", _MAX_REPLY_BYTES),
            ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
        ],
        interceptors=[Guard(context.front)],
        maximum_concurrent_rpcs=settings.max_concurrent_calls,
    )
    # What waits for calls of registered methods is freed while gRPC's core writes to it, once the loop is broken.
    server.add_registered_method_handlers = lambda *_: None
    _add_services(server, settings, context)
    return server


def _add_services(server: grpc.aio.Server, settings: GrpcSettings, context: AppContext) -> None:
    """Raises PluginError for a call without a declared permission."""
    described = [
        found
        for module in (inference_pb2, open_inference_pb2, health_pb2, reflection_pb2)
        for found in module.DESCRIPTOR.services_by_name.values()
    ]
    check_declared(described)
    names = [found.full_name for found in described]
    oip = open_inference.OpenInference(context, version("rag-appliance"))
    for name, handlers in ((service.NAME, service.handlers(context.front)), (open_inference.NAME, oip.handlers())):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    health_pb2_grpc.add_HealthServicer_to_server(Health(context.front, tuple(names[:2])), server)
    if settings.reflection:
        reflection.enable_server_reflection(names, server)


def _bind(server: grpc.aio.Server, settings: GrpcSettings, wanted: int, folder: Path) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{wanted}"
    try:
        if settings.tls_certificate is None:
            port: int = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _credentials(settings, folder))
    except RuntimeError:
        raise StartError(
            f"plugin.grpc: cannot listen on {address}; choose another port or address, and see that certificate and "
            "key belong together"
        ) from None
    return port


def _credentials(settings: GrpcSettings, folder: Path) -> grpc.ServerCredentials:
    key = _read(folder, "tls_key", settings.tls_key or "")
    certificate = _read(folder, "tls_certificate", settings.tls_certificate or "")
    authorities = _read(folder, "tls_client_ca", settings.tls_client_ca) if settings.tls_client_ca else None
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=authorities, require_client_auth=authorities is not None
    )


def _read(folder: Path, name: str, path: str) -> bytes:
    try:
        return (folder / path).read_bytes()
    except OSError as error:
        raise ConfigError(f"plugin.grpc.{name}: {path} cannot be read ({error.strerror})") from None
