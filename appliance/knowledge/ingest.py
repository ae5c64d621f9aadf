"""The ingestion worker's loop: claims jobs, runs a few at once, and takes things out again.

A job is a row made in the same transaction as the attachment. It is claimed by a lease and goes when the file's row
says what came of it, so that whatever kills the worker, the next one takes the job up again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias
from weakref import WeakValueDictionary

from appliance.errors import ApplianceError, IngestionError, RequestError, RetrievalUnavailable
from appliance.knowledge.collections import Collections
from appliance.knowledge.filters import Attributes
from appliance.knowledge.indexing import Indexer
from appliance.knowledge.placement import PlacedStore
from appliance.knowledge.sealing import Key, Sealer
from appliance.storage import jobs, moving, reindexes, store_files, stores
from appliance.storage.database import Database
from appliance.storage.jobs import Work
from appliance.storage.tables import VectorStore as StoreRow
from appliance.types import Access

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
_UNEXPECTED_ATTEMPTS = 3
StandBack: TypeAlias = Callable[[bool], bool]
"""Lets this process stand back for others, or not any more; false if that could not be done now."""
_GIVE_UP = "the worker ended {count} times while indexing this file; split it, or see the worker's log"
_UNEXPECTED = "an internal error; the worker's log has the details"


class Ingestor:
    """Turns queued jobs into searchable chunks, and takes files and stores out of the backend."""

    def __init__(
        self, database: Database, backend: PlacedStore, indexer: Indexer, owner: str, stand_back: StandBack
    ) -> None:
        """``owner`` is the name to hold leases by (``WorkerLock``)."""
        self._database = database
        self._backend = backend
        self._collections = Collections(database, backend)
        self._indexer = indexer
        self._owner = owner
        self._stand_back = stand_back
        self._standing_back = False
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._rebuilding: set[Key] = set()
        self._rebuilds: deque[Key] = deque()
        self.rebuilt = asyncio.Event()
        """Set whenever no file is left to be indexed into a second collection."""
        self._claiming = asyncio.Lock()
        self._changes: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._woken = asyncio.Event()
        self._sealer = Sealer(database, backend, lambda: not self._running, self._woken.set)
        self._renewed = 0.0
        self._tidied = -_TIDY_SECONDS
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up what an earlier worker left, and begin."""
        async with self._database.session() as session:
            await jobs.reclaim(session, self._owner)
        await self._finish_removals()
        await self._finish_updates()
        self._sealer.start()
        self._task = asyncio.create_task(self._run(), name="ingestor")

    async def stop(self) -> None:
        """Stop; unfinished files stay queued. Idempotent."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self._end_tasks(self._running)
        await self._sealer.stop()
        with suppress(ApplianceError):
            async with self._database.session() as session:
                await jobs.reclaim(session, self._owner, uncounted=True)

    def wake(self) -> None:
        """There may be new jobs, or cancelled ones."""
        self._woken.set()

    # -- taking out ------------------------------------------------------------------------------------

    async def remove_file(self, store_id: str, file_id: str) -> None:
        """See ``Knowledge.remove_file``."""
        async with self._changing((store_id, file_id)):
            async with self._database.session() as session:
                if await store_files.find(session, store_id, file_id, lock=True) is None:
                    return  # an earlier call has removed it
                await store_files.begin_removal(session, store_id, file_id)
            await self._drop((store_id, file_id))
            async with self._database.session() as session:
                await store_files.remove(session, store_id, file_id)

    async def remove_store(self, store_id: str) -> None:
        """See ``Knowledge.remove_store``."""
        async with self._database.session() as session:
            await stores.begin_removal(session, store_id)
        await self._drop_all(store_id)
        async with self._database.session() as session:
            await stores.remove(session, store_id)

    async def empty_expired(self) -> None:
        """Take everything out of the stores that have expired; the stores stay, to say so."""
        async with self._database.session(write=False) as session:
            store_ids = await stores.expired(session, self._backend.name)
        for store_id in store_ids:
            await _logged(self._empty(store_id))

    async def _empty(self, store_id: str) -> None:
        async with self._database.session() as session:
            store = await session.get(StoreRow, store_id, with_for_update=True)  # whoever attaches holds it
            if store is None or not stores.has_expired(store):
                return
            await store_files.begin_removal_of_all(session, store_id)
        await self._drop_all(store_id)
        async with self._database.session() as session:
            await store_files.remove_all(session, store_id)
            await stores.forget_embedder(session, store_id)
            await reindexes.end(session, store_id)
        log.info("vector store %s has expired and was emptied", store_id)

    async def set_attributes(self, store_id: str, file_id: str, attributes: Attributes) -> None:
        """See ``Knowledge.set_attributes``; a file that is being written gets them before it is completed."""
        async with self._database.session() as session:
            await store_files.set_attributes(session, store_id, file_id, attributes)
        await self._update_chunks(store_id, file_id)

    async def set_access(self, store_id: str, file_id: str, access: Access) -> None:
        """See ``Knowledge.set_access``; searches look at the row too, so whoever lost the right has lost it at once."""
        async with self._database.session() as session:
            await store_files.set_access(session, store_id, file_id, access)
        await self._update_chunks(store_id, file_id)

    async def _update_chunks(self, store_id: str, file_id: str) -> None:
        """Give the chunks what the row says; those being written get it before their file is completed."""
        async with self._changing((store_id, file_id)):
            async with self._database.session(write=False) as session:
                row = await store_files.find(session, store_id, file_id)
            if row is None or row.status != "completed" or row.removing:
                return
            await self._collections.update(store_id, file_id, row.attributes, row.readers)
            async with self._database.session() as session:
                await store_files.fresh(session, row)

    def _changing(self, key: Key) -> asyncio.Lock:
        """Held while a finished file's chunks are changed, or a file is removed: one after the other.

        So an older row is not written over a newer one, chunks that a vector store writes anew do not come back after
        their removal, and a second removal takes no chunk along of a file that is attached again behind the first.
        """
        return self._changes.setdefault(key, asyncio.Lock())

    # -- mending (knowledge/reconcile.py) --------------------------------------------------------------

    async def drop_orphan(self, collection: str) -> None:
        """Drop a collection, unless it is a store's."""
        if collection not in await self._collections.names(stores.store_of(collection)):
            await self._backend.drop(collection)

    async def mend(self, store_id: str, file_id: str) -> None:
        """Put a file's chunks in order: a completed file is indexed again, of any other the chunks are deleted.

        What a second collection of the store has of it is deleted, to be made anew when it is wanted.
        """
        key = store_id, file_id
        async with self._claiming:  # no work on it may begin between the look and the deletion
            async with self._database.session(write=False) as session:
                row = await store_files.find(session, store_id, file_id)
            if row is not None and row.status == "completed" and not row.removing:
                await self._index_again(key)
            elif row is None or (row.status != "in_progress" and key not in self._running):
                await self._collections.delete_file(store_id, file_id)

    async def _index_again(self, key: Key) -> None:
        await self._end({key})  # a completed file is at most on its way into a second collection
        async with self._database.session() as session:
            await reindexes.forget_file(session, *key)
            row = await store_files.find(session, *key)
            if row is not None and row.status == "completed" and not row.removing:
                await store_files.index_again(session, row)
        for second in (await self._collections.names(key[0]))[1:]:
            await self._backend.delete_file(second, key[1])
        self.wake()

    async def begin_anew(self, store_id: str) -> None:
        """Index all files of a store here, whose vectors another vector store holds; that one is left as it is."""
        async with self.paused(store_id), self._database.session() as session:
            await moving.move(session, store_id, self._backend.name)

    # -- ending work -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def paused(self, store_id: str) -> AsyncIterator[None]:
        """Nothing of a store is worked on inside. What was under way is queued again, and its chunks are deleted."""
        async with self._claiming:
            await self._end(self._keys_of(store_id))
            async with self._database.session() as session:
                begun = await jobs.let_go_of_store(session, store_id)
            for file_id in begun:
                await self._collections.delete_file(store_id, file_id)
            yield
        self._woken.set()

    def _keys_of(self, store_id: str) -> set[Key]:
        return {key for key in (*self._running, *self._sealer.keys()) if key[0] == store_id}

    async def _drop_all(self, store_id: str) -> None:
        """End the work on a store's files and drop their chunks with its collections."""
        async with self._claiming:  # what is claimed this moment must be seen
            await self._end(self._keys_of(store_id))
        await self._collections.drop(store_id)

    async def _drop(self, key: Key) -> None:
        """End the work on a file and delete its chunks."""
        async with self._claiming:
            await self._end({key})
        await self._collections.delete_file(*key)

    async def _end(self, keys: Collection[Key]) -> None:
        """End the work on these; what is being completed this moment is waited for."""
        await self._end_tasks(keys)
        await self._sealer.forget(keys)

    async def _end_tasks(self, keys: Collection[Key]) -> None:
        tasks = [task for key in tuple(keys) if (task := self._running.get(key))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _finish_removals(self) -> None:
        """Removals that a crash interrupted; one that fails stays marked, and can be asked for again."""
        async with self._database.session(write=False) as session:
            store_ids = await stores.being_removed(session)
            keys = await store_files.being_removed(session)
        for store_id in store_ids:
            await _logged(self.remove_store(store_id))
        for key in keys:
            await _logged(self.remove_file(*key))

    async def _finish_updates(self) -> None:
        """Changes of attributes and readers that a crash, or a vector store out of reach, kept from the chunks."""
        async with self._database.session(write=False) as session:
            keys = await store_files.stale(session, self._backend.name)
        for key in keys:
            try:
                await self._update_chunks(*key)
            except RetrievalUnavailable as error:
                log.warning("changes of %d files wait for the vector store: %s", len(keys), error)
                return
            except RequestError as error:
                log.warning("the change of file %s cannot be finished: %s; repeat it", key[1], error)

    # -- the loop --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._turn()
            except ApplianceError as error:
                log.warning("the job queue is out of reach and is tried again: %s", error)
            except Exception:
                log.exception("the job queue failed and is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._woken.wait()

    async def _turn(self) -> None:
        await self._drop_cancelled()
        await self._renew()
        if time.monotonic() - self._tidied > _TIDY_SECONDS:
            self._tidied = time.monotonic()
            await self.empty_expired()
            await self._finish_updates()
        if self._free > 0:
            await self._claim()
        if self._free > 0 and not self._rebuilding:
            await self._claim_rebuild()
        self._stand_back_while_busy()

    def _stand_back_while_busy(self) -> None:
        busy = bool(self._running or len(self._sealer))
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
        async with self._claiming:
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
                busy = {*self._running, *self._sealer.keys()}
                async with self._database.session(write=False) as session:
                    found = await reindexes.due(session, REBUILDS + len(busy), fingerprints, self._backend.name)
                self._rebuilds = deque(key for key in found if key not in busy)
            if not self._rebuilds:
                self.rebuilt.set()
                return
            async with self._claiming:
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
        task.add_done_callback(lambda _: self._ended(work.key))

    def _ended(self, key: Key) -> None:
        self._running.pop(key, None)
        self._rebuilding.discard(key)
        self._sealer.nudge()
        self._woken.set()

    async def _drop_cancelled(self) -> None:
        """Stop what the server has cancelled; its job is claimed once more, to clean up."""
        if not self._running and not len(self._sealer):
            return
        async with self._database.session(write=False) as session:
            keys = await jobs.cancelled(session, self._owner)
        for key in keys & self._running.keys():
            await self._end_tasks({key})
            async with self._database.session() as session:
                await jobs.let_go(session, *key)

    async def _renew(self) -> None:
        if (self._running or len(self._sealer)) and time.monotonic() - self._renewed > _RENEW_SECONDS:
            async with self._database.session() as session:
                await jobs.renew(session, self._owner)
            self._renewed = time.monotonic()

    # -- one job ---------------------------------------------------------------------------------------

    async def _work(self, work: Work) -> None:
        if work.status == "cancelled":
            await self._clean_up(work)
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

    async def _clean_up(self, work: Work) -> None:
        try:
            await self._backend.delete_file(work.collection, work.file_id)
            async with self._database.session() as session:
                await jobs.end(session, work)
        except ApplianceError as error:
            await self._later(work, error)

    async def _failed(self, work: Work, code: str, message: str) -> None:
        """Nothing half indexed stays; if even that fails, the job comes up again."""
        log.info("file %s failed: %s", work.file_id, code)
        queue = reindexes if work.is_rebuild else jobs
        try:
            await self._backend.delete_file(work.collection, work.file_id)
            async with self._database.session() as session:
                await queue.fail(session, work, code, message)
        except ApplianceError as error:
            await self._later(work, error)

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


async def _logged(work: Awaitable[None]) -> None:
    try:
        await work
    except RequestError as error:
        log.warning("a removal that was cut short cannot be finished: %s; repeat it", error)
