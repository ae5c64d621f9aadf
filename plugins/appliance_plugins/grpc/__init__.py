"""Plugin ``grpc``: chat, completions, embeddings, reranking and search by gRPC, and the Open Inference Protocol.

    plugin:
      grpc:
        port: 50051
        reflection: true
        tls_certificate: server.pem
        tls_key: server.key

Every call takes the path of the same call by HTTP: credentials, permissions, limits, filters, retrieval, audit and
traces are those of its route. docs/grpc.md has the services, clients and error codes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec

from appliance.plugin import AppContext, ConfigError, Lifespan, Strict, hookimpl, is_loopback


class GrpcSettings(Strict, frozen=True):
    """Where gRPC listens. Paths are relative to the configuration file."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 50051
    """0 takes a free one; the log says which."""
    reflection: bool = False
    """Whether clients may ask for the services' descriptors (permission ``docs.read``)."""
    max_concurrent_calls: Annotated[int, msgspec.Meta(ge=1)] = 1000
    """Calls at once; more are answered ``RESOURCE_EXHAUSTED``."""
    tls_certificate: str | None = None
    """PEM file of the certificate chain; without it calls come in the clear."""
    tls_key: str | None = None
    tls_client_ca: str | None = None
    """PEM file of the authorities whose certificates a client must have."""


class Plugin:
    """One instance an app."""

    def __init__(self) -> None:
        self.port: int | None = None
        """Where it listens, once it does."""

    @hookimpl
    def appliance_settings(self) -> type[msgspec.Struct]:
        """The block under ``plugin.grpc``."""
        return GrpcSettings

    @hookimpl
    def appliance_lifespan(self, settings: GrpcSettings, context: AppContext) -> Lifespan:
        """Serves while the app lives."""
        if (settings.tls_certificate is None) != (settings.tls_key is None):
            raise ConfigError("plugin.grpc: tls_certificate and tls_key belong together; set both or neither")
        if settings.tls_client_ca and not settings.tls_certificate:
            raise ConfigError("plugin.grpc.tls_client_ca: needs tls_certificate and tls_key; set them too")
        return self._life(settings, context)

    @asynccontextmanager
    async def _life(self, settings: GrpcSettings, context: AppContext) -> AsyncIterator[None]:
        # gRPC's core would make ready for a fork whenever a child is started, and say on the terminal that it cannot;
        # children are other programs, which know nothing of it. Read once, when the library is first used.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        from appliance_plugins.grpc.server import serving

        open_to_all = not context.front.guarded and not context.config.server.allow_unauthenticated
        if open_to_all and not is_loopback(settings.host):
            raise ConfigError(
                f"plugin.grpc.host: {settings.host} is open to other machines but nothing checks who calls; create a "
                "key and list grpc behind the authenticators, or bind 127.0.0.1"
            )
        async with serving(settings, context) as self.port:
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            context.front.listening["gRPC"] = f"{host}:{self.port}"
            yield
