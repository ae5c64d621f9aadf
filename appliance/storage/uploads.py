"""Rows of uploads that come in parts."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import BadRequest, Conflict, NotFound
from appliance.storage.ids import now, now_us
from appliance.storage.tables.uploads import PendingUpload, UploadPart
from appliance.storage.tenancy import TenantSession, seen_by

LIFETIME = 3600
"""Seconds that an upload may take."""
MAX_PARTS = 10_000
_GRACE = 3600
"""Seconds after which the parts of an expired upload go: one that is being put together has so long."""
_TOLD = 86_400
"""Seconds for which an upload still says what became of it."""


async def get(session: TenantSession, upload_id: str, user: str | None, *, lock: bool = False) -> PendingUpload:
    """One upload of this user's. Raises NotFound."""
    query = select(PendingUpload).where(PendingUpload.id == upload_id)
    query = query.where(seen_by(user, PendingUpload.user))
    found = await session.scalar(query.with_for_update() if lock else query)
    if found is None:
        raise NotFound(f"no upload has the id {upload_id[:64]!r}; POST /v1/uploads begins one", param="upload_id")
    return found


def check_pending(upload: PendingUpload) -> None:
    """Raises Conflict for an upload that is over."""
    status = status_of(upload)
    if status != "pending":
        raise Conflict(f"upload {upload.id} is {status}; begin another with POST /v1/uploads")


def status_of(upload: PendingUpload) -> str:
    """``pending``, ``completed``, ``cancelled`` or ``expired``."""
    return "expired" if upload.status == "pending" and upload.expires_at <= now() else upload.status


async def add_part(session: TenantSession, upload_id: str, user: str | None, part_id: str, size: int) -> UploadPart:
    """Record a part whose bytes are on the disk.

    Raises:
        NotFound, Conflict: the upload is gone or over. BadRequest: there are too many parts, or too large ones.
    """
    upload = await get(session, upload_id, user, lock=True)
    check_pending(upload)
    query = select(func.count(), func.coalesce(func.sum(UploadPart.bytes), 0)).where(UploadPart.upload_id == upload_id)
    parts, before = (await session.execute(query)).one()
    if parts >= MAX_PARTS:
        raise BadRequest(f"the upload has {MAX_PARTS} parts already; send larger ones", param="data")
    if before + size > 2 * upload.bytes:  # so that every part may be sent again
        raise BadRequest(
            f"the parts hold more than twice the {upload.bytes} bytes announced; begin another upload", param="data"
        )
    row = UploadPart(id=part_id, upload_id=upload_id, bytes=size, created_us=now_us())
    session.add(row)
    return row


async def parts(session: TenantSession, upload_id: str, ids: Sequence[str]) -> list[UploadPart]:
    """These parts, in this order. Raises NotFound."""
    found = {row.id: row for row in await session.scalars(select(UploadPart).where(UploadPart.upload_id == upload_id))}
    for part_id in ids:
        if part_id not in found:
            raise NotFound(f"the upload has no part with the id {part_id[:64]!r}", param="part_ids")
    return [found[part_id] for part_id in ids]


async def end(session: TenantSession, upload: PendingUpload, status: str, file_id: str | None = None) -> Sequence[str]:
    """End an upload; the ids of its parts, whose bytes may go now."""
    upload.status, upload.file_id = status, file_id
    ids = (await session.scalars(select(UploadPart.id).where(UploadPart.upload_id == upload.id))).all()
    await session.execute(delete(UploadPart).where(UploadPart.upload_id == upload.id))
    return ids


async def sweep(session: AsyncSession) -> Sequence[str]:
    """Forget uploads of all tenants that are long over; the ids of parts whose bytes may go now."""
    old = select(PendingUpload.id).where(PendingUpload.status == "pending", PendingUpload.expires_at < now() - _GRACE)
    ids = (await session.scalars(select(UploadPart.id).where(UploadPart.upload_id.in_(old)))).all()
    await session.execute(delete(UploadPart).where(UploadPart.upload_id.in_(old)))
    await session.execute(delete(PendingUpload).where(PendingUpload.expires_at < now() - _TOLD))
    return ids
