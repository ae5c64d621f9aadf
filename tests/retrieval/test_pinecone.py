"""The ``pinecone`` store by the official SDK, against a stand-in on loopback: the service is out of reach here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from pinecone._internal.config import RetryConfig
from pinecone_standin import DOCUMENTED, KEY, OF_THE_SDK, PineconeStandIn

from appliance.plugin import (
    AppContext,
    Config,
    ConfigError,
    RetrievalUnavailable,
    Scope,
    StartError,
    VectorStore,
)
from appliance.testing.contracts.vector_store import VectorStoreContract, chunk, vectors
from appliance_retrieval.pinecone import PineconeSettings, _same_domain, make_store


@pytest.fixture
async def standin() -> PineconeStandIn:
    return PineconeStandIn()


@pytest.fixture
async def url(standin: PineconeStandIn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setattr(RetryConfig.__init__, "__defaults__", (0, *RetryConfig.__init__.__defaults__[1:]))
    async with standin.serving() as url:
        yield url


def store_at(folder: Path, url: str, tenant: str | None = None, **given: Any) -> VectorStore:
    context = AppContext(config=Config(folder=str(folder)), database=cast("Any", None), tenant=tenant)
    return make_store(PineconeSettings(**{"api_key": KEY, "url": url, "timeout": 10.0} | given), context)


class TestPinecone(VectorStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path, url: str) -> AsyncIterator[VectorStore]:
        store = store_at(tmp_path, url)
        await store.start()
        yield store
        await store.stop()

    @pytest.fixture
    async def outage(self, standin: PineconeStandIn) -> Any:
        async def begin() -> None:
            standin.failing = 503

        return begin


async def fill(store: VectorStore, count: int = 3, collection: str = "vs_1") -> None:
    await store.create(collection, 2)
    await store.upsert(collection, [chunk(i) for i in range(count)], vectors(*((1, i) for i in range(count))))


async def test_b5_tenant_and_readers_are_a_term_of_every_query_and_no_text_leaves(
    tmp_path: Path, url: str, standin: PineconeStandIn
) -> None:
    store = store_at(tmp_path, url)
    await store.start()
    await store.create("vs_1", 2)
    secret = chunk(0, "walrus secret", attributes={"project": "walrus"}, readers=("user:alice@example.org",))
    await store.upsert("vs_1", [secret, chunk(1)], vectors((1, 0), (0, 1)))
    found = await store.search_dense("vs_1", vectors((1, 0)), limit=5, scope=Scope())
    assert [hit.chunk.position for hit in found] == [1]
    queries = [body for path, body in standin.requests if path == "/query"]
    assert queries
    for body in queries:
        assert body["filter"]["$and"][0]["access"]["$in"]
        assert body["namespace"] == "vs_1"
    told = str(standin.requests)
    for word in ("walrus", "alice", "default", "project", "file-a"):
        assert word not in told
    await store.stop()


async def test_b5_each_tenant_has_namespaces_of_its_own(tmp_path: Path, url: str, standin: PineconeStandIn) -> None:
    for tenant in ("a", "b"):
        store = store_at(tmp_path, url, tenant)
        await store.start()
        await fill(store)
        await store.stop()
    assert len(standin.namespaces) == 2
    assert all(name.startswith("t_") and name.endswith("/vs_1") for name in standin.namespaces)


async def test_collections_of_other_dimensions_get_an_index_of_their_own(
    tmp_path: Path, url: str, standin: PineconeStandIn
) -> None:
    store = store_at(tmp_path, url, index="kb", cloud="gcp", region="europe-west4")
    await store.start()
    await store.create("vs_1", 2)
    await store.create("vs_2", 3)
    assert sorted(standin.indexes) == ["kb-2", "kb-3"]
    spec = standin.indexes["kb-2"].spec.serverless
    assert spec is not None
    assert (spec.cloud, spec.region, standin.indexes["kb-2"].metric) == ("gcp", "europe-west4", "cosine")
    await store.stop()


@pytest.mark.parametrize("headers", [DOCUMENTED, OF_THE_SDK], ids=["documented", "of the SDK"])
async def test_sealing_waits_until_what_was_written_is_searched(
    tmp_path: Path, url: str, standin: PineconeStandIn, headers: tuple[str, str]
) -> None:
    standin.lsn_headers = headers
    store = store_at(tmp_path, url)
    await store.start()
    for other in ("vs_2", "vs_2"):  # writes elsewhere count by themselves, and ahead
        await fill(store, collection=other)
    standin.delayed = True
    await fill(store)
    standin.asked_while_behind.clear()
    sealing = asyncio.create_task(store.seal("vs_1"))
    await asyncio.wait_for(standin.asked_while_behind.wait(), 10)
    assert not sealing.done()
    standin.reconcile()
    await asyncio.wait_for(sealing, 10)
    assert len(await store.search_dense("vs_1", vectors((1, 0)), limit=5, scope=Scope())) == 3
    await store.stop()


async def test_what_is_not_searched_in_time_is_retrieval_unavailable_and_waited_for_again(
    tmp_path: Path, url: str, standin: PineconeStandIn
) -> None:
    store = store_at(tmp_path, url, seal_timeout=0.01)
    await store.start()
    standin.delayed = True
    await fill(store)
    for _ in range(2):
        with pytest.raises(RetrievalUnavailable, match="has not taken in"):
            await store.seal("vs_1")
    await store.stop()


async def test_a_seal_that_failed_or_was_cancelled_has_not_used_up_what_the_next_one_waits_for(
    tmp_path: Path, url: str, standin: PineconeStandIn
) -> None:
    store = store_at(tmp_path, url, seal_timeout=0.01)
    await store.start()
    standin.delayed = True
    await fill(store)
    standin.failing = 500
    with pytest.raises(RetrievalUnavailable, match="answered 500"):
        await store.seal("vs_1")
    standin.failing = None
    with pytest.raises(RetrievalUnavailable, match="has not taken in"):
        await store.seal("vs_1")
    await store.stop()

    patient = store_at(tmp_path, url)
    await patient.start()
    await fill(patient)
    standin.asked_while_behind.clear()
    given_up, waiting = (asyncio.create_task(patient.seal("vs_1")) for _ in range(2))
    await asyncio.wait_for(standin.asked_while_behind.wait(), 10)
    given_up.cancel()
    await asyncio.wait({given_up})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.5)
    standin.reconcile()
    await asyncio.wait_for(waiting, 10)
    await patient.stop()


async def test_large_writes_and_deletions_stay_within_the_limits_of_a_request(
    tmp_path: Path, url: str, standin: PineconeStandIn
) -> None:
    store = store_at(tmp_path, url)
    await store.start()
    await store.create("vs_1", 1536)
    rows = [chunk(i) for i in range(200)]
    await store.upsert("vs_1", rows, vectors(*[[0.1234567 + i] * 1536 for i in range(200)]))
    assert await store.count("vs_1") == len(standin.namespaces["vs_1"]) == 200
    assert sum(path == "/vectors/upsert" for path, _ in standin.requests) > 1
    await store.create("vs_2", 2)
    await store.upsert("vs_2", [chunk(i) for i in range(2500)], vectors(*[(1, i) for i in range(2500)]))
    await store.delete_file("vs_2", "file-a")
    assert standin.namespaces["vs_2"] == {}
    await store.drop("vs_1")
    assert "vs_1" not in standin.namespaces
    await store.stop()


async def test_a_wrong_key_stops_the_start_with_the_setting(tmp_path: Path, url: str) -> None:
    store = store_at(tmp_path, url, api_key="pc-wrong-secret")
    with pytest.raises(StartError, match=r"answered 401.*plugin\.pinecone\.api_key") as refused:
        await store.start()
    assert "pc-wrong-secret" not in str(refused.value)
    with pytest.raises(RetrievalUnavailable):
        await store.count("vs_1")


async def test_a_service_that_cannot_be_reached_stops_the_start(tmp_path: Path, url: str) -> None:
    store = store_at(tmp_path, "http://127.0.0.1:9")
    with pytest.raises(StartError, match=r"plugin\.pinecone\.api_key and url"):
        await store.start()


@pytest.mark.parametrize(
    ("given", "message"),
    [({"api_key": ""}, r"plugin\.pinecone\.api_key"), ({"url": "http://api.example.org"}, r"plugin\.pinecone\.url")],
)
def test_settings_that_cannot_work_name_the_field(tmp_path: Path, given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        store_at(tmp_path, **{"url": "https://api.pinecone.io"} | given)


async def test_d1_no_redirect_is_followed_and_no_proxy_of_the_environment_asked(
    tmp_path: Path, url: str, standin: PineconeStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    canary = PineconeStandIn()
    async with canary.serving() as elsewhere:
        store = store_at(tmp_path, url)
        await store.start()
        await fill(store)
        standin.redirect_to = f"{elsewhere}/query"
        with pytest.raises(RetrievalUnavailable):
            await store.search_dense("vs_1", vectors((1, 0)), limit=5, scope=Scope())
        await store.stop()
    assert canary.requests == []


@pytest.mark.parametrize(
    ("host", "url", "same"),
    [
        ("kb-2-abc.svc.aped-4627.pinecone.io", "https://api.pinecone.io", True),
        ("kb-2-abc.svc.private.us-east-1.pinecone.io:443", "https://api.pinecone.io", True),
        ("https://kb-2.svc.pinecone.io", "https://api.pinecone.io", True),
        ("kb-2.svc.pinecone.io.example.org", "https://api.pinecone.io", False),
        ("evilpinecone.io", "https://api.pinecone.io", False),
        ("api.pinecone.io@example.org", "https://api.pinecone.io", False),
        ("", "https://api.pinecone.io", False),
        ("127.0.0.1:4000", "http://127.0.0.1:4000", True),
        ("10.0.0.1", "http://127.0.0.1:4000", False),
        ("10.0.0.5:443", "https://10.0.0.5", True),
        ("1.2.0.5", "https://10.0.0.5", False),
        ("[::1]:4000", "http://[::1]:4000", True),
        ("index.example.co.uk", "https://api.example.co.uk", True),
        ("evil.co.uk", "https://api.example.co.uk", False),
        ("api.internal", "https://api.internal", True),
        ("other.internal", "https://api.internal", False),
        ("other.localhost", "http://localhost:4000", False),
    ],
)
def test_d7_the_key_goes_to_hosts_of_the_configured_domain_alone(host: str, url: str, same: bool) -> None:
    assert _same_domain(host, url) is same


async def test_d7_an_index_that_is_said_to_be_elsewhere_gets_no_call(
    tmp_path: Path, url: str, standin: PineconeStandIn
) -> None:
    standin.advertised = "index.example.org"
    store = store_at(tmp_path, url)
    await store.start()
    with pytest.raises(RetrievalUnavailable, match=r"another domain than plugin\.pinecone\.url"):
        await store.create("vs_1", 2)
    await store.stop()


async def test_long_names_and_many_labels_stay_within_what_a_vector_may_carry(tmp_path: Path, url: str) -> None:
    store = store_at(tmp_path, url)
    await store.start()
    await store.create("vs_1", 2)
    crowded = chunk(
        0,
        attributes={f"key{i}": "x" * 500 for i in range(16)},
        readers=tuple(f"user:{'u' * 200}{i}" for i in range(40)),
    )
    await store.upsert("vs_1", [crowded], vectors((1, 0)))
    found = await store.search_dense("vs_1", vectors((1, 0)), limit=5, scope=Scope(readers=(f"user:{'u' * 200}7",)))
    assert len(found) == 1
    await store.stop()
