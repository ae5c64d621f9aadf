"""Two appliances for real clients: ``acting`` whose every byte tests know, and the real model's (``appliance``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from loopback import build_app, served_in_thread

from appliance.testing.scripted_embedder import ScriptedEmbedder
from clients.acting import act

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "second", "engine": "scripted"},
        {"name": "words", "embedder": "scripted_embedder"},
    ],
    "retrieval": {"vector_store": "memory", "chunk_size": 120, "chunk_overlap": 20},
}


def pytest_configure(config: pytest.Config) -> None:
    """The marks in LangChain's suites belong to plugins that nothing here needs (see addopts)."""
    for mark in ("benchmark", "vcr"):
        config.addinivalue_line("markers", f"{mark}: of LangChain's suites")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the class of a suite says: a skip would say that something is missing here."""
    left_out = [
        item for item in items if item.name.partition("[")[0] in getattr(getattr(item, "cls", None), "left_out", ())
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL, without ``/v1``, of an appliance whose model ``m`` acts by rules and whose embedder is ``words``."""
    folder = tmp_path_factory.mktemp("acting")
    app, _ = build_app(folder, act, CONFIG, scripted_embedder=ScriptedEmbedder())
    with served_in_thread(app) as url:
        yield url


@pytest.fixture(params=["sync", "async"])
async def client(request: pytest.FixtureRequest, acting: str) -> AsyncIterator[openai.OpenAI | openai.AsyncOpenAI]:
    """The official client in both its forms; see ``clients.either``."""
    options = {"base_url": f"{acting}/v1", "api_key": "none", "max_retries": 0, "timeout": 20}
    if request.param == "sync":
        with openai.OpenAI(**options) as client:
            yield client
    else:
        async with openai.AsyncOpenAI(**options) as client:
            yield client
