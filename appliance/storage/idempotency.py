"""Rows of answers that are kept for ``Idempotency-Key``, and who works on those that are still to come.

They are in no quota, since they go by themselves: after a day, or when newer ones of their caller need the room.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, delete, func, or_, select, true, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import Conflict
from appliance.storage.ids import new_id, now
from appliance.storage.tables.idempotency import KeptAnswer
from appliance.storage.tenancy import TenantSession

KEPT_SECONDS = 86_400
LEASE_SECONDS = 30
_DIGEST = 32
"""Characters of the id for the caller, and as many for the key: 128 bits each."""


class Room(NamedTuple):
    """How much is kept: so many of the newest answers, as far as their bodies have together no more bytes."""

    answers: int
    bytes: int


CALLER = Room(1_000, 64 * 2**20)
"""Of each caller, and somewhat more: looked at when some of the answers are kept."""
TENANT = Room(100_000, 2**30)
"""Of all callers of a tenant; looked at by ``prune``."""
LOOK_EVERY = 16
"""One in so many answers has its caller's others looked at, which is to read all of them."""
LARGE_BYTES = 2**20
"""An answer of more has it always."""


def row_id(tenant: str, caller: str, key: str) -> str:
    """Under what the answer is kept: the key itself is not. It begins with what is the same for all of a caller's."""
    return _digest(tenant, caller) + _digest(key)


def _digest(*parts: str) -> str:
    """Of parts with their lengths, so that other parts never come to the same bytes."""
    framed = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(framed.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


async def claim(session: TenantSession, kept_id: str) -> KeptAnswer:
    """The finished answer, or one of which ``body`` is ``None`` and which is now the caller's to find.

    Raises:
        Conflict: somebody else is at work on it.
    """
    row = await session.scalar(select(KeptAnswer).where(KeptAnswer.id == kept_id).with_for_update())
    if row is not None and row.created_at <= now() - KEPT_SECONDS:
        await session.delete(row)
        await session.flush()
        row = None
    if row is None:
        row = KeptAnswer(id=kept_id, headers={}, owner="", lease_expires=0, created_at=now())
        session.add(row)
    if row.body is None:
        if row.lease_expires > now():
            raise _in_use()
        row.owner, row.lease_expires = new_id("claim_"), now() + LEASE_SECONDS
    try:
        await session.flush()
    except IntegrityError:  # two at once, where a transaction locks rows and not the table
        raise _in_use() from None
    return row


def _in_use() -> Conflict:
    return Conflict(
        "a request with this Idempotency-Key is being worked on; ask again when it is done",
        code="idempotency_key_in_use",
        retry_after=1,
    )


async def renew(session: TenantSession, row: KeptAnswer) -> None:
    """Say that the work goes on."""
    await session.execute(_own(row).values(lease_expires=now() + LEASE_SECONDS))


async def keep(session: TenantSession, row: KeptAnswer, fingerprint: str, headers: dict[str, Any], body: bytes) -> None:
    """Keep the answer, and now and then forget the caller's oldest where they are too many."""
    await session.execute(_own(row).values(fingerprint=fingerprint, headers=headers, body=body))
    if _is_time_to_look(body):
        caller = row.id[:_DIGEST]
        mine = KeptAnswer.id.between(caller, caller + "g")  # the ids are hexadecimal
        oldest = KeptAnswer.id.in_(_beyond(CALLER, mine))
        await session.execute(delete(KeptAnswer).where(oldest, KeptAnswer.id != row.id))


def _is_time_to_look(body: bytes) -> bool:
    """By chance and not by the id: callers choose their keys, and could choose such that are never looked at."""
    return len(body) > LARGE_BYTES or not secrets.randbelow(LOOK_EVERY)


def _beyond(room: Room, which: ColumnElement[bool]) -> Select[tuple[str]]:
    """The ids of those finished answers among some for which their tenant has no room, newest first."""
    newest: Any = {"partition_by": KeptAnswer.tenant, "order_by": (KeptAnswer.created_at.desc(), KeptAnswer.id)}
    ranked = (
        select(
            KeptAnswer.id,
            func.row_number().over(**newest).label("place"),
            func.sum(func.length(KeptAnswer.body)).over(**newest).label("total"),
        )
        .where(which, KeptAnswer.body.is_not(None))
        .subquery()
    )
    return select(ranked.c.id).where(or_(ranked.c.place > room.answers, ranked.c.total > room.bytes))


async def let_go(session: TenantSession, row: KeptAnswer) -> None:
    """Forget the key: nothing came of the request."""
    await session.execute(
        delete(KeptAnswer).where(KeptAnswer.id == row.id, KeptAnswer.owner == row.owner, KeptAnswer.body.is_(None))
    )


def _own(row: KeptAnswer) -> Any:
    return update(KeptAnswer).where(KeptAnswer.id == row.id, KeptAnswer.owner == row.owner)


async def prune(session: AsyncSession) -> None:
    """Delete those of all tenants that are too old, and those for which their tenant has no room."""
    unfinished = KeptAnswer.body.is_(None) & (KeptAnswer.lease_expires < now() - LEASE_SECONDS)
    await session.execute(delete(KeptAnswer).where(or_(KeptAnswer.created_at <= now() - KEPT_SECONDS, unfinished)))
    await session.execute(delete(KeptAnswer).where(KeptAnswer.id.in_(_beyond(TENANT, true()))))
