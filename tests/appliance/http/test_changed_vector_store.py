"""Another ``retrieval.vector_store``: stores whose vectors are in the former one say so, until they are filled anew."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from eventually import eventually
from inline import provides
from loopback import assert_openai_error, http_client

from appliance.circuit import FAILURES
from appliance.plugin import RetrievalUnavailable
from appliance.runtime import Runtime
from appliance.storage.tables import VectorStore
from appliance.testing import Emit, ScriptedPlugin, make_app, serving
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance_retrieval.memory import MemoryStore

BACK = "set that back, or have its files indexed again"


class Kept(MemoryStore):
    """A vector store that outlives the appliance, as a server does."""

    async def stop(self) -> None:
        """Keep what there is."""


class Box:
    def __init__(self, client: httpx.AsyncClient, runtime: Runtime) -> None:
        self.client, self.runtime = client, runtime

    async def store(self) -> str:
        return str((await self.client.post("/vector_stores", json={"name": "s"})).json()["id"])

    async def upload(self, text: str) -> str:
        form: Any = {"data": {"purpose": "assistants"}, "files": {"file": ("a.txt", text.encode())}}
        return str((await self.client.post("/files", **form)).raise_for_status().json()["id"])

    async def add(self, store: str, text: str) -> str:
        file = await self.upload(text)
        (await self.client.post(f"/vector_stores/{store}/files", json={"file_id": file})).raise_for_status()
        await self.completed(store)
        return file

    async def completed(self, store: str) -> None:
        async def whole() -> bool:
            counts = (await self.client.get(f"/vector_stores/{store}")).json()["file_counts"]
            assert counts["failed"] == 0, counts
            return bool(counts["completed"] == counts["total"])

        await eventually(whole, 20)

    async def found(self, store: str) -> set[str]:
        answer = await self.client.post(f"/vector_stores/{store}/search", json={"query": "zebrafinch"})
        return {hit["file_id"] for hit in answer.raise_for_status().json()["data"]}

    async def warnings(self) -> Mapping[str, str]:
        answer = await self.client.get(str(self.client.base_url.join("/readyz")))
        return dict(answer.json()["warnings"])

    async def refused(self, store: str, file: str) -> list[httpx.Response]:
        """Whatever needs the vectors of a store."""
        path, other = f"/vector_stores/{store}", await self.upload("another")
        tool = {"type": "file_search", "vector_store_ids": [store]}
        chat = {"model": "m", "messages": [{"role": "user", "content": "zebrafinch"}], "tools": [tool]}
        return [
            await self.client.post(f"{path}/search", json={"query": "zebrafinch"}),
            await self.client.post("/chat/completions", json=chat),
            await self.client.post(f"{path}/files", json={"file_id": other}),
            await self.client.post(f"{path}/file_batches", json={"file_ids": [other]}),
            await self.client.get(f"{path}/files/{file}/content"),
            await self.client.post(f"{path}/files/{file}", json={"attributes": {"year": 2026}}),
            await self.client.post(f"{path}/reindex", json={"step": "finish"}),
        ]


@asynccontextmanager
async def box(
    folder: Path, stores: Mapping[str, Kept], chosen: str, model: str = "words", **options: Any
) -> AsyncIterator[Box]:
    plugins = {
        "scripted": ScriptedPlugin([Emit("it sings")]),
        "embedders": provides(embedders={model: lambda spec, context: ScriptedEmbedder(fingerprint=model)}),
        "places": provides(vector_stores={name: lambda context, made=made: made for name, made in stores.items()}),
    }
    config = {
        "plugins": ["documents", "tokens"],
        "models": [{"name": "m", "engine": "scripted"}, {"name": model, "embedder": model}],
        "retrieval": {"vector_store": chosen, **options},
    }
    app = make_app(config, plugins, folder=folder)
    async with serving(app) as url, http_client(base_url=f"{url}/v1", timeout=30) as client:
        yield Box(client, app.state.runtime)


@pytest.fixture
def stores() -> dict[str, Kept]:
    return {"first": Kept(), "second": Kept()}


async def test_a_store_whose_vectors_are_elsewhere_says_so_and_finds_all_again_once_the_setting_is_back(
    tmp_path, stores
) -> None:
    async with box(tmp_path, stores, "first") as made:
        store = await made.store()
        file = await made.add(store, "the zebrafinch sings")
        assert await made.warnings() == {}
    async with box(tmp_path, stores, "second") as made:
        for answer in await made.refused(store, file):
            error = assert_openai_error(answer, 503)
            assert error["code"] == "retrieval_unavailable", answer.url
            assert f"{store} are in first, and retrieval.vector_store is second; {BACK}" in error["message"]
            assert "appliance stores reconcile --repair" in error["message"]
        assert "the vectors of 1 store are in another vector store" in (await made.warnings())["vector_stores"]
        (told,) = await made.runtime.knowledge.stores()
        assert (told.backend, told.elsewhere) == ("first", True)
        fresh = await made.store()
        late = await made.add(fresh, "a zebrafinch flies")
        for _ in range(FAILURES + 1):
            answer = await made.client.post(f"/vector_stores/{store}/search", json={"query": "zebrafinch"})
            assert f"{store} are in first" in assert_openai_error(answer, 503)["message"]
        assert await made.found(fresh) == {late}, "which is no matter of the other store"
        assert [row["id"] for row in (await made.client.get(f"/vector_stores/{store}/files")).json()["data"]] == [file]
    async with box(tmp_path, stores, "first") as made:
        assert await made.found(store) == {file}
        assert "in second" in assert_openai_error((await made.refused(fresh, late))[0], 503)["message"]


async def test_b15_a_deletion_that_cannot_reach_the_vectors_is_not_acknowledged_and_is_whole_once_it_can(
    tmp_path, stores
) -> None:
    async with box(tmp_path, stores, "first") as made:
        store = await made.store()
        file, other = await made.add(store, "the zebrafinch sings"), await made.add(store, "a zebrafinch flies")
    async with box(tmp_path, stores, "second") as made:
        assert_openai_error(await made.client.delete(f"/vector_stores/{store}/files/{file}"), 503)
        assert_openai_error(await made.client.delete(f"/files/{file}"), 503)
    async with box(tmp_path, stores, "first") as made:
        assert await made.found(store) == {other}
        gone = {chunk_id.partition(":")[0] for chunk_id in await stores["first"].chunk_ids(store)}
        assert gone == {other}
        assert (await made.client.delete(f"/files/{file}")).status_code == 200


async def test_files_of_stores_that_are_elsewhere_are_indexed_again_by_reconcile_and_keep_access_and_attributes(
    tmp_path, stores
) -> None:
    async with box(tmp_path, stores, "first") as made:
        store = await made.store()
        file = await made.upload("the zebrafinch sings")
        body = {"file_id": file, "attributes": {"year": 2026}, "access": {"groups": ["hr"]}}
        await made.client.post(f"/vector_stores/{store}/files", json=body)
        await made.completed(store)
        open_file = await made.add(store, "a zebrafinch flies")
    async with box(tmp_path, stores, "second") as made:
        seen = await made.runtime.knowledge.reconcile(repair=False)
        assert (seen.stores_elsewhere, seen.chunks_out_of_place, seen.orphans) == ([store], [], 1)
        mended = await made.runtime.knowledge.reconcile(repair=True)
        assert mended.stores_elsewhere == [store]
        await made.completed(store)
        assert await made.found(store) == {open_file}  # the other is for a group
        assert await made.warnings() == {}
        assert (await made.runtime.knowledge.reconcile(repair=False)).orphans == 0
        (collection,) = await stores["second"].collections()
        assert collection != store
        row = (await made.client.get(f"/vector_stores/{store}/files/{file}")).json()
        assert row["attributes"] == {"year": 2026}
    async with box(tmp_path, stores, "first") as made:
        mended = await made.runtime.knowledge.reconcile(repair=True)
        assert (mended.stores_elsewhere, mended.collections_without_store) == ([store], [store])
        await made.completed(store)
        assert await made.found(store) == {open_file}
        assert len(await stores["first"].collections()) == 1


async def test_one_store_that_is_elsewhere_is_indexed_again_by_its_route(tmp_path, stores) -> None:
    async with box(tmp_path, stores, "first") as made:
        moved, left = await made.store(), await made.store()
        file = await made.add(moved, "the zebrafinch sings")
        await made.add(left, "a zebrafinch flies")
    async with box(tmp_path, stores, "second") as made:
        begun = await made.client.post(f"/vector_stores/{moved}/reindex", json={"embedder": "words"})
        assert begun.status_code == 200
        await made.completed(moved)
        assert await made.found(moved) == {file}
        assert (await made.refused(left, file))[0].status_code == 503


async def test_work_on_stores_that_are_elsewhere_rests(tmp_path, stores) -> None:
    """What is queued, changed or to be dropped there waits, and nothing of it is tried in the wrong place."""
    async with box(tmp_path, stores, "first") as made:
        store = await made.store()
        file = await made.add(store, "the zebrafinch sings")
    async with box(tmp_path, stores, "second") as made:
        knowledge = made.runtime.knowledge
        with pytest.raises(RetrievalUnavailable):
            await knowledge.set_attributes(store, file, {"year": 2026})  # noted in the row, not in the chunks
        await knowledge._ingestor.changes.finish_updates()
        await knowledge._reindexer.advance()
        assert await stores["second"].collections() == []
    async with box(tmp_path, stores, "first") as made:

        async def changed() -> bool:
            found = await made.client.post(f"/vector_stores/{store}/search", json={"query": "zebrafinch"})
            return [hit["attributes"] for hit in found.json()["data"]] == [{"year": 2026}]

        await eventually(changed, 20)


async def test_stores_from_before_their_place_was_noted_are_where_they_were_looked_for(tmp_path, stores) -> None:
    async with box(tmp_path, stores, "first") as made:
        store = await made.store()
        file = await made.add(store, "the zebrafinch sings")
        async with made.runtime.database.session() as session:
            (await session.get(VectorStore, store)).backend = None
    async with box(tmp_path, stores, "first") as made:
        assert await made.found(store) == {file}
        async with made.runtime.database.session(write=False) as session:
            assert (await session.get(VectorStore, store)).backend == "first"


async def test_chats_without_their_documents_are_flagged_where_the_operator_allows_them(tmp_path, stores) -> None:
    async with box(tmp_path, stores, "first") as made:
        store = await made.store()
        file = await made.add(store, "the zebrafinch sings")
    async with box(tmp_path, stores, "second", if_unavailable="answer") as made:
        chat = (await made.refused(store, file))[1]
        assert (chat.status_code, chat.headers["x-appliance-ungrounded"]) == (200, "true")


async def test_f9_a_file_for_a_store_whose_model_is_gone_is_refused_at_once(tmp_path, stores) -> None:
    async with box(tmp_path, stores, "first") as made:
        store = await made.store()
        await made.add(store, "the zebrafinch sings")
    async with box(tmp_path, stores, "first", model="other") as made:
        file = await made.upload("a zebrafinch flies")
        for path, body in (("files", {"file_id": file}), ("file_batches", {"file_ids": [file]})):
            error = assert_openai_error(await made.client.post(f"/vector_stores/{store}/{path}", json=body), 409)
            assert error["code"] == "embedding_model_changed"
            assert "of the model words, which is not configured" in error["message"]
            assert f"/v1/vector_stores/{store}/reindex" in error["message"]
            assert f"appliance stores reindex {store}" in error["message"]
        rows = (await made.client.get(f"/vector_stores/{store}/files")).json()["data"]
        assert len(rows) == 1
        answer = await made.client.post(f"/vector_stores/{store}/search", json={"query": "zebrafinch"})
        assert f"POST /v1/vector_stores/{store}/reindex" in assert_openai_error(answer, 409)["message"]
        begun = await made.client.post(f"/vector_stores/{store}/reindex", json={"embedder": "other"})
        assert begun.status_code == 200
        await made.client.post(f"/vector_stores/{store}/files", json={"file_id": file})

        async def found() -> bool:
            answer = await made.client.post(f"/vector_stores/{store}/search", json={"query": "zebrafinch"})
            return answer.status_code == 200 and file in {hit["file_id"] for hit in answer.json()["data"]}

        await eventually(found, 20)
