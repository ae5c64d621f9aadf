"""How far the ingestions are: what the worker notes in the rows of its jobs, for whoever wants to see it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage.ids import now
from appliance.storage.jobs import in_turns
from appliance.storage.tables import File, Job, StoreFile, VectorStore


class Ingestion(msgspec.Struct, frozen=True, kw_only=True):
    """A job: a file on its way into a vector store.

    ``stage`` is ``waiting``, ``parsing`` or ``indexing``. ``percent`` tells how much of the text is indexed, ``pages``
    how many the file has, 0 where it has none or they are not known yet; ``seconds`` count since this attempt began.
    """

    file_id: str
    filename: str
    store_id: str
    store: str
    tenant: str
    stage: str
    percent: int
    pages: int
    seconds: int
    attempts: int

    @property
    def pages_per_second(self) -> float | None:
        """Of this attempt so far; ``None`` until there is something to tell."""
        done = self.pages * self.percent / 100
        return done / self.seconds if done and self.seconds else None


class FailedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that could not be indexed, with its ``last_error``."""

    file_id: str
    filename: str
    store_id: str
    store: str
    tenant: str
    code: str
    message: str


async def note(session: AsyncSession, job_id: int, *, stage: str, percent: int, pages: int, begun: int) -> None:
    """Say how far a job is; ``begun`` in seconds since 1970."""
    values = {"stage": stage, "percent": percent, "pages": pages, "begun": begun}
    await session.execute(update(Job).where(Job.id == job_id).values(**values))


async def ingestions(session: AsyncSession, limit: int) -> list[Ingestion]:
    """Jobs of all tenants: those at work first, then by their turn."""
    query = (
        select(Job, File.filename, VectorStore.name)
        .join(File, File.id == Job.file_id)
        .join(VectorStore, VectorStore.id == Job.store_id)
        .order_by((Job.lease_expires > now()).desc())
    )
    rows = await session.execute(in_turns(query).limit(limit))
    return [_ingestion(job, filename, store) for job, filename, store in rows]


def _ingestion(job: Job, filename: str, store: str) -> Ingestion:
    at_work = job.lease_expires > now()
    told = at_work and bool(job.stage)
    return Ingestion(
        file_id=job.file_id,
        filename=filename,
        store_id=job.store_id,
        store=store,
        tenant=job.tenant,
        stage=(job.stage or "parsing") if at_work else "waiting",
        percent=job.percent if told else 0,
        pages=job.pages if told else 0,
        seconds=max(0, now() - job.begun) if told else 0,
        attempts=job.attempts,
    )


async def failures(session: AsyncSession, limit: int) -> list[FailedFile]:
    """Files of all tenants that failed, the newest first."""
    query = (
        select(StoreFile, File.filename, VectorStore.name)
        .join(File, File.id == StoreFile.file_id)
        .join(VectorStore, VectorStore.id == StoreFile.store_id)
        .where(StoreFile.status == "failed", StoreFile.removing.is_(False))
        .order_by(StoreFile.created_us.desc(), StoreFile.file_id)
        .limit(limit)
    )
    return [
        FailedFile(
            file_id=row.file_id,
            filename=filename,
            store_id=row.store_id,
            store=store,
            tenant=row.tenant,
            code=row.error_code or "",
            message=row.error_message or "",
        )
        for row, filename, store in (await session.execute(query)).all()
    ]


async def totals(session: AsyncSession) -> dict[str, int]:
    """How many files wait, are at work, and failed."""
    at_work = func.count().filter(Job.lease_expires > now())
    jobs, running = (await session.execute(select(func.count(), at_work).select_from(Job))).one()
    failed = select(func.count()).select_from(StoreFile).where(StoreFile.status == "failed")
    return {"waiting": jobs - running, "running": running, "failed": await session.scalar(failed) or 0}


async def pages_per_second(session: AsyncSession) -> float:
    """Of all jobs at work, together."""
    found: Sequence[Ingestion] = await ingestions(session, 100)
    return sum(job.pages_per_second or 0.0 for job in found)
