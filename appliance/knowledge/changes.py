"""Takes files and stores out of the vector store, changes who may see them, and mends what is out of place.

The database is changed first: what it no longer shows is found no more, whatever becomes of the vectors. Work that is
in the way is ended, and what a crash cuts short is finished by the next worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import RequestError, RetrievalUnavailable
from appliance.knowledge.collections import Collections
from appliance.knowledge.filters import Attributes
from appliance.knowledge.placement import PlacedStore
from appliance.knowledge.sealing import Key
from appliance.knowledge.under_way import UnderWay
from appliance.storage import jobs, moving, reindexes, store_files, stores
from appliance.storage.database import Database
from appliance.storage.tables import VectorStore as StoreRow
from appliance.types import Access

log = logging.getLogger("appliance.ingest")


class Changes:
    """What is done to files and stores beside indexing them."""

    def __init__(self, database: Database, backend: PlacedStore, under_way: UnderWay, wake: Callable[[], None]) -> None:
        """``wake`` is called when there may be new jobs."""
        self._database = database
        self._backend = backend
        self._collections = Collections(database, backend)
        self._under_way = under_way
        self._wake = wake
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    def wake(self) -> None:
        """There may be new jobs, or cancelled ones."""
        self._wake()

    # -- taking out and changing -----------------------------------------------------------------------

    async def remove_file(self, store_id: str, file_id: str) -> None:
        """See ``Knowledge.remove_file``."""
        async with self._changing((store_id, file_id)):
            async with self._database.session() as session:
                if await store_files.find(session, store_id, file_id, lock=True) is None:
                    return  # an earlier call has removed it
                await store_files.begin_removal(session, store_id, file_id)
            await self._take_out((store_id, file_id))

    async def _take_out(self, key: Key) -> None:
        """The rest of a file's removal that was begun."""
        await self._drop(key)
        async with self._database.session() as session:
            await store_files.remove(session, *key)

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
        await _each("emptying it, since it has expired,", [(store_id,) for store_id in store_ids], self._empty)

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
        return self._locks.setdefault(key, asyncio.Lock())

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
        async with self._under_way.claiming:  # no work on it may begin between the look and the deletion
            async with self._database.session(write=False) as session:
                row = await store_files.find(session, store_id, file_id)
            if row is not None and row.status == "completed" and not row.removing:
                await self._index_again(key)
            elif row is None or (row.status != "in_progress" and key not in self._under_way.running):
                await self._collections.delete_file(store_id, file_id)

    async def _index_again(self, key: Key) -> None:
        await self._under_way.end({key})  # a completed file is at most on its way into a second collection
        async with self._database.session() as session:
            await reindexes.forget_file(session, *key)
            row = await store_files.find(session, *key)
            if row is not None and row.status == "completed" and not row.removing:
                await store_files.index_again(session, row)
        for second in (await self._collections.names(key[0]))[1:]:
            await self._backend.delete_file(second, key[1])
        self._wake()

    async def begin_anew(self, store_id: str) -> None:
        """Index all files of a store here, whose vectors another vector store holds; that one is left as it is."""
        async with self.anew(store_id) as session:
            await moving.move(session, store_id, self._backend.name)

    @asynccontextmanager
    async def anew(self, store_id: str) -> AsyncIterator[AsyncSession]:
        """A transaction in which a store may be moved here: nothing of it is worked on, and its chunks are let lie.

        Removals that could not reach them are finished behind it.
        """
        async with self.paused(store_id, clean=False), self._database.session() as session:
            yield session
        await self.finish_removals()

    # -- ending work -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def paused(self, store_id: str, *, clean: bool = True) -> AsyncIterator[None]:
        """Nothing of a store is worked on inside. What was under way is queued again, and its chunks are deleted.

        Without ``clean`` they stay: where the store's vectors are elsewhere they cannot be reached.
        """
        async with self._under_way.claiming:
            await self._under_way.end_of_store(store_id)
            async with self._database.session() as session:
                begun = await jobs.let_go_of_store(session, store_id)
            for file_id in begun if clean else ():
                await self._collections.delete_file(store_id, file_id)
            yield
        self._wake()

    async def _drop_all(self, store_id: str) -> None:
        """End the work on a store's files and drop their chunks with its collections."""
        async with self._under_way.claiming:  # what is claimed this moment must be seen
            await self._under_way.end_of_store(store_id)
        await self._collections.drop(store_id)

    async def _drop(self, key: Key) -> None:
        """End the work on a file and delete its chunks."""
        async with self._under_way.claiming:
            await self._under_way.end({key})
        await self._collections.delete_file(*key)

    # -- what was cut short ----------------------------------------------------------------------------

    async def finish_removals(self) -> None:
        """Removals that were cut short or failed; what fails again stays marked for the next time."""
        async with self._database.session(write=False) as session:
            store_ids = await stores.being_removed(session, self._backend.name)
            keys = await store_files.being_removed(session, self._backend.name)
        await _each("its removal", [(store_id,) for store_id in store_ids], self.remove_store)
        await _each("the removal of a file from it", keys, self._finish_removal)

    async def _finish_removal(self, store_id: str, file_id: str) -> None:
        key = store_id, file_id
        async with self._changing(key):
            async with self._database.session(write=False) as session:
                row = await store_files.find(session, *key)
            if row is not None and row.removing:  # not one that was attached again meanwhile
                await self._take_out(key)

    async def finish_updates(self) -> None:
        """Changes of attributes and readers that a crash, or a vector store out of reach, kept from the chunks."""
        async with self._database.session(write=False) as session:
            keys = await store_files.stale(session, self._backend.name)
        await _each("a change of a file in it", keys, self._update_chunks)


async def _each(what: str, keys: Iterable[tuple[str, ...]], step: Callable[..., Awaitable[None]]) -> None:
    """Do a step for each key, which begins with a store's id; one out of reach is asked once, and holds up no other."""
    away: set[str] = set()
    for store_id, *rest in keys:
        if store_id in away:
            continue
        try:
            await step(store_id, *rest)
        except RetrievalUnavailable as error:
            away.add(store_id)
            log.warning("vector store %s: %s waits: %s", store_id, what, error)
        except RequestError as error:
            log.warning("vector store %s: %s cannot be finished: %s; repeat it", store_id, what, error)
        except Exception:
            log.exception("vector store %s: %s failed and is tried again", store_id, what)
