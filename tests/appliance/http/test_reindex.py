"""``/v1/vector_stores/{id}/reindex``, and what the probes say of stores whose model is gone (O-24)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from eventually import eventually
from inline import provides
from loopback import http_client
from reindex_kit import new_model, old_model
from sqlalchemy import update

from appliance.storage.tables import VectorStore
from appliance.testing import make_app, serving

CONFIG = {
    "plugins": ["memory", "documents", "tokens", "scripted", "two"],
    "models": [
        {"name": "m", "engine": "scripted"},
        {"name": "old", "embedder": "old"},
        {"name": "new", "embedder": "new"},
    ],
    "retrieval": {"vector_store": "memory", "embedder": "old"},
}


@dataclass
class Box:
    client: httpx.AsyncClient
    app: Any

    async def post(self, path: str, status: int = 200, **body: object) -> dict[str, Any]:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def filled(self) -> str:
        """A store with a file that is indexed."""
        form = {"data": {"purpose": "assistants"}, "files": {"file": ("a.txt", b"the zebrafinch sings")}}
        file = (await self.client.post("/v1/files", **form)).json()["id"]
        store = (await self.post("/v1/vector_stores", name="birds", file_ids=[file]))["id"]

        async def indexed() -> bool:
            counts = (await self.client.get(f"/v1/vector_stores/{store}")).json()["file_counts"]
            return counts["completed"] == counts["total"] == 1

        await eventually(indexed)
        return store

    async def state(self, store: str) -> dict[str, Any]:
        return (await self.client.get(f"/v1/vector_stores/{store}/reindex")).raise_for_status().json()


@asynccontextmanager
async def box(folder, **changes: object) -> AsyncIterator[Box]:
    embedders = {"old": old_model(), "new": new_model()}
    factories = {name: lambda spec, context, made=made: made for name, made in embedders.items()}
    app = make_app(CONFIG | changes, {"two": provides(embedders=factories)}, folder=folder)
    async with serving(app) as url, http_client(base_url=url, timeout=30) as client:
        yield Box(client, app)


@pytest.fixture
async def made(tmp_path):
    async with box(tmp_path) as running:
        yield running


async def test_o24_a_model_is_changed_and_changed_back_over_http(made) -> None:
    store = await made.filled()
    path = f"/v1/vector_stores/{store}/reindex"
    assert await made.state(store) == {
        "id": store,
        "object": "vector_store.reindex",
        "embedder": "old",
        "fingerprint": "old-weights",
        "dimensions": 64,
        "metric": "cosine",
        "servable": True,
        "reindex": None,
    }
    began = time.time()
    begun = await made.post(path, embedder="new", keep_days=2)
    assert begun["id"] == store
    assert begun["embedder"] == "new" or begun["reindex"]["status"] == "building"

    async def switched(model: str) -> bool:
        state = await made.state(store)
        return state["embedder"] == model and state["reindex"]["status"] == "kept"

    await eventually(lambda: switched("new"))
    kept_until = (await made.state(store))["reindex"]["kept_until"]
    assert int(began) + 2 * 86_400 <= kept_until <= time.time() + 2 * 86_400
    (hit,) = (await made.post(f"/v1/vector_stores/{store}/search", query="zebrafinch"))["data"]
    assert hit["content"][0]["text"] == "the zebrafinch sings"
    await made.post(path, step="rollback")
    await eventually(lambda: switched("old"))
    assert (await made.post(path, step="finish"))["reindex"] is None


async def test_a_file_that_cannot_be_indexed_again_is_left_out_if_that_is_asked_for(made) -> None:
    store = await made.filled()
    path = f"/v1/vector_stores/{store}"
    (file,) = [row["id"] for row in (await made.client.get(f"{path}/files")).json()["data"]]
    made.app.state.runtime.blobs.remove(file)
    await made.post(f"{path}/reindex", embedder="new")

    async def failed() -> bool:
        return (await made.state(store))["reindex"]["failed"] == 1

    await eventually(failed)
    assert "upload it again" in (await made.state(store))["reindex"]["failures"][file]
    await made.post(f"{path}/reindex", embedder="new", skip_failed=True)

    async def switched() -> bool:
        return (await made.state(store))["embedder"] == "new"

    await eventually(switched)
    row = (await made.client.get(f"{path}/files/{file}")).json()
    assert (row["status"], row["last_error"]["code"]) == ("failed", "server_error")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "embedder"),
        ({"embedder": "m"}, 400, "embedder"),
        ({"embedder": "none"}, 404, "embedder"),
        ({"step": "again"}, 400, "step"),
        ({"embedder": "new", "keep_days": -1}, 400, "keep_days"),
        ({"step": "rollback"}, 409, None),
        ({"step": "cancel"}, 409, None),
    ],
)
async def test_a_bad_order_is_named(made, body, status, param) -> None:
    store = (await made.post("/v1/vector_stores", name="s"))["id"]
    error = (await made.post(f"/v1/vector_stores/{store}/reindex", status, **body))["error"]
    assert error["param"] == param


async def test_an_unknown_store_is_404(made) -> None:
    await made.post("/v1/vector_stores/vs_none/reindex", 404, embedder="new")
    assert (await made.client.get("/v1/vector_stores/vs_none/reindex")).status_code == 404


async def test_o24_readiness_tells_of_stores_whose_model_is_gone(made) -> None:
    store = await made.filled()
    assert (await made.client.get("/readyz")).json()["warnings"] == {}
    async with made.app.state.runtime.database.session() as session:
        await session.execute(update(VectorStore).values(fingerprint="weights-that-are-gone"))
    ready = await made.client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    assert ready.json()["warnings"]["vector_stores"].startswith("the vectors of 1 store are of models")
    refused = (await made.post(f"/v1/vector_stores/{store}/search", 409, query="zebrafinch"))["error"]
    assert refused["code"] == "embedding_model_changed"
    assert f"appliance stores reindex {store}" in refused["message"]
