"""The ingestion worker's loop: claims jobs and runs a few at once.

A job is a row made in the same transaction as the attachment. It is claimed by a lease and goes when the file's row
says what came of it, so that whatever kills the worker, the next one takes the job up again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import ApplianceError, IngestionError, RequestError
from appliance.knowledge.changes import Changes
from appliance.knowledge.indexing import Indexer
from appliance.knowledge.placement import PlacedStore
from appliance.knowledge.sealing import Key, Sealer
from appliance.knowledge.tasks import tried
from appliance.knowledge.under_way import UnderWay
from appliance.storage import jobs, reindexes
from appliance.storage.database import Database
from appliance.storage.jobs import Work

log = logging.getLogger("appliance.ingest")
IN_FLIGHT = 2
"""Files worked on at once: one is parsed while the other is embedded."""
REBUILDS = 100
"""Files that are looked up at once to be indexed into second collections."""
UNSEALED = 64
"""No new file is begun while so many wait to be sealed."""
_POLL_SECONDS = 1.0
_RENEW_SECONDS = jobs.LEASE_SECONDS / 3
_RETRY_SECONDS = 2.0
_TIDY_SECONDS = 60.0
"""Between two looks for removals, changes and expired stores that are still to be carried through."""
_START_SECONDS = 5.0
"""How long the start waits for the first of these looks."""
_UNEXPECTED_ATTEMPTS = 3
StandBack: TypeAlias = Callable[[bool], bool]
"""Lets this process stand back for others, or not any more; false if that could not be done now."""
_GIVE_UP = "the worker ended {count} times while indexing this file; split it, or see the worker's log"
_UNEXPECTED = "an internal error; the worker's log has the details"


class Ingestor:
    """Turns queued jobs into searchable chunks."""

    def __init__(
        self, database: Database, backend: PlacedStore, indexer: Indexer, owner: str, stand_back: StandBack
    ) -> None:
        """``owner`` is the name to hold leases by (``WorkerLock``)."""
        self._database = database
        self._backend = backend
        self._indexer = indexer
        self._owner = owner
        self._stand_back = stand_back
        self._standing_back = False
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._rebuilding: set[Key] = set()
        self._rebuilds: deque[Key] = deque()
        self.rebuilt = asyncio.Event()
        """Set whenever no file is left to be indexed into a second collection."""
        self._woken = asyncio.Event()
        self._sealer = Sealer(database, backend, lambda: not self._running, self._woken.set)
        self._under_way = UnderWay(self._running, self._sealer)
        self.changes = Changes(database, backend, self._under_way, self.wake)
        """What ends work on files, and takes them out."""
        self._renewed = 0.0
        self._tidied = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Take up what an earlier worker left, and begin; vector stores that do not answer are waited for beside it."""
        async with self._database.session() as session:
            await jobs.reclaim(session, self._owner)
        self._sealer.start()
        self._tidied.clear()
        loops = {"ingestor": self._run(), "tidying up": self._tidy()}
        self._tasks = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                await self._tidied.wait()

    async def stop(self) -> None:
        """Stop; unfinished files stay queued. Idempotent."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._tasks = []
        await self._under_way.end_tasks(self._running)
        await self._sealer.stop()
        with suppress(ApplianceError):
            async with self._database.session() as session:
                await jobs.reclaim(session, self._owner, uncounted=True)

    def wake(self) -> None:
        """There may be new jobs, or cancelled ones."""
        self._woken.set()

    # -- the loop --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            await tried("the job queue", self._turn(), log)
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._woken.wait()

    async def _turn(self) -> None:
        await self._drop_cancelled()
        await self._renew()
        if self._free > 0:
            await self._claim()
        if self._free > 0 and not self._rebuilding:
            await self._claim_rebuild()
        self._stand_back_while_busy()

    async def _tidy(self) -> None:
        """Beside the queue, which does not wait for vector stores that do not answer."""
        while True:
            for step in (self.changes.finish_removals, self.changes.empty_expired, self.changes.finish_updates):
                await tried("tidying up", step(), log)
            self._tidied.set()
            await asyncio.sleep(_TIDY_SECONDS)

    def _stand_back_while_busy(self) -> None:
        busy = bool(self._under_way)
        if busy != self._standing_back and self._stand_back(busy):
            self._standing_back = busy

    @property
    def _free(self) -> int:
        """How many more files may be begun."""
        return 0 if len(self._sealer) >= UNSEALED else IN_FLIGHT - len(self._running)

    async def _claim(self) -> None:
        async with self._database.session(write=False) as session:
            if not await jobs.due(session, self._backend.name):
                return
        async with self._under_way.claiming:
            await self._renew()  # again: the wait may have been long, and what is worked on must not be begun twice
            async with self._database.session() as session:
                claimed = await jobs.claim(session, self._owner, self._free, self._backend.name)
            for work in claimed:
                self._begin(work)

    async def _claim_rebuild(self) -> None:
        """One at a time: a place stays free for what is new."""
        fingerprints = {item.embedder.fingerprint for item in self._indexer.embedders.values()}
        while not self._rebuilding:
            if not self._rebuilds:
                busy = self._under_way.keys()
                async with self._database.session(write=False) as session:
                    found = await reindexes.due(session, REBUILDS + len(busy), fingerprints, self._backend.name)
                self._rebuilds = deque(key for key in found if key not in busy)
            if not self._rebuilds:
                self.rebuilt.set()
                return
            async with self._under_way.claiming:
                async with self._database.session() as session:
                    key = self._rebuilds.popleft()
                    work = await reindexes.claim(session, key, fingerprints, self._backend.name)
                if work is not None and work.key not in self._running:
                    self._begin(work)

    def _begin(self, work: Work) -> None:
        task = asyncio.create_task(self._work(work), name=f"ingest {work.file_id}")
        self._running[work.key] = task
        if work.is_rebuild:
            self._rebuilding.add(work.key)
        task.add_done_callback(partial(self._ended, work.key))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work on file %s ended; it is taken up again once its lease is over", key[1], exc_info=error)
        self._running.pop(key, None)
        self._rebuilding.discard(key)
        self._sealer.nudge()
        self._woken.set()

    async def _drop_cancelled(self) -> None:
        """Stop what the server has cancelled; its job is claimed once more, to clean up."""
        if not self._under_way:
            return
        async with self._database.session(write=False) as session:
            keys = await jobs.cancelled(session, self._owner)
        for key in keys & self._running.keys():
            await self._under_way.end_tasks({key})
            async with self._database.session() as session:
                await jobs.let_go(session, *key)

    async def _renew(self) -> None:
        if self._under_way and time.monotonic() - self._renewed > _RENEW_SECONDS:
            async with self._database.session() as session:
                await jobs.renew(session, self._owner, self._under_way.keys())
            self._renewed = time.monotonic()

    # -- one job ---------------------------------------------------------------------------------------

    async def _work(self, work: Work) -> None:
        if work.status == "cancelled":
            await self._clean_up(work, lambda session: jobs.drop(session, work))
            return
        if work.attempts > jobs.MAX_ATTEMPTS:
            await self._failed(work, IngestionError.code, _GIVE_UP.format(count=work.attempts - 1))
            return
        began = time.monotonic()
        try:
            written = await self._indexer.index(work)
        except IngestionError as error:
            await self._failed(work, error.code, str(error))
        except ApplianceError as error:
            log.warning("file %s waits: %s", work.file_id, error)
            await self._later(work, error)
        except Exception:
            log.exception("file %s could not be indexed", work.file_id)
            if work.attempts < _UNEXPECTED_ATTEMPTS:
                await self._put_back(work, 2.0, counted=True)
            else:
                await self._failed(work, IngestionError.code, _UNEXPECTED)
        else:
            self._sealer.add(written)
            log.info("file %s: %d chunks in %.1f s", work.file_id, written.chunks, time.monotonic() - began)

    async def _failed(self, work: Work, code: str, message: str) -> None:
        log.info("file %s failed: %s", work.file_id, code)
        queue = reindexes if work.is_rebuild else jobs
        await self._clean_up(work, lambda session: queue.fail(session, work, code, message))

    async def _clean_up(self, work: Work, end: Callable[[AsyncSession], Awaitable[None]]) -> None:
        """Nothing half indexed stays of what has ended; if even that fails, the job comes up again."""
        try:
            await self._backend.delete_file(work.collection, work.file_id)
            async with self._database.session() as session:
                await end(session)
        except ApplianceError as error:
            await self._later(work, error)
        except Exception:
            log.exception("file %s could not be cleaned up", work.file_id)
            await self._put_back(work, _RETRY_SECONDS * work.attempts, counted=True)

    async def _later(self, work: Work, error: ApplianceError) -> None:
        retry_after = error.retry_after if isinstance(error, RequestError) else None
        await self._put_back(work, max(2.0, retry_after or 0.0), counted=False)

    async def _put_back(self, work: Work, delay: float, *, counted: bool) -> None:
        """Keep at it while the database is full or out of reach: the job is this worker's until it is let go."""
        queue = reindexes if work.is_rebuild else jobs
        while True:
            try:
                async with self._database.session() as session:
                    await queue.put_back(session, work, delay=delay, counted=counted)
            except ApplianceError as error:
                log.warning("file %s cannot be put back yet: %s", work.file_id, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return
