"""Rows of stored responses. Sessions are bound to a tenant; within it a response is its maker's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Text, cast, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import BadRequest, NotFound, RateLimited
from appliance.storage import kept
from appliance.storage.ids import now
from appliance.storage.tables.responses import StoredResponse
from appliance.storage.tenancy import TenantSession, seen_by
from appliance.storage.turns import in_turns

MAX_CHAIN = 1000
MAX_CONTEXT = 16 * 2**20
"""Characters, as JSON, that one answer may go on from: all of them are in memory at once."""
MAX_UNFINISHED = 1000
"""Background responses of a tenant that may wait or run; each holds its whole request."""
LEASE_SECONDS = 30
MAX_ATTEMPTS = 3
UNFINISHED = ("queued", "in_progress")


async def get(
    session: AsyncSession, response_id: str, user: str | None, param: str = "response_id", *, lock: bool = False
) -> StoredResponse:
    """One response that this user may see; ``lock`` it to change it. Raises NotFound."""
    query = select(StoredResponse).where(StoredResponse.id == response_id, seen_by(user, StoredResponse.user))
    found = await session.scalar(query.with_for_update() if lock else query)
    if found is None:
        raise _unknown(response_id, param)
    return found


async def extent(session: AsyncSession, response_id: str, user: str | None) -> int:
    """Characters of all that whoever goes on from a response goes on from; none of it is read.

    Raises:
        NotFound: it is not there. BadRequest: it is not finished, or there is too much.
    """
    size = StoredResponse.context + func.length(cast(StoredResponse.body, Text))
    query = select(StoredResponse.status, size).where(
        StoredResponse.id == response_id, seen_by(user, StoredResponse.user)
    )
    found = (await session.execute(query)).one_or_none()
    if found is None:
        raise _unknown(response_id, "previous_response_id")
    status, size_found = found
    if status in UNFINISHED:
        raise _unfinished(response_id, status)
    if size_found > MAX_CONTEXT:
        raise _too_long()
    return int(size_found)


def _unknown(response_id: str, param: str) -> NotFound:
    return NotFound(f"no response has the id {response_id[:64]!r}; only stored ones can be fetched", param=param)


def _unfinished(response_id: str, status: str) -> BadRequest:
    return BadRequest(
        f"response {response_id} is still {status}; wait until it is completed", param="previous_response_id"
    )


def _too_long() -> BadRequest:
    return BadRequest(
        f"previous_response_id: what it continues holds more than {MAX_CONTEXT} characters; begin anew",
        param="previous_response_id",
    )


async def turns(session: AsyncSession, response_id: str, user: str | None) -> list[dict[str, Any]]:
    """All items up to and with a response, oldest first: the inputs and outputs of it and of those before it.

    Raises:
        NotFound: it is not there, or one before it is gone. BadRequest: it is not finished, or the chain is too long.
    """
    links: list[StoredResponse] = []
    left = MAX_CONTEXT
    next_id: str | None = response_id
    while next_id is not None:
        if len(links) == MAX_CHAIN:
            raise BadRequest(
                f"previous_response_id: more than {MAX_CHAIN} responses follow each other; begin anew",
                param="previous_response_id",
            )
        left -= await _size(session, next_id)
        if left < 0:
            raise _too_long()
        row = await get(session, next_id, user, "previous_response_id")
        if row.status in UNFINISHED:
            raise _unfinished(row.id, row.status)
        links.append(row)
        next_id = row.previous_id
    return [item for row in reversed(links) for item in (*row.input, *row.body["output"])]


async def _size(session: AsyncSession, response_id: str) -> int:
    """Characters of what a response brings to those that continue it; asked before any of it is read."""
    text = func.length(cast(StoredResponse.input, Text)) + func.length(cast(StoredResponse.body, Text))
    return await session.scalar(select(text).where(StoredResponse.id == response_id)) or 0


async def remove(session: AsyncSession, response_id: str, user: str | None) -> None:
    """Delete a response; those that continue it lose what it said. Raises NotFound."""
    await session.delete(await get(session, response_id, user, lock=True))


# -- in the background -----------------------------------------------------------------------------------


async def due(session: AsyncSession) -> bool:
    """Whether a claim would find something; a read, so that idling writes nothing."""
    query = in_turns(StoredResponse, UNFINISHED, MAX_UNFINISHED)
    return await session.scalar(query.with_only_columns(StoredResponse.id).limit(1)) is not None


async def claim(session: AsyncSession, limit: int) -> Sequence[StoredResponse]:
    """Take unfinished background responses that nobody works on; their lease starts now."""
    query = in_turns(StoredResponse, UNFINISHED, MAX_UNFINISHED).limit(limit)
    rows = (await session.scalars(query.with_for_update(skip_locked=True, of=StoredResponse))).all()
    for row in rows:
        row.lease_expires, row.attempts = now() + LEASE_SECONDS, row.attempts + 1
    return rows


async def enqueue(session: TenantSession, row: StoredResponse) -> None:
    """Keep one that is to be worked on. Raises RateLimited: the tenant has too many that are not finished."""
    session.add(row)
    await session.flush()
    await kept.take_turn(session, session.tenant)  # others that come at the same time are counted too, also elsewhere
    query = select(func.count()).select_from(StoredResponse).where(StoredResponse.status.in_(UNFINISHED))
    if (await session.scalar(query) or 0) > MAX_UNFINISHED:
        raise RateLimited(
            f"{MAX_UNFINISHED} background responses of your tenant are not finished; wait for some, or cancel them",
            retry_after=10,
        )


async def renew(session: AsyncSession, ids: Sequence[str]) -> set[str]:
    """Extend the leases of these; return those that are still wanted, that is neither cancelled nor deleted."""
    query = update(StoredResponse).where(StoredResponse.id.in_(ids), StoredResponse.status.in_(UNFINISHED))
    await session.execute(query.values(lease_expires=now() + LEASE_SECONDS))
    kept = select(StoredResponse.id).where(StoredResponse.id.in_(ids), StoredResponse.status.in_(UNFINISHED))
    return set((await session.scalars(kept)).all())


async def progress(session: AsyncSession, response_id: str, body: dict[str, Any]) -> None:
    """Say that work on it has begun, unless it was cancelled or deleted."""
    query = update(StoredResponse).where(StoredResponse.id == response_id, StoredResponse.status.in_(UNFINISHED))
    await session.execute(query.values(status=body["status"], body=body))


async def end(session: AsyncSession, response_id: str, body: dict[str, Any]) -> bool:
    """Keep the outcome of a background response, unless it was cancelled or deleted; true if it was kept."""
    query = update(StoredResponse).where(StoredResponse.id == response_id, StoredResponse.status.in_(UNFINISHED))
    values = {"status": body["status"], "body": body, "lease_expires": 0, "request": None, "principal": None}
    return bool((await session.execute(query.values(**values))).rowcount)  # type: ignore[attr-defined]


async def let_go(session: AsyncSession, ids: Sequence[str]) -> None:
    """Let go of running ones, to be begun again at once by whoever comes."""
    query = update(StoredResponse).where(StoredResponse.id.in_(ids), StoredResponse.status.in_(UNFINISHED))
    await session.execute(query.values(lease_expires=0, attempts=StoredResponse.attempts - 1))


async def prune(session: AsyncSession, before_us: int) -> None:
    """Delete finished responses made before a time, in microseconds since 1970."""
    query = delete(StoredResponse).where(StoredResponse.created_us < before_us)
    await session.execute(query.where(StoredResponse.status.not_in(UNFINISHED)))
