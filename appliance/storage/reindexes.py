"""Second collections of vector stores, by another embedder: their rows, what is to do in them, and the switch.

What is to do is no queue of its own: it is every completed file of the store that is not whole in the second collection
yet. So files that come, go or change while it is built need nothing to be noted for it, and a crash loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVarTuple

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    Update,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from appliance.storage.ids import now, now_us
from appliance.storage.jobs import Work, work_of
from appliance.storage.placing import here
from appliance.storage.tables import File, RebuiltFile, Reindex, StoreFile, VectorStore
from appliance.storage.tables.documents import collection_name

BUILDING, KEPT, DROPPING = "building", "kept", "dropping"
GRACE_SECONDS = 60
"""An earlier collection is kept this long at least: searches that began before the switch still read it."""
_SHOWN_FAILURES = 100
_Columns = TypeVarTuple("_Columns")


@dataclass
class Progress:
    """How far a second collection is: files that are whole in it, of how many, and what became of the others."""

    done: int = 0
    total: int = 0
    failed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Ids of files with the reason, the first hundred."""


def begin(
    session: AsyncSession,
    store: VectorStore,
    *,
    embedder: str,
    fingerprint: str,
    dimensions: int,
    keep_seconds: int,
    skip_failed: bool,
) -> Reindex:
    """Begin a second collection of a store that has none. The store must be locked."""
    store.generations += 1
    row = Reindex(
        store_id=store.id,
        tenant=store.tenant,
        generation=store.generations,
        embedder=embedder,
        fingerprint=fingerprint,
        dimensions=dimensions,
        status=BUILDING,
        skip_failed=skip_failed,
        keep_seconds=keep_seconds,
        kept_until=None,
        started_us=now_us(),
    )
    session.add(row)
    return row


async def find(session: AsyncSession, store_id: str, *, lock: bool = False) -> Reindex | None:
    """A store's second collection, if it has one."""
    return await session.get(Reindex, store_id, with_for_update=lock or None)


async def every(session: AsyncSession) -> Sequence[Reindex]:
    """Those of all stores."""
    return (await session.scalars(select(Reindex))).all()


async def of_status(session: AsyncSession, status: str, backend: str) -> Sequence[Reindex]:
    """Those of one status, of stores that ``backend`` holds and that are not being deleted."""
    query = select(Reindex).join(VectorStore, VectorStore.id == Reindex.store_id)
    query = query.where(Reindex.status == status, VectorStore.removing.is_(False), here(backend))
    return (await session.scalars(query.order_by(Reindex.started_us))).all()


async def end(session: AsyncSession, store_id: str) -> None:
    """Forget a store's second collection, whatever it is; with the collection nothing may be left."""
    await session.execute(delete(RebuiltFile).where(RebuiltFile.store_id == store_id))
    await session.execute(delete(Reindex).where(Reindex.store_id == store_id))


async def dropped(session: AsyncSession, row: Reindex) -> None:
    """Forget this second collection; one that was begun since, when another had dropped it first, stays."""
    this = {"store_id": row.store_id, "generation": row.generation}
    await session.execute(delete(RebuiltFile).filter_by(**this))
    await session.execute(delete(Reindex).filter_by(**this))


# -- files -------------------------------------------------------------------------------------------------


def _mine(generation: int | InstrumentedAttribute[int] = Reindex.generation) -> ColumnElement[bool]:
    """Joins a ``StoreFile`` to its row in the second collection."""
    return (
        (RebuiltFile.store_id == StoreFile.store_id)
        & (RebuiltFile.file_id == StoreFile.file_id)
        & (RebuiltFile.generation == generation)
    )


def _open(query: Select[*_Columns], fingerprints: Collection[str], backend: str) -> Select[*_Columns]:
    """Over the completed files that are still to be indexed into a second collection, by one of these embedders."""
    to_do = RebuiltFile.done.is_(False) & RebuiltFile.error_code.is_(None) & (RebuiltFile.not_before <= now())
    return (
        query.select_from(StoreFile)
        .join(Reindex, Reindex.store_id == StoreFile.store_id)
        .join(VectorStore, VectorStore.id == StoreFile.store_id)
        .join(File, File.id == StoreFile.file_id)
        .outerjoin(RebuiltFile, _mine())
        .where(Reindex.status == BUILDING, Reindex.fingerprint.in_(fingerprints), VectorStore.removing.is_(False))
        .where(StoreFile.status == "completed", StoreFile.removing.is_(False))
        .where(or_(RebuiltFile.store_id.is_(None), to_do), here(backend))
    )


async def due(session: AsyncSession, limit: int, fingerprints: Collection[str], backend: str) -> list[tuple[str, str]]:
    """Store and file ids of what is to do, one store after the other, what was begun least often first.

    Costs about a microsecond for each file of the stores that are built, so ask for many at once.
    """
    query = _open(select(StoreFile.store_id, StoreFile.file_id), fingerprints, backend)
    order = Reindex.started_us, func.coalesce(RebuiltFile.attempts, 0), StoreFile.created_us
    return [(store_id, file_id) for store_id, file_id in await session.execute(query.order_by(*order).limit(limit))]


async def claim(
    session: AsyncSession, key: tuple[str, str], fingerprints: Collection[str], backend: str
) -> Work | None:
    """Begin one of them, unless it is not to do any more."""
    query = _open(select(StoreFile, Reindex, File, RebuiltFile), fingerprints, backend)
    query = query.where(StoreFile.store_id == key[0], StoreFile.file_id == key[1])
    found = (await session.execute(query)).one_or_none()
    if found is None:
        return None
    file, reindex, upload, rebuilt = found
    return _begin(session, file, reindex, upload, rebuilt)


def _begin(session: AsyncSession, file: StoreFile, reindex: Reindex, upload: File, rebuilt: RebuiltFile | None) -> Work:
    """Count the attempt before it is made: a file that kills the worker is given up some time."""
    if rebuilt is None:
        rebuilt = RebuiltFile(
            store_id=file.store_id,
            file_id=file.file_id,
            generation=reindex.generation,
            tenant=file.tenant,
            attempts=0,
        )
        session.add(rebuilt)
    rebuilt.attempts += 1
    return work_of(file, upload, reindex, job_id=None, attempts=rebuilt.attempts)


async def wanted(session: AsyncSession, work: Work) -> bool:
    """Whether what was written for a second collection still counts: neither file nor collection went meanwhile."""
    row = await find(session, work.store_id)
    return row is not None and (row.status, row.generation) == (BUILDING, work.generation)


async def complete(session: AsyncSession, work: Work, *, chunks: int, usage_bytes: int) -> None:
    """The file is whole in the second collection."""
    await session.execute(_row(work).values(done=True, chunks=chunks, usage_bytes=usage_bytes))


async def fail(session: AsyncSession, work: Work, code: str, message: str) -> None:
    """The file cannot be indexed into the second collection; it stays as it is in the first."""
    await session.execute(_row(work).values(error_code=code, error_message=message[:1000]))


async def put_back(session: AsyncSession, work: Work, *, delay: float, counted: bool) -> None:
    """It comes up again in ``delay`` seconds."""
    attempts = work.attempts if counted else work.attempts - 1
    await session.execute(_row(work).values(attempts=attempts, not_before=now() + round(delay)))


def _row(work: Work) -> Update:
    return update(RebuiltFile).where(
        RebuiltFile.store_id == work.store_id,
        RebuiltFile.file_id == work.file_id,
        RebuiltFile.generation == work.generation,
    )


async def forget_file(session: AsyncSession, store_id: str, file_id: str) -> None:
    """A file's chunks in the second collection do not count any more."""
    await session.execute(delete(RebuiltFile).where(RebuiltFile.store_id == store_id, RebuiltFile.file_id == file_id))


async def try_again(session: AsyncSession, row: Reindex) -> None:
    """Files that failed are to be tried anew."""
    failed = (RebuiltFile.store_id == row.store_id, RebuiltFile.error_code.is_not(None))
    await session.execute(delete(RebuiltFile).where(*failed))


async def whole(session: AsyncSession, fingerprints: Collection[str], backend: str) -> Sequence[str]:
    """Ids of the stores whose second collection, by one of these embedders, has all it can have: it may take over."""
    settled = or_(RebuiltFile.done, RebuiltFile.error_code.is_not(None) & Reindex.skip_failed)
    missing = exists().where(
        StoreFile.store_id == VectorStore.id,
        StoreFile.status == "completed",
        StoreFile.removing.is_(False),
        ~exists().where(_mine(), settled),
    )
    query = select(VectorStore.id).join(Reindex, Reindex.store_id == VectorStore.id)
    query = query.where(Reindex.status == BUILDING, Reindex.fingerprint.in_(fingerprints))
    return (await session.scalars(query.where(VectorStore.removing.is_(False), here(backend), ~missing))).all()


async def progress(session: AsyncSession, row: Reindex) -> Progress:
    """How far the second collection is. Costs about a microsecond for each file of the store."""
    files = select(func.count()).select_from(StoreFile)
    completed = (StoreFile.store_id == row.store_id, StoreFile.status == "completed", StoreFile.removing.is_(False))
    mine = _mine(row.generation)
    failed = RebuiltFile.error_code.is_not(None)
    total = await session.scalar(files.where(*completed))
    done = await session.scalar(files.join(RebuiltFile, mine).where(*completed, RebuiltFile.done))
    number = await session.scalar(files.join(RebuiltFile, mine).where(*completed, failed))
    reasons = select(RebuiltFile.file_id, RebuiltFile.error_message).join(StoreFile, mine).where(*completed, failed)
    shown = await session.execute(reasons.order_by(RebuiltFile.file_id).limit(_SHOWN_FAILURES))
    return Progress(done or 0, total or 0, number or 0, [(file_id, message or "") for file_id, message in shown])


@dataclass(frozen=True)
class Held:
    """A file in a second collection; what is not ``done`` may have some of its chunks there."""

    file_id: str
    version: int
    chunks: int
    done: bool


async def held(session: AsyncSession, row: Reindex) -> Sequence[Held]:
    """What is in a second collection, by the rows of its files."""
    query = select(RebuiltFile.file_id, StoreFile.version, RebuiltFile.chunks, RebuiltFile.done)
    query = query.join(
        StoreFile, (StoreFile.store_id == RebuiltFile.store_id) & (StoreFile.file_id == RebuiltFile.file_id)
    )
    query = query.where(RebuiltFile.store_id == row.store_id, RebuiltFile.generation == row.generation)
    return [Held(*found) for found in await session.execute(query)]


# -- the switch --------------------------------------------------------------------------------------------


async def switch(session: AsyncSession, store: VectorStore, row: Reindex) -> None:
    """Exchange a store's two collections, with what the rows of its files say of them. Both rows must be locked.

    Nothing of the store may be worked on meanwhile. Afterwards ``row`` describes the collection that served until now;
    where that never held anything, ``row`` is deleted.
    """
    old = store.generation, store.embedder, store.fingerprint, store.dimensions
    await _note_first(session, store)
    await _take_second(session, store.id, row.generation)
    store.generation, store.embedder = row.generation, row.embedder
    store.fingerprint, store.dimensions = row.fingerprint, row.dimensions
    generation, embedder, fingerprint, dimensions = old
    if fingerprint is None or dimensions is None:
        await end(session, store.id)
        return
    row.generation, row.embedder, row.fingerprint, row.dimensions = generation, embedder or "", fingerprint, dimensions
    row.status, row.kept_until = KEPT, now() + max(row.keep_seconds, GRACE_SECONDS)


async def _note_first(session: AsyncSession, store: VectorStore) -> None:
    """What the collection that served holds, in the form of a second collection."""
    columns = {
        "tenant": StoreFile.tenant,
        "store_id": StoreFile.store_id,
        "file_id": StoreFile.file_id,
        "generation": literal(store.generation),
        "done": literal(True),
        "chunks": StoreFile.chunks,
        "usage_bytes": StoreFile.usage_bytes,
    }
    completed = select(*columns.values()).where(StoreFile.store_id == store.id, StoreFile.status == "completed")
    await session.execute(insert(RebuiltFile).from_select(list(columns), completed))


async def _take_second(session: AsyncSession, store_id: str, generation: int) -> None:
    """What is whole in the second collection is completed, with its figures; what failed there has failed."""
    mine = _mine(generation)

    def of(column: InstrumentedAttribute[Any]) -> ScalarSelect[Any]:
        return select(column).where(mine).scalar_subquery()

    files = update(StoreFile).where(StoreFile.store_id == store_id).execution_options(synchronize_session=False)
    figures = {"chunks": of(RebuiltFile.chunks), "usage_bytes": of(RebuiltFile.usage_bytes)}
    reason = {"error_code": of(RebuiltFile.error_code), "error_message": of(RebuiltFile.error_message)}
    settled = StoreFile.status.in_(("completed", "failed"))
    whole_ = files.where(settled, exists().where(mine, RebuiltFile.done))
    await session.execute(whole_.values(status="completed", error_code=None, error_message=None, **figures))
    failed = files.where(StoreFile.status == "completed", exists().where(mine, RebuiltFile.error_code.is_not(None)))
    await session.execute(failed.values(status="failed", **figures, **reason))
    await session.execute(
        delete(RebuiltFile).where(RebuiltFile.store_id == store_id, RebuiltFile.generation == generation)
    )


async def names(session: AsyncSession, store_id: str) -> Sequence[str]:
    """The collections of a store, the one that is searched first; none if there is no such store."""
    query = select(VectorStore.generation, Reindex.generation).outerjoin(Reindex, Reindex.store_id == VectorStore.id)
    found = (await session.execute(query.where(VectorStore.id == store_id))).one_or_none()
    return [] if found is None else [collection_name(store_id, number) for number in found if number is not None]
