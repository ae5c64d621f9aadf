"""The real worker with Milvus Lite: killed while it changes a model, and asked by the command line."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from eventually import until
from knowledge_kit import Stack
from reindex_kit import two_models
from worker_kit import in_worker, install_plugin, kill_worker, write_config

from appliance.errors import Conflict, RetrievalUnavailable
from appliance.knowledge.report import ReindexOrder, StoreStatus
from appliance.types import Access, Scope

KILLS, SEED = int(os.environ.get("REINDEX_KILLS", "4")), int(os.environ.get("KILLS_SEED", "24"))
DOCUMENTS = 10
PLUGIN = """
from appliance.plugin import hookimpl
from appliance.testing.scripted_embedder import ScriptedEmbedder

@hookimpl
def appliance_embedders():
    return {
        "old": lambda spec, context: ScriptedEmbedder(fingerprint="old-weights"),
        "new": lambda spec, context: ScriptedEmbedder(fingerprint="new-weights", dimensions=32),
    }
"""


@asynccontextmanager
async def worker(folder: Path, monkeypatch, store: str):
    """A stack whose knowledge, with two models, runs in a worker process that is started again when it dies."""
    site = install_plugin(folder / "site", "two_models", "two_models_plugin")
    (site / "two_models_plugin.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(site))
    path = write_config(
        folder,
        plugins=[store, "documents", "tokens", "two_models"],
        models=[{"name": name, "embedder": name} for name in ("old", "new")],
        retrieval={"vector_store": store, "embedder": "old"},
    )
    async with in_worker(folder, path) as made:
        yield made


async def status(made: Stack, store: str) -> StoreStatus:
    (found,) = [one for one in await made.knowledge.stores() if one.id == store]
    return found


async def switched(made: Stack, store: str) -> bool:
    found = await status(made, store)
    return found.reindex is not None and found.reindex.status == "kept"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_r16_random_kills_while_models_change_lose_nothing_and_double_nothing(tmp_path, monkeypatch) -> None:
    """There and back again, so that there is always something to kill; documents come, go and change meanwhile."""
    chance = random.Random(SEED)
    async with worker(tmp_path, monkeypatch, "milvus") as made:
        store = await made.make_store()
        files = [await made.add(store, f"document{i} " + f"word{i} " * 150) for i in range(DOCUMENTS)]
        order = ReindexOrder(step="begin", store=store, embedder="new", keep_seconds=3600, by="test")
        await made.knowledge.reindex(order)
        kills = 0
        while kills < KILLS:
            if await switched(made, store):
                with suppress(Conflict):
                    await made.knowledge.reindex(ReindexOrder(step="rollback", store=store, by="test"))
            file = await made.upload(f"document late{kills} " + f"word{kills} " * 150)
            await made.attach(store, file)
            gone = files.pop(chance.randrange(len(files)))
            await made.knowledge.remove_file(store, gone)
            await made.knowledge.set_access(store, chance.choice(files), Access(groups=("hr",), public=True))
            files.append(file)
            await asyncio.sleep(chance.uniform(0, 0.8))
            kills += kill_worker(tmp_path)
        for file in files:
            assert (await made.settled(store, file, within=60)).status == "completed"
        await until(lambda: switched(made, store), 60)
        report = await made.knowledge.reconcile(repair=False)
        assert (report.orphans, report.files) == (0, DOCUMENTS), report
        rows = [await made.row(store, file) for file in files]
        for file, row in zip(files, rows, strict=True):
            chunks = await made.knowledge.content(store, file, Scope())
            assert [chunk.position for chunk in chunks] == list(range(row.chunks))
            assert " ".join(chunk.text for chunk in chunks).split() == made.blobs.path(file).read_text().split()
        found = await made.search(store, "document", limit=100)
        assert {hit.file_id for hit in found} <= set(files)


@pytest.mark.slow
async def test_o24_on_milvus_a_store_changes_to_vectors_of_another_length_and_back(tmp_path) -> None:
    async with two_models(tmp_path, store="milvus") as made:
        store = await made.make_store()
        files = [await made.add(store, f"zebrafinch{i} sings at dawn") for i in range(3)]
        await made.begin(store)
        await made.served_by(store, "new")
        await made.knowledge.set_access(store, files[0], Access(groups=("hr",)))
        await made.knowledge.remove_file(store, files[1])
        for model in ("new", "old"):
            assert {hit.file_id for hit in await made.search(store, "zebrafinch0 zebrafinch2")} == {files[2]}
            await made.whole(store)
            if model == "new":
                await made.order("rollback", store)
                await made.served_by(store, "old")
        await made.order("finish", store)
        assert await made.backend.collections() == [store]


@pytest.mark.slow
async def test_the_command_changes_a_model_by_the_running_worker_or_by_itself(tmp_path, monkeypatch) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "appliance", "stores", *arguments, "--config", "appliance.yaml"]
        return subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)

    async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, *arguments)

    async with worker(tmp_path, monkeypatch, "milvus") as made:
        store, empty = await made.make_store(), await made.make_store()
        await made.add(store, "zebrafinch")
        done = await run("reindex", "--all", "--embedder", "new", "--json")
        assert done.returncode == 0, done
        told = {one["id"]: one for one in json.loads(done.stdout)}
        assert told.keys() == {store, empty}
        assert {one["embedder"] for one in told.values()} == {"new"}
        assert (told[store]["dimensions"], told[store]["reindex"]["status"]) == (32, "kept")
        assert [hit.text for hit in await made.search(store, "zebrafinch")] == ["zebrafinch"]
        again = await run("reindex", store, "--embedder", "old")
        assert (again.returncode, "--finish" in again.stderr) == (1, True), again
        unknown = await run("reindex", store, "--embedder", "third")
        assert (unknown.returncode, "old, new" in unknown.stderr) == (1, True), unknown
        listed = await run("status")
        assert f"{store}: by new (32 numbers); that of old is kept until 20" in listed.stdout, listed
    with pytest.raises(RetrievalUnavailable):
        await made.knowledge.stores()
    back = await run("reindex", store, "--rollback")  # no server runs: the command does it
    assert (back.returncode, f"{store}: by old (64 numbers)" in back.stdout) == (0, True), back
    bad = await run("reindex", "--embedder", "new")
    assert (bad.returncode, "STORE" in bad.stderr) == (2, True), bad
