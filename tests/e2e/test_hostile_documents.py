"""Bombs, and documents that lead elsewhere, all at once through the real appliance: they harm nobody (C11).

A canary on loopback counts who calls it; a file of this machine holds a word that no document has.
"""

from __future__ import annotations

import asyncio
import re
import xml.sax
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from xml.sax.handler import ContentHandler, feature_external_ges

import commands
import httpx
import pytest
import pytest_asyncio
from canary_server import canary
from documents import PARAGRAPH, text
from eventually import eventually
from hostile_documents import SENTENCE, bombs, outward
from loopback import http_client
from processes import workers_at
from worker_kit import install_plugin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
shared = pytest_asyncio.fixture(scope="module", loop_scope="module")
CONFIG = {
    "plugins": ["scripted", "memory", "documents", "tokens", "scripted_embedder"],
    "models": [{"name": "m", "engine": "scripted"}, {"name": "words", "embedder": "scripted_embedder"}],
    # A gibibyte, so that what unpacks to more need not be large.
    "retrieval": {"vector_store": "memory", "parse_memory": 2**30, "parse_timeout": 60},
}
SECRET = "quetzalcoatlus"
REFUSED = {
    *(f"{what}.{suffix}" for what in ("entities", "rights") for suffix in ("docx", "pptx", "xlsx")),
    *("links-docx.docx", "links-pptx.pptx", "links-xlsx.xlsx", "layout.pptx", "renamed.docx"),
    *("container.epub", "remote.epub", "path.epub", "uri.epub", "package.epub"),
}
"""Documents that cannot be read without what they name: their XML has entities, or a part of theirs is elsewhere."""
WHAT_TO_DO = re.compile(r"[;,] (save|split|export|upload|open|flatten|remove|supported:)")


@dataclass
class Run:
    """What came of all documents, by their names."""

    client: httpx.AsyncClient
    folder: Path
    ids: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    store: str = ""
    bombs: set[str] = field(default_factory=set)
    outward: set[str] = field(default_factory=set)
    hits: list[str] = field(default_factory=list)
    control: list[str] = field(default_factory=list)
    workers: list[list[int]] = field(default_factory=list)

    async def upload(self, path: Path) -> str:
        body = {"purpose": "assistants"}
        kind = "application/xml" if path.suffix == ".xsl" else "application/octet-stream"
        reply = await self.client.post("/files", files={"file": (path.name, path.read_bytes(), kind)}, data=body)
        self.ids[path.name] = reply.raise_for_status().json()["id"]
        return self.ids[path.name]

    async def index(self, ids: list[str]) -> str:
        """A new store with these files, attached in one step; returns it when no file is under way."""
        store = (await self.client.post("/vector_stores", json={})).raise_for_status().json()["id"]
        batches = f"/vector_stores/{store}/file_batches"
        batch = (await self.client.post(batches, json={"file_ids": ids})).raise_for_status().json()["id"]

        async def done() -> bool:
            counts = (await self.client.get(f"{batches}/{batch}")).json()["file_counts"]
            return counts["total"] == len(ids) and counts["in_progress"] == 0

        await eventually(done, 240)
        return str(store)

    async def row(self, name: str) -> dict[str, Any]:
        found = await self.client.get(f"/vector_stores/{self.store}/files/{self.ids[name]}")
        row: dict[str, Any] = found.raise_for_status().json()
        return row

    async def content(self, store: str, name: str) -> str:
        found = await self.client.get(f"/vector_stores/{store}/files/{self.ids[name]}/content")
        return "".join(part["text"] for part in found.raise_for_status().json()["data"])

    async def search(self, store: str, query: str) -> dict[str, str]:
        body = {"query": query, "max_num_results": 50}
        found = (await self.client.post(f"/vector_stores/{store}/search", json=body)).raise_for_status().json()["data"]
        return {hit["filename"]: "".join(part["text"] for part in hit["content"]) for hit in found}


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Run]:
    """The real server, with its worker and the confined processes below it."""
    site = install_plugin(folder / "site", "scripted_embedder", "appliance.testing.scripted_embedder:scripted_embedder")
    config = commands.write_config(folder, **CONFIG)
    with commands.served("--config", str(config), cwd=folder, python_path=site) as server:
        url = await asyncio.to_thread(lambda: server.url)
        async with http_client(base_url=f"{url}/v1", timeout=60) as client:
            yield Run(client, folder)


@shared
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    """All documents, uploaded and attached at once, the good one last."""
    folder, made = tmp_path_factory.mktemp("appliance"), tmp_path_factory.mktemp("documents")
    secret = text(made, SECRET, "secret.txt")
    (made / "bombs").mkdir()
    (made / "outward").mkdir()
    with canary() as bird:
        outside = await asyncio.to_thread(outward, made / "outward", bird.url, secret)
        exploding = await asyncio.to_thread(bombs, made / "bombs")
        async with serving(folder) as found:
            found.outward, found.bombs = {path.name for path in outside}, {path.name for path in exploding}
            socket = folder / "data" / "run" / "worker.sock"
            found.workers.append(workers_at(socket))
            found.store = await found.index(
                [await found.upload(path) for path in [*exploding, *outside, text(made, name="good.txt")]]
            )
            found.workers.append(workers_at(socket))
            found.rows = {name: await found.row(name) for name in found.ids}
            found.hits = list(bird.hits)
            found.control = [*careless(made / "outward" / "file.xml"), *careless(made / "outward" / "general.xml")]
            found.control += bird.hits[len(found.hits) :]
            yield found


def careless(path: Path) -> list[str]:
    """The words that a parser reads which follows entities outward."""
    words: list[str] = []

    class Words(ContentHandler):
        def characters(self, content: str) -> None:
            words.extend(content.split())

    parser = xml.sax.make_parser()
    parser.setFeature(feature_external_ges, True)
    parser.setContentHandler(Words())
    parser.parse(StringIO(path.read_text()))
    return words


async def test_C11_every_bomb_fails_and_says_what_to_do(run: Run) -> None:
    assert len(run.bombs) == 19
    for name in run.bombs:
        row = run.rows[name]
        assert row["status"] == "failed", name
        assert row["last_error"]["code"] in ("invalid_file", "unsupported_file"), row
        assert WHAT_TO_DO.search(row["last_error"]["message"]), row
        assert len(row["last_error"]["message"]) < 1000


async def test_C11_what_leads_elsewhere_is_read_without_it_or_refused(run: Run) -> None:
    assert len(run.outward) > 55
    assert {name for name in run.outward if run.rows[name]["status"] == "failed"} == REFUSED
    for name in run.outward - REFUSED:
        assert run.rows[name]["status"] == "completed", run.rows[name]
        read = await run.content(run.store, name)
        assert any(words in read for words in (SENTENCE, PARAGRAPH, "Blade_A1")), name
    for name in REFUSED:
        assert WHAT_TO_DO.search(run.rows[name]["last_error"]["message"]), run.rows[name]


async def test_C11_nobody_called_the_canary_which_a_careless_reader_does(run: Run) -> None:
    assert run.hits == []
    assert run.control[0] == SECRET
    assert run.control[-1] == "GET /canary?general HTTP/1.1"


async def test_C11_the_files_of_this_machine_are_nowhere_to_be_found(run: Run) -> None:
    for name in run.outward - REFUSED:
        assert SECRET not in await run.content(run.store, name), name
    assert SECRET not in str(run.rows)
    hits = await run.search(run.store, SECRET)
    assert hits
    assert SECRET not in str(hits)
    logs = "".join(path.read_text() for path in (run.folder / "data" / "logs").iterdir() if path.is_file())
    assert "invalid_file" in logs
    assert SECRET not in logs
    assert SENTENCE not in logs
    # Were it there, it would be found.
    other = await run.index([await run.upload(text(run.folder, SECRET, "itself.txt"))])
    assert await run.search(other, SECRET) == {"itself.txt": SECRET}
    assert await run.content(other, "itself.txt") == SECRET


async def test_C11_the_good_file_behind_them_all_is_found_and_the_worker_is_the_same(run: Run) -> None:
    assert run.rows["good.txt"]["status"] == "completed"
    assert (await run.search(run.store, "inspector blue logbook"))["good.txt"] == PARAGRAPH
    before, after = run.workers
    assert before[0] == after[0]
