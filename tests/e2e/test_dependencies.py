"""What is served while something that the appliance leans on is away: docs/operations.md has it in a table (R22).

Each row of the table is played with the real parts, and each play has its row. Then the fault is over, and everything
has to be served again.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from engine_upstream import UpstreamServer, hello
from eventually import eventually
from oauth_kit import bearer, issuing, key
from postgres import Postgres
from redis_server import RedisServer
from relay import Relay
from sqlalchemy import event, text

from appliance.plugin import KeyStore
from appliance.storage import database as storage
from appliance.storage.database import Database
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

pytestmark = pytest.mark.slow
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text("utf-8")
BODY = {"model": "m", "messages": [{"role": "user", "content": "zebrafinch"}]}
WORDS = {"name": "words", "embedder": "scripted_embedder"}
Ask = Callable[[], Awaitable[httpx.Response]]
Act = Callable[[], Awaitable[None]]


@dataclass
class Scene:
    """A dependency in use: what is asked for, how it fails in each way, and how that ends."""

    asks: dict[str, Ask]
    faults: dict[str, Act]
    heal: Act


def table() -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
    """Of each dependency and fault: what is asked for, whether it fails open or closed, and the answer."""
    section = TEXT.partition("\n## When a dependency fails\n")[2].partition("\n## ")[0]
    lines = section.partition("|---")[2].partition("\n\n")[0].splitlines()[1:]
    found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for line in lines:
        dependency, fault, asked, fails, answer = (cell.strip().replace("`", "") for cell in line.split("|")[1:-1])
        rows = found.setdefault((dependency, fault), {})
        assert asked not in rows, "each row once"
        rows[asked] = (fails, answer)
    return found


TABLE = table()


@pytest.fixture
def hold(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]:
    """``async with hold(config) as client``: a served app in a folder of its own."""
    return partial(serve, tmp_path)


@asynccontextmanager
async def serve(folder: Path, config: dict[str, Any], name: str = "app") -> AsyncIterator[httpx.AsyncClient]:
    (folder / name).mkdir(exist_ok=True)
    whole = {"models": [{"name": "m", "engine": "scripted"}], **config}
    plugins = {"scripted": ScriptedPlugin([Emit("fine")]), "scripted_embedder": ScriptedEmbedder()}
    app = make_app(whole, plugins, folder=folder / name)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        client.app = app  # type: ignore[attr-defined]
        yield client


def database_of(client: httpx.AsyncClient) -> Database:
    found: Database = client.app.state.runtime.database  # type: ignore[attr-defined]
    return found


def chat(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: Any) -> Ask:
    return lambda: client.post("/v1/chat/completions", json=BODY | fields, headers=headers)


def get(client: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None) -> Ask:
    return lambda: client.get(path, headers=headers)


async def answered(ask: Ask) -> None:
    reply = await ask()
    assert reply.status_code == 200, reply.text


# -- the scenes ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def database(hold: Any, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(storage, "CONNECT_SECONDS", 1.5)
    url = postgres.database()
    async with Relay(urlsplit(url).port or 0) as relay:
        relayed = url.replace(f":{urlsplit(url).port}/", f":{relay.port}/")
        async with Database(relayed) as made:
            keys = [bearer((await KeyStore(made).create(name=name, roles=["admin"]))[1]) for name in ("used", "other")]
        config = {"plugins": ["api_keys", "rbac"], "database": relayed, "plugin": {"api_keys": {"refresh": 5}}}
        async with hold(config) as client:
            await answered(chat(client, keys[0]))
            asks = {
                "a chat, with a key used within plugin.api_keys.refresh": chat(client, keys[0]),
                "a chat, with any other key": chat(client, keys[1]),
                "files, vector stores, stored answers": get(client, "/v1/files", keys[0]),
                "/readyz": get(client, "/readyz"),
                "/livez": get(client, "/livez"),
            }
            yield Scene(asks, {"gone": relay.gone, "slow": relay.slow}, relay.heal)


@asynccontextmanager
async def database_file(hold: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(storage, "BUSY_SECONDS", 1.0)
    async with hold({}) as client:
        engine = database_of(client)._engine
        assert engine is not None
        other = sqlite3.connect(tmp_path / "app" / "data" / "appliance.db", isolation_level=None)
        item = {"type": "message", "role": "user", "content": "x" * 100_000}  # more than the file has room for
        asks = {
            "what reads": get(client, "/v1/files"),
            "what writes": lambda: client.post("/v1/conversations", json={"items": [item]}),
        }

        pages = 2**30

        def bounded(connection: Any, *_: object) -> None:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA max_page_count = {pages}")
            cursor.close()

        async def locked() -> None:
            other.execute("BEGIN IMMEDIATE")

        async def full() -> None:
            nonlocal pages
            pages = 1  # SQLite takes as many as there are now

        async def heal() -> None:
            nonlocal pages
            pages = 2**30
            if other.in_transaction:
                other.execute("ROLLBACK")

        event.listen(engine.sync_engine, "checkout", bounded)

        yield Scene(asks, {"locked by another program": locked, "its disk is full": full}, heal)
        other.close()


@asynccontextmanager
async def data_dir(hold: Any) -> AsyncIterator[Scene]:
    """A limit on the size of files stands in for the full disk: writing fails in the same place."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with hold({}) as client:
        form = {"files": {"file": ("a.txt", b"x" * 8_000_000)}, "data": {"purpose": "assistants"}}
        asks = {"an upload": lambda: client.post("/v1/files", **form), "a chat": chat(client)}

        async def full() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, hard))

        async def heal() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        yield Scene(asks, {"its disk is full": full}, heal)


@asynccontextmanager
async def redis(hold: Any) -> AsyncIterator[Scene]:
    rates, budget = {"requests_per_day": 1000, "max_concurrent": 9}, {"tokens_per_day": 10**6}
    settings = {
        "callers without limits": {},
        "limits of requests or places, fail: closed": {"key": rates},
        "limits of requests or places, fail: open": {"key": rates, "fail": "open"},
        "a budget of tokens or spend, whatever fail says": {"key": budget, "fail": "open"},
    }
    with RedisServer() as server:
        async with AsyncExitStack() as held:
            asks = {}
            for number, (name, limits) in enumerate(settings.items()):
                block = {"redis": server.url, "redis_timeout": 2, **limits}
                config = {"plugins": ["limits"], "plugin": {"limits": block}}
                asks[name] = chat(await held.enter_async_context(hold(config, str(number))))
                await answered(asks[name])
            faults: dict[str, Act] = {"gone": asynced(server.stop), "slow": asynced(server.freeze)}

            async def heal() -> None:
                await asyncio.to_thread(server.thaw if server.process.poll() is None else server.start)

            yield Scene(asks, faults, heal)


def asynced(function: Callable[[], None]) -> Act:
    return lambda: asyncio.to_thread(function)


@asynccontextmanager
async def identity_provider(hold: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr("appliance_auth.oauth.issuer._CALL_SECONDS", 2.0)
    monkeypatch.setattr("appliance_auth.oauth.keys.PAUSE_SECONDS", 2.0)
    async with issuing() as issuer, Relay(urlsplit(issuer.url).port or 0) as relay:
        issuer.url = f"http://127.0.0.1:{relay.port}"
        issuer.metadata()

        async def introspect(form: dict[str, str]) -> bytes:
            claims = {"active": True, "sub": form["token"], "aud": "rag-api", "scope": "inference"}
            return json.dumps(claims).encode()

        issuer.answers["/introspect"] = introspect
        asking = {"client_id": "appliance", "client_secret": "s3cret"}
        config = {
            "plugins": ["api_keys", "oauth", "rbac"],
            "plugin": {"oauth": {"issuers": [issuer.settings(introspection=asking)]}, "api_keys": {"refresh": 0}},
        }
        async with hold(config) as client:
            _, api_key = await KeyStore(database_of(client)).create(name="a")
            known, opaque = bearer(issuer.token()), bearer("asked-about")
            for headers in (bearer(api_key), known, opaque):
                await eventually(lambda headers=headers: served(chat(client, headers)))
            issuer.publish(issuer.key, key("two"))
            asks = {
                "an API key": chat(client, bearer(api_key)),
                "a token of a known key, for a day": chat(client, known),
                "a token of an unknown key": chat(client, bearer(issuer.token(key("two")))),
                "an opaque token asked about in the last minute": chat(client, opaque),
                "any other opaque token": chat(client, bearer("another")),
            }
            yield Scene(asks, {"gone": relay.gone, "slow": relay.slow}, relay.heal)


@asynccontextmanager
async def audit_log(hold: Any) -> AsyncIterator[Scene]:
    config = {
        "plugins": ["memory", "documents", "tokens"],
        "models": [WORDS],
        "retrieval": {"vector_store": "memory"},
    }
    asks: dict[str, Ask] = {}
    async with AsyncExitStack() as held:
        clients = {}
        for mode in ("write", "note"):
            client = await held.enter_async_context(hold({**config, "audit": {"retrieval": mode}}, mode))
            clients[mode] = client
            asks[f"a search, audit.retrieval: {mode}"] = search(client, await indexed(client))
        asks["uploads, changes of vector stores"] = lambda: clients["note"].post("/v1/vector_stores", json={})

        async def rename(old: str, new: str) -> None:
            for client in clients.values():
                async with database_of(client).session() as session:
                    await session.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

        faults: dict[str, Act] = {"cannot be written": partial(rename, "audit_head", "audit_head_gone")}
        yield Scene(asks, faults, partial(rename, "audit_head_gone", "audit_head"))


async def indexed(client: httpx.AsyncClient) -> str:
    """A vector store with one file in it."""
    form = {"files": {"file": ("a.txt", b"the zebrafinch sings")}, "data": {"purpose": "assistants"}}
    file = (await client.post("/v1/files", **form)).json()["id"]
    store: str = (await client.post("/v1/vector_stores", json={"file_ids": [file]})).json()["id"]

    async def done() -> bool:
        return bool((await client.get(f"/v1/vector_stores/{store}")).json()["file_counts"]["completed"])

    await eventually(done)
    return store


def search(client: httpx.AsyncClient, store: str) -> Ask:
    return lambda: client.post(f"/v1/vector_stores/{store}/search", json={"query": "zebrafinch"})


@asynccontextmanager
async def collectors(hold: Any) -> AsyncIterator[Scene]:
    async with issuing() as collector, Relay(urlsplit(collector.url).port or 0) as relay:
        collector.answers = {"/v1/traces": b"", "/v1/logs": b""}
        endpoint = {"endpoint": f"http://127.0.0.1:{relay.port}"}
        config = {"plugins": ["otel", "audit"], "plugin": {"otel": endpoint, "audit": {**endpoint, "interval": 0.05}}}
        async with hold(config) as client:
            await eventually(lambda: collector.requests["/v1/logs"])
            yield Scene({"a chat": chat(client)}, {"gone": relay.gone, "slow": relay.slow}, relay.heal)


@asynccontextmanager
async def milvus(hold: Any, tmp_path: Path) -> AsyncIterator[Scene]:
    """Milvus Lite's own server, over TCP, in place of a Milvus server."""
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    server, lite, port = start_server_in_thread(str(tmp_path / "lite"), host="127.0.0.1")
    try:
        async with Relay(port) as relay:
            config = {
                "plugins": ["milvus", "documents", "tokens"],
                "models": [{"name": "m", "engine": "scripted"}, WORDS],
                "retrieval": {"vector_store": "milvus"},
                "plugin": {"milvus": {"uri": f"http://127.0.0.1:{relay.port}", "timeout": 6.0}},
            }
            async with hold(config) as client:
                store = await indexed(client)
                tools = [{"type": "file_search", "vector_store_ids": [store]}]
                asks = {
                    "a search": search(client, store),
                    "a chat that searches": chat(client, tools=tools),
                    "a chat that does not": chat(client),
                }
                yield Scene(asks, {"gone": relay.gone, "slow": relay.slow}, relay.heal)
    finally:
        await asyncio.to_thread(server.stop(grace=0).wait)
        lite.close()


@asynccontextmanager
async def engine(hold: Any) -> AsyncIterator[Scene]:
    upstream = await asyncio.start_server(UpstreamServer(hello).serve, "127.0.0.1", 0)
    async with upstream, Relay(upstream.sockets[0].getsockname()[1]) as relay:
        options = {"base_url": f"http://127.0.0.1:{relay.port}/v1", "connect_timeout": 4, "timeout": 4}
        models = [{"name": "m", "engine": "openai", "options": options}, {"name": "other", "engine": "scripted"}]
        async with hold({"plugins": ["openai"], "models": models}) as client:
            asks = {"a chat with its model": chat(client), "a chat with another model": chat(client, model="other")}
            yield Scene(asks, {"gone": relay.gone, "slow": relay.slow}, relay.heal)


SCENES: dict[str, Callable[..., AbstractAsyncContextManager[Scene]]] = {
    "database": database,
    "database file": database_file,
    "data_dir": data_dir,
    "limits' Redis": redis,
    "identity provider": identity_provider,
    "audit log": audit_log,
    "collector of traces, of the audit log": collectors,
    "Milvus": milvus,
    "engine": engine,
}


# -- the play ------------------------------------------------------------------------------------------------------


async def served(ask: Ask) -> bool:
    return (await ask()).status_code == 200


@pytest.mark.parametrize("place", TABLE, ids=" ".join)
async def test_R22_while_it_is_away_callers_get_what_the_document_says(place, hold, postgres, tmp_path, monkeypatch):
    dependency, fault = place
    given = {"hold": hold, "postgres": postgres, "tmp_path": tmp_path, "monkeypatch": monkeypatch}
    make = SCENES[dependency]
    names = make.__wrapped__.__annotations__  # type: ignore[attr-defined]
    async with make(**{name: value for name, value in given.items() if name in names}) as scene:
        assert {fault for name, fault in TABLE if name == dependency} == scene.faults.keys()
        await scene.faults[fault]()
        try:
            shown = {name: described(await ask()) for name, ask in scene.asks.items()}
        finally:
            await scene.heal()
        assert shown == TABLE[place]
        for ask in scene.asks.values():
            await eventually(partial(served, ask), 40)


def described(reply: httpx.Response) -> tuple[str, str]:
    """An answer in the words of the table."""
    if reply.status_code == 200:
        return "open", "200"
    error = reply.json().get("error")
    assert not re.search(r"127\.0\.0\.1|://|sqlite|asyncpg|Traceback|Errno", reply.text), reply.text
    return "closed", f"{reply.status_code} {error['code']}" if error else str(reply.status_code)


def test_every_scene_is_in_the_document_and_the_other_way_round():
    assert {dependency for dependency, _ in TABLE} == SCENES.keys()
