"""Rows of answers that are kept for ``Idempotency-Key``, and who works on those that are still to come."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import Conflict
from appliance.storage.ids import new_id, now
from appliance.storage.tables.idempotency import KeptAnswer
from appliance.storage.tenancy import TenantSession

KEPT_SECONDS = 86_400
LEASE_SECONDS = 30


def row_id(tenant: str, caller: str, key: str) -> str:
    """Under what the answer is kept: the key itself is not."""
    return hashlib.sha256("\0".join((tenant, caller, key)).encode("utf-8", "surrogatepass")).hexdigest()


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
    """Keep the answer."""
    await session.execute(_own(row).values(fingerprint=fingerprint, headers=headers, body=body))


async def let_go(session: TenantSession, row: KeptAnswer) -> None:
    """Forget the key: nothing came of the request."""
    await session.execute(
        delete(KeptAnswer).where(KeptAnswer.id == row.id, KeptAnswer.owner == row.owner, KeptAnswer.body.is_(None))
    )


def _own(row: KeptAnswer) -> Any:
    return update(KeptAnswer).where(KeptAnswer.id == row.id, KeptAnswer.owner == row.owner)


async def prune(session: AsyncSession) -> None:
    """Delete those of all tenants that are too old."""
    unfinished = KeptAnswer.body.is_(None) & (KeptAnswer.lease_expires < now() - LEASE_SECONDS)
    await session.execute(delete(KeptAnswer).where(or_(KeptAnswer.created_at <= now() - KEPT_SECONDS, unfinished)))
