"""Compares what the database says with what lies in the vector store and on the disk, and mends the difference.

Whatever is out of place is looked at twice, since work goes on meanwhile: only what is out of place both times counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from appliance.knowledge.changes import Changes
from appliance.knowledge.indexing import chunk_id
from appliance.knowledge.placement import PlacedStore
from appliance.knowledge.report import Misfit, Report
from appliance.knowledge.sealing import Key
from appliance.storage import files, placing, reindexes, store_files, stores
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.sweep import lost_blobs


@dataclass
class _Chunks:
    """One look at the vector store."""

    elsewhere: list[str]
    """Stores that another vector store holds."""
    collections: set[str]
    """Those without a store."""
    misfits: set[Misfit]
    stores: int
    files: int
    chunks: int


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
        first = await self._chunks()
        lost, gone, blobs = await self._bytes()
        suspicious = first.collections or first.misfits
        second = await self._chunks() if suspicious else first
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

    async def _chunks(self) -> _Chunks:
        # Chunks first, then rows: what is written or deleted in between is out of place only this once.
        names = [name for name in await self.backend.collections() if stores.is_ours(name)]
        there = {name: await self.backend.chunk_ids(name) for name in names}
        async with self.database.session(write=False) as session:
            known = await stores.every(session)
            rows, busy = await store_files.settled(session)
            seconds = [(row, await reindexes.held(session, row)) for row in await reindexes.every(session)]
        wanted = {store.id: _Wanted(store.id, store.generation, busy) for store in known}
        for row in rows:
            wanted[row.store_id].add(row.file_id, row.version, row.chunks)
        elsewhere = {store.id for store in known if not placing.is_here(store, self.backend.name)}
        collections = {store.collection: wanted[store.id] for store in known if store.id not in elsewhere}
        ignored = set()
        for second, held in seconds:
            if second.store_id in elsewhere:
                continue
            if second.status == reindexes.DROPPING:
                ignored.add(second.collection)
                continue
            unfinished = {(second.store_id, item.file_id) for item in held if not item.done}
            collections[second.collection] = whole = _Wanted(second.store_id, second.generation, busy | unfinished)
            for item in held:
                if item.done:
                    whole.add(item.file_id, item.version, item.chunks)
        misfits = {misfit for name, whole in collections.items() for misfit in whole.misfits(set(there.get(name, ())))}
        chunks = sum(len(found) for found in there.values())
        lost = there.keys() - collections.keys() - ignored
        return _Chunks(sorted(elsewhere), lost, misfits, len(known), len(rows), chunks)

    async def _bytes(self) -> tuple[list[str], list[str], int]:
        """Blobs without a row, files without a blob, and how many blobs there are."""
        lost, seen = await lost_blobs(self.database, self.blobs)
        async with self.database.session(write=False) as session:
            ids = await files.all_ids(session)
        gone = await asyncio.to_thread(lambda: [name for name in ids if not self.blobs.path(name).exists()])
        async with self.database.session(write=False) as session:
            return lost, sorted(await files.known(session, gone)), seen


@dataclass
class _Wanted:
    """What a collection should hold."""

    store_id: str
    generation: int
    busy: set[Key]
    """Files that are worked on, of any store: of those nothing can be said."""
    ids: set[str] = field(default_factory=set)

    def add(self, file_id: str, version: int, chunks: int) -> None:
        """All chunks of a file."""
        self.ids |= {chunk_id(file_id, version, i, self.generation) for i in range(chunks)}

    def misfits(self, there: set[str]) -> list[Misfit]:
        """Where it differs from what is there, by file."""
        extra = Counter(found.rpartition(":")[0].rpartition(":")[0] for found in there - self.ids)
        missing = Counter(found.rpartition(":")[0].rpartition(":")[0] for found in self.ids - there)
        return [
            Misfit(self.store_id, file_id, extra[file_id], missing[file_id])
            for file_id in extra.keys() | missing.keys()
            if (self.store_id, file_id) not in self.busy
        ]
