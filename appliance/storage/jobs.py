"""The queue of ingestions: claimed by lease, so that a worker that dies holds nothing for long.

Tenants take turns: first comes who has the fewest at work, so that nobody waits for all that another has attached.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVarTuple

from sqlalchemy import ColumnElement, Select, delete, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage.ids import now
from appliance.storage.placing import here
from appliance.storage.tables import File, Job, Reindex, StoreFile, VectorStore

LEASE_SECONDS = 60
MAX_ATTEMPTS = 25
"""How often a job may be begun without an end; something in it stops the worker then."""
DOUBTFUL_ATTEMPTS = 3
"""What was begun so often without an end may be what kills the worker: it comes behind all others."""
_Columns = TypeVarTuple("_Columns")


@dataclass(frozen=True)
class Work:
    """A file to be indexed into a collection of its store, with all that it takes.

    What goes into a second collection (``storage/reindexes.py``) has no ``job_id``.
    """

    job_id: int | None
    tenant: str
    store_id: str
    file_id: str
    version: int
    status: str
    attempts: int
    attributes: Mapping[str, Any]
    readers: tuple[str, ...]
    chunk_size: int
    chunk_overlap: int
    chunker: str | None
    filename: str
    media_type: str | None
    embedder: str | None
    fingerprint: str | None
    collection: str
    generation: int
    replaced: bool = False
    """Whether another embedder is about to take over its store."""

    @property
    def key(self) -> tuple[str, str]:
        """Store and file id."""
        return self.store_id, self.file_id

    @property
    def is_rebuild(self) -> bool:
        """Whether it is a completed file on its way into its store's second collection."""
        return self.job_id is None


def queue(session: AsyncSession, row: StoreFile) -> None:
    """A file of a store is to be indexed, as the version that its row names."""
    session.add(Job(tenant=row.tenant, store_id=row.store_id, file_id=row.file_id, version=row.version))


async def claim(session: AsyncSession, owner: str, limit: int, backend: str) -> list[Work]:
    """Take up to ``limit`` jobs, in turn. Jobs of stores that another vector store than ``backend`` holds wait."""
    query = (
        select(Job, StoreFile, File, VectorStore, Reindex.status)
        .join(StoreFile, (StoreFile.store_id == Job.store_id) & (StoreFile.file_id == Job.file_id))
        .join(File, File.id == Job.file_id)
        .join(VectorStore, VectorStore.id == Job.store_id)
        .outerjoin(Reindex, Reindex.store_id == Job.store_id)
        .where(*_claimable(backend))
    )
    turn = in_turns(query).limit(limit).with_for_update(skip_locked=True, of=Job)
    claimed = []
    for job, file, upload, store, reindex in (await session.execute(turn)).all():
        job.owner, job.lease_expires, job.attempts = owner, now() + LEASE_SECONDS, job.attempts + 1
        claimed.append(
            work_of(file, upload, store, job_id=job.id, attempts=job.attempts, replaced=reindex == "building")
        )
    return claimed


def in_turns(query: Select[*_Columns]) -> Select[*_Columns]:
    """Jobs in the order in which they are to be claimed; what was put back comes behind what is new."""
    at_work = (
        select(Job.tenant, func.count().label("number"))
        .where(Job.lease_expires > now())
        .group_by(Job.tenant)
        .subquery()
    )
    return query.outerjoin(at_work, at_work.c.tenant == Job.tenant).order_by(
        Job.attempts >= DOUBTFUL_ATTEMPTS, func.coalesce(at_work.c.number, 0), Job.attempts, Job.not_before, Job.id
    )


def _claimable(backend: str) -> tuple[ColumnElement[bool], ...]:
    """What must be so of a job, its file and its store."""
    due_now = Job.not_before <= now(), Job.lease_expires <= now()
    return *due_now, VectorStore.removing.is_(False), StoreFile.removing.is_(False), here(backend)


def work_of(
    file: StoreFile,
    upload: File,
    into: VectorStore | Reindex,
    *,
    job_id: int | None,
    attempts: int,
    replaced: bool = False,
) -> Work:
    """What is to be done for a file of a store, ``into`` its own collection or its second one."""
    return Work(
        job_id=job_id,
        tenant=file.tenant,
        store_id=file.store_id,
        file_id=file.file_id,
        version=file.version,
        status=file.status,
        attempts=attempts,
        attributes=file.attributes,
        readers=file.readers,
        chunk_size=file.chunk_size,
        chunk_overlap=file.chunk_overlap,
        chunker=file.chunker,
        filename=upload.filename,
        media_type=upload.media_type,
        embedder=into.embedder,
        fingerprint=into.fingerprint,
        collection=into.collection,
        generation=into.generation,
        replaced=replaced,
    )


async def renew(session: AsyncSession, owner: str, keys: Collection[tuple[str, str]]) -> None:
    """Extend this worker's leases of these files, by store and file id; what it lost track of becomes free."""
    mine = Job.owner == owner, tuple_(Job.store_id, Job.file_id).in_(keys)
    await session.execute(update(Job).where(*mine, Job.lease_expires > 0).values(lease_expires=now() + LEASE_SECONDS))


async def reclaim(session: AsyncSession, owner: str, *, uncounted: bool = False) -> None:
    """Let go of all leases of an owner that is gone, or is about to go (``uncounted``: the attempts do not count)."""
    values: dict[str, Any] = {"owner": None, "lease_expires": 0}
    if uncounted:
        values["attempts"] = Job.attempts - 1
    await session.execute(update(Job).where(Job.owner == owner).values(**values))


async def put_back(session: AsyncSession, work: Work, *, delay: float, counted: bool = False) -> None:
    """Let go of a job that could not be done now; it comes up again in ``delay`` seconds.

    ``counted`` keeps the attempt on record; a back-off for a part that is out of reach does not.
    """
    attempts = work.attempts if counted else work.attempts - 1
    await session.execute(
        update(Job)
        .where(Job.id == work.job_id, Job.version == work.version)
        .values(owner=None, lease_expires=0, not_before=now() + round(delay), attempts=attempts)
    )


async def complete(session: AsyncSession, work: Work, *, chunks: int, usage_bytes: int, notes: Sequence[str]) -> None:
    """Report a file as completed, unless it was cancelled or removed meanwhile."""
    values = {
        "status": "completed",
        "chunks": chunks,
        "usage_bytes": usage_bytes,
        "notes": list(notes),
        "stale": False,
    }
    await _end(session, work, values)


async def fail(session: AsyncSession, work: Work, code: str, message: str) -> None:
    """Report a file as failed, unless it was cancelled or removed meanwhile."""
    await _end(session, work, {"status": "failed", "error_code": code, "error_message": message[:1000], "chunks": 0})


async def _end(session: AsyncSession, work: Work, values: Mapping[str, Any]) -> None:
    await session.execute(
        update(StoreFile)
        .where(
            StoreFile.store_id == work.store_id,
            StoreFile.file_id == work.file_id,
            StoreFile.version == work.version,
            StoreFile.status == "in_progress",
        )
        .values(**values)
    )
    await end(session, work)


async def drop(session: AsyncSession, work: Work) -> None:
    """End the job of a file that was cancelled, and of which nothing is left."""
    row = update(StoreFile).where(StoreFile.store_id == work.store_id, StoreFile.file_id == work.file_id)
    await session.execute(
        row.where(StoreFile.version == work.version, StoreFile.status == "cancelled").values(chunks=0)
    )
    await end(session, work)


async def cancelled(session: AsyncSession, owner: str) -> set[tuple[str, str]]:
    """Which of this worker's (store, file) pairs were cancelled meanwhile."""
    query = (
        select(Job.store_id, Job.file_id)
        .join(StoreFile, (StoreFile.store_id == Job.store_id) & (StoreFile.file_id == Job.file_id))
        .where(Job.owner == owner, StoreFile.status == "cancelled")
    )
    return {(store_id, file_id) for store_id, file_id in await session.execute(query)}


async def let_go(session: AsyncSession, store_id: str, file_id: str) -> None:
    """Let go of one job, to be claimed again at once."""
    query = update(Job).where(Job.store_id == store_id, Job.file_id == file_id)
    await session.execute(query.values(owner=None, lease_expires=0, not_before=0))


async def let_go_of_store(session: AsyncSession, store_id: str) -> Sequence[str]:
    """Let go of all jobs of a store, to be claimed again at once; the ids of the files that had been begun."""
    held = select(Job.file_id).where(Job.store_id == store_id, Job.owner.is_not(None))
    begun = (await session.scalars(held)).all()
    query = update(Job).where(Job.store_id == store_id)
    await session.execute(query.values(owner=None, lease_expires=0, not_before=0))
    return begun


async def end(session: AsyncSession, work: Work) -> None:
    """The job is done; the file's row stays as it is."""
    await session.execute(delete(Job).where(Job.id == work.job_id, Job.version == work.version))


async def due(session: AsyncSession, backend: str) -> bool:
    """Whether a claim would find something; a read, so that an idle worker writes nothing."""
    query = (
        select(Job.id)
        .join(StoreFile, (StoreFile.store_id == Job.store_id) & (StoreFile.file_id == Job.file_id))
        .join(VectorStore, VectorStore.id == Job.store_id)
        .where(*_claimable(backend))
    )
    return await session.scalar(query.limit(1)) is not None
