"""Changes what embeds a vector store: a second collection is built beside the first, takes over, and can give back.

The files are indexed by the ``Ingestor``, one after the other, from what is stored. When all are whole in the second
collection it takes over in one transaction, in which nothing of the store is worked on. The first one then is the
second, and is kept for a while: going back is the same again, and only has to index what came in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.audit import AuditEvent
from appliance.errors import BadRequest, Conflict, NotFound, RetrievalUnavailable
from appliance.knowledge.embedding import BatchingEmbedder
from appliance.knowledge.ingest import Ingestor
from appliance.knowledge.placement import PlacedStore
from appliance.knowledge.report import ReindexOrder, ReindexStatus, StoreStatus
from appliance.knowledge.tasks import tried
from appliance.storage import audit, moving, placing, reindexes, stores
from appliance.storage.database import Database
from appliance.storage.ids import now, time_text
from appliance.storage.reindexes import BUILDING, DROPPING, KEPT
from appliance.storage.tables import Reindex
from appliance.storage.tables import VectorStore as StoreRow

log = logging.getLogger("appliance.reindex")
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 10.0
"""How long a store rests of which a step has failed."""


class Reindexer:
    """Takes orders about second collections, and switches those that are whole."""

    def __init__(
        self,
        database: Database,
        backend: PlacedStore,
        ingestor: Ingestor,
        embedders: Mapping[str, BatchingEmbedder],
    ) -> None:
        self._database = database
        self._backend = backend
        self._ingestor = ingestor
        self._embedders = embedders
        self._resting: dict[str, float] = {}
        """Until when those rest that failed, by their ids."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look after them; what a crash cut short goes on."""
        self._task = asyncio.create_task(self._run(), name="reindexer")

    async def stop(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    # -- orders ----------------------------------------------------------------------------------------

    async def order(self, order: ReindexOrder) -> StoreStatus:
        """Do what is asked, or begin it; what came of it so far.

        Raises:
            NotFound: no such store. BadRequest: no such embedding model, or a name that several stores have.
            Conflict: the store has expired, has no second collection of that status or one that is in the way, or was
                begun anew in the configured vector store at the same time.
            RetrievalUnavailable: another vector store holds its collections; only ``begin`` is possible then.
        """
        async with self._database.session(write=False) as session:
            store = await _store(session, order.store)
        self._resting.pop(store.id, None)
        store_id, elsewhere = store.id, not placing.is_here(store, self._backend.name)
        if elsewhere and order.step != "begin":
            raise RetrievalUnavailable(placing.told(store_id, store.backend, self._backend.name))
        if elsewhere:
            await self._begin_anew(store_id, order)
        elif order.step == "begin":
            await self._begin(store_id, order)
        elif order.step == "rollback":
            await self._roll_back(store_id, order)
        elif order.step == "finish":
            await self._finish(store_id, order)
        else:
            await self._cancel(store_id, order)
        self._ingestor.wake()
        (found,) = await self.status(store_id)
        return found

    async def _begin(self, store_id: str, order: ReindexOrder) -> None:
        embedder = self._embedder(order.embedder)
        fingerprint = embedder.embedder.fingerprint
        async with self._database.session() as session:
            store, row = await _locked(session, store_id)
            stores.usable(store, store_id)
            if row is not None and (row.status, row.fingerprint) == (BUILDING, fingerprint):
                row.skip_failed = order.skip_failed
                await reindexes.try_again(session, row)
            elif row is not None:
                raise Conflict(_in_the_way(row))
            elif (store.fingerprint or fingerprint, store.embedder) == (fingerprint, embedder.name):
                return
            else:
                reindexes.begin(
                    session,
                    store,
                    embedder=embedder.name,
                    fingerprint=fingerprint,
                    dimensions=embedder.embedder.dimensions,
                    keep_seconds=order.keep_seconds,
                    skip_failed=order.skip_failed,
                )
            await _record(session, store, order, embedder.name)

    async def _begin_anew(self, store_id: str, order: ReindexOrder) -> None:
        """There is nothing to search meanwhile: the vectors are where the configuration does not look any more."""
        embedder = self._embedder(order.embedder)
        async with self._ingestor.changes.anew(store_id) as session:
            store, _ = await _locked(session, store_id)
            stores.usable(store, store_id)
            if placing.is_here(store, self._backend.name):
                raise Conflict(
                    f"vector store {store_id} was begun anew at the same time; see GET /v1/vector_stores/{store_id}"
                    "/reindex, or 'appliance stores status', and ask again if that is not what you want"
                )
            await moving.move(session, store_id, self._backend.name)
            store.embedder = embedder.name
            await _record(session, store, order, embedder.name)

    def _embedder(self, name: str) -> BatchingEmbedder:
        found = self._embedders.get(name)
        if found is None:
            known = ", ".join(self._embedders) or "none"
            raise BadRequest(f"no embedding model is named {name[:64]!r}; configured: {known}", param="embedder")
        return found

    async def _roll_back(self, store_id: str, order: ReindexOrder) -> None:
        async with self._database.session() as session:
            store, row = await _locked(session, store_id)
            kept = _of_status(row, KEPT, store_id, "it has no earlier collection to go back to")
            if not self._servable(kept.fingerprint):
                raise Conflict(f"the earlier model {kept.embedder} is not configured; configure it again first")
            kept.status, kept.skip_failed = BUILDING, False
            await _record(session, store, order, kept.embedder)

    async def _finish(self, store_id: str, order: ReindexOrder) -> None:
        async with self._database.session() as session:
            store, row = await _locked(session, store_id)
            kept = _of_status(row, KEPT, store_id, "it keeps no earlier collection")
            kept.status = DROPPING
            await _record(session, store, order, store.embedder or "")
        await self._drop(kept)

    async def _cancel(self, store_id: str, order: ReindexOrder) -> None:
        """What has been searched before is kept; going back to it is what was cancelled."""
        async with self._ingestor.changes.paused(store_id), self._database.session() as session:
            store, row = await _locked(session, store_id)
            built = _of_status(row, BUILDING, store_id, "no collection of it is being built")
            built.status = DROPPING if built.kept_until is None else KEPT
            await _record(session, store, order, built.embedder)
        if built.status == DROPPING:
            await self._drop(built)

    # -- what goes on by itself ------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._ingestor.rebuilt.clear()
            await tried("changing embedding models", self.advance(), log)
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._ingestor.rebuilt.wait()

    async def advance(self) -> None:
        """Switch to the collections that are whole, and drop those that are over; one that fails holds up no other."""
        async with self._database.session(write=False) as session:
            whole = await reindexes.whole(session, self._fingerprints, self._backend.name)
            kept = await reindexes.of_status(session, KEPT, self._backend.name)
            dropping = await reindexes.of_status(session, DROPPING, self._backend.name)
        for store_id in whole:
            await self._unless_resting(store_id, self._switch(store_id))
        for row in kept:
            if (row.kept_until or 0) <= now():
                await self._unless_resting(row.store_id, self._expire(row.store_id))
        for row in dropping:
            await self._unless_resting(row.store_id, self._drop(row))

    async def _unless_resting(self, store_id: str, step: Coroutine[Any, Any, None]) -> None:
        if self._resting.get(store_id, 0.0) > time.monotonic():
            step.close()
            return
        self._resting[store_id] = time.monotonic() + _RETRY_SECONDS  # nobody else begins it meanwhile
        done = await tried(f"vector store {store_id}: changing its embedding model", step, log)
        self._resting[store_id] = time.monotonic() + (0.0 if done else _RETRY_SECONDS)

    async def _switch(self, store_id: str) -> None:
        async with self._database.session(write=False) as session:
            row = await reindexes.find(session, store_id)
        if row is not None:
            await self._backend.count(row.collection)  # while this one rests no work begins: it has to answer first
        async with self._ingestor.changes.paused(store_id):
            async with self._database.session(write=False) as session:
                if store_id not in await reindexes.whole(session, self._fingerprints, self._backend.name):
                    return  # also where the store is being deleted, and its collections may be dropped already
                row = await reindexes.find(session, store_id)
            if row is not None:
                await self._backend.create(row.collection, row.dimensions)  # a store without files has none yet
            async with self._database.session() as session:
                store, row = await _locked(session, store_id)
                if row is None or store_id not in await reindexes.whole(
                    session, self._fingerprints, self._backend.name
                ):
                    return
                before, after = store.embedder, row.embedder
                await reindexes.switch(session, store, row)
                await _record(session, store, None, after)
        log.info("vector store %s is searched by %s from now on, no longer by %s", store_id, after, before)

    async def _expire(self, store_id: str) -> None:
        async with self._database.session() as session:
            _, row = await _locked(session, store_id)
            if row is None or row.status != KEPT or (row.kept_until or 0) > now():
                return
            row.status = DROPPING
        await self._drop(row)

    async def _drop(self, row: Reindex) -> None:
        await self._backend.drop(row.collection)
        async with self._database.session() as session:
            await reindexes.dropped(session, row)

    # -- telling ---------------------------------------------------------------------------------------

    async def status(self, store_id: str | None = None) -> list[StoreStatus]:
        """What embeds each store, and how its second collection is doing."""
        query = select(StoreRow).where(StoreRow.removing.is_(False)).order_by(StoreRow.created_us)
        if store_id is not None:
            query = query.where(StoreRow.id == store_id)
        async with self._database.session(write=False) as session:
            rows = (await session.scalars(query)).all()
            seconds = {row.store_id: row for row in await reindexes.every(session)}
            return [await self._status(session, row, seconds.get(row.id)) for row in rows]

    async def _status(self, session: AsyncSession, store: StoreRow, row: Reindex | None) -> StoreStatus:
        return StoreStatus(
            id=store.id,
            name=store.name,
            tenant=store.tenant,
            embedder=store.embedder,
            fingerprint=store.fingerprint,
            dimensions=store.dimensions,
            metric=store.metric,
            servable=store.fingerprint is None or self._servable(store.fingerprint),
            backend=store.backend,
            elsewhere=not placing.is_here(store, self._backend.name),
            expired=stores.has_expired(store),
            reindex=None if row is None else await self._second(session, row),
        )

    async def _second(self, session: AsyncSession, row: Reindex) -> ReindexStatus:
        found = await reindexes.progress(session, row)
        return ReindexStatus(
            status=row.status,  # type: ignore[arg-type]
            embedder=row.embedder,
            dimensions=row.dimensions,
            done=found.done,
            total=found.total,
            failed=found.failed,
            failures=dict(found.failures),
            skip_failed=row.skip_failed,
            servable=self._servable(row.fingerprint),
            kept_until=row.kept_until,
        )

    async def unserved(self) -> int:
        """How many stores hold vectors of models that are not configured: their searches answer 409."""
        async with self._database.session(write=False) as session:
            return await stores.unserved(session, self._fingerprints)

    @property
    def _fingerprints(self) -> frozenset[str]:
        return frozenset(item.embedder.fingerprint for item in self._embedders.values())

    def _servable(self, fingerprint: str) -> bool:
        return fingerprint in self._fingerprints


async def _store(session: AsyncSession, named: str) -> StoreRow:
    """By id, or by a name that one store alone has, of whichever tenant."""
    if (store := await session.get(StoreRow, named)) is not None:
        return store
    found = (await session.scalars(select(StoreRow).where(StoreRow.name == named))).all()
    if not found:
        raise NotFound(f"no vector store has the id or name {named[:64]!r}; 'appliance stores status' lists them")
    if len(found) > 1:
        ids = ", ".join(store.id for store in found[:5])
        raise BadRequest(f"{len(found)} vector stores are named {named[:64]!r}; give one of {ids}")
    return found[0]


async def _locked(session: AsyncSession, store_id: str) -> tuple[StoreRow, Reindex | None]:
    """The store and its second collection, which nobody else changes until the transaction ends."""
    store = await session.get(StoreRow, store_id, with_for_update=True)
    if store is None or store.removing:
        raise NotFound(f"vector store {store_id} is being deleted, or gone")
    return store, await reindexes.find(session, store_id, lock=True)


def _of_status(row: Reindex | None, status: str, store_id: str, told: str) -> Reindex:
    if row is None or row.status != status:
        raise Conflict(
            f"vector store {store_id}: {told}; see GET /v1/vector_stores/{store_id}/reindex, "
            "or 'appliance stores status'"
        )
    return row


def _in_the_way(row: Reindex) -> str:
    if row.status == KEPT:
        until = time_text((row.kept_until or 0) * 10**6)
        return (
            f"vector store {row.store_id} keeps its earlier collection (by {row.embedder}) until {until}; "
            "end that first (step finish, on the command line --finish), or go back to it (rollback, --rollback)"
        )
    if row.status == BUILDING:
        return (
            f"vector store {row.store_id} is being indexed by {row.embedder}; wait, or end that first (step cancel, on "
            "the command line --cancel)"
        )
    return f"vector store {row.store_id} is dropping an earlier collection; try again in a moment"


async def _record(session: AsyncSession, store: StoreRow, order: ReindexOrder | None, embedder: str) -> None:
    """In the transaction of the change itself; without an order it is the switch."""
    by = order or ReindexOrder(step="begin", store=store.id)
    event = AuditEvent(
        action="stores.reindex",
        outcome="success",
        principal=by.by,
        user=by.user,
        tenant=store.tenant,
        object=store.id,
        request_id=by.request_id,
        address=by.address,
        details={"step": "switch" if order is None else order.step, "embedder": embedder},
    )
    await audit.append(session, [event])
