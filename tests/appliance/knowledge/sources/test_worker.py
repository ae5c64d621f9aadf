"""Sources in the real worker process: killed in the middle, and by the command line, with a server and without one."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial

import pytest
from commands import appliance
from eventually import until
from knowledge_kit import Stack
from served import Served
from sources_kit import write
from worker_kit import install_plugin, kill_worker, worker, write_config

from appliance.errors import RetrievalUnavailable
from appliance.knowledge.report import SyncOrder
from appliance.storage import sources, stores
from appliance.types import Scope

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
DOCUMENTS = 24
SOURCE = {"name": "docs", "store": "handbook", "folder": "docs", "every": 3600, "settle": 0}


async def documents(made: Stack) -> dict[str, str | None]:
    async with made.database.tenant("default", write=False) as session:
        return {row.key: row.file_id for row in await sources.documents(session, "docs")}


async def synced(made: Stack) -> None:
    """Ask until it is done, as whoever asks a worker that dies must."""
    while True:
        with suppress(RetrievalUnavailable):
            (report,) = await made.knowledge.sync(SyncOrder(names=("docs",)))
            assert (report.error, report.failures) == (None, {})
            return


async def test_R16_a_worker_that_is_killed_while_it_syncs_loses_nothing_and_doubles_nothing(
    tmp_path, monkeypatch
) -> None:
    root = tmp_path / "docs"
    write(root, **{f"f{n}": f"zebrafinch{n} sings" for n in range(DOCUMENTS)})
    changes = {
        "plugins": ["milvus", "documents", "tokens", "scripted_embedder"],
        "retrieval": {"vector_store": "milvus", "sources": [SOURCE]},
    }
    async with worker(tmp_path, monkeypatch, **changes) as made:
        for wanted in (4, 14):

            async def some(wanted: int = wanted) -> bool:
                return len(await documents(made)) >= wanted

            await until(some, 60)
            kill_worker(tmp_path)
            await synced(made)
        for n in range(4):
            (root / f"f{n}.md").unlink()
            write(root, **{f"f{n + 10}": f"zebrafinch{n + 10} sings anew"})
        asking = asyncio.create_task(synced(made))

        async def begun() -> bool:
            return len(await documents(made)) < DOCUMENTS

        await until(begun, 60)
        kill_worker(tmp_path)
        await asking
        await synced(made)

        async def indexed() -> bool:
            async with made.database.session(write=False) as session:
                return (await sources.counts(session))["docs"].indexing == 0

        await until(indexed, 90)
        found = await documents(made)
        assert set(found) == {f"f{n}.md" for n in range(4, DOCUMENTS)}
        async with made.database.tenant("default", write=False) as session:
            store = (await stores.by_name(session, "handbook")).id
            counts = (await stores.counts(session, [store]))[store]
        assert (counts.completed, counts.total) == (DOCUMENTS - 4, DOCUMENTS - 4)
        for key, file_id in found.items():
            chunks = await made.knowledge.content(store, file_id, Scope())
            assert [chunk.text for chunk in chunks] == [(root / key).read_text()]
        report = await made.knowledge.reconcile(repair=False)
        assert (report.orphans, report.files) == (0, DOCUMENTS - 4), report


async def test_the_command_line_syncs_and_lists_beside_a_server_and_without_one(tmp_path, monkeypatch) -> None:
    site = install_plugin(
        tmp_path / "site", "scripted_embedder", "appliance.testing.scripted_embedder:scripted_embedder"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    root = tmp_path / "docs"
    write(root, a="zebrafinch a", b=" ")
    path = write_config(tmp_path, retrieval={"vector_store": "memory", "sources": [SOURCE | {"every": 0}]})
    run = partial(asyncio.to_thread, partial(appliance, cwd=tmp_path, python_path=site))

    alone = await run("sources", "sync", "docs")
    assert alone.stdout.startswith("docs: 2 documents; 2 added")
    (listed,) = json.loads((await run("sources", "list", "--json")).stdout)
    assert (listed["documents"], listed["indexing"], listed["failing"]) == (2, 0, 1)
    assert "no text" in listed["failures"]["b.md"]
    assert (listed["kind"], listed["store"], listed["error"]) == ("folder", "handbook", None)

    with Served(path):
        write(root, b="zebrafinch b")
        beside = await run("sources", "sync", "--json")
        assert beside.returncode == 0, beside.stderr
        (report,) = json.loads(beside.stdout)
        assert (report["changed"], report["error"]) == (1, None)
        unknown = await run("sources", "sync", "none")
        assert (unknown.returncode, unknown.stderr) == (1, "error: no source is named none; there are: docs\n")
        (root / "a.md").unlink()
        (root / "b.md").unlink()
        refused = await run("sources", "sync")
        assert refused.returncode == 1
        assert "2 of 2 documents are gone" in refused.stdout
        assert "2 of 2 documents are gone" in (await run("sources", "list")).stdout
        allowed = await run("sources", "sync", "docs", "--allow-removals")
        assert (allowed.returncode, "2 removed" in allowed.stdout) == (0, True)
    log = json.loads((await run("audit", "list", "--action", "sources.sync", "--json")).stdout)
    assert {entry["object"] for entry in log} == {"docs"}
    assert {entry["outcome"] for entry in log} == {"success", "failure"}
    assert all(entry["principal"].startswith("cli:") for entry in log)
    (tmp_path / "appliance.yaml").write_text((tmp_path / "appliance.yaml").read_text().replace("name: docs", "name: x"))
    assert "docs (not in the configuration any more)" in (await run("sources", "list")).stdout
