"""A served app, keys for it, and what its audit log says."""

from contextlib import asynccontextmanager

from eventually import eventually
from loopback import http_client

from appliance.plugin import KeyStore
from appliance.storage import audit
from appliance.storage.audit import AuditQuery
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder

CONFIG = {
    "plugins": ["api_keys", "rbac", "memory", "documents", "tokens"],
    "models": [
        {"name": "small", "engine": "scripted"},
        {"name": "docs", "engine": "scripted", "vector_stores": ["handbook"]},
        {"name": "words", "embedder": "scripted_embedder"},
    ],
    "retrieval": {"vector_store": "memory"},
    "plugin": {"api_keys": {"refresh": 0}},
}


CANARY = "zebrafinch-canary-4711"


DOCUMENT = "The zebrafinch holiday policy gives thirty days."


class Served:
    """An app with keys, and what its audit log says."""

    def __init__(self, app, base: str, keys: KeyStore) -> None:
        self.app, self.base, self.keys = app, base, keys

    async def key(self, role: str = "admin", **fields):
        made, text = await self.keys.create(name=role, roles=[role], **fields)
        return made.id, {"authorization": f"Bearer {text}"}

    async def records(self, **query):
        async with self.app.state.runtime.database.session(write=False) as session:
            return [record async for record in audit.records(session, AuditQuery(**query))]

    async def eventually(self, number: int = 1, **query):
        async def enough():
            found = await self.records(**query)
            return found if len(found) >= number else None

        return await eventually(enough)


@asynccontextmanager
async def serve(tmp_path, **settings):
    app = make_app(
        {**CONFIG, **settings},
        {"scripted": ScriptedPlugin([Emit("Thirty days [1].")]), "scripted_embedder": ScriptedEmbedder()},
        folder=tmp_path,
    )
    async with serving(app) as base:
        keys = KeyStore(app.state.runtime.database)
        await keys.create(name="first")
        async with http_client(base_url=base) as client:
            await eventually(lambda: _guarded(client))
        yield Served(app, base, keys)


async def _guarded(client) -> bool:
    return (await client.get("/v1/models")).status_code == 401


async def fill(client, headers, name="handbook") -> tuple[str, str]:
    """A store that holds ``DOCUMENT``; ids of file and store."""
    file = (
        await client.post(
            "/v1/files", files={"file": ("a.txt", DOCUMENT)}, data={"purpose": "assistants"}, headers=headers
        )
    ).json()["id"]
    store = (await client.post("/v1/vector_stores", json={"name": name, "file_ids": [file]}, headers=headers)).json()[
        "id"
    ]

    async def completed():
        reply = await client.get(f"/v1/vector_stores/{store}/files/{file}", headers=headers)
        return reply.json()["status"] == "completed"

    await eventually(completed)
    return file, store
