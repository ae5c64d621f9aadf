from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from postgres import Postgres

from appliance.plugin import (
    AppContext,
    Comparison,
    Config,
    ConfigError,
    NotFound,
    RetrievalUnavailable,
    Scope,
    StartError,
    VectorStore,
)
from appliance.testing.contracts.vector_store import COLLECTION, VectorStoreContract, chunk, vectors
from appliance_retrieval import pgvector_sql
from appliance_retrieval.pgvector import PgvectorSettings, make_store
from appliance_retrieval.pgvector_address import dsn_of, warn_of_unchecked
from appliance_retrieval.pgvector_sql import Parameters, filter_condition, stored, unstored


def plain(url: str) -> str:
    return url.replace("+asyncpg", "")


@pytest.fixture(scope="module")
def url(pgvector_server: Postgres) -> str:
    """One database; each test has a schema in it."""
    return plain(pgvector_server.database())


_made = iter(range(1_000_000))


@pytest.fixture
def schema() -> str:
    return f"s{next(_made)}"


def store_at(url: str, schema: str, tenant: str | None = None, **given: Any) -> VectorStore:
    context = AppContext(config=Config(), database=cast("Any", None), tenant=tenant)
    return make_store(PgvectorSettings(url=url, schema=schema, **{"connections": 4} | given), context)


@pytest.fixture
async def store(url: str, schema: str) -> AsyncIterator[VectorStore]:
    store = store_at(url, schema)
    await store.start()
    yield store
    await store.stop()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


class TestPgvector(VectorStoreContract):
    @pytest.fixture
    async def store(self, url: str, schema: str) -> AsyncIterator[VectorStore]:
        store = store_at(url, schema)
        await store.start()
        yield store
        await store.stop()

    @pytest.fixture
    async def outage(self, store: VectorStore, database: Any, url: str) -> AsyncIterator[Any]:
        """Every connection is cut, and no new one let in."""
        name, elsewhere = url.rpartition("/")[2], await asyncpg.connect(f"{url.rpartition('/')[0]}/postgres")

        async def begin() -> None:
            await elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            await _cut(database)

        yield begin
        await elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await elsewhere.close()


async def _cut(database: Any) -> None:
    await database.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


async def test_cut_connections_are_replaced(store: VectorStore, database: Any) -> None:
    await store.create("c", 2)
    await store.upsert("c", [chunk(0)], vectors((1, 0)))
    await _cut(database)
    for _ in range(5):  # those in the pool fail once each
        try:
            assert await store.count("c") == 1
        except RetrievalUnavailable:
            continue
        break
    assert await store.count("c") == 1


@pytest.mark.slow
async def test_a_killed_server_loses_nothing_that_was_written(pgvector_server: Postgres, tmp_path: Path) -> None:
    with Postgres(Path(pgvector_server._installed or "")) as server:
        store = store_at(plain(server.database()), "s", timeout=10.0)
        await store.start()
        await store.create("c", 2)
        await store.upsert("c", [chunk(i, f"word{i}") for i in range(50)], vectors(*[(1, i) for i in range(50)]))
        server.kill()
        with pytest.raises(RetrievalUnavailable):
            await store.count("c")
        server.start()
        await store.stop()
        await store.start()
        assert await store.count("c") == 50
        assert len(await store.search_text("c", "word7", limit=5, scope=Scope())) == 1
        await store.stop()


async def test_b5_a_neighbour_with_all_the_nearest_vectors_takes_no_place(pgvector_server: Postgres) -> None:
    """By the HNSW index: more rows than it looks at by itself are hidden, and those that are not lie far off."""
    url = plain(pgvector_server.database())
    store = store_at(url, "s")
    await store.start()
    await store.create("c", 3)
    hidden = [chunk(i, file_id="file-b", readers=("group:x",)) for i in range(1500)]
    await store.upsert("c", hidden, vectors(*[(1, i / 10_000, 0) for i in range(1500)]))
    await store.upsert("c", [chunk(i) for i in range(10)], vectors(*[(0, 1, i) for i in range(10)]))
    await store.stop()
    database = await asyncpg.connect(url)
    await database.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET enable_sort = off")
    await store.start()
    hits = await store.search_dense("c", vectors((1, 0, 0)), limit=10, scope=Scope())
    assert len(hits) == 10
    assert {hit.chunk.file_id for hit in hits} == {"file-a"}
    await store.stop()
    used = await database.fetchval(
        "SELECT sum(idx_scan) FROM pg_stat_user_indexes s JOIN pg_indexes i ON i.indexname = s.indexrelname"
        " WHERE i.indexdef LIKE '%USING hnsw%'"
    )
    assert used > 0
    await database.close()


async def test_b5_each_tenant_has_a_schema_of_its_own(url: str, schema: str, database: Any) -> None:
    for tenant in ("a", "b"):
        store = store_at(url, schema, tenant)
        await store.start()
        await store.create("c", 2)
        await store.upsert("c", [chunk(0)], vectors((1, 0)))
        await store.stop()
    schemas = await database.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE $1", f"{schema}\\_%")
    assert len(schemas) == 2


async def test_vectors_too_long_for_an_index_of_floats_are_found_by_halves(store: VectorStore) -> None:
    for dimensions in (2001, 4001):
        collection = f"c{dimensions}"
        await store.create(collection, dimensions)
        await store.upsert(
            collection, [chunk(0), chunk(1)], vectors([1.0, *[0.0] * (dimensions - 1)], [1.0] * dimensions)
        )
        (hit,) = await store.search_dense(collection, vectors([1.0] * dimensions), limit=1, scope=Scope())
        assert hit.chunk.position == 1
        assert hit.score == pytest.approx(1, abs=1e-3)


async def test_words_rank_by_bm25_as_in_every_store(store: VectorStore) -> None:
    await store.create("c", 2)
    texts = ["zebra", "zebra zebra zebra", "zebra and many other words that say nothing of it", "owl", "owl"]
    await store.upsert("c", [chunk(i, text) for i, text in enumerate(texts)], vectors(*[(1, 0)] * 5))
    hits = await store.search_text("c", "Zebras", limit=5, scope=Scope())
    assert [hit.chunk.position for hit in hits] == [1, 0, 2]
    rare_first = await store.search_text("c", "zebra owl", limit=5, scope=Scope())
    assert rare_first[0].chunk.position in (1, 3, 4)


async def test_two_servers_make_the_same_collection_at_once(url: str, schema: str) -> None:
    stores = [store_at(url, schema) for _ in range(2)]
    await asyncio.gather(*(store.start() for store in stores))
    await asyncio.gather(*(store.create("c", 2) for store in stores))
    await stores[0].upsert("c", [chunk(0)], vectors((1, 0)))
    assert await stores[1].count("c") == 1
    await stores[0].drop("c")
    with pytest.raises(NotFound):
        await stores[1].upsert("c", [chunk(0)], vectors((1, 0)))
    assert await stores[1].count("c") == 0
    await asyncio.gather(*(store.stop() for store in stores))


async def test_b6_no_value_and_no_key_is_part_of_a_statement() -> None:
    parameters = Parameters()
    nasty = "x') OR true --"
    condition = filter_condition(Comparison(key=nasty, type="in", value=(nasty, 1, True)), parameters)
    assert nasty not in condition
    assert "true --" not in condition
    assert parameters.values.count(f"s:{nasty}") == 1


@pytest.mark.parametrize("text", ["", "plain", "\0", "a\0b\1c\1\1", "\1\2", "\0\1\0"])
def test_b6_text_with_nul_is_kept_and_keeps_its_place(text: str) -> None:
    assert "\0" not in stored(text)
    assert unstored(stored(text)) == text
    others = ["", "\0", "\0a", "\1", "\1\1", "\2", "a", "a\0", "a\0b", "ab"]
    assert sorted([*others, text], key=stored) == sorted([*others, text])


async def test_a_wrong_password_stops_the_start_without_showing_it(url: str, schema: str) -> None:
    wrong = url.replace(url.split(":")[2].split("@", maxsplit=1)[0], "wrong-secret")
    with pytest.raises(StartError, match=r"plugin\.pgvector\.url") as refused:
        await store_at(wrong, schema).start()
    assert "wrong-secret" not in str(refused.value)


@pytest.mark.slow
async def test_a_server_without_the_extension_stops_the_start_with_the_fix(postgres: Postgres, schema: str) -> None:
    with pytest.raises(StartError, match=r"install pgvector 0\.8"):
        await store_at(plain(postgres.database()), schema).start()


async def test_a_server_that_does_not_answer_stops_the_start(schema: str) -> None:
    with pytest.raises(StartError, match=r"plugin\.pgvector\.url"):
        await store_at("postgresql://u@127.0.0.1:9/x", schema).start()


async def test_the_appliances_own_database_is_the_default(url: str, schema: str) -> None:
    config = Config(database=url.replace("postgresql://", "postgresql+asyncpg://"))
    store = make_store(PgvectorSettings(schema=schema), AppContext(config=config, database=cast("Any", None)))
    await store.start()
    await store.create(COLLECTION, 2)
    assert await store.count(COLLECTION) == 0
    await store.stop()


def test_another_database_than_postgresql_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"plugin\.pgvector\.url"):
        store_at("", "s")


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("postgresql+asyncpg://a:b%40c@db/x?ssl=verify-full", "postgresql://a:b%40c@db/x?sslmode=verify-full"),
        ("postgres://a@db:5433,db2/x?sslmode=require", "postgresql://a@db:5433,db2/x?sslmode=require"),
        ("postgresql:///x?host=%2Frun%2Fpg", "postgresql:///x?host=%2Frun%2Fpg"),
    ],
)
def test_a_url_may_be_written_as_for_the_database(url: str, read: str) -> None:
    assert dsn_of(url) == read


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("postgresql://a:secret@db.example.org/x", True),
        ("postgresql://a@db.example.org:5433/x?sslmode=require", True),
        ("postgresql://a@127.0.0.1:5433,db.example.org/x", True),
        ("postgresql://a@db.example.org/x?sslmode=verify-full", False),
        ("postgresql://a@db.example.org/x?sslmode=verify-ca", False),
        ("postgresql://a@127.0.0.1:5433/x", False),
        ("postgresql://a@[::1]:5433/x", False),
        ("postgresql://a@localhost/x", False),
        ("postgresql:///x?host=%2Frun%2Fpg", False),
        ("postgresql://a@%2Frun%2Fpg/x", False),
        ("postgresql://a@[::1]/x", False),
        ("postgresql:///x?host=[::1]:5433", False),
        ("postgresql:///x?host=127.0.0.1:5433,db.example.org", True),
        ("postgresql://a@[2001:db8::1],db.example.org/x", True),
        ("postgresql://a@db.example.org/x?host=localhost", True),
    ],
)
def test_d1_a_server_that_is_not_checked_is_told_of(dsn: str, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unchecked(dsn)
    assert ("db.example.org is not checked; add ?sslmode=verify-full" in caplog.text) == told == bool(caplog.records)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("place", ["a@[2001:db8::1]/x", "[2001:db8::1]:5433/x", "/x?host=[2001:db8::1]"])
def test_d1_a_server_with_an_ipv6_address_is_told_by_it(place: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unchecked(f"postgresql://{place}")
    assert "PostgreSQL at 2001:db8::1 is not checked" in caplog.text


async def test_the_event_loop_cuts_and_stems_no_words_of_documents(
    store: VectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutting, search_terms = [], pgvector_sql.search_terms

    def noted(text: str) -> list[str]:
        cutting.append(threading.current_thread())
        return search_terms(text)

    monkeypatch.setattr(pgvector_sql, "search_terms", noted)
    await store.create(COLLECTION, 2)
    await store.upsert(COLLECTION, [chunk(0, "zebra"), chunk(1, "walrus")], vectors((1, 0), (0, 1)))
    assert len(cutting) == 2
    assert threading.current_thread() not in cutting
    hits = await store.search_text(COLLECTION, "zebras", limit=9, scope=Scope())
    assert [hit.chunk.position for hit in hits] == [0]
