"""Rows of batches of requests, and of what came of their lines.

Whoever works on a batch changes it only while it is theirs: every change names the owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import ApplianceError, Conflict, NotFound
from appliance.storage import paging
from appliance.storage.ids import now
from appliance.storage.tables import ApiKey, File
from appliance.storage.tables.batches import UNFINISHED, Batch, BatchResult
from appliance.storage.tenancy import TenantSession, seen_by
from appliance.storage.turns import in_turns

LEASE_SECONDS = 15
MAX_RUNNING = 4
"""Batches of one tenant that run at once: one that waits for its limits holds its place for hours."""
CANCELLABLE = ("validating", "in_progress")


class LeaseLost(ApplianceError):
    """The batch was taken over by another process, or deleted."""


async def get(session: TenantSession, batch_id: str, user: str | None, *, lock: bool = False) -> Batch:
    """One batch that this user may see. Raises NotFound."""
    query = select(Batch).where(Batch.id == batch_id, seen_by(user, Batch.user))
    found = await session.scalar(query.with_for_update() if lock else query)
    if found is None:
        raise NotFound(f"no batch has the id {batch_id[:64]!r}; GET /v1/batches lists them", param="batch_id")
    return found


async def page(session: TenantSession, wanted: paging.PageRequest, user: str | None) -> tuple[Sequence[Batch], bool]:
    """A page of the batches that this user may see, and whether more follow."""
    return await paging.fetch(
        session, select(Batch).where(seen_by(user, Batch.user)), (Batch.created_us, Batch.id), wanted
    )


async def cancel(session: TenantSession, batch_id: str, user: str | None) -> Batch:
    """Ask that no more lines are answered; again changes nothing. Raises NotFound, Conflict."""
    row = await get(session, batch_id, user, lock=True)
    if row.status in CANCELLABLE:
        row.status, row.times = "cancelling", {**row.times, "cancelling_at": now()}
    elif row.status not in ("cancelling", "cancelled"):
        raise Conflict(f"batch {row.id} is {row.status}; it can no longer be cancelled")
    return row


# -- for whoever works on them ---------------------------------------------------------------------------


async def due(session: AsyncSession) -> bool:
    """Whether a claim would find something."""
    query = in_turns(Batch, UNFINISHED, MAX_RUNNING)
    return await session.scalar(query.with_only_columns(Batch.id).limit(1)) is not None


async def claim(session: AsyncSession, owner: str, limit: int) -> Sequence[Batch]:
    """Take unfinished batches that nobody works on; their lease starts now."""
    query = in_turns(Batch, UNFINISHED, MAX_RUNNING).limit(limit)
    rows = (await session.scalars(query.with_for_update(skip_locked=True, of=Batch))).all()
    for row in rows:
        row.owner, row.lease_expires = owner, now() + LEASE_SECONDS
    await session.flush()
    await _cancel_those_of_dead_keys(session, owner)
    return rows


async def renew(session: AsyncSession, owner: str, ids: Sequence[str]) -> set[str]:
    """Extend the leases of these; return those whose lines are still wanted.

    Those that were started with an API key which has been revoked, or has expired, are not.
    """
    await _cancel_those_of_dead_keys(session, owner)
    mine = (Batch.id.in_(ids), Batch.owner == owner, Batch.status.in_(UNFINISHED))
    await session.execute(update(Batch).where(*mine).values(lease_expires=now() + LEASE_SECONDS))
    return set((await session.scalars(select(Batch.id).where(*mine, Batch.status != "cancelling"))).all())


async def _cancel_those_of_dead_keys(session: AsyncSession, owner: str) -> None:
    dead = or_(ApiKey.revoked_at.is_not(None), ApiKey.expires_at <= now())
    query = select(Batch).join(ApiKey, ApiKey.id == Batch.principal["key"].as_string())
    query = query.where(Batch.owner == owner, Batch.status.in_(CANCELLABLE), dead)
    for row in await session.scalars(query):
        row.status, row.times = "cancelling", {**row.times, "cancelling_at": now()}
    await session.flush()


async def let_go(session: AsyncSession, owner: str, ids: Sequence[str]) -> None:
    """Make these due at once."""
    await session.execute(update(Batch).where(Batch.id.in_(ids), Batch.owner == owner).values(lease_expires=0))


async def move(session: AsyncSession, batch: Batch, before: str, after: str, **values: Any) -> bool:
    """Change a batch's status and note when; false if a client has cancelled it meanwhile.

    ``times`` in ``values`` are further moments by name. Raises LeaseLost.
    """
    times = {**batch.times, f"{after}_at": now(), **values.pop("times", {})}
    query = update(Batch).where(Batch.id == batch.id, Batch.owner == batch.owner, Batch.status == before)
    changed = await session.execute(query.values(status=after, times=times, **values))
    if not changed.rowcount:  # type: ignore[attr-defined]
        await _check_cancelled(session, batch)
        return False
    batch.status, batch.times = after, times
    return True


async def _check_cancelled(session: AsyncSession, batch: Batch) -> None:
    """Bring ``batch`` up to date if it is still the owner's and being cancelled. Raises LeaseLost."""
    query = select(Batch.times).where(Batch.id == batch.id, Batch.owner == batch.owner, Batch.status == "cancelling")
    times = await session.scalar(query)
    if times is None:
        raise _lost(batch)
    batch.status, batch.times = "cancelling", times


async def done(session: AsyncSession, batch_id: str) -> set[int]:
    """Numbers of the lines that are finished."""
    return set((await session.scalars(select(BatchResult.line).where(BatchResult.batch_id == batch_id))).all())


async def record(
    session: AsyncSession, batch: Batch, results: Sequence[BatchResult], tokens: Mapping[str, int]
) -> None:
    """Keep finished lines and count them, in one transaction. Raises LeaseLost."""
    completed = sum(result.ok for result in results)
    sums: dict[str, Any] = {name: getattr(Batch, name) + number for name, number in tokens.items()}
    sums |= {"completed": Batch.completed + completed, "failed": Batch.failed + len(results) - completed}
    await _change(session, batch, sums)
    session.add_all(results)


async def results(session: AsyncSession, batch_id: str, after: int, limit: int) -> Sequence[BatchResult]:
    """Finished lines behind one, in the order of the input."""
    query = select(BatchResult).where(BatchResult.batch_id == batch_id, BatchResult.line > after)
    return (await session.scalars(query.order_by(BatchResult.line).limit(limit))).all()


async def finish(session: AsyncSession, batch: Batch, status: str, files: Sequence[File], **values: Any) -> None:
    """End a batch: its files, its last status, and nothing left of its lines. Raises LeaseLost."""
    values |= {"times": {**batch.times, f"{status}_at": now()}, "principal": None, "lease_expires": 0, "owner": None}
    await _change(session, batch, values | {"status": status})
    session.add_all(files)
    await session.execute(delete(BatchResult).where(BatchResult.batch_id == batch.id))


async def _change(session: AsyncSession, batch: Batch, values: Mapping[str, Any]) -> None:
    """Change an unfinished batch. Raises LeaseLost."""
    query = update(Batch).where(Batch.id == batch.id, Batch.owner == batch.owner, Batch.status.in_(UNFINISHED))
    if not (await session.execute(query.values(**values))).rowcount:  # type: ignore[attr-defined]
        raise _lost(batch)


def _lost(batch: Batch) -> LeaseLost:
    return LeaseLost(f"batch {batch.id} is no longer this process's to work on")
