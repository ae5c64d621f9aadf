"""Rows of the events of background responses, so that their streams can be gone on with wherever they broke off."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import ApplianceError
from appliance.storage.responses import UNFINISHED
from appliance.storage.tables.responses import ResponseEvents, StoredResponse
from appliance.storage.tenancy import TenantSession

END = b"\n\n"
"""Of a server-sent event; the JSON inside holds no such lines."""
_ROWS = 64
"""How many rows are read at once."""


class NotWanted(ApplianceError):
    """The response was cancelled, deleted or taken over meanwhile: nothing more of it is kept."""


async def check_wanted(session: TenantSession, response_id: str, attempt: int) -> None:
    """Hold a response until the transaction ends, if ``attempt`` still is the one that works on it. Raises NotWanted.

    Only so is it certain that no event follows a stream's end, and that two holders number nothing twice.
    """
    query = select(StoredResponse.id).where(StoredResponse.id == response_id, StoredResponse.attempts == attempt)
    if await session.scalar(query.where(StoredResponse.status.in_(UNFINISHED)).with_for_update()) is None:
        raise NotWanted(f"response {response_id} was cancelled, deleted or taken over")


def add(session: TenantSession, response_id: str, first: int, events: Sequence[bytes]) -> None:
    """Keep events as they go over the wire; ``first`` is the sequence number of the first."""
    session.add(
        ResponseEvents(
            response_id=response_id,
            first=first,
            last=first + len(events) - 1,
            events=zlib.compress(b"".join(events), level=1),
        )
    )


async def last(session: AsyncSession, response_id: str) -> int | None:
    """The highest sequence number so far; ``None``: no events of it are kept."""
    return await session.scalar(select(func.max(ResponseEvents.last)).where(ResponseEvents.response_id == response_id))


async def after(session: TenantSession, response_id: str, seen: int) -> list[bytes]:
    """The next events behind a sequence number, in order; not all of them, if there are many."""
    query = select(ResponseEvents).where(ResponseEvents.response_id == response_id, ResponseEvents.last > seen)
    rows = (await session.scalars(query.order_by(ResponseEvents.first).limit(_ROWS))).all()
    found: list[bytes] = []
    for row in rows:
        events = zlib.decompress(row.events).split(END)[:-1]
        found += [event + END for event in events[max(0, seen + 1 - row.first) :]]
    return found


async def is_over(session: TenantSession, response_id: str) -> bool:
    """Whether no more events will come: it has ended, was cancelled, or is gone."""
    status = await session.scalar(select(StoredResponse.status).where(StoredResponse.id == response_id))
    return status not in UNFINISHED
