"""What the database says, what the vector store holds and what lies on the disk are compared and mended (B15)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from array import array
from functools import partial

import pytest
from knowledge_kit import Stack, stack, until
from sqlalchemy import update
from worker_kit import worker

from appliance.knowledge import indexing
from appliance.knowledge.removal import remove_file
from appliance.knowledge.report import Misfit
from appliance.storage import jobs
from appliance.storage.ids import new_id
from appliance.storage.tables import FileReader, StoreFile
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Access, Scope, StoredChunk


@pytest.fixture
async def made(tmp_path):
    async with stack(tmp_path) as s:
        yield s


async def write_chunk(made: Stack, store: str, file: str, version: int, position: int) -> None:
    """A chunk behind the appliance's back."""
    await made.backend.create(store, 64)
    chunk = StoredChunk(id=f"{file}:{version}:{position}", file_id=file, position=position, text="zebrafinch")
    await made.backend.upsert(store, [chunk], array("f", [1.0] * 64).tobytes())


def put_blob(made: Stack, age: float) -> str:
    """Bytes without a row, so many seconds old."""
    blob_id = new_id("file-")
    path = made.blobs.path(blob_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"lost")
    moment = time.time() - age
    os.utime(path, (moment, moment))
    return blob_id


async def readers_of(made: Stack, store: str, file: str) -> set[tuple[str, ...]]:
    """What the chunks say, whoever asks."""
    everybody = Scope(readers=("*", "group:hr", "user:alice"))
    return {chunk.readers for chunk in await made.backend.chunks(store, file, scope=everybody)}


async def done(made: Stack) -> bool:
    async with made.database.session(write=False) as session:
        return not await jobs.due(session, "memory")


async def test_where_all_is_well_nothing_is_out_of_place(made) -> None:
    store = await made.make_store()
    await made.make_store("empty")
    for i in range(3):
        await made.add(store, f"zebrafinch {i} " * 100)
    blank = await made.upload(" ")
    await made.attach(store, blank)
    await made.settled(store, blank)
    report = await made.knowledge.reconcile(repair=False)
    assert (report.orphans, report.stores, report.files) == (0, 2, 3)
    assert report.chunks == await made.backend.count(store) > 3


async def test_what_is_out_of_place_is_told_and_mended(made) -> None:
    store, other = await made.make_store(), await made.make_store()
    whole, holey, doubled = [await made.add(store, f"zebrafinch {i}") for i in range(3)]
    bare = await made.add(other, "zebrafinch bare")
    await made.backend.delete_file(store, holey)
    await write_chunk(made, store, doubled, 1, 0)
    await write_chunk(made, store, "file-none", 1, 0)
    await write_chunk(made, "vs_gone", "file-none", 1, 0)
    await made.backend.create("not_ours", 2)
    old, young = put_blob(made, 7200), put_blob(made, 5)
    made.blobs.remove(bare)

    report = await made.knowledge.reconcile(repair=False)
    assert report.collections_without_store == ["vs_gone"]
    assert set(report.chunks_out_of_place) == {
        Misfit(store, holey, missing=1),
        Misfit(store, doubled, extra=1),
        Misfit(store, "file-none", extra=1),
    }
    assert (report.blobs_without_file, report.files_without_blob) == ([old], [bare])
    assert (report.orphans, report.repaired) == (6, False)
    assert (await made.knowledge.reconcile(repair=False)).orphans == 6

    assert (await made.knowledge.reconcile(repair=True)).orphans == 6
    await until(lambda: done(made))
    for file in (holey, doubled):
        assert (await made.settled(store, file)).status == "completed"
    left = await made.knowledge.reconcile(repair=False)
    assert (left.orphans, left.files_without_blob) == (1, [bare])
    assert await made.backend.count(store) == 3
    assert {found.file_id for found in await made.search(store, "zebrafinch")} == {whole, holey, doubled}
    assert "not_ours" in await made.backend.collections()
    assert made.blobs.path(young).exists()


async def test_chunks_of_failed_files_are_deleted(made) -> None:
    store = await made.make_store()
    blank = await made.upload(" ")
    await made.attach(store, blank)
    row = await made.settled(store, blank)
    await write_chunk(made, store, blank, row.version, 0)
    assert (await made.knowledge.reconcile(repair=True)).chunks_out_of_place == [Misfit(store, blank, extra=1)]
    assert await made.backend.count(store) == 0


async def test_work_under_way_is_not_out_of_place(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(indexing, "WRITE_CHUNKS", 10)
    embedder = ScriptedEmbedder(batch_size=10, hold_from=0)
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        files = [await made.upload("zebrafinch " * 3000) for _ in range(4)]
        for file in files:
            await made.attach(store, file)
        for held in (0, 1, 3, 7, 8):  # at the first chunk, further on, and with files that wait their turn
            embedder.hold_from = held
            await until(lambda held=held: len(embedder.calls) > held)
            assert "in_progress" in [(await made.row(store, file)).status for file in files]
            report = await made.knowledge.reconcile(repair=True)
            assert report.orphans == 0, report
        embedder.release()

        async def busy() -> bool:
            rows = [await made.row(store, file) for file in files]
            return any(row and row.status == "in_progress" for row in rows)

        while await busy():  # and wherever it meets them
            report = await made.knowledge.reconcile(repair=True)
            assert report.orphans == 0, report
        for file in files:
            assert (await made.settled(store, file)).status == "completed"


async def test_b15_a_deleted_file_leaves_nothing_behind(made) -> None:
    first, second = await made.make_store(), await made.make_store()
    file = await made.add(first, "zebrafinch")
    await made.attach(second, file)
    await made.settled(second, file)
    kept = await made.add(first, "zebrafinch too")
    await remove_file(made.database, made.knowledge, made.blobs, Scope(), file)
    for store, expected in ((first, [kept]), (second, [])):
        assert [found.file_id for found in await made.search(store, "zebrafinch")] == expected
        assert await made.backend.count(store) == len(expected)
        assert await made.row(store, file) is None
    assert not made.blobs.path(file).exists()
    assert (await made.knowledge.reconcile(repair=False)).orphans == 0


async def test_b15_a_deleted_store_leaves_its_files_alone(made) -> None:
    store = await made.make_store()
    file = await made.add(store, "zebrafinch")
    await made.knowledge.remove_store(store)
    assert await made.backend.collections() == []
    assert made.blobs.path(file).exists()
    assert (await made.knowledge.reconcile(repair=False)).orphans == 0


async def test_a_change_that_a_crash_kept_from_the_chunks_is_made_at_the_next_start(made) -> None:
    store = await made.make_store()
    file = await made.add(store, "zebrafinch")
    async with made.database.session() as session:  # the row was changed, then the worker was killed
        await session.execute(
            update(StoreFile).where(StoreFile.file_id == file).values(attributes={"n": 2}, public=False, stale=True)
        )
        session.add(FileReader(tenant="default", store_id=store, file_id=file, reader="group:hr"))
    await made.knowledge._ingestor.stop()
    await made.knowledge._ingestor.start()
    (chunk,) = await made.backend.chunks(store, file, scope=Scope(readers=("group:hr",)))
    assert (chunk.readers, dict(chunk.attributes)) == (("group:hr",), {"n": 2})
    assert not (await made.settled(store, file)).stale


async def test_access_given_while_a_file_is_indexed_is_that_of_its_chunks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(indexing, "WRITE_CHUNKS", 4)
    embedder = ScriptedEmbedder(batch_size=4, hold_from=3)
    async with stack(tmp_path, embedder) as made:
        store = await made.make_store()
        file = await made.upload("zebrafinch " * 2000)
        await made.attach(store, file)
        await until(lambda: len(embedder.calls) > 3)
        assert await made.backend.count(store) > 0
        row = await made.row(store, file)
        assert row
        assert row.status == "in_progress"
        await made.knowledge.set_access(store, file, Access(groups=("hr",)))
        embedder.release()
        await made.settled(store, file)
        assert await readers_of(made, store, file) == {("group:hr",)}
        assert not (await made.settled(store, file)).stale


@pytest.mark.slow
async def test_the_command_asks_the_running_server_or_works_by_itself(tmp_path, monkeypatch) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "appliance", *arguments, "--config", "appliance.yaml"]
        return subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    reconcile = partial(asyncio.to_thread, command, "stores", "reconcile")
    async with worker(tmp_path, monkeypatch) as made:
        store = await made.make_store()
        file = await made.add(store, "zebrafinch")
        await made.knowledge.set_access(store, file, Access(users=("alice",)))
        assert await made.search(store, "zebrafinch") == []
        well = await reconcile()
        assert (well.returncode, "1 chunks" in well.stdout) == (0, True), well
        lost = put_blob(made, 7200)
        told = await reconcile("--json")
        assert (told.returncode, json.loads(told.stdout)["blobs_without_file"]) == (1, [lost]), told
    told = await reconcile()
    assert f"file {file} in store {store}: chunks missing: 1\n" in told.stdout, told
    assert told.stderr == "error: 2 out of place; --repair mends what can be mended\n", told
    repaired = await reconcile("--repair", "--json")  # memory forgets: the file is indexed again
    report = json.loads(repaired.stdout)
    assert report["chunks_out_of_place"] == [{"store_id": store, "file_id": file, "extra": 0, "missing": 1}], repaired
    assert not made.blobs.path(lost).exists()
    log = await asyncio.to_thread(command, "audit", "list", "--action", "stores.reconcile", "--json")
    assert [entry["details"]["chunks_out_of_place"] for entry in json.loads(log.stdout)] == [1]
