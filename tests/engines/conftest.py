"""Fixtures for engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from engine_upstream import UpstreamServer, hello
from engines_kit import make_vllm
from openai_engine_kit import make

from appliance_engines.openai import OpenAIEngine
from appliance_engines.vllm import VllmEngine


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker that the hook below reads."""
    config.addinivalue_line("markers", "own_vllm: starts a vLLM beside the session's")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts a vLLM of its own comes before the session's, so that there are never two."""
    items.sort(key=lambda item: item.get_closest_marker("own_vllm") is None)


@pytest.fixture
async def upstream() -> AsyncIterator[UpstreamServer]:
    """A server that answers like a model that says "Hello there."; set ``script`` for anything else."""
    upstream = UpstreamServer(hello)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    yield upstream
    server.close()


@pytest.fixture
async def engine(upstream: UpstreamServer) -> AsyncIterator[OpenAIEngine]:
    """The engine ``openai`` before that server."""
    engine = make(upstream.base_url, model="upstream-model")
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture(scope="session")
def vllm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's vLLM keeps its socket and log; also the mark of its processes."""
    return tmp_path_factory.mktemp("vllm")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_engine(vllm_folder: Path) -> AsyncIterator[VllmEngine]:
    """One real vLLM for the whole session. Its tests need ``pytest.mark.asyncio(loop_scope="session")``."""
    engine = make_vllm(vllm_folder, mark=str(vllm_folder))
    await engine.start()
    yield engine
    await engine.stop()
