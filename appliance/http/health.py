"""The probes: ``/livez`` says that the process runs, whatever else; ``/readyz`` that requests can be answered."""

from __future__ import annotations

import msgspec
from litestar import Response

from appliance import __version__
from appliance.http.requests import HttpRequest, answer, runtime


class Health(msgspec.Struct, kw_only=True):
    """``ok``, or what is not well, by part."""

    status: str
    version: str = __version__
    problems: dict[str, str] = {}


async def livez(request: HttpRequest) -> Response[bytes]:
    """Say that the process runs."""
    return answer(Health(status="ok"))


async def readyz(request: HttpRequest) -> Response[bytes]:
    """Say whether requests can be answered; 503 with the reasons if not."""
    problems = await runtime(request).ill()
    return answer(Health(status="unavailable" if problems else "ok", problems=problems), 503 if problems else 200)
