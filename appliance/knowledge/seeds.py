"""Vector stores that the configuration asks for: made at the first start and kept in step with their files.

A file is known by its name (relative to the configuration) and its content. A changed file is attached anew, and the
old one is removed once the new one is queued; a file that is gone from the folder is removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select, tuple_

from appliance.config import Config, StoreConfig
from appliance.errors import ApplianceError
from appliance.knowledge.api import Knowledge
from appliance.knowledge.lease import FolderLock
from appliance.storage import files, store_files, stores
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.ids import new_id, now_us
from appliance.storage.tables import File, StoreFile, VectorStore

log = logging.getLogger("appliance.seeds")
PURPOSE = "configuration"
"""The purpose of files that the configuration brought; clients cannot give it."""
WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.1
_READ_BYTES = 1 << 20


@dataclass
class Seeder:
    """Keeps the configured stores in step."""

    config: Config
    database: Database
    blobs: BlobStore
    knowledge: Knowledge

    async def run(self) -> None:
        """Do it for every store, one replica at a time. Files that cannot be read are logged, never fatal."""
        lock = FolderLock(self.config.data_path, "seeds.lock")
        await lock.wait()
        try:
            for store in self.config.retrieval.stores:
                try:
                    await self._seed(store)
                except ApplianceError as error:
                    log.warning("store %s is not up to date: %s", store.name, error)
        finally:
            lock.release()

    async def wait(self, seconds: float = WAIT_SECONDS) -> None:
        """Until the configured stores have no file under way, so that the first question finds its answer.

        What takes longer goes on in the background, and the log says so.
        """
        try:
            async with asyncio.timeout(seconds):
                while await self._under_way():
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            log.warning(
                "%d configured files are still being indexed; searches find them as they are done",
                await self._under_way(),
            )

    async def _under_way(self) -> int:
        names = [(store.tenant, store.name) for store in self.config.retrieval.stores]
        query = select(func.count()).select_from(StoreFile).join(VectorStore, StoreFile.store_id == VectorStore.id)
        query = query.where(tuple_(VectorStore.tenant, VectorStore.name).in_(names), StoreFile.status == "in_progress")
        async with self.database.session(write=False) as session:
            return await session.scalar(query) or 0

    async def _seed(self, wanted: StoreConfig) -> None:
        tenant = wanted.tenant
        store_id = await self._store(tenant, wanted.name)
        present = await self._present(tenant, store_id)
        kept: set[str] = set()
        for path in await asyncio.to_thread(matching, Path(self.config.folder), wanted.paths):
            name = path.relative_to(Path(self.config.folder).resolve()).as_posix()[-255:]
            try:
                digest = await asyncio.to_thread(_digest, path)
                known = next((row.id for row in present if (row.filename, row.sha256) == (name, digest)), None)
                kept.add(known or await self._add(tenant, store_id, path, name))
            except OSError as error:
                log.warning(
                    "store %s: %s cannot be read (%s); check its permissions", wanted.name, name, error.strerror
                )
                kept.update(row.id for row in present if row.filename == name)
        for row in present:
            if row.id not in kept:
                await self._remove(tenant, store_id, row.id)
        self.knowledge.wake()

    async def _store(self, tenant: str, name: str) -> str:
        async with self.database.tenant(tenant) as session:
            row = await stores.by_name(session, name)
            if row is None:
                embedder = self.config.embedding_model()
                row = stores.new(name, embedder.name if embedder else None)
                session.add(row)
        return row.id

    async def _present(self, tenant: str, store_id: str) -> Sequence[File]:
        """The uploads of this store that came from here: those whose purpose says so."""
        query = select(File).join(StoreFile, StoreFile.file_id == File.id)
        query = query.where(StoreFile.store_id == store_id, File.purpose == PURPOSE)
        async with self.database.tenant(tenant, write=False) as session:
            return (await session.scalars(query)).all()

    async def _add(self, tenant: str, store_id: str, path: Path, name: str) -> str:
        file_id = new_id("file-")
        with self.blobs.writer() as writer, path.open("rb") as source:
            while data := await asyncio.to_thread(source.read, _READ_BYTES):
                await writer.write(data)
            await writer.commit(file_id)
        row = File(
            id=file_id,
            filename=name,
            purpose=PURPOSE,
            media_type=mimetypes.guess_type(name)[0],
            bytes=writer.size,
            sha256=writer.sha256,
            created_us=now_us(),
        )
        retrieval = self.config.retrieval
        async with self.database.tenant(tenant) as session:
            session.add(row)
            await session.flush()
            await store_files.attach(
                session,
                store_id,
                file_id,
                attributes={},
                chunk_size=retrieval.chunk_size,
                chunk_overlap=retrieval.chunk_overlap,
            )
        return file_id

    async def _remove(self, tenant: str, store_id: str, file_id: str) -> None:
        await self.knowledge.remove_file(store_id, file_id)
        async with self.database.tenant(tenant) as session:
            if await files.stores_of(session, file_id):
                return  # a client attached it elsewhere
            await files.remove(session, file_id)
        self.blobs.remove(file_id)


def matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files that the patterns match, each once, in order; none outside of ``folder``, not even by a link."""
    root = folder.resolve()
    found: set[Path] = set()
    for pattern in patterns:
        inside = {path for path in _matched(root, pattern) if path.is_relative_to(root)}
        if not inside:
            log.warning("retrieval.stores: %s matches no file below %s; check the pattern", pattern, root)
        found |= inside
    return sorted(found)


def _matched(root: Path, pattern: str) -> set[Path]:
    try:
        found = root.glob(pattern.removeprefix(f"{root}/").lstrip("/"))
        return {path.resolve() for path in found if path.is_file()}
    except ValueError:  # it is no pattern, as "**.md"
        return set()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
