"""Files that expire: what is shown of them, when they go, and that all of them goes."""

from __future__ import annotations

import openai
import pytest
from client_types import exactly
from eventually import eventually
from inline import Everything, Keys, provides
from openai.types import FileObject
from sqlalchemy import select, update

from appliance import housekeeping
from appliance.errors import RetrievalUnavailable
from appliance.knowledge.removal import remove_file
from appliance.plugin import Principal
from appliance.storage.ids import now
from appliance.storage.tables import File, StoreFile
from appliance.testing.scripted_embedder import ScriptedEmbedder

RAG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory"},
}
HOUR = {"anchor": "created_at", "seconds": 3600}


async def expire(b, file_id: str) -> None:
    """Let a file's time be over."""
    async with b.runtime.database.session() as session:
        await session.execute(update(File).where(File.id == file_id).values(expires_at=now() - 1))


async def test_a_file_says_when_it_expires(box) -> None:
    async with box() as b:
        form = {"purpose": "assistants", "expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}
        answer = await b.client.post("/v1/files", files={"file": ("a.txt", b"x")}, data=form)
        made = exactly(FileObject, answer.json())
        assert made.expires_at - made.created_at in (7200, 7201)
        typed = await b.openai.files.create(file=("a.txt", b"x"), purpose="assistants", expires_after=HOUR)
        assert typed.expires_at - typed.created_at in (3600, 3601)
        assert (await b.openai.files.retrieve(made.id)).expires_at == made.expires_at


async def test_files_stay_for_ever_but_for_those_of_batches(box) -> None:
    async with box() as b:
        kept = await b.openai.files.create(file=("a.txt", b"x"), purpose="assistants")
        batch = await b.openai.files.create(file=("a.jsonl", b"x"), purpose="batch")
        assert kept.expires_at is None
        assert batch.expires_at - batch.created_at in (2_592_000, 2_592_001)


async def test_an_expired_file_is_gone_at_once_for_every_route(box) -> None:
    async with box() as b:
        made = await b.openai.files.create(file=("a.txt", b"x"), purpose="assistants", expires_after=HOUR)
        await expire(b, made.id)
        assert [file.id async for file in b.openai.files.list()] == []
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            answer = await b.client.request(method, f"/v1/files/{made.id}{path}")
            never = await b.client.request(method, f"/v1/files/file-never{path}")
            assert answer.status_code == 404
            assert answer.text.replace(made.id, "file-never") == never.text


async def test_an_expired_file_is_swept_out_of_its_stores_the_database_and_the_disk(box) -> None:
    async with box(config=RAG, scripted_embedder=ScriptedEmbedder()) as b:
        made = await b.openai.files.create(file=("a.txt", b"zebrafinch"), purpose="assistants", expires_after=HOUR)
        kept = await b.openai.files.create(file=("b.txt", b"zebrafinch"), purpose="assistants")
        store = await b.openai.vector_stores.create(file_ids=[made.id, kept.id])

        async def indexed() -> bool:
            return (await b.openai.vector_stores.retrieve(store.id)).file_counts.completed == 2

        await eventually(indexed, 20)
        await expire(b, made.id)
        await b.runtime.housekeeper.tidy()
        found = await b.openai.vector_stores.search(store.id, query="zebrafinch")
        assert [hit.file_id for hit in found.data] == [kept.id]
        async with b.runtime.database.session(write=False) as session:
            assert (await session.scalars(select(File.id))).all() == [kept.id]
            assert (await session.scalars(select(StoreFile.file_id))).all() == [kept.id]
        assert not b.runtime.blobs.path(made.id).exists()
        assert b.runtime.blobs.path(kept.id).exists()


async def test_from_its_expiry_on_no_search_shows_a_file_and_no_store_its_text_though_it_lies_there_still(box) -> None:
    async with box(config=RAG, scripted_embedder=ScriptedEmbedder()) as b:
        made = await b.openai.files.create(file=("a.txt", b"zebrafinch"), purpose="assistants", expires_after=HOUR)
        store = await b.openai.vector_stores.create(file_ids=[made.id])
        content = f"/v1/vector_stores/{store.id}/files/{made.id}/content"

        async def read() -> bool:
            return (await b.client.get(content)).status_code == 200

        await b.runtime.housekeeper.stop()
        await eventually(read, 20)
        assert (await b.openai.vector_stores.search(store.id, query="zebrafinch")).data != []
        await expire(b, made.id)
        assert (await b.openai.vector_stores.search(store.id, query="zebrafinch")).data == []
        assert (await b.client.get(content)).status_code == 404


async def test_one_file_that_cannot_be_removed_keeps_no_other(box, monkeypatch) -> None:
    async with box() as b:
        made = [
            await b.openai.files.create(file=("a.txt", b"x"), purpose="assistants", expires_after=HOUR)
            for _ in range(2)
        ]
        for file in made:
            await expire(b, file.id)
        remove = b.runtime.blobs.remove

        def broken(blob_id: str) -> None:
            if blob_id == made[0].id:
                raise OSError("the disk says no")
            remove(blob_id)

        monkeypatch.setattr(b.runtime.blobs, "remove", broken)
        await b.runtime.housekeeper.tidy()
        assert not b.runtime.blobs.path(made[1].id).exists()


async def test_the_files_of_a_persons_batches_are_that_persons(box) -> None:
    callers = {
        "ann": Principal(id="key:1", user="ann"),
        "ann2": Principal(id="key:2", user="ann"),
        "bob": Principal(id="key:3", user="bob"),
        "nobody": Principal(id="key:4"),
    }
    keys = provides(authenticators=[Keys(callers)], authorizers=[Everything()])
    async with box(config=RAG, scripted_embedder=ScriptedEmbedder(), keys=keys) as b:
        of = {name: b.openai.with_options(api_key=name) for name in callers}
        mine = await of["ann"].files.create(file=("a.jsonl", b"{}"), purpose="batch")
        shared = await of["ann"].files.create(file=("a.txt", b"x"), purpose="assistants")
        for name, seen in (("ann", 2), ("ann2", 2), ("bob", 1), ("nobody", 1)):
            assert len([file async for file in of[name].files.list()]) == seen
        assert (await of["ann2"].files.retrieve(mine.id)).id == mine.id
        for name in ("bob", "nobody"):
            assert (await of[name].files.retrieve(shared.id)).id == shared.id
            for call in (of[name].files.retrieve, of[name].files.content, of[name].files.delete):
                with pytest.raises(openai.NotFoundError):
                    await call(mine.id)
            with pytest.raises(openai.NotFoundError):
                await of[name].vector_stores.create(file_ids=[mine.id])


async def test_expired_files_that_cannot_go_keep_no_other_and_are_told_of_in_one_line(box, monkeypatch, caplog) -> None:
    monkeypatch.setattr(housekeeping, "_GROUP", 2)
    stuck: set[str] = set()

    async def removed(database, knowledge, blobs, scope, file_id) -> None:
        if file_id in stuck:
            raise RetrievalUnavailable("the file is in a vector store and retrieval is off")
        await remove_file(database, knowledge, blobs, scope, file_id)

    monkeypatch.setattr(housekeeping, "remove_file", removed)
    async with box() as b:
        made = sorted([(await b.openai.files.create(file=("a", b"x"), purpose="assistants")).id for _ in range(6)])
        stuck.update(made[:3])
        for file_id in made:
            await expire(b, file_id)
        await b.runtime.housekeeper.tidy()
        async with b.runtime.database.session(write=False) as session:
            assert sorted(await session.scalars(select(File.id))) == made[:3]
        assert f"3 expired files cannot go yet; {made[0]}: the file is in a vector store" in caplog.text
