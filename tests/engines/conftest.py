"""Fixtures for engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from engine_upstream import UpstreamServer, hello


@pytest.fixture
async def upstream() -> AsyncIterator[UpstreamServer]:
    """A server that answers like a model that says "Hello there."; set ``script`` for anything else."""
    upstream = UpstreamServer(hello)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    yield upstream
    server.close()
