"""Document sources over a retrieval stack in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from eventually import until
from knowledge_kit import Stack, stack

from appliance.config import RetrievalConfig, StoreConfig
from appliance.knowledge.report import SourceReport, SyncOrder
from appliance.knowledge.sources import service
from appliance.knowledge.sources.opening import access_of
from appliance.knowledge.sources.service import Sources
from appliance.knowledge.sources.sync import _digest
from appliance.source_config import SourceConfig
from appliance.storage import sources, stores
from appliance.storage.tables.sources import SourceFile
from appliance.testing.scripted_embedder import ScriptedEmbedder


class Synced:
    """A stack with sources; ``use`` changes them, as a new configuration would."""

    def __init__(self, made: Stack) -> None:
        self.made = made
        self.service: Sources | None = None

    async def use(self, *wanted: SourceConfig, seeds: tuple[StoreConfig, ...] = ()) -> None:
        await self.stop()
        retrieval = RetrievalConfig(vector_store="memory", sources=wanted, stores=seeds)
        self.config = msgspec.structs.replace(self.made.config, retrieval=retrieval)
        changes = self.made.knowledge._ingestor.changes
        self.service = Sources(self.config, self.made.database, self.made.blobs, changes)
        self.service.start()

    async def stop(self) -> None:
        if self.service is not None:
            await self.service.stop()

    async def sync(self, *names: str, remove_all: bool = False, indexed: bool = True) -> SourceReport:
        """Sync, and wait until what is new has taken its place; the report of the last source."""
        report = (await self.service.sync(SyncOrder(names=names, remove_all=remove_all)))[-1]
        if indexed:
            await self.indexed()
        return report

    async def indexed(self) -> None:
        async def done() -> bool:
            async with self.made.database.session(write=False) as session:
                return not any(counts.indexing for counts in (await sources.counts(session)).values())

        await until(done, 60)

    async def rows(self, name: str = "docs", tenant: str = "default") -> dict[str, SourceFile]:
        async with self.made.database.tenant(tenant, write=False) as session:
            return {row.key: row for row in await sources.documents(session, name)}

    async def store(self, name: str = "handbook", tenant: str = "default") -> str:
        async with self.made.database.tenant(tenant, write=False) as session:
            return (await stores.by_name(session, name)).id

    async def texts(self, query: str = "zebrafinch", **options: Any) -> dict[str, str]:
        """What a search finds, by file name."""
        return {hit.filename: hit.text for hit in await self.made.search(await self.store(), query, **options)}

    def blobs(self) -> int:
        return len(list((self.made.config.data_path / "files").glob("??/*")))


def digest_of(kit: Synced) -> str:
    """What rows say of the access and attributes that the source has now."""
    (wanted,) = kit.config.retrieval.sources
    return _digest((access_of(wanted), wanted.attributes))


def folder(path: Path, name: str = "docs", **fields: Any) -> SourceConfig:
    """A source that looks only when told to, and takes files as soon as they are there."""
    return SourceConfig(**{"name": name, "store": "handbook", "folder": str(path), "every": 0, "settle": 0, **fields})


@asynccontextmanager
async def synced(data: Path, monkeypatch, embedder: ScriptedEmbedder | None = None) -> AsyncIterator[Synced]:
    """A stack whose sources notice at once what became of a file."""
    monkeypatch.setattr(service, "_POLL_SECONDS", 0.02)
    async with stack(data, embedder) as made:
        kit = Synced(made)
        try:
            yield kit
        finally:
            await kit.stop()


def write(root: Path, **texts: str) -> None:
    """Files by their names, of which ``__`` stands for a slash; all end in ``.md``."""
    for name, text in texts.items():
        path = root / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
