"""A Milvus server that others get into is refused. Milvus Lite's own server, over TCP, stands in for one (B7)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from milvus_lite.adapter.grpc.server import start_server_in_thread
from milvus_lite.adapter.grpc.servicer import MilvusServicer
from pymilvus.grpc_gen import common_pb2, milvus_pb2

from appliance.plugin import AppContext, Config, ConfigError, Scope, StartError
from appliance.testing.contracts.vector_store import chunk, vectors
from appliance_retrieval import milvus_server
from appliance_retrieval.milvus import MilvusSettings, MilvusStore, make_store
from appliance_retrieval.milvus_server import is_unsafe

Open = Callable[..., MilvusStore]


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server says of itself: the last entry."""
    said = ["v2.6.10"]
    monkeypatch.setattr(MilvusServicer, "GetVersion", lambda *_: milvus_pb2.GetVersionResponse(version=said[-1]))
    return said


@pytest.fixture
async def open_store(tmp_path: Path, version: list[str]) -> AsyncIterator[Open]:
    """A store on a running server; the server asks for no password, so that every token is one it takes."""
    server, database, port = start_server_in_thread(str(tmp_path / "server"))
    milvus_server.warn_of_open_doors.cache_clear()
    yield lambda **given: MilvusStore(f"http://127.0.0.1:{port}", run_dir=tmp_path / "run", **given)
    await asyncio.to_thread(server.stop(grace=0).wait)
    database.close()


@pytest.mark.parametrize(
    ("version", "unsafe"),
    [
        ("2.6.9", True),
        ("v2.6.9-dev", True),
        ("2.6.10", False),
        ("v2.6.16", False),
        ("2.5.26", True),
        ("2.5.27", False),
        ("2.4.99", True),
        ("1.1.1", True),
        ("2.7.0", False),
        ("3.0.2", False),
        ("milvus_lite-3.2.2", False),
        ("Zilliz Cloud Vector Database(Compatible with Milvus 2.5)", False),
    ],
)
def test_b7_versions_with_a_known_hole_are_unsafe(version: str, unsafe: bool) -> None:
    assert is_unsafe(version) is unsafe


async def test_b7_an_old_server_stops_the_start(open_store: Open, version: list[str]) -> None:
    version.append("v2.6.9")
    with pytest.raises(StartError, match=r"Milvus v2\.6\.9 .*CVE-2026-26190.*update it to 2\.5\.27, 2\.6\.10"):
        await open_store().start()
    version.append("v2.6.10")
    store = open_store()
    await store.start()
    await store.stop()


async def test_b7_a_server_that_takes_the_first_password_stops_the_start(open_store: Open) -> None:
    for token in ("root:Milvus", "appliance:its own"):
        with pytest.raises(StartError, match="the password that every Milvus begins with") as refused:
            await open_store(token=token).start()
        assert token not in str(refused.value)


async def test_b7_open_doors_are_told_of_once(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as management:
        monkeypatch.setattr(milvus_server, "MANAGEMENT_PORT", management.getsockname()[1])
        with caplog.at_level(logging.WARNING, logger="appliance.milvus"):
            for _ in range(2):
                store = open_store()
                await store.start()
                await store.stop()
    told = [record.getMessage() for record in caplog.records if record.name == "appliance.milvus"]
    assert len(told) == 2
    assert "asks for no password" in told[0]
    assert "can be managed without a password" in told[1]


@pytest.mark.parametrize(
    "uri",
    ["ftp://milvus:19530", "http://", "http://root:secret@milvus:19530", "http://milvus:port", "https://[::1:19530"],
)
def test_d1_an_address_that_is_no_server_s_is_refused_at_once(tmp_path: Path, uri: str) -> None:
    context = AppContext(config=Config(folder=str(tmp_path)), database=cast("Any", None))
    with pytest.raises(ConfigError, match=r"plugin\.milvus\.uri: write it as https://host:19530") as refused:
        make_store(MilvusSettings(uri=uri), context)
    assert "secret" not in str(refused.value)


async def test_d1_no_proxy_of_the_environment_is_asked(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    store = open_store(timeout=10.0)
    await store.start()
    assert await store.collections() == []
    await store.stop()


def test_documents_in_the_clear_are_told_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(milvus_server, "_answers", lambda host, port: False)
    milvus_server.warn_of_open_doors.cache_clear()
    for uri in ("http://milvus.internal:19530", "https://milvus.internal:19530", "http://127.0.0.1:19530"):
        milvus_server.warn_of_open_doors(uri, with_token=True)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "appliance.milvus"]
    assert told.startswith("documents go to Milvus at http://milvus.internal:19530 in the clear")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Requests that the server gets, of some kinds."""
    found: dict[str, list[Any]] = {"CreateCollection": [], "Search": []}
    for name, requests in found.items():
        original = getattr(MilvusServicer, name)

        def noted(self: Any, request: Any, context: Any, original: Any = original, requests: Any = requests) -> Any:
            requests.append(request)
            return original(self, request, context)

        monkeypatch.setattr(MilvusServicer, name, noted)
    return found


async def test_b5_a_collection_of_one_store_s_own_is_asked_for_with_strong_consistency(
    asked: dict[str, list[Any]], open_store: Open
) -> None:
    """A search sees all that was written before it, on every replica of a Milvus server."""
    store = open_store()
    await store.start()
    for name in ("vs_1", "vs_2"):
        await store.create(name, 2)
    await store.upsert("vs_1", [chunk(0)], vectors((1, 0)))
    assert await store.search_dense("vs_1", vectors((1, 0)), limit=5, scope=Scope())
    await store.stop()
    strong = common_pb2.ConsistencyLevel.Strong
    assert [(found.collection_name, found.consistency_level) for found in asked["CreateCollection"]] == [
        ("vs_1", strong),
        ("vs_2", strong),
    ]
    assert asked["Search"]
    for search in asked["Search"]:
        assert search.collection_name == "vs_1"
        assert search.use_default_consistency or search.consistency_level == strong
