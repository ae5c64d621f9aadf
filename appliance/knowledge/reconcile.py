"""Compares what the database says with what lies in the vector store and on the disk, and mends the difference.

Whatever is out of place is looked at twice, since work goes on meanwhile: only what is out of place both times counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from appliance.knowledge.changes import Changes
from appliance.knowledge.indexing import chunk_id
from appliance.knowledge.placement import PlacedStore
from appliance.knowledge.report import Misfit, Report
from appliance.storage import files, placing, reindexes, store_files, stores
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.store_files import Whole
from appliance.storage.sweep import lost_blobs
from appliance.storage.tables import VectorStore


@dataclass
class _Look:
    """One look at the vector store."""

    stores: int
    files: int
    elsewhere: list[str]
    """Stores that another vector store holds."""
    collections: set[str]
    """Those without a store."""
    chunks: int = 0
    misfits: set[Misfit] = field(default_factory=set)


@dataclass
class _Expected:
    """What a collection should hold: the ``files`` that are whole in it, of which ``busy`` ones are worked on."""

    store_id: str
    generation: int
    files: Sequence[Whole]
    busy: set[str]

    def misfits(self, there: Collection[str]) -> set[Misfit]:
        """Where that differs from what is there, by file; of those that are worked on nothing can be said."""
        wanted = {
            chunk_id(file_id, version, position, self.generation)
            for file_id, version, chunks in self.files
            for position in range(chunks)
        }
        found = set(there)
        extra, missing = Counter(map(_file_of, found - wanted)), Counter(map(_file_of, wanted - found))
        return {
            Misfit(self.store_id, file_id, extra[file_id], missing[file_id])
            for file_id in extra.keys() | missing.keys()
            if file_id not in self.busy
        }


@dataclass
class Reconciler:
    """Works on one data folder; the worker has it, which alone writes vectors."""

    database: Database
    backend: PlacedStore
    blobs: BlobStore
    changes: Changes

    async def run(self, *, repair: bool) -> Report:
        """Look, mend what can be mended if ``repair``, and report what was found.

        Raises:
            BadRequest: the vector store cannot say what it holds.
        """
        first = await self._look()
        lost, gone, blobs = await self._bytes()
        suspicious = first.collections or first.misfits
        second = await self._look() if suspicious else first
        report = Report(
            stores=first.stores,
            files=first.files,
            chunks=first.chunks,
            blobs=blobs,
            stores_elsewhere=first.elsewhere,
            collections_without_store=sorted(first.collections & second.collections),
            chunks_out_of_place=sorted(first.misfits & second.misfits),
            blobs_without_file=lost,
            files_without_blob=gone,
            repaired=repair,
        )
        if repair:
            await self._repair(report)
        return report

    async def _repair(self, report: Report) -> None:
        for store_id in report.stores_elsewhere:  # first: what lies here under their names is not theirs
            await self.changes.begin_anew(store_id)
        await self.changes.empty_expired()  # those that were elsewhere can be emptied only now
        for collection in report.collections_without_store:
            await self.changes.drop_orphan(collection)
        for misfit in report.chunks_out_of_place:
            await self.changes.mend(misfit.store_id, misfit.file_id)
        for blob_id in report.blobs_without_file:
            await asyncio.to_thread(self.blobs.remove, blob_id)

    async def _look(self) -> _Look:
        """Collection by collection, so that memory holds the ids of one at a time."""
        names = {name for name in await self.backend.collections() if stores.is_ours(name)}
        async with self.database.session(write=False) as session:
            known, files = await stores.every(session), await store_files.completed(session)
            seconds = await reindexes.every(session)
        elsewhere = {store.id for store in known if not placing.is_here(store, self.backend.name)}
        owners = {row.collection: row.store_id for row in seconds if row.store_id not in elsewhere}
        owners |= {store.collection: store.id for store in known if store.id not in elsewhere}
        look = _Look(len(known), files, sorted(elsewhere), names - owners.keys())
        for name in sorted(names | owners.keys()):
            # Chunks first, then rows: what is written or deleted in between is out of place only this once.
            there = await self.backend.chunk_ids(name) if name in names else ()
            look.chunks += len(there)
            if name in owners and (expected := await self._expected(owners[name], name)):
                look.misfits |= await asyncio.to_thread(expected.misfits, there)
        return look

    async def _expected(self, store_id: str, collection: str) -> _Expected | None:
        """What is to be in a collection; ``None`` where nothing can be said, as of one that is being dropped."""
        async with self.database.session(write=False) as session:
            store, second = await session.get(VectorStore, store_id), await reindexes.find(session, store_id)
            files, busy = await store_files.settled(session, store_id)
            if store is not None and store.collection == collection:
                return _Expected(store_id, store.generation, files, busy)
            if second is None or second.collection != collection or second.status == reindexes.DROPPING:
                return None
            held = await reindexes.held(session, second)
        whole = [(item.file_id, item.version, item.chunks) for item in held if item.done]
        return _Expected(store_id, second.generation, whole, busy | {item.file_id for item in held if not item.done})

    async def _bytes(self) -> tuple[list[str], list[str], int]:
        """Blobs without a row, files without a blob, and how many blobs there are."""
        lost, seen = await lost_blobs(self.database, self.blobs)
        async with self.database.session(write=False) as session:
            ids = await files.all_ids(session)
        gone = await asyncio.to_thread(lambda: [name for name in ids if not self.blobs.path(name).exists()])
        async with self.database.session(write=False) as session:
            return lost, sorted(await files.known(session, gone)), seen


def _file_of(chunk: str) -> str:
    return chunk.rpartition(":")[0].rpartition(":")[0]
