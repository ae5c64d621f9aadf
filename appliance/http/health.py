"""The probes: ``/livez`` says that the process runs, whatever else; ``/readyz`` that requests can be answered."""

from __future__ import annotations

import asyncio

import msgspec
from litestar import Response

from appliance import __version__
from appliance.http.requests import HttpRequest, answer, runtime


class Health(msgspec.Struct, kw_only=True):
    """``ok``, or what is not well, by part. ``warnings`` are of what keeps no other request from its answer."""

    status: str
    version: str = __version__
    problems: dict[str, str] = {}
    warnings: dict[str, str] = {}


async def livez(request: HttpRequest) -> Response[bytes]:
    """Say that the process runs."""
    return answer(Health(status="ok"))


async def readyz(request: HttpRequest) -> Response[bytes]:
    """Say whether requests can be answered; 503 with the reasons if not."""
    services = runtime(request)
    problems, warnings = await asyncio.gather(services.ill(), services.warnings())
    found = Health(status="unavailable" if problems else "ok", problems=problems, warnings=warnings)
    return answer(found, 503 if problems else 200)
