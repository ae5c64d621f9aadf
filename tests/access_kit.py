"""A served app with documents that are not for everybody, and callers who may see some of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from eventually import eventually
from inline import Keys, provides

from appliance.plugin import Forbidden, Principal
from appliance.storage import stores
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Scope
from appliance_retrieval.memory import MemoryStore

CALLERS = {
    "manager": Principal(id="key:m", user="mia", tenant="a"),
    "alice": Principal(id="key:1", user="alice", tenant="a", groups=("hr", "staff")),
    "bob": Principal(id="key:2", user="bob", tenant="a", groups=("staff",)),
    "service": Principal(id="key:3", tenant="a"),
    "eve": Principal(id="key:4", user="alice", tenant="b", groups=("hr",)),
}


class Managers:
    """Everybody may do everything, but only one may manage access."""

    async def authorize(self, principal: Principal, action: str, resource: str) -> None:
        if action == "access.manage" and principal.user != "mia":
            raise Forbidden("you may not manage access")


@dataclass
class Recording(MemoryStore):
    """A vector store that notes the scope of everything that is read."""

    reads: list[tuple[str, Scope]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def search_dense(self, collection, vector, *, limit, scope, where=None):
        self.reads.append(("dense", scope))
        return await super().search_dense(collection, vector, limit=limit, scope=scope, where=where)

    async def search_text(self, collection, query, *, limit, scope, where=None):
        self.reads.append(("text", scope))
        return await super().search_text(collection, query, limit=limit, scope=scope, where=where)

    async def chunks(self, collection, file_id, *, scope, offset=0, limit=1000):
        self.reads.append(("chunks", scope))
        return await super().chunks(collection, file_id, scope=scope, offset=offset, limit=limit)


@dataclass
class World:
    """A served app with one client for each caller."""

    app: Any
    clients: Mapping[str, httpx.AsyncClient]
    backend: Recording
    embedder: ScriptedEmbedder
    keys: Keys

    async def post(self, who: str, path: str, expected: int = 200, **body: Any) -> Any:
        answer = await self.clients[who].post(path, json=body)
        assert answer.status_code == expected, answer.text
        return answer.json()

    async def upload(self, who: str = "manager", text: str = "zebrafinch") -> str:
        files = {"file": ("a.txt", text.encode())}
        answer = await self.clients[who].post("/files", files=files, data={"purpose": "assistants"})
        return answer.json()["id"]

    async def store(self, who: str = "manager", name: str = "docs") -> str:
        return (await self.post(who, "/vector_stores", name=name))["id"]

    async def add(self, store: str, text: str = "zebrafinch", who: str = "manager", **options: Any) -> str:
        file = await self.upload(who, text)
        await self.post(who, f"/vector_stores/{store}/files", file_id=file, **options)
        await self.indexed(store)
        return file

    async def indexed(self, store: str) -> None:
        async def done() -> bool:
            async with self.app.state.runtime.database.session(write=False) as session:
                counts = (await stores.counts(session, [store]))[store]
            return counts.in_progress == 0

        await eventually(done, 20)

    async def found(self, who: str, store: str, query: str = "zebrafinch") -> list[str]:
        answer = await self.post(who, f"/vector_stores/{store}/search", query=query)
        return sorted({hit["file_id"] for hit in answer["data"]})

    async def listed(self, who: str, path: str) -> list[str]:
        return sorted(item["id"] for item in (await self.clients[who].get(path)).json()["data"])


@asynccontextmanager
async def world(folder, **retrieval: Any):
    backend, embedder, keys = Recording(), ScriptedEmbedder(), Keys(dict(CALLERS))
    plugins = {
        "scripted": ScriptedPlugin([Emit("it sings [1]")]),
        "scripted_embedder": embedder,
        "recording": provides(vector_stores={"recording": lambda context: backend}),
        "keys": provides(authenticators=[keys], authorizers=[Managers()]),
    }
    config = {
        "plugins": ["documents", "tokens"],
        "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": {"vector_store": "recording", "chunk_size": 120, "chunk_overlap": 20} | retrieval,
    }
    app = make_app(config, plugins, folder=folder)
    async with serving(app) as url:
        clients = {
            name: httpx.AsyncClient(
                base_url=f"{url}/v1", timeout=30, headers={"authorization": f"Bearer {name}", "x-request-id": "r"}
            )
            for name in CALLERS
        }
        yield World(app, clients, backend, embedder, keys)
        for client in clients.values():
            await client.aclose()
