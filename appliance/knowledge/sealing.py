"""Sealing: what was written becomes durable and fast to search, several files at a time, since it is costly.

Only after its store is sealed is a file reported as completed; so whatever was reported survives a ``kill -9``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import ApplianceError
from appliance.knowledge.indexing import Written, uninterrupted
from appliance.protocols import VectorStore
from appliance.storage import jobs, reindexes, store_files
from appliance.storage.database import Database
from appliance.storage.jobs import Work
from appliance.storage.tables import StoreFile

log = logging.getLogger("appliance.ingest")
GROUP_FILES = 16
GROUP_SECONDS = 1.0
_RETRY_SECONDS = 2.0
Key: TypeAlias = tuple[str, str]
"""Store id and file id."""


class Sealer:
    """Collects written files and completes them in groups."""

    def __init__(
        self, database: Database, backend: VectorStore, idle: Callable[[], bool], told: Callable[[], None]
    ) -> None:
        """``idle`` says that nothing more is being written, so that waiting for company is pointless.

        ``told`` is called when files were completed.
        """
        self._database = database
        self._backend = backend
        self._idle = idle
        self._told = told
        self._pending: list[Written] = []
        self._group: list[Written] = []
        self._changed = asyncio.Event()
        self._group_done = asyncio.Event()
        self._group_done.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._run(), name="sealer")

    async def stop(self) -> None:
        """Stop after the group under way; what is pending stays queued in the database. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def add(self, written: Written) -> None:
        """Take over a written file."""
        self._pending.append(written)
        self._changed.set()

    def nudge(self) -> None:
        """Something ended: perhaps there is nothing left to wait for."""
        self._changed.set()

    def __len__(self) -> int:
        return len(self._pending) + len(self._group)

    def keys(self) -> set[Key]:
        """What is waiting or being sealed."""
        return {written.work.key for written in (*self._pending, *self._group)}

    async def forget(self, keys: Collection[Key]) -> None:
        """Drop what is pending of these; what is being completed this moment is waited for."""
        while True:
            self._pending = [written for written in self._pending if written.work.key not in keys]
            if not any(written.work.key in keys for written in self._group):
                return
            await self._group_done.wait()

    async def _run(self) -> None:
        while True:
            await self._company()
            self._group, self._pending = self._pending[:GROUP_FILES], self._pending[GROUP_FILES:]
            self._group_done.clear()
            try:
                again = await uninterrupted(self._finish_all(self._group))
            finally:
                self._group = []
                self._group_done.set()
                self._told()
            if again:
                self._pending += again
                await asyncio.sleep(_RETRY_SECONDS)

    async def _company(self) -> None:
        """Wait for a first file, then for a full group, a second, or the end of all writing."""
        while not self._pending:
            self._changed.clear()
            await self._changed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(GROUP_SECONDS):
                while len(self._pending) < GROUP_FILES and not self._idle():
                    self._changed.clear()
                    await self._changed.wait()

    async def _finish_all(self, group: Sequence[Written]) -> list[Written]:
        """Seal each collection and complete its files; returns those to be tried again."""
        again: list[Written] = []
        for collection in dict.fromkeys(written.work.collection for written in group):
            again += await self._finish(collection, [w for w in group if w.work.collection == collection])
        return again

    async def _finish(self, collection: str, group: list[Written]) -> list[Written]:
        todo = group
        try:
            while todo:
                await self._backend.seal(collection)
                todo = await self._complete(todo)
                for written in todo:
                    await self._backend.set_attributes(collection, written.work.file_id, written.attributes)
                    await self._backend.set_readers(collection, written.work.file_id, written.readers)
        except ApplianceError as error:
            log.warning("sealing %s failed and is tried again: %s", collection, error)
        except Exception:
            log.exception("sealing %s failed and is tried again", collection)
        return todo

    async def _complete(self, group: Sequence[Written]) -> list[Written]:
        """Report all that are still wanted, in one transaction; returns those whose row changed meanwhile."""
        stale: list[Written] = []
        async with self._database.session() as session:
            for written in group:
                # Locked: a change of readers that the chunks do not have yet must not come between look and report.
                row = await store_files.find(session, *written.work.key, lock=True)
                if row is None or not await _still_wanted(session, written.work, row):
                    continue
                if (row.attributes, row.readers) != (written.attributes, written.readers):
                    written.attributes, written.readers = row.attributes, row.readers
                    stale.append(written)
                else:
                    await _report(session, written)
        return stale


async def _still_wanted(session: AsyncSession, work: Work, row: StoreFile) -> bool:
    """Whether what was written for this row is still wanted; of a cancelled file the job is put back, to clean up."""
    if row.version != work.version or row.removing:
        return False
    if work.is_rebuild:
        return row.status == "completed" and await reindexes.wanted(session, work)
    if row.status == "cancelled":
        await jobs.put_back(session, work, delay=0, counted=False)
        return False
    return row.status != "completed"  # else an earlier try of this group went through


async def _report(session: AsyncSession, written: Written) -> None:
    """Say that a file is whole."""
    work, chunks, usage_bytes = written.work, written.chunks, written.usage_bytes
    if work.is_rebuild:
        await reindexes.complete(session, work, chunks=chunks, usage_bytes=usage_bytes)
    else:
        await jobs.complete(session, work, chunks=chunks, usage_bytes=usage_bytes, notes=written.notes)
