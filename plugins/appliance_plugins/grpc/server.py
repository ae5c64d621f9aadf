"""The gRPC server of one app: its services, its port, its end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

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


@asynccontextmanager
async def serving(settings: GrpcSettings, context: AppContext) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port. Raises ConfigError, StartError."""
    server = grpc.aio.server(
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
    _add_services(server, settings, context)
    port = _bind(server, settings, Path(context.config.folder))
    await server.start()
    log.info("gRPC listens on %s:%d%s", settings.host, port, "" if settings.tls_certificate else " without TLS")
    try:
        yield port
    finally:
        await server.stop(context.config.server.shutdown_grace)


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


def _bind(server: grpc.aio.Server, settings: GrpcSettings, folder: Path) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.port}"
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
