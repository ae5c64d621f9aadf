"""A retrieval stack in this process, for tests: real database, blobs, worker loop and store; a scripted embedder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from eventually import until
from sqlalchemy import func, select

from appliance.config import parse
from appliance.context import AppContext
from appliance.knowledge.local import LocalKnowledge
from appliance.plugins import Plugins
from appliance.storage import store_files
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.ids import new_id, now, now_us
from appliance.storage.tables import File, Job, StoreFile, VectorStore
from appliance.testing.scripted_embedder import ScriptedEmbedder
from appliance.types import Passage, Scope, Search

YAML = """
plugins: [{store}, documents, tokens]
models: [{{name: words, embedder: scripted_embedder}}]
retrieval: {{vector_store: {store}}}
"""


class Stack:
    """One data folder with what works on it; ``more`` is added to its configuration."""

    def __init__(self, folder: Path, embedder: ScriptedEmbedder, store: str, more: str = "", **options) -> None:
        self.config = parse(YAML.format(store=store) + more, folder=folder)
        self.embedder = embedder
        self.database = Database(self.config.database_url)
        self.context = AppContext(config=self.config, database=self.database)
        self.blobs = BlobStore(self.config.data_path / "files")
        self.plugins = Plugins(self.config, {"scripted_embedder": embedder})
        self.plugins.bind(self.context)
        self.knowledge = LocalKnowledge(self.plugins, self.context, **options)

    async def start(self) -> None:
        await self.database.start()
        self.blobs.start()
        await self.knowledge.start()

    async def stop(self) -> None:
        await self.knowledge.stop()
        await self.database.stop()

    @property
    def backend(self):
        """The vector store itself."""
        return self.knowledge._backend.inner

    async def upload(self, text: str | bytes, filename: str = "a.txt", tenant: str = "default") -> str:
        file_id = new_id("file-")
        data = text.encode() if isinstance(text, str) else text
        with self.blobs.writer() as writer:
            await writer.write(data)
            await writer.commit(file_id)
        async with self.database.session() as session:
            session.add(
                File(
                    id=file_id, tenant=tenant, filename=filename, purpose="assistants", bytes=len(data),
                    sha256=writer.sha256, created_us=now_us(),
                )
            )  # fmt: skip
        return file_id

    async def make_store(self, tenant: str = "default", expires_days: int | None = None) -> str:
        store_id = new_id("vs_")
        async with self.database.session() as session:
            session.add(
                VectorStore(
                    id=store_id, tenant=tenant, name="", labels={}, last_active_at=now(), embedder="words",
                    removing=False, created_us=now_us(), expires_days=expires_days,
                )
            )  # fmt: skip
        return store_id

    async def attach(
        self, store_id: str, file_id: str, tenant: str = "default", size: int = 100, chunker=None, **attributes
    ) -> None:
        async with self.database.tenant(tenant) as session:
            await store_files.attach(
                session, store_id, file_id, attributes=attributes, chunk_size=size, chunk_overlap=0, chunker=chunker
            )
        self.knowledge.wake()

    async def add(self, store_id: str, text: str, filename: str = "a.txt", size: int = 100, **attributes) -> str:
        file_id = await self.upload(text, filename)
        await self.attach(store_id, file_id, size=size, **attributes)
        await self.settled(store_id, file_id)
        return file_id

    async def row(self, store_id: str, file_id: str) -> StoreFile | None:
        async with self.database.session(write=False) as session:
            return await store_files.find(session, store_id, file_id)

    async def settled(self, store_id: str, file_id: str, within: float = 20.0) -> StoreFile:
        found: list[StoreFile] = []

        async def done() -> bool:
            row = await self.row(store_id, file_id)
            found[:] = [row] if row else []
            return row is not None and row.status != "in_progress"

        await until(done, within)
        return found[0]

    async def search(self, store_id: str, query: str, **options) -> list[Passage]:
        found = await self.knowledge.search(Search(store_ids=(store_id,), queries=(query,), **options), Scope())
        return found.passages


@asynccontextmanager
async def stack(
    folder: Path, embedder: ScriptedEmbedder | None = None, store: str = "memory", **options
) -> AsyncIterator[Stack]:
    made = Stack(folder, embedder or ScriptedEmbedder(), store, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def long_text(words: int) -> str:
    return " ".join(f"word{i}" for i in range(words))


async def jobs_left(made: Stack) -> int:
    async with made.database.session(write=False) as session:
        return await session.scalar(select(func.count()).select_from(Job)) or 0


async def all_indexed(made: Stack) -> bool:
    """Whether no job is left."""
    return await jobs_left(made) == 0


async def embedding(made: Stack) -> bool:
    """Whether an embedder that holds its calls from the fourth on holds one."""
    return len(made.embedder.calls) > 4
