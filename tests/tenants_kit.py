"""A served app with two tenants that have one of everything, and a caller kept to some stores."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from eventually import eventually
from inline import Everything, Keys, provides
from loopback import http_client

from appliance.http.routes import TABLE
from appliance.plugin import Principal
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "handbook-chat", "alias_of": "m", "vector_stores": ["handbook"]},
        {"name": "hendbook-chat", "alias_of": "m", "vector_stores": ["hendbook"]},
        {"name": "secret", "engine": "scripted"},
        {"name": "words", "embedder": "scripted_embedder"},
    ],
    "retrieval": {"vector_store": "memory", "chunk_size": 120, "chunk_overlap": 20},
    "auth": {
        "tenants": {
            "b": {"models": ["m", "handbook-chat", "hendbook-chat", "words"]},
            "c": {"stores": ["handbook"]},
        }
    },
}


CALLERS = {
    "a": Principal(id="alice", tenant="a"),
    "b": Principal(id="bob", tenant="b"),
    "limited": Principal(id="lee", tenant="a", stores=frozenset({"handbook"})),
    "c": Principal(id="carol", tenant="c"),
}


@dataclass
class World:
    """A served app, a client for each caller, and the ids of what a tenant has, by path parameter."""

    app: Any
    clients: Mapping[str, httpx.AsyncClient]
    foreign: dict[str, str]
    own: dict[str, str]
    private: dict[str, str]

    def unknown(self, like: str) -> str:
        """An id of the same form that never existed."""
        prefix, mark, rest = re.fullmatch(r"([a-z]+)([_-])(.+)", like).groups()  # type: ignore[union-attr]
        return f"{prefix}{mark}{'x' * len(rest)}"


async def fill(client: httpx.AsyncClient, name: str) -> dict[str, str]:
    """A store of that name, and one of everything else that ids name; ids by path parameter."""

    async def made(path: str, **request: Any) -> str:
        answer = await client.post(path, **request)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def reached(path: str, status: str) -> bool:
        return bool((await client.get(path)).json()["status"] == status)

    file = await made("/v1/files", files={"file": ("a.txt", b"zebrafinch")}, data={"purpose": "assistants"})
    store = await made("/v1/vector_stores", json={"name": name})
    batch = await made(f"/v1/vector_stores/{store}/file_batches", json={"file_ids": [file]})
    conversation = await made("/v1/conversations", json={"items": [{"role": "user", "content": "hi"}]})
    items = (await client.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    upload = {"filename": "u.txt", "bytes": 4, "mime_type": "text/plain", "purpose": "assistants"}
    upload_id = await made("/v1/uploads", json=upload)
    await eventually(lambda: reached(f"/v1/vector_stores/{store}", "completed"), 20)
    ids = {
        "vector_store_id": store,
        "file_id": file,
        "batch_id": batch,
        "response_id": await made("/v1/responses", json={"model": "m", "input": "hi"}),
        "completion_id": await made("/v1/chat/completions", json={**chat(), "store": True}),
        "conversation_id": conversation,
        "item_id": items[0]["id"],
        "upload_id": upload_id,
        "part_id": await made(f"/v1/uploads/{upload_id}/parts", files={"data": b"data"}),
    }
    if any(entry.path == "/v1/batches" for entry in TABLE):
        ids["job_id"] = await start_batch(client, made)
        await eventually(lambda: reached(f"/v1/batches/{ids['job_id']}", "completed"), 20)
    return ids


async def start_batch(client: httpx.AsyncClient, made: Callable[..., Awaitable[str]]) -> str:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": chat()}
    form = {"files": {"file": ("b.jsonl", json.dumps(line).encode())}, "data": {"purpose": "batch"}}
    wanted = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return await made("/v1/batches", json={"input_file_id": await made("/v1/files", **form), **wanted})


@asynccontextmanager
async def two_tenants(folder: Path) -> AsyncIterator[World]:
    """An app in a folder, with something of every kind of tenants a and b."""
    plugins = {
        "scripted": ScriptedPlugin([Emit("hello")]),
        "scripted_embedder": ScriptedEmbedder(),
        "keys": provides(authenticators=[Keys(CALLERS)], authorizers=[Everything()]),
    }
    app = make_app(CONFIG, plugins, folder=folder)
    async with serving(app) as url:
        clients = {
            name: http_client(base_url=url, timeout=30, headers={"authorization": f"Bearer {name}"}) for name in CALLERS
        }
        handbook, own = await fill(clients["a"], "handbook"), await fill(clients["b"], "of b")
        private = await fill(clients["a"], "private")
        yield World(app, clients, handbook, own, private)
        for client in clients.values():
            await client.aclose()


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "zebrafinch"}]} | fields
